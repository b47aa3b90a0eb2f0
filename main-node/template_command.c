/* od-main template: renders messages, or one case of a test, and prints the text and nothing else. */
#include "main-node/template_command.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/strbuf.h"
#include "common/text/jinja/jinja.h"
#include "common/text/tok_controls.h"
#include "common/text/tokenizer.h"
#include "main-node/chat/answer_print.h"
#include "main-node/chat/chat_template.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define EXIT_USAGE 2

struct template_options {
	const char *checkpoint, *messages, *single_case, *parse;
	bool ids, help;
};

/* A regular file or a pipe; "-": standard input. */
static int read_file(const char *path, struct od_strbuf *text, struct od_err *err)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
	char piece[65536];
	int rc = OD_OK;
	size_t n;

	if (f == NULL)
		return od_fail_errno(err, OD_ERR_IO, "%s", path);
	while (rc == OD_OK && (n = fread(piece, 1, sizeof(piece), f)) > 0) {
		od_strbuf_append(text, piece, n);
		if (text->len > MAX_FILE_BYTES)
			rc = od_fail(err, OD_ERR_RANGE, "%s: expected at most %zu MiB, found more", path,
				     MAX_FILE_BYTES >> 20);
	}
	if (rc == OD_OK && ferror(f))
		rc = od_fail_errno(err, OD_ERR_IO, "%s", path);
	if (rc == OD_OK && text->failed)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %s", path);
	if (f != stdin)
		fclose(f);
	return rc;
}

/* Any JSON: an object or an array. */
static int read_json(const char *path, json_t **out, struct od_err *err)
{
	struct od_strbuf text = { 0 };
	json_error_t why;
	int rc = read_file(path, &text, err);

	*out = NULL;
	if (rc == OD_OK && text.len > 0)
		rc = od_check_text(text.text, text.len, path, err);
	if (rc == OD_OK) {
		const size_t mark = text.len > 0 ? od_byte_order_mark(text.text, text.len) : 0;

		*out = od_json_decode(text.len > 0 ? text.text + mark : "", text.len - mark,
				      JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
		if (*out == NULL)
			rc = od_json_refuse(text.len > 0 ? text.text : "", text.len, &why, path, err);
	}
	od_strbuf_fini(&text);
	return rc;
}

/* An array is the messages alone. */
static int read_variables(const char *path, json_t **vars, struct od_err *err)
{
	int rc = read_json(path, vars, err);
	json_t *wrapped;

	if (rc != OD_OK || json_is_object(*vars))
		return rc;
	wrapped = json_object();
	if (wrapped == NULL || json_object_set_new(wrapped, "messages", *vars) != 0) {
		json_decref(wrapped);
		*vars = NULL;
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s", path);
	}
	*vars = wrapped;
	return OD_OK;
}

static int load_tokenizer(const char *dir, struct od_tokenizer **out, struct od_err *err)
{
	const char *name = od_tokenizer_name(dir);
	char path[PATH_MAX];
	int rc;

	*out = NULL;
	if (name == NULL)
		return od_fail(err, OD_ERR_MISSING, "%s has no tokenizer", dir);
	rc = od_path(path, sizeof(path), dir, name, err);
	return rc == OD_OK ? od_tokenizer_load(out, path, err) : rc;
}

/* *text: the rendered prompt, which becomes its ids, as the server has them. */
static int to_ids(const struct template_options *o, const struct odm_chat_template *t, bool with_tools,
		  const struct od_text_spans *users, char **text, size_t *len, struct od_err *err)
{
	struct od_controls *controls = NULL;
	struct od_tokenizer *tokenizer;
	struct od_strbuf out = { 0 };
	int32_t *ids = NULL;
	size_t n = 0;
	int rc = load_tokenizer(o->checkpoint, &tokenizer, err);

	if (rc == OD_OK)
		rc = odm_chat_template_controls(t, with_tools, tokenizer, &controls, err);
	if (rc == OD_OK)
		rc = od_tokenizer_encode_mixed(tokenizer, *text, *len, users, controls, &ids, &n, err);
	free(*text);
	for (size_t i = 0; i < n; i++)
		od_strbuf_printf(&out, "%s%d", i > 0 ? ", " : "[", (int)ids[i]);
	od_strbuf_printf(&out, n > 0 ? "]" : "[]");
	*text = od_strbuf_take(&out, len);
	if (rc == OD_OK && *text == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for the ids of a prompt");
	free(ids);
	od_controls_free(controls);
	od_tokenizer_free(tokenizer);
	return rc;
}

static int render_messages(const struct template_options *o, char **text, size_t *len, struct od_err *err)
{
	struct od_text_spans users = { 0 };
	struct odm_chat_template *t;
	json_t *vars = NULL;
	int rc = odm_chat_template_open(&t, o->checkpoint, err);

	if (rc == OD_OK)
		rc = read_variables(o->messages, &vars, err);
	if (rc == OD_OK)
		rc = odm_chat_template_prompt(t, vars, &users, text, len, err);
	if (rc == OD_OK && o->ids)
		rc = to_ids(o, t, od_json_has(vars, "tools"), &users, text, len, err);
	od_text_spans_fini(&users);
	json_decref(vars);
	odm_chat_template_close(t);
	return rc;
}

/* ---- what a model's raw text means ---- */

/* The prompt of a single question ends in a thought if the model's text begins in one. */
static bool begins_in_thought(const struct odm_chat_template *t, const struct odm_chat_format *format)
{
	json_t *vars = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "?",
				 "add_generation_prompt", 1);
	struct od_text_spans users = { 0 };
	char *text = NULL;
	struct od_err err;
	size_t len;
	bool in_thought = false;

	if (vars != NULL && odm_chat_template_render(t, vars, NULL, &users, &text, &len, &err) == OD_OK)
		in_thought = odm_chat_format_in_thought(format, text, len, &users);
	od_text_spans_fini(&users);
	free(text);
	json_decref(vars);
	return in_thought;
}

static int parse_text(const struct odm_chat_template *t, const struct od_strbuf *raw, char **text, size_t *len,
		      struct od_err *err)
{
	struct odm_answer_opts opts = { .format = odm_chat_template_format(t, true) };
	json_t *o = NULL;
	int rc;

	opts.in_thought = begins_in_thought(t, opts.format);
	rc = odm_answer_object(&o, &opts, raw->len > 0 ? raw->text : "", raw->len, 0, err);
	if (rc == OD_OK) {
		*text = json_dumps(o, 0);
		rc = *text != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for an answer");
	}
	*len = rc == OD_OK ? strlen(*text) : 0;
	json_decref(o);
	return rc;
}

static int parse_answer(const struct template_options *o, char **text, size_t *len, struct od_err *err)
{
	struct od_strbuf raw = { 0 };
	struct odm_chat_template *t;
	int rc = odm_chat_template_open(&t, o->checkpoint, err);

	if (rc == OD_OK)
		rc = read_file(o->parse, &raw, err);
	if (rc == OD_OK)
		rc = parse_text(t, &raw, text, len, err);
	od_strbuf_fini(&raw);
	odm_chat_template_close(t);
	return rc;
}

/* ---- one case ---- */

/* "2026-02-03T04:05:06"; strftime_now sees it. */
static int read_now(const json_t *c, const char *path, struct tm *now, struct od_err *err)
{
	const char *text, *end;
	int rc = od_json_str(c, "now", &text, path, err);

	*now = (struct tm){ 0 };
	if (rc != OD_OK)
		return rc;
	end = strptime(text, "%Y-%m-%dT%H:%M:%S", now); /* sets the day of the week and of the year, too */
	if (end == NULL)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"now\": expected a time such as 2026-02-03T04:05:06, found \"%s\"", path,
			       text);
	return OD_OK;
}

/* A copy of the case, less what is not a variable, with what is in "extra". */
static json_t *case_variables(json_t *c)
{
	static const char *const given[] = { "messages", "tools", "documents", "add_generation_prompt" };
	static const char *const tokens[] = { "bos_token", "eos_token" };
	json_t *vars = json_object();
	bool good = vars != NULL;

	for (size_t i = 0; good && i < sizeof(given) / sizeof(given[0]); i++)
		if (json_object_get(c, given[i]) != NULL)
			good = json_object_set(vars, given[i], json_object_get(c, given[i])) == 0;
	for (size_t i = 0; good && i < sizeof(tokens) / sizeof(tokens[0]); i++)
		if (od_json_has(c, tokens[i])) /* null: undefined */
			good = json_object_set(vars, tokens[i], json_object_get(c, tokens[i])) == 0;
	if (good && od_json_has(c, "extra"))
		good = json_object_update(vars, json_object_get(c, "extra")) == 0;
	if (!good) {
		json_decref(vars);
		vars = NULL;
	}
	return vars;
}

static int render_parsed_case(json_t *c, const char *path, char **text, size_t *len, struct od_err *err)
{
	struct od_jinja_opts opts = { 0 };
	struct od_jinja *t = NULL;
	const json_t *template = json_object_get(c, "template");
	const char *ignored;
	json_t *vars;
	struct tm now;
	int rc = od_json_str(c, "template", &ignored, path, err);

	if (rc == OD_OK && od_json_has(c, "now")) {
		rc = read_now(c, path, &now, err);
		opts.now = &now;
	}
	if (rc != OD_OK)
		return rc;
	vars = case_variables(c);
	if (vars == NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: the variables cannot be used (\"extra\" must be an object)",
			       path);
	rc = odm_chat_defaults(vars, err);
	if (rc == OD_OK)
		rc = od_jinja_parse(&t, json_string_value(template), json_string_length(template), "template", err);
	if (rc == OD_OK)
		rc = od_jinja_render(t, vars, &opts, text, len, err);
	od_jinja_free(t);
	json_decref(vars);
	return rc;
}

static int render_case(const char *path, char **text, size_t *len, struct od_err *err)
{
	json_t *c;
	int rc = read_json(path, &c, err);

	if (rc != OD_OK)
		return rc;
	if (json_is_object(c))
		rc = render_parsed_case(c, path, text, len, err);
	else
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a JSON object", path);
	json_decref(c);
	return rc;
}

/* ---- command line ---- */

static int parse_options(struct template_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg table[] = {
		{ "checkpoint", OD_ARG_STRING, &o->checkpoint, "DIR", "a checkpoint or a pack with a chat template", 0,
		  0, NULL },
		{ "messages", OD_ARG_STRING, &o->messages, "FILE",
		  "JSON: an array of messages, or an object with messages, tools, add_generation_prompt, documents and other variables of the template; -: stdin",
		  0, 0, NULL },
		{ "ids", OD_ARG_FLAG, &o->ids, NULL,
		  "with --messages: print the tokens' ids that the server makes of the prompt, a JSON array", 0, 0,
		  NULL },
		{ "parse", OD_ARG_STRING, &o->parse, "FILE",
		  "a model's raw text: prints what it means, a JSON object with content, reasoning and tool_calls; -: stdin",
		  0, 0, NULL },
		{ "case", OD_ARG_STRING, &o->single_case, "FILE",
		  "JSON: an object with template, messages, tools, add_generation_prompt, bos_token, eos_token, now and extra; -: stdin",
		  0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	size_t n;
	int rc = od_args_parse(table, sizeof(table) / sizeof(table[0]), argc, argv, NULL, 0, &n, err);

	if (rc == OD_OK && o->help) {
		printf("Usage: od-main template --checkpoint DIR --messages FILE [--ids] | --checkpoint DIR --parse FILE | --case FILE\n"
		       "Prints the prompt that a chat template makes of messages, or what an answer means: no more, and no newline behind it.\n\n");
		od_args_help(stdout, table, sizeof(table) / sizeof(table[0]));
	}
	return rc;
}

static int check_options(const struct template_options *o, struct od_err *err)
{
	if (o->single_case != NULL && (o->checkpoint != NULL || o->messages != NULL || o->parse != NULL))
		return od_fail(err, OD_ERR_ARG, "--case and --checkpoint exclude each other");
	if (o->single_case == NULL && (o->checkpoint == NULL || (o->messages == NULL) == (o->parse == NULL)))
		return od_fail(err, OD_ERR_ARG,
			       "expected --checkpoint DIR with --messages FILE or --parse FILE, or --case FILE");
	if (o->ids && o->messages == NULL)
		return od_fail(err, OD_ERR_ARG, "--ids: needs --messages");
	return OD_OK;
}

int odm_template_command(int argc, char **argv)
{
	struct template_options o = { 0 };
	struct od_err err = { 0 };
	char *text = NULL;
	size_t len = 0;
	int rc = parse_options(&o, argc, argv, &err);

	if (rc == OD_OK && o.help)
		return 0;
	if (rc == OD_OK)
		rc = check_options(&o, &err);
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return EXIT_USAGE;
	}
	if (o.single_case != NULL)
		rc = render_case(o.single_case, &text, &len, &err);
	else
		rc = o.parse != NULL ? parse_answer(&o, &text, &len, &err) : render_messages(&o, &text, &len, &err);
	if (rc == OD_OK && (fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0))
		rc = od_fail_errno(&err, OD_ERR_IO, "standard output");
	free(text);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
	return rc == OD_OK ? 0 : 1;
}
