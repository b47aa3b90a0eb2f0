/* od-main: tokenises, runs dense layers and routers, schedules workers, samples. This file connects the parts: command
 * line, prompts in, text or JSON out. */
#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/strbuf.h"
#include "common/base/version.h"
#include "main-node/engine/sampling_config.h"
#include "main-node/node/engine_args.h"
#include "main-node/node/main_node.h"
#include "main-node/keygen_command.h"
#include "main-node/pair_command.h"
#include "main-node/prompt_file.h"
#include "main-node/schema_file.h"
#include "main-node/serve_command.h"
#include "main-node/template_command.h"
#include "main-node/token_json.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_PROMPT_BYTES (64u << 20)
#define EXIT_BY_SIGNAL 128 /* plus its number, as shells have it */
#define UNSET_REAL (-1.0)
#define UNSET_UINT UINT64_MAX

struct main_options {
	struct odm_engine_args engine;
	const char *prompt, *prompts, *repetition;
	uint64_t max_tokens, min_tokens, top_k, repetition_window, dry_allowed_length, dry_penalty_last_n, seed;
	double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
	struct od_sampler_opts more; /* samplers that generation_config.json does not name */
	const char *json_schema; /* path; NULL: none */
	struct od_arg_list stop, stop_tokens, breakers;
	bool ignore_eos, json, quiet, verbose, help, version;
};

struct app {
	struct main_options opt;
	struct odm_main_node *node;
	struct odm_engine *engine; /* the node's */
	struct odm_prompt_defaults all; /* the command line's part in every prompt */
	int32_t *breakers; /* all's */
	int32_t stop_token[OD_ARG_LIST_MAX];
	struct odm_schema schema;
	struct odm_prompts prompts;
	bool any_failed, output_failed;
};

/* od-main NAME ... */
static const struct main_command {
	const char *name;
	int (*run)(int argc, char **argv); /* argv[0]: the name; returns the exit status */
	const char *what;
} commands[] = {
	{ "keygen", odm_keygen_command, "make this node's pair of keys" },
	{ "pair", odm_pair_command, "let other machines join by six words, and write hosts.txt" },
	{ "serve", odm_serve_command, "serve the model over HTTP" },
	{ "template", odm_template_command, "print what a chat template makes of messages, or what an answer means" },
};

static atomic_bool interrupted;
static volatile sig_atomic_t which_signal;
static volatile sig_atomic_t engine_open; /* before, nothing needs an orderly end: children die with us */
static int interrupted_fd; /* readable once it is interrupted */

static void on_signal(int number)
{
	const int saved = errno;

	which_signal = number;
	if (!engine_open || atomic_exchange(&interrupted, true)) /* or asked twice */
		_exit(EXIT_BY_SIGNAL + number);
	eventfd_write(interrupted_fd, 1);
	errno = saved;
}

static int catch_signals(struct od_err *err)
{
	const struct sigaction act = { .sa_handler = on_signal };

	interrupted_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (interrupted_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create an eventfd");
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	return OD_OK;
}

static void default_options(struct main_options *o)
{
	*o = (struct main_options){
		.max_tokens = 256,
		.top_k = UNSET_UINT,
		.repetition_window = UNSET_UINT,
		.temperature = UNSET_REAL,
		.top_p = UNSET_REAL,
		.min_p = UNSET_REAL,
		.repetition_penalty = UNSET_REAL,
	};
	od_sampler_defaults(&o->more);
	o->dry_allowed_length = o->more.dry.allowed_length;
	o->dry_penalty_last_n = o->more.dry.window;
	odm_engine_args_defaults(&o->engine);
	o->engine.opts.engine.cancel = &interrupted;
}

static int parse_options(struct main_options *o, int argc, char **argv, struct od_err *err)
{
	struct od_sampler_opts *more = &o->more;
	const struct od_arg own[] = {
		/* No title: these end the engine's group "Cluster". */
		{ "serve-store", OD_ARG_STRING, &o->engine.opts.serve_store, "ADDR",
		  "let workers pull the pack from here: host[:port] (default port: 5702)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Generate" },
		{ "prompt", OD_ARG_STRING, &o->prompt, "TEXT",
		  "the prompt; -: all of stdin (default: each line of stdin is a prompt)", 0, 0, NULL },
		{ "prompts", OD_ARG_STRING, &o->prompts, "FILE",
		  "prompts, a JSON object a line: \"prompt\"; optional max_tokens, temperature, top_k and so on (README); -: stdin",
		  0, 0, NULL },
		{ "parallel", OD_ARG_UINT, &o->engine.opts.engine.parallel, "N",
		  "with --prompts: write N texts at once (default: 1)", 1, ODM_MAX_PARALLEL, NULL },
		{ "state-memory", OD_ARG_SIZE, &o->engine.opts.engine.state_bytes, "SIZE",
		  "KV cache of all texts (default: N contexts, at most what is free)", 0, 0, NULL },
		{ "max-tokens", OD_ARG_UINT, &o->max_tokens, "N",
		  "stop after N tokens; 0: at the end of the context (default: 256)", 0, 1e9, NULL },
		{ "min-tokens", OD_ARG_UINT, &o->min_tokens, "N", "do not end before N tokens (default: 0)", 0, 1e9,
		  NULL },
		{ "stop-token", OD_ARG_LIST, &o->stop_tokens, "ID", "end with this token; repeatable", 0, 0, NULL },
		{ "ignore-eos", OD_ARG_FLAG, &o->ignore_eos, NULL, "go on after the end-of-text token", 0, 0, NULL },
		{ "json-schema", OD_ARG_STRING, &o->json_schema, "FILE", "write JSON that this JSON schema allows", 0,
		  0, NULL },
		{ "stop", OD_ARG_LIST, &o->stop, "TEXT", "end before this text; repeatable", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Sampling (default: the model's generation_config.json, else greedy)" },
		{ "temperature", OD_ARG_REAL, &o->temperature, "T", "0: greedy", 0, 1000, NULL },
		{ "top-k", OD_ARG_UINT, &o->top_k, "K", "only the K best tokens; 0: all", 0, 4294967295.0, NULL },
		{ "top-p", OD_ARG_REAL, &o->top_p, "P", "only the best tokens that make up probability P; 1: all", 0, 1,
		  NULL },
		{ "min-p", OD_ARG_REAL, &o->min_p, "P", "only tokens at least P times as probable as the best; 0: all",
		  0, 1, NULL },
		{ "repetition-penalty", OD_ARG_STRING, &o->repetition, "R[,N]",
		  "above 1: tokens among the last N are less likely (N 0: among all)", 0, 0, NULL },
		{ "frequency-penalty", OD_ARG_REAL, &o->frequency_penalty, "P",
		  "above 0: a token is less likely the more often it was generated (default: 0)", -OD_MAX_PENALTY,
		  OD_MAX_PENALTY, NULL },
		{ "presence-penalty", OD_ARG_REAL, &o->presence_penalty, "P",
		  "above 0: generated tokens are less likely (default: 0)", -OD_MAX_PENALTY, OD_MAX_PENALTY, NULL },
		{ "typical-p", OD_ARG_REAL, &more->typical_p, "P",
		  "only tokens of a typical surprise that make up probability P (default: 1, all)", 0, 1, NULL },
		{ "top-n-sigma", OD_ARG_REAL, &more->top_n_sigma, "N",
		  "only logits up to N standard deviations below the best (default: 0, all)", 0, OD_MAX_SIGMA, NULL },
		{ "xtc-probability", OD_ARG_REAL, &more->xtc_probability, "P",
		  "with this probability leave out all likely tokens but the last (default: 0)", 0, 1, NULL },
		{ "xtc-threshold", OD_ARG_REAL, &more->xtc_threshold, "P",
		  "tokens of at least this probability are likely (default: 0.1; above 0.5: none)", 0, 1, NULL },
		{ "dynatemp-range", OD_ARG_REAL, &more->dynatemp_range, "T",
		  "by entropy, lower or raise the temperature by up to T (default: 0)", 0, OD_MAX_DYNATEMP_RANGE,
		  NULL },
		{ "dynatemp-exponent", OD_ARG_REAL, &more->dynatemp_exponent, "X",
		  "the part of the range is the entropy to the power X (default: 1)", 0, OD_MAX_DYNATEMP_EXPONENT,
		  NULL },
		{ "dry-multiplier", OD_ARG_REAL, &more->dry.multiplier, "M",
		  "above 0: tokens that prolong a repetition are less likely (default: 0)", 0, OD_MAX_DRY_MULTIPLIER,
		  NULL },
		{ "dry-base", OD_ARG_REAL, &more->dry.base, "B",
		  "the penalty grows by this factor with each token (default: 1.75)", 1, OD_MAX_DRY_BASE, NULL },
		{ "dry-allowed-length", OD_ARG_UINT, &o->dry_allowed_length, "N",
		  "a repetition of less than N tokens has no penalty (default: 2)", 0, OD_MAX_DRY_WINDOW, NULL },
		{ "dry-penalty-last-n", OD_ARG_UINT, &o->dry_penalty_last_n, "N",
		  "look for repetitions in the last N tokens (default: 64)", 0, OD_MAX_DRY_WINDOW, NULL },
		{ "dry-sequence-breaker", OD_ARG_LIST, &o->breakers, "TEXT",
		  "no repetition reaches past this text; repeatable (default: line break, : \" *)", 0, 0, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "the same seed gives the same text (default: 0)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Output" },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "one JSON object per prompt: ids, text and all figures", 0, 0,
		  NULL },
		{ "quiet", OD_ARG_FLAG, &o->quiet, NULL, "print neither figures nor progress", 0, 0, NULL },
		{ "verbose", OD_ARG_FLAG, &o->verbose, NULL, "print all figures after a text, not just one line", 0, 0,
		  NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
		{ "version", OD_ARG_FLAG, &o->version, NULL, "print the version", 0, 0, NULL },
	};

	return odm_engine_args_parse(
		&o->engine, NULL, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-main [--pack MODEL] [--workers hosts.txt | --local N | --resident] [--prompt TEXT]\n"
		"       od-main COMMAND [OPTION]...   (od-main COMMAND --help)\n"
		"Runs a mixture-of-experts model on a cluster or on this machine and prints the generated text.\n",
		err);
}

/* "1.1" or "1.1,64". */
static int parse_repetition(struct main_options *o, struct od_err *err)
{
	const char *comma = strchr(o->repetition, ',');
	size_t len = comma != NULL ? (size_t)(comma - o->repetition) : strlen(o->repetition);
	char penalty[32];
	int rc;

	snprintf(penalty, sizeof(penalty), "%.*s", (int)len, o->repetition);
	rc = od_parse_real(len < sizeof(penalty) ? penalty : o->repetition, 0.01, 100, &o->repetition_penalty, err);
	if (rc == OD_OK && comma != NULL)
		rc = od_parse_u64(comma + 1, 0, UINT32_MAX, &o->repetition_window, err);
	return rc == OD_OK ? rc : od_fail_within(err, "--repetition-penalty");
}

static int check_options(struct main_options *o, struct od_err *err)
{
	int rc = o->repetition == NULL ? OD_OK : parse_repetition(o, err);

	if (rc != OD_OK)
		return rc;
	if (o->prompts != NULL && o->prompt != NULL)
		return od_fail(err, OD_ERR_ARG, "--prompt and --prompts exclude each other");
	if (o->prompts == NULL && o->engine.opts.engine.parallel > 1)
		return od_fail(err, OD_ERR_ARG, "--parallel needs --prompts; other prompts run one after the other");
	if (o->quiet && o->verbose)
		return od_fail(err, OD_ERR_ARG, "--quiet and --verbose exclude each other");
	o->engine.opts.engine.quiet = o->quiet || o->json;
	return odm_engine_args_finish(&o->engine, err);
}

/* Options of the command line override the model's generation_config.json. */
static int choose_sampling(struct app *a, struct od_err *err)
{
	const struct main_options *o = &a->opt;
	struct od_sampler_opts *s = &a->all.sampling;
	int rc = odm_sampling_defaults(s, odm_engine_pack(a->engine), err);

	if (rc != OD_OK)
		return rc;
	if (o->temperature >= 0)
		s->temperature = o->temperature;
	if (o->top_k != UNSET_UINT)
		s->top_k = (uint32_t)o->top_k;
	if (o->top_p >= 0)
		s->top_p = o->top_p;
	if (o->min_p >= 0)
		s->min_p = o->min_p;
	if (o->repetition_penalty >= 0)
		s->repetition_penalty = o->repetition_penalty;
	if (o->repetition_window != UNSET_UINT)
		s->repetition_window = (uint32_t)o->repetition_window;
	s->frequency_penalty = o->frequency_penalty;
	s->presence_penalty = o->presence_penalty;
	s->typical_p = o->more.typical_p;
	s->top_n_sigma = o->more.top_n_sigma;
	s->xtc_probability = o->more.xtc_probability;
	s->xtc_threshold = o->more.xtc_threshold;
	s->dynatemp_range = o->more.dynatemp_range;
	s->dynatemp_exponent = o->more.dynatemp_exponent;
	s->dry = o->more.dry;
	s->dry.allowed_length = (uint32_t)o->dry_allowed_length;
	s->dry.window = (uint32_t)o->dry_penalty_last_n;
	s->seed = o->seed;
	return od_sampler_check(s, err);
}

static int choose_all(struct app *a, struct od_err *err)
{
	const struct main_options *o = &a->opt;
	struct odm_prompt_defaults *q = &a->all;
	int rc = choose_sampling(a, err);

	q->max_tokens = o->max_tokens;
	q->min_tokens = o->min_tokens;
	q->stop = o->stop.value;
	q->n_stop = o->stop.n;
	q->stop_token = a->stop_token;
	q->n_stop_tokens = o->stop_tokens.n;
	q->breaker = o->breakers.n > 0 ? o->breakers.value : odm_usual_breakers;
	q->n_breaker = o->breakers.n > 0 ? o->breakers.n : ODM_N_USUAL_BREAKERS;
	for (size_t i = 0; rc == OD_OK && i < o->stop_tokens.n; i++) {
		uint64_t id;

		rc = od_parse_u64(o->stop_tokens.value[i], 0, INT32_MAX, &id, err);
		if (rc != OD_OK)
			return od_fail_within(err, "--stop-token");
		a->stop_token[i] = (int32_t)id;
	}
	if (rc == OD_OK)
		rc = odm_sampling_dry(&q->sampling.dry, odm_engine_tokenizer(a->engine),
				      od_pack_config(odm_engine_pack(a->engine))->vocab, odm_engine_ctx(a->engine),
				      q->breaker, q->n_breaker, &a->breakers, err);
	return rc;
}

static bool show_text(void *arg, const char *piece, size_t len)
{
	struct app *a = arg;

	a->output_failed = a->output_failed || fwrite(piece, 1, len, stdout) != len || fflush(stdout) != 0;
	return !a->output_failed;
}

static json_t *ids_json(const int32_t *ids, size_t n)
{
	json_t *a = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer(ids[i]));
	return a;
}

/* line: in the prompt file; 0: no file. logprobs: borrowed; NULL: none. */
static void print_json(struct app *a, size_t line, const char *prompt, size_t prompt_len, const int32_t *ids,
		       size_t n_ids, const struct odm_result *r, json_t *logprobs, const struct od_err *why)
{
	char routing[OD_ROUTING_CHARS];
	json_t *o = json_object();

	if (line > 0)
		json_object_set_new(o, "index", json_integer((json_int_t)line));
	if (json_object_set_new(o, "prompt", json_stringn(prompt, prompt_len)) != 0)
		json_object_set_new(o, "prompt", json_null()); /* not UTF-8 */
	json_object_set_new(o, "prompt_ids", ids_json(ids, n_ids));
	if (r != NULL) {
		json_object_set_new(o, "token_ids", ids_json(r->tokens, r->n_tokens));
		json_object_set_new(o, "text", r->text != NULL ? json_stringn(r->text, r->text_len) : json_null());
		json_object_set_new(o, "finish", json_string(odm_finish_name(r->finish)));
		json_object_set_new(o, "profile", json_string(od_profile_names[a->opt.engine.profile]));
		json_object_set_new(
			o, "routing",
			json_string(od_config_routing(od_pack_config(odm_engine_pack(a->engine)), routing)));
		odm_figures_json(&r->figures, o);
	}
	if (logprobs != NULL)
		json_object_set(o, "logprobs", logprobs);
	if (why != NULL && json_object_set_new(o, "error", json_string(why->msg)) != 0)
		json_object_set_new(o, "error", json_string(od_status_text(why->code))); /* names in it are not UTF-8 */
	a->output_failed = a->output_failed || json_dumpf(o, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
			   fflush(stdout) != 0;
	json_decref(o);
}

static int generate(struct app *a, const char *text, size_t len, const int32_t *ids, size_t n_ids, struct od_err *err)
{
	const struct main_options *o = &a->opt;
	struct odm_request req = {
		.prompt = ids,
		.n_prompt = n_ids,
		.max_tokens = a->all.max_tokens,
		.min_tokens = a->all.min_tokens,
		.ignore_eos = o->ignore_eos,
		.sampling = a->all.sampling,
		.stop = a->all.stop,
		.n_stop = a->all.n_stop,
		.stop_token = a->all.stop_token,
		.n_stop_tokens = a->all.n_stop_tokens,
		.constraint = a->schema.constraint,
		.observer = { .arg = a, .text = o->json ? NULL : show_text },
	};
	struct odm_result r;
	int rc;

	rc = odm_generate(a->engine, &req, &r, err);
	if (o->json) {
		print_json(a, 0, text, len, ids, n_ids, &r, NULL, rc == OD_OK ? NULL : err);
	} else if (r.n_tokens > 0) {
		show_text(a, "\n", 1);
		if (o->verbose)
			odm_figures_print(&r.figures, stderr);
		else if (!o->quiet)
			odm_figures_line(&r.figures, stderr);
	}
	odm_result_fini(&r);
	return rc;
}

static int run_prompt(struct app *a, const char *text, size_t len, struct od_err *err)
{
	const struct od_tokenizer *t = odm_engine_tokenizer(a->engine);
	int32_t *ids;
	size_t n_ids;
	int rc;

	if (t == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s has no tokenizer, so it cannot read prompts",
			       od_pack_dir(odm_engine_pack(a->engine)));
	rc = od_tokenizer_encode(t, text, len, OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL, &ids, &n_ids, err);
	if (rc != OD_OK) {
		od_fail_within(err, "prompt");
		if (a->opt.json)
			print_json(a, 0, text, len, NULL, 0, NULL, NULL, err);
		return rc;
	}
	rc = generate(a, text, len, ids, n_ids, err);
	free(ids);
	return rc;
}

/* Bytes of standard input; *n is 0 at its end, and after a signal: a read() that only begins then would wait for input
 * that may never come, and so would one whose thread is not the one that took the signal. */
static int read_input(char *bytes, size_t size, size_t *n, struct od_err *err)
{
	struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = interrupted_fd, .events = POLLIN } };
	ssize_t got = -1;

	*n = 0;
	do {
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[1].revents != 0)
			return OD_OK;
		got = read(STDIN_FILENO, bytes, size);
	} while (got < 0 && (errno == EINTR || errno == EAGAIN));
	if (got < 0)
		return od_fail_errno(err, OD_ERR_IO, "reading standard input");
	*n = (size_t)got;
	return OD_OK;
}

/* Bytes of standard input that were read beyond the line before. */
struct line_input {
	char bytes[4096];
	size_t at, n;
};

/* Reads a line, without its newline; line->text is NULL at the end of the input, or after a signal. */
static int read_line(struct line_input *in, struct od_strbuf *line, struct od_err *err)
{
	const char *end = NULL;

	od_strbuf_fini(line);
	while (end == NULL) {
		const char *begin;
		size_t n;

		if (in->at == in->n) {
			int rc = read_input(in->bytes, sizeof(in->bytes), &in->n, err);

			in->at = 0;
			if (rc != OD_OK)
				return rc;
			if (in->n == 0 && atomic_load(&interrupted))
				od_strbuf_fini(line);
			if (in->n == 0)
				break;
		}
		begin = in->bytes + in->at;
		end = memchr(begin, '\n', in->n - in->at);
		n = end != NULL ? (size_t)(end - begin) : in->n - in->at;
		od_strbuf_append(line, begin, n);
		in->at += n + (end != NULL);
		if (line->len > MAX_PROMPT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "a line of standard input is longer than %u bytes",
				       MAX_PROMPT_BYTES);
	}
	if (line->len > 0 && line->text[line->len - 1] == '\r') /* a file from elsewhere */
		line->text[--line->len] = '\0';
	return line->failed ? od_fail(err, OD_ERR_NOMEM, "no memory for a line of standard input") : OD_OK;
}

/* One prompt a line. If a prompt fails, reports it and goes on with the next, unless the cluster is lost. */
static int run_lines(struct app *a, struct od_err *err)
{
	bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
	struct line_input in = { .at = 0 };
	struct od_strbuf line = { 0 };
	int rc = OD_OK;

	if (terminal && !a->opt.quiet)
		od_log(OD_LOG_INFO, "type a prompt, then Enter; Ctrl-D ends");
	while (rc == OD_OK && !a->output_failed && !atomic_load(&interrupted)) {
		if (terminal)
			fputs("> ", stderr);
		rc = read_line(&in, &line, err);
		if (rc != OD_OK || line.text == NULL)
			break;
		if (line.len == 0)
			continue;
		rc = run_prompt(a, line.text, line.len, err);
		if (rc == OD_OK || rc == OD_ERR_UNREACHABLE || rc == OD_ERR_CANCELLED)
			continue;
		od_log(OD_LOG_ERROR, "%s", err->msg);
		a->any_failed = true;
		rc = OD_OK;
	}
	if (terminal && rc == OD_OK)
		fputc('\n', stderr);
	od_strbuf_fini(&line);
	return rc;
}

/* Reads to the end of the input, because a pipe's size is unknown. */
static int read_all(struct od_strbuf *text, struct od_err *err)
{
	char piece[4096];
	size_t n;
	int rc;

	while ((rc = read_input(piece, sizeof(piece), &n, err)) == OD_OK && n > 0) {
		od_strbuf_append(text, piece, n);
		if (text->len > MAX_PROMPT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "standard input is longer than %u bytes", MAX_PROMPT_BYTES);
	}
	if (rc == OD_OK && atomic_load(&interrupted))
		rc = od_fail(err, OD_ERR_CANCELLED, "interrupted");
	if (rc != OD_OK)
		return rc;
	od_strbuf_append(text, "", 0); /* an empty prompt is a prompt */
	return text->failed ? od_fail(err, OD_ERR_NOMEM, "no memory for the prompt") : OD_OK;
}

/* ---- Prompts of a file, several at a time ---- */

/* A prompt's text: waiting to be submitted, in the engine, or done. */
struct main_text {
	struct odm_sequence *sequence;
	struct odm_result r;
	json_t *logprobs; /* the tokens'; NULL: not wanted */
	struct od_err err; /* why it failed */
	bool done;
};

static int submit(struct app *a, const struct odm_prompt *q, struct main_text *t)
{
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = q->max_tokens,
		.min_tokens = q->min_tokens,
		.ignore_eos = a->opt.ignore_eos,
		.sampling = q->sampling,
		.stop = q->stop,
		.n_stop = q->n_stop,
		.stop_token = q->stop_token,
		.n_stop_tokens = q->n_stop_tokens,
		.constraint = a->schema.constraint,
		.logprobs = q->logprobs,
		.prompt_logprobs = q->prompt_logprobs,
	};

	if (q->logprobs >= 0 && a->opt.json) {
		t->logprobs = json_array();
		req.observer = (struct odm_observer){ .arg = t->logprobs, .token = odm_token_json };
	}
	return odm_engine_submit(a->engine, &req, &t->sequence, &t->err);
}

/* Plain texts are shown in the order of the file, each under a heading; JSON objects as soon as they are done. */
static void show_done(struct app *a, const struct odm_prompt *q, struct main_text *t)
{
	if (t->err.code != OD_OK && !a->opt.json)
		od_log(OD_LOG_ERROR, "%s, line %zu: %s", a->prompts.path, q->line, t->err.msg);
	a->any_failed = a->any_failed || t->err.code != OD_OK;
	if (a->opt.json) {
		print_json(a, q->line, q->text, q->len, q->ids, q->n_ids, &t->r, t->logprobs,
			   t->err.code == OD_OK ? NULL : &t->err);
	} else {
		a->output_failed = a->output_failed || printf("==> line %zu <==\n", q->line) < 0;
		show_text(a, t->r.text != NULL ? t->r.text : "", t->r.text_len);
		show_text(a, "\n", 1);
		if (a->opt.verbose && t->r.n_tokens > 0)
			odm_figures_print(&t->r.figures, stderr);
	}
	odm_result_fini(&t->r);
	json_decref(t->logprobs);
	t->logprobs = NULL;
}

/* Prints the totals of all texts. */
static void show_sum(const struct app *a, const uint64_t *c, uint64_t ns)
{
	if (!a->opt.json && !a->opt.quiet)
		fprintf(stderr, "%zu texts   %llu prompt tokens, %llu generated in %.2f s: %.2f tok/s\n", a->prompts.n,
			(unsigned long long)c[OD_C_PROMPT_TOKENS], (unsigned long long)c[OD_C_TOKENS], od_seconds(ns),
			ns > 0 ? (double)c[OD_C_TOKENS] / od_seconds(ns) : 0.0);
}

/* Takes the texts that are done; *shown: the number shown in order so far. */
static void take_done(struct app *a, struct main_text *text, size_t n_submitted, size_t *shown, size_t *open,
		      uint64_t *sum, struct od_err *err)
{
	for (size_t i = 0; i < n_submitted; i++) {
		struct main_text *t = &text[i];

		if (t->sequence == NULL || !odm_sequence_done(t->sequence))
			continue;
		t->done = true;
		if (odm_sequence_take(t->sequence, &t->r, &t->err) == OD_ERR_UNREACHABLE)
			*err = t->err;
		t->sequence = NULL;
		--*open;
		od_counters_add(sum, t->r.figures.c);
		if (a->opt.json)
			show_done(a, &a->prompts.prompt[i], t);
	}
	for (; !a->opt.json && *shown < n_submitted && text[*shown].done; ++*shown)
		show_done(a, &a->prompts.prompt[*shown], &text[*shown]);
}

/* If the cluster is lost, the remaining texts fail with the same error. */
static int run_texts(struct app *a, struct main_text *text, struct od_err *err)
{
	const size_t n = a->prompts.n, most = 2 * (size_t)odm_engine_parallel(a->engine);
	const uint64_t begin = od_now_ns();
	uint64_t sum[OD_N_COUNTERS] = { 0 };
	size_t next = 0, shown = 0, open = 0;

	*err = (struct od_err){ 0 };
	while ((next < n || open > 0) && !a->output_failed) {
		for (; next < n && open < most && err->code == OD_OK; next++) {
			text[next].done = submit(a, &a->prompts.prompt[next], &text[next]) != OD_OK;
			open += !text[next].done;
			if (text[next].done && a->opt.json)
				show_done(a, &a->prompts.prompt[next], &text[next]);
		}
		for (; next < n && err->code != OD_OK; next++) {
			text[next] = (struct main_text){ .done = true, .err = *err };
			if (a->opt.json)
				show_done(a, &a->prompts.prompt[next], &text[next]);
		}
		odm_engine_work(a->engine);
		take_done(a, text, next, &shown, &open, sum, err);
	}
	show_sum(a, sum, od_now_ns() - begin);
	return err->code;
}

static int run_file(struct app *a, struct od_err *err)
{
	const struct odm_main_opts *o = &a->opt.engine.opts;
	const struct od_tokenizer *t = odm_engine_tokenizer(a->engine);
	struct main_text *text;
	int rc;

	if (t == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s has no tokenizer, so it cannot read prompts",
			       od_pack_dir(odm_engine_pack(a->engine)));
	rc = odm_prompts_encode(&a->prompts, t, od_pack_config(odm_engine_pack(a->engine))->vocab,
				odm_engine_ctx(a->engine), &a->all, err);
	if (rc != OD_OK)
		return rc;
	if (!o->engine.quiet && a->prompts.n > 1)
		od_log(OD_LOG_INFO, "%zu prompts, %u in parallel", a->prompts.n, odm_engine_parallel(a->engine));
	text = calloc(a->prompts.n, sizeof(*text));
	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu prompts", a->prompts.n);
	rc = run_texts(a, text, err);
	for (size_t i = 0; i < a->prompts.n; i++) {
		odm_result_fini(&text[i].r);
		json_decref(text[i].logprobs);
	}
	free(text);
	return rc;
}

static int run_prompts(struct app *a, struct od_err *err)
{
	const char *prompt = a->opt.prompt;
	struct od_strbuf text = { 0 };
	int rc;

	if (a->opt.prompts != NULL)
		return run_file(a, err);
	if (prompt == NULL)
		return run_lines(a, err);
	if (strcmp(prompt, "-") != 0)
		return run_prompt(a, prompt, strlen(prompt), err);
	rc = read_all(&text, err);
	if (rc == OD_OK)
		rc = run_prompt(a, text.text, text.len, err);
	od_strbuf_fini(&text);
	return rc;
}

static int run(struct app *a, struct od_err *err)
{
	char size[32];
	int rc = a->opt.prompts == NULL ? OD_OK : odm_prompts_read(&a->prompts, a->opt.prompts, err);

	if (rc == OD_OK && a->opt.json_schema != NULL)
		rc = odm_schema_read(&a->schema, a->opt.json_schema, err);
	if (rc == OD_OK)
		rc = odm_main_node_open(&a->node, &a->opt.engine.opts, err);
	if (rc != OD_OK) {
		odm_prompts_fini(&a->prompts);
		odm_schema_fini(&a->schema);
		return rc;
	}
	a->engine = odm_main_node_engine(a->node);
	engine_open = 1;
	if (!a->opt.engine.opts.engine.quiet)
		od_log(OD_LOG_INFO, "KV cache: at most %s, for texts of up to %u tokens",
		       od_format_bytes(odm_engine_state_bytes(a->engine), size, sizeof(size)),
		       odm_engine_ctx(a->engine));
	rc = choose_all(a, err);
	if (rc == OD_OK && a->schema.value != NULL)
		rc = odm_schema_open(&a->schema, odm_engine_tokenizer(a->engine),
				     od_pack_config(odm_engine_pack(a->engine))->vocab, err);
	if (rc == OD_OK)
		rc = run_prompts(a, err);
	a->output_failed = odm_main_node_close(a->node) != OD_OK || a->output_failed;
	odm_schema_fini(&a->schema);
	odm_prompts_fini(&a->prompts);
	free(a->breakers);
	return rc;
}

static const struct main_command *find_command(int argc, char **argv)
{
	if (argc > 1)
		for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
			if (strcmp(commands[i].name, argv[1]) == 0)
				return &commands[i];
		}
	return NULL;
}

static void list_commands(void)
{
	printf("\nCommands (od-main COMMAND --help explains each):\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		printf("  %-10s %s\n", commands[i].name, commands[i].what);
}

int main(int argc, char **argv)
{
	const struct main_command *command = find_command(argc, argv);
	struct app a = { 0 };
	struct od_err err = { 0 };
	int rc;

	od_log_init("od-main", OD_LOG_INFO);
	if (command == NULL && argc > 1 && argv[1][0] != '-') {
		if (strcmp(argv[1], "chat") == 0)
			od_log(OD_LOG_ERROR,
			       "\"od-main chat\" is the program od-chat now: run od-chat with the same options");
		else
			od_log(OD_LOG_ERROR,
			       "unknown command \"%s\"; expected serve, keygen, template, or options; see --help",
			       argv[1]);
		return 2;
	}
	od_hangup_hold();
	if (command != NULL) {
		od_hangup_begin(command->run == odm_serve_command);
		return command->run(argc - 1, argv + 1);
	}
	default_options(&a.opt);
	rc = parse_options(&a.opt, argc, argv, &err);
	if (rc == OD_OK && a.opt.help) {
		list_commands();
		return 0;
	}
	if (rc == OD_OK && a.opt.version) {
		printf("od-main %s\n", OD_VERSION);
		return 0;
	}
	if (rc == OD_OK)
		rc = check_options(&a.opt, &err);
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return 2;
	}
	od_descriptors_raise();
	signal(SIGPIPE, SIG_IGN);
	/* With --workers the cluster's loop thread listens. With --serve-store alone no thread does, but workers still
	 * pull. */
	od_hangup_begin(a.opt.engine.opts.cluster.hosts_path != NULL || a.opt.engine.opts.serve_store != NULL);
	rc = catch_signals(&err);
	if (rc == OD_OK)
		rc = run(&a, &err);
	if (atomic_load(&interrupted))
		return EXIT_BY_SIGNAL + which_signal;
	if (rc == OD_OK && a.output_failed)
		rc = od_fail(&err, OD_ERR_IO, "a part of the output could not be written");
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return 1;
	}
	return a.any_failed ? 1 : 0;
}
