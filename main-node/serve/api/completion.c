/* /v1/completions: a text for each prompt (and for each of n), whole or as a stream of events. */
#include "common/text/tok_decode.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/fim_prompt.h"
#include "main-node/serve/api/output_form.h"
#include "main-node/serve/jobs/reply.h"
#include "main-node/serve/jobs/token_text.h"
#include "common/text/utf8_text.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX_TOKENS 16 /* OpenAI's default */
#define ID_PREFIX "cmpl-"
#define OBJECT "text_completion"

struct prompt {
	char *text; /* needed for echo; else NULL */
	size_t len;
	size_t begin, end; /* tokens of that text: all of the prompt's, but with a suffix */
};

struct completion_choice {
	struct od_strbuf text;
	json_t *logprobs; /* kept until it is written; NULL: none */
	json_t *prompt_logprobs; /* NULL: not asked for, or those of the prompt's first choice */
	size_t offset; /* characters of the text before the next token */
	size_t n_read; /* tokens of the prompt so far */
};

struct completion {
	struct odm_reply reply; /* must be first (odm_reply_on_news) */
	struct odm_generation g;
	const struct od_tokenizer *tokenizer;
	struct od_constraint *constraint; /* NULL: any text */
	const json_t *prompt_given; /* valid only while preparing, as are the next two */
	const char *suffix; /* "" is none */
	struct odm_fim *fim; /* NULL: no suffix */
	int64_t best_of, logprobs; /* -1: not asked for */
	bool echo;
	struct prompt prompt[ODM_MAX_CHOICES];
	size_t n_prompts;
	struct completion_choice choice[ODM_MAX_CHOICES]; /* prompt i has i * n to i * n + n - 1 */
};

static const struct odm_field fields[] = {
	{ "prompt", ODM_FIELD_JSON, offsetof(struct completion, prompt_given), 0, 0, NULL },
	{ "suffix", ODM_FIELD_STRING, offsetof(struct completion, suffix), 0, 0, NULL },
	{ "echo", ODM_FIELD_BOOL, offsetof(struct completion, echo), 0, 0, NULL },
	{ "best_of", ODM_FIELD_INT, offsetof(struct completion, best_of), 1, 128, NULL },
	{ "logprobs", ODM_FIELD_INT, offsetof(struct completion, logprobs), 0, ODM_MAX_LOGPROBS, NULL },
	{ 0 },
};

/* ---- Prompts ---- */

static int add_choices(struct completion *c, const int32_t *ids, size_t n_ids, struct odm_api_error *e)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < (size_t)c->g.n; i++) {
		struct odm_job_spec spec = { 0 };
		struct odm_request *req = &spec.req;

		odm_generation_request(&c->g, i, req);
		if (c->g.max_tokens == ODM_NOT_GIVEN || c->g.max_tokens == 0)
			req->max_tokens = c->g.max_tokens == 0 ? 1 : DEFAULT_MAX_TOKENS;
		req->prompt = ids;
		req->n_prompt = n_ids;
		req->constraint = c->constraint;
		if (c->fim != NULL)
			req->end = odm_fim_ends(c->fim, &req->n_ends);
		if (c->logprobs > req->logprobs)
			req->logprobs = (int)c->logprobs;
		if (c->logprobs >= 0 && c->echo)
			req->prompt_logprobs = true;
		rc = odm_choices_add(c->reply.choices, &spec, e);
	}
	return rc;
}

/* A prompt's text, or its tokens [n_ids] where it was given as these. */
static int keep_text(struct completion *c, const struct odm_engine *engine, struct prompt *p, const char *text,
		     size_t len, const int32_t *ids, size_t n_ids, struct odm_api_error *e)
{
	struct od_err err;

	if (c->echo && text != NULL) {
		p->text = malloc(len + 1);
		if (p->text != NULL)
			memcpy(p->text, text, len);
		p->len = len;
	} else if (c->echo && od_tokenizer_decode(odm_engine_tokenizer(engine), ids, n_ids, true, &p->text, &p->len,
						  &err) != OD_OK) {
		return odm_api_fail(e, 400, "prompt", err.code, "prompt: %s", err.msg);
	}
	return c->echo && p->text == NULL ? odm_no_memory(e) : OD_OK;
}

static int add_prompt(struct completion *c, const struct odm_engine *engine, const char *text, size_t len,
		      const int32_t *ids, size_t n_ids, struct odm_api_error *e)
{
	struct prompt *p = &c->prompt[c->n_prompts];
	int rc = odm_check_prompt_length(engine, n_ids, "prompt", e);

	if (rc == OD_OK)
		rc = keep_text(c, engine, p, text, len, ids, n_ids, e);
	if (rc != OD_OK)
		return rc;
	p->end = n_ids;
	c->n_prompts++;
	return add_choices(c, ids, n_ids, e);
}

/* A prompt with the suffix: what comes between them is to be written. text: NULL: it was given as ids. */
static int add_gap(struct completion *c, const struct odm_engine *engine, const char *text, size_t len,
		   const int32_t *ids, size_t n_ids, struct odm_api_error *e)
{
	const struct odm_fim_parts parts = { .prefix = text,
					     .prefix_len = len,
					     .prefix_ids = ids,
					     .n_prefix_ids = n_ids,
					     .suffix = c->suffix,
					     .suffix_len = strlen(c->suffix) };
	struct prompt *p = &c->prompt[c->n_prompts];
	struct odm_fim_prompt whole;
	int rc = odm_fim_make(&whole, c->fim, &parts, e);

	if (rc == OD_OK)
		rc = odm_check_prompt_length(engine, whole.n, "prompt", e);
	if (rc == OD_OK)
		rc = keep_text(c, engine, p, text, len, ids, n_ids, e);
	if (rc == OD_OK) {
		p->begin = whole.begin;
		p->end = whole.end;
		c->n_prompts++;
		rc = add_choices(c, whole.ids, whole.n, e);
	}
	odm_fim_prompt_fini(&whole);
	return rc;
}

static int add_text(struct completion *c, const struct odm_engine *engine, const json_t *v, struct odm_api_error *e)
{
	const char *text = json_string_value(v);
	const size_t len = json_string_length(v);
	size_t n;
	int32_t *ids;
	int rc;

	if (c->fim != NULL)
		return add_gap(c, engine, text, len, NULL, 0, e);
	rc = odm_encode_prompt(engine, text, len, "prompt", &ids, &n, e);
	if (rc == OD_OK)
		rc = add_prompt(c, engine, text, len, ids, n, e);
	free(ids);
	return rc;
}

static int add_ids(struct completion *c, const struct odm_engine *engine, const json_t *v, struct odm_api_error *e)
{
	size_t n;
	int32_t *ids;
	int rc = odm_read_ids(engine, v, "prompt", &ids, &n, e);

	if (rc == OD_OK)
		rc = (c->fim != NULL ? add_gap : add_prompt)(c, engine, NULL, 0, ids, n, e);
	free(ids);
	return rc;
}

/* A string, an array of token ids, or an array of either. */
static int add_prompts(struct completion *c, const struct odm_engine *engine, struct odm_api_error *e)
{
	const json_t *v = c->prompt_given, *first = json_array_get(v, 0);
	int rc = OD_OK;

	if (json_is_string(v))
		return add_text(c, engine, v, e);
	if (json_is_integer(first))
		return add_ids(c, engine, v, e);
	if (!json_is_string(first) && !json_is_array(first))
		return odm_api_fail(e, 400, "prompt", v == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT,
				    "prompt: expected a string, token ids, "
				    "or an array of strings or of arrays of token ids, not empty");
	if (json_array_size(v) * (size_t)c->g.n > ODM_MAX_CHOICES)
		return odm_api_fail(e, 400, "prompt", OD_ERR_RANGE,
				    "prompt: expected at most %d choices (prompts times n), found %zu", ODM_MAX_CHOICES,
				    json_array_size(v) * (size_t)c->g.n);
	for (size_t i = 0; rc == OD_OK && i < json_array_size(v); i++) {
		const json_t *p = json_array_get(v, i);

		if (json_typeof(p) != json_typeof(first))
			return odm_api_fail(e, 400, "prompt", OD_ERR_FORMAT,
					    "prompt: expected either strings or arrays of token ids, found "
					    "both, or something else");
		rc = json_is_string(p) ? add_text(c, engine, p, e) : add_ids(c, engine, p, e);
	}
	return rc;
}

/* ---- The answer ---- */

/* Takes text, and the choice's log probabilities so far. finish: NULL: it goes on. */
static json_t *choice_json(struct completion *c, size_t index, json_t *text, const char *finish)
{
	json_t *logprobs = c->choice[index].logprobs;

	c->choice[index].logprobs = NULL;
	return json_pack("{s:I, s:o, s:o?, s:s?}", "index", (json_int_t)index, "text", text, "logprobs", logprobs,
			 "finish_reason", finish);
}

static void write_choice(struct completion *c, size_t i, const char *text, size_t len, const char *finish)
{
	json_t *choices = json_pack("[o]", choice_json(c, i, odm_json_text(text, len), finish));

	odm_reply_write(&c->reply, odm_reply_json(&c->reply, ID_PREFIX, OBJECT, choices), finish != NULL,
			(size_t)c->g.n);
}

static void add_prompt_tokens(struct completion *c, struct completion_choice *t, const struct odm_token_record *r,
			      size_t n)
{
	if (t->prompt_logprobs == NULL)
		t->prompt_logprobs = json_array();
	odm_prompt_logprobs_add(t->prompt_logprobs, c->tokenizer, r, n, (size_t)c->g.prompt_logprobs);
}

static void add_logprobs(struct completion *c, struct completion_choice *t, const struct odm_token_record *r, size_t n)
{
	if (c->logprobs < 0 || n == 0)
		return;
	if (t->logprobs == NULL)
		t->logprobs = odm_logprobs_new();
	odm_logprobs_add(t->logprobs, c->tokenizer, r, n, (size_t)c->logprobs, &t->offset);
}

static void add_tokens(struct completion *c, size_t i, const struct odm_token_list *l)
{
	const struct prompt *p = &c->prompt[i / (size_t)c->g.n];
	struct completion_choice *t = &c->choice[i];
	const size_t of_prompt = odm_prompt_records(l->record, l->n);

	if (c->g.prompt_logprobs >= 0 && of_prompt > 0)
		add_prompt_tokens(c, t, l->record, of_prompt);
	for (size_t k = 0; k < of_prompt && c->echo; k++, t->n_read++)
		if (t->n_read >= p->begin && t->n_read < p->end)
			add_logprobs(c, t, &l->record[k], 1);
	if (c->g.max_tokens != 0) /* the engine writes at least one */
		add_logprobs(c, t, l->record + of_prompt, l->n - of_prompt);
}

static bool on_news(void *arg, size_t i, const struct odm_news *news)
{
	struct completion *c = arg;
	struct completion_choice *t = &c->choice[i];
	struct odm_choice_end *end = &c->reply.ended[i];
	const size_t len = c->g.max_tokens == 0 ? 0 : news->text.len;
	const char *text = len > 0 ? news->text.text : "";

	if (end->done && c->g.max_tokens == 0) {
		end->finish = ODM_FINISH_LENGTH;
		end->n_tokens = 0;
	}
	add_tokens(c, i, &news->tokens);
	if (!c->g.stream)
		od_strbuf_append(&t->text, text, len);
	else if (len > 0 || end->done || t->logprobs != NULL)
		write_choice(c, i, text, len, end->done ? odm_finish_reason(end->finish) : NULL);
	else
		return false;
	return true;
}

/* A choice of a whole answer: all choices of a prompt have the prompt's log probabilities. */
static json_t *whole_choice(struct completion *c, size_t i)
{
	struct completion_choice *t = &c->choice[i];
	json_t *o = choice_json(c, i, odm_json_text(od_strbuf_text(&t->text), t->text.len),
				odm_finish_reason(c->reply.ended[i].finish));

	if (c->g.prompt_logprobs >= 0)
		json_object_set(o, "prompt_logprobs", c->choice[i - i % (size_t)c->g.n].prompt_logprobs);
	return o;
}

static void on_end(void *arg)
{
	struct completion *c = arg;
	json_t *choices;

	if (c->g.stream) {
		odm_reply_end_stream(&c->reply, ID_PREFIX, OBJECT, (size_t)c->g.n);
		return;
	}
	choices = json_array();
	for (size_t i = 0; i < odm_choices_count(c->reply.choices); i++)
		json_array_append_new(choices, whole_choice(c, i));
	odm_reply_whole(&c->reply, ID_PREFIX, OBJECT, choices, (size_t)c->g.n);
}

/* ---- The request ---- */

static int read_request(struct completion *c, struct odm_exchange *x, struct odm_api_error *e)
{
	const struct odm_engine *engine;
	struct odm_output_form form;
	json_t *request;
	int rc = odm_api_begin(x, ODM_API_COMPLETIONS, &request, &engine, e);

	if (rc == OD_OK)
		rc = odm_generation_read(&c->g, request, engine, e);
	if (rc == OD_OK)
		rc = odm_fields_read(fields, request, c, e);
	if (rc == OD_OK && c->best_of > 0 && c->best_of != c->g.n)
		rc = odm_api_fail(e, 400, "best_of", OD_ERR_UNSUPPORTED,
				  "best_of: only the value of n is supported here");
	c->tokenizer = rc == OD_OK ? odm_engine_tokenizer(engine) : NULL;
	if (rc == OD_OK)
		rc = odm_output_form_read(&form, request, e);
	if (rc == OD_OK && form.kind != ODM_OUTPUT_FREE)
		rc = odm_constraints_get(odm_app_of(x)->constraints, &form, NULL, odm_app_of(x)->chat, c->tokenizer,
					 od_pack_config(odm_engine_pack(engine))->vocab, &c->constraint, e);
	if (rc == OD_OK && (c->echo || c->logprobs >= 0) && c->tokenizer == NULL)
		rc = odm_api_fail(e, 400, c->echo ? "echo" : "logprobs", OD_ERR_UNSUPPORTED,
				  "%s: the model has no tokenizer", c->echo ? "echo" : "logprobs");
	if (rc == OD_OK && c->suffix != NULL && c->suffix[0] != '\0')
		rc = odm_fim_new(&c->fim, c->tokenizer, "suffix", e);
	if (rc == OD_OK)
		rc = odm_choices_new(&c->reply.choices, x, e);
	if (rc == OD_OK)
		rc = add_prompts(c, engine, e);
	odm_fim_free(c->fim);
	json_decref(request);
	c->prompt_given = NULL;
	c->suffix = NULL;
	c->fim = NULL;
	c->reply.stream = c->g.stream;
	c->reply.include_usage = c->g.include_usage;
	return rc;
}

static const struct odm_reply_ops reply_ops = { .news = on_news, .end = on_end };

static void prepare(struct odm_exchange *x)
{
	struct completion *c = odm_exchange_new_state(x, sizeof(*c));
	struct odm_api_error e;
	int rc;

	if (c == NULL)
		return;
	odm_reply_init(&c->reply, &reply_ops, c, x, odm_app_of(x)->model);
	c->logprobs = -1;
	rc = read_request(c, x, &e);
	odm_reply_submit(&c->reply, odm_app_of(x)->thread, rc, &e);
}

static void free_state(void *state)
{
	struct completion *c = state;

	if (c == NULL)
		return;
	odm_choices_free(c->reply.choices);
	od_constraint_unref(c->constraint);
	odm_generation_fini(&c->g);
	for (size_t i = 0; i < ODM_MAX_CHOICES; i++) {
		free(c->prompt[i].text);
		od_strbuf_fini(&c->choice[i].text);
		json_decref(c->choice[i].logprobs);
		json_decref(c->choice[i].prompt_logprobs);
	}
	free(c);
}

static void echo_prompts(struct completion *c)
{
	for (size_t i = 0; i < odm_choices_count(c->reply.choices); i++) {
		const struct prompt *p = &c->prompt[i / (size_t)c->g.n];

		if (c->g.stream)
			write_choice(c, i, p->text, p->len, NULL);
		else
			od_strbuf_append(&c->choice[i].text, p->text, p->len);
	}
}

static void start(struct odm_exchange *x)
{
	struct completion *c = odm_exchange_state(x);

	odm_reply_start(&c->reply);
	if (c->echo)
		echo_prompts(c);
	odm_reply_news(&c->reply);
}

const struct odm_endpoint odm_completions_endpoint = {
	.method = "POST",
	.path = "/v1/completions",
	.prepare = prepare,
	.start = start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
