/* od-main: tokenises, runs dense layers and routers, schedules workers, samples. This file is the wiring: command
 * line, prompts in, text or JSON out. */
#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/strbuf.h"
#include "common/base/version.h"
#include "main-node/engine/sampling_config.h"
#include "main-node/engine_args.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROMPT_BYTES (64u << 20)
#define EXIT_BY_SIGNAL 128 /* plus its number, as shells have it */
#define UNSET_REAL (-1.0)
#define UNSET_UINT UINT64_MAX

struct options {
	struct odm_engine_args engine;
	const char *prompt, *repetition;
	uint64_t max_tokens, top_k, repetition_window, seed;
	double temperature, top_p, min_p, repetition_penalty;
	struct od_arg_list stop;
	bool ignore_eos, json, quiet, help, version;
};

struct app {
	struct options opt;
	struct odm_engine *engine;
	struct od_sampler_opts sampling;
	bool any_failed, output_failed;
};

static atomic_bool interrupted;
static volatile sig_atomic_t which_signal;
static volatile sig_atomic_t engine_open; /* before, nothing needs an orderly end: children die with us */

static void on_signal(int number)
{
	which_signal = number;
	if (!engine_open || atomic_exchange(&interrupted, true)) /* or asked twice */
		_exit(EXIT_BY_SIGNAL + number);
}

static void default_options(struct options *o)
{
	*o = (struct options){
		.max_tokens = 256,
		.top_k = UNSET_UINT,
		.repetition_window = UNSET_UINT,
		.temperature = UNSET_REAL,
		.top_p = UNSET_REAL,
		.min_p = UNSET_REAL,
		.repetition_penalty = UNSET_REAL,
	};
	odm_engine_args_defaults(&o->engine);
	o->engine.opts.cancel = &interrupted;
}

static int parse_options(struct options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg own[] = {
		{ .kind = OD_ARG_TITLE, .help = "What to generate" },
		{ "prompt", OD_ARG_STRING, &o->prompt, "TEXT", "the prompt; -: all of standard input (default: each line of it is a prompt)", 0, 0, NULL },
		{ "max-tokens", OD_ARG_UINT, &o->max_tokens, "N", "stop after N tokens; 0: at the end of the context (default: 256)", 0, 1e9, NULL },
		{ "ignore-eos", OD_ARG_FLAG, &o->ignore_eos, NULL, "go on after the end-of-text token", 0, 0, NULL },
		{ "stop", OD_ARG_LIST, &o->stop, "TEXT", "end before this text; may be given several times", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Sampling (default: as the model's generation_config.json says, else greedy)" },
		{ "temperature", OD_ARG_REAL, &o->temperature, "T", "0: greedy", 0, 1000, NULL },
		{ "top-k", OD_ARG_UINT, &o->top_k, "K", "only the K best tokens; 0: all", 0, 4294967295.0, NULL },
		{ "top-p", OD_ARG_REAL, &o->top_p, "P", "only the best tokens that make up probability P; 1: all", 0, 1, NULL },
		{ "min-p", OD_ARG_REAL, &o->min_p, "P", "only tokens at least P times as probable as the best; 0: all", 0, 1, NULL },
		{ "repetition-penalty", OD_ARG_STRING, &o->repetition, "R[,N]", "above 1: tokens among the last N are less likely (N 0: among all)", 0, 0, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "the same seed gives the same text (default: 0)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Workers without a pack" },
		{ "serve-store", OD_ARG_STRING, &o->engine.opts.serve_store, "ADDR", "let workers pull the pack from host[:port] here (default port: 5702)", 0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &o->engine.opts.insecure, NULL, "allow --serve-store beyond loopback; traffic is not encrypted", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Output" },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "one JSON object per prompt with ids, text and all figures", 0, 0, NULL },
		{ "quiet", OD_ARG_FLAG, &o->quiet, NULL, "no figures, no progress", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "this text", 0, 0, NULL },
		{ "version", OD_ARG_FLAG, &o->version, NULL, "the version", 0, 0, NULL },
	};

	return odm_engine_args_parse(&o->engine, NULL, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
				     "Usage: od-main [--pack DIR] --workers hosts.txt | --local N | --resident [--prompt TEXT]\n"
				     "Runs a mixture-of-experts model on a cluster and prints the text it writes.\n", err);
}

/* "1.1" or "1.1,64". */
static int parse_repetition(struct options *o, struct od_err *err)
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

static int check_options(struct options *o, struct od_err *err)
{
	int rc = o->repetition == NULL ? OD_OK : parse_repetition(o, err);

	if (rc != OD_OK)
		return rc;
	if (o->engine.opts.insecure && o->engine.opts.serve_store == NULL)
		return od_fail(err, OD_ERR_ARG, "--insecure is about --serve-store; od-main listens on nothing else");
	o->engine.opts.quiet = o->quiet || o->json;
	return odm_engine_args_finish(&o->engine, err);
}

/* What the command line says goes over what the model's authors said. */
static int choose_sampling(struct app *a, struct od_err *err)
{
	const struct options *o = &a->opt;
	struct od_sampler_opts *s = &a->sampling;
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
	s->seed = o->seed;
	return od_sampler_check(s, err);
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

static void print_json(struct app *a, const char *prompt, size_t prompt_len, const int32_t *ids, size_t n_ids,
		       const struct odm_result *r, const struct od_err *why)
{
	json_t *o = json_object();

	if (json_object_set_new(o, "prompt", json_stringn(prompt, prompt_len)) != 0)
		json_object_set_new(o, "prompt", json_null()); /* not UTF-8 */
	json_object_set_new(o, "prompt_ids", ids_json(ids, n_ids));
	if (r != NULL) {
		json_object_set_new(o, "token_ids", ids_json(r->tokens, r->n_tokens));
		json_object_set_new(o, "text", r->text != NULL ? json_stringn(r->text, r->text_len) : json_null());
		json_object_set_new(o, "finish", json_string(odm_finish_name(r->finish)));
		json_object_set_new(o, "profile", json_string(od_profile_names[a->opt.engine.profile]));
		odm_figures_json(&r->figures, o);
	}
	if (why != NULL && json_object_set_new(o, "error", json_string(why->msg)) != 0)
		json_object_set_new(o, "error", json_string(od_status_text(why->code))); /* names in it are not UTF-8 */
	a->output_failed = a->output_failed || json_dumpf(o, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
			   fflush(stdout) != 0;
	json_decref(o);
}

static int generate(struct app *a, const char *text, size_t len, const int32_t *ids, size_t n_ids, struct od_err *err)
{
	const struct options *o = &a->opt;
	struct odm_request req = {
		.prompt = ids,
		.n_prompt = n_ids,
		.max_tokens = o->max_tokens,
		.ignore_eos = o->ignore_eos,
		.sampling = a->sampling,
		.stop = o->stop.value,
		.n_stop = o->stop.n,
		.observer = { .arg = a, .text = o->json ? NULL : show_text },
	};
	struct odm_result r;
	int rc;

	rc = odm_generate(a->engine, &req, &r, err);
	if (o->json) {
		print_json(a, text, len, ids, n_ids, &r, rc == OD_OK ? NULL : err);
	} else if (r.n_tokens > 0) {
		show_text(a, "\n", 1);
		if (!o->quiet)
			odm_figures_print(&r.figures, stderr);
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
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s has no tokenizer.json, so it cannot read prompts",
			       od_pack_dir(odm_engine_pack(a->engine)));
	rc = od_tokenizer_encode(t, text, len, OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL, &ids, &n_ids, err);
	if (rc != OD_OK) {
		od_fail_within(err, "prompt");
		if (a->opt.json)
			print_json(a, text, len, NULL, 0, NULL, err);
		return rc;
	}
	rc = generate(a, text, len, ids, n_ids, err);
	free(ids);
	return rc;
}

/* A line without its end; line->text is NULL at the end of the input, or when a signal came. */
static int read_line(struct od_strbuf *line, struct od_err *err)
{
	char piece[4096];
	bool any = false;

	od_strbuf_fini(line);
	for (int c = 0; c != '\n' && c != EOF;) {
		size_t n = 0;

		while (n < sizeof(piece) && (c = getchar()) != EOF && c != '\n')
			piece[n++] = (char)c;
		any = any || n > 0 || c == '\n';
		if (any)
			od_strbuf_append(line, piece, n);
		if (line->len > MAX_PROMPT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "a line of standard input is longer than %u bytes",
				       MAX_PROMPT_BYTES);
	}
	if (line->len > 0 && line->text[line->len - 1] == '\r') /* a file from elsewhere */
		line->text[--line->len] = '\0';
	if (line->failed)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a line of standard input");
	if (ferror(stdin) && !atomic_load(&interrupted))
		return od_fail_errno(err, OD_ERR_IO, "reading standard input");
	return OD_OK;
}

/* One prompt a line. A prompt that fails is reported and the next one tried, unless the cluster is gone. */
static int run_lines(struct app *a, struct od_err *err)
{
	bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
	struct od_strbuf line = { 0 };
	int rc = OD_OK;

	if (terminal && !a->opt.quiet)
		od_log(OD_LOG_INFO, "type a prompt and Enter; Ctrl-D ends");
	while (rc == OD_OK && !a->output_failed && !atomic_load(&interrupted)) {
		if (terminal)
			fputs("> ", stderr);
		rc = read_line(&line, err);
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

/* To its end: pipes have no size that could be asked for. */
static int read_all(struct od_strbuf *text, struct od_err *err)
{
	char piece[4096];
	size_t n;

	while ((n = fread(piece, 1, sizeof(piece), stdin)) > 0) {
		od_strbuf_append(text, piece, n);
		if (text->len > MAX_PROMPT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "standard input is longer than %u bytes", MAX_PROMPT_BYTES);
	}
	if (ferror(stdin))
		return od_fail_errno(err, OD_ERR_IO, "reading standard input");
	od_strbuf_append(text, "", 0); /* an empty prompt is a prompt */
	return text->failed ? od_fail(err, OD_ERR_NOMEM, "no memory for the prompt") : OD_OK;
}

static int run_prompts(struct app *a, struct od_err *err)
{
	const char *prompt = a->opt.prompt;
	struct od_strbuf text = { 0 };
	int rc;

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
	int rc = odm_engine_open(&a->engine, &a->opt.engine.opts, err);

	if (rc != OD_OK)
		return rc;
	engine_open = 1;
	if (!a->opt.engine.opts.quiet)
		od_log(OD_LOG_INFO, "context of %u tokens takes %s", odm_engine_ctx(a->engine),
		       od_format_bytes(odm_engine_state_bytes(a->engine), size, sizeof(size)));
	rc = choose_sampling(a, err);
	if (rc == OD_OK)
		rc = run_prompts(a, err);
	a->output_failed = odm_engine_close(a->engine) != OD_OK || a->output_failed;
	return rc;
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct app a = { 0 };
	struct od_err err = { 0 };
	int rc;

	od_log_init("od-main", OD_LOG_INFO);
	default_options(&a.opt);
	rc = parse_options(&a.opt, argc, argv, &err);
	if (rc == OD_OK && a.opt.help)
		return 0;
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
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
	rc = run(&a, &err);
	if (atomic_load(&interrupted))
		return EXIT_BY_SIGNAL + which_signal;
	if (rc == OD_OK && a.output_failed)
		rc = od_fail(&err, OD_ERR_IO, "some of the output could not be written");
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return 1;
	}
	return a.any_failed ? 1 : 0;
}
