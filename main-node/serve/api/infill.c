/* /infill: what belongs between two pieces of code, as llama-server answers it, whole or as a stream of events. */
#include "common/text/utf8_text.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/fim_prompt.h"
#include "main-node/serve/api/output_form.h"
#include "main-node/serve/jobs/reply.h"

#include <stdlib.h>
#include <string.h>

struct infill {
	struct odm_reply reply; /* must be first (odm_reply_on_start) */
	struct odm_generation g;
	struct od_constraint *constraint; /* NULL: any text */
	json_t *stops; /* the stop strings as the request has them; NULL: none */
	struct od_strbuf text;
	json_t *tokens; /* ids that are not written yet; NULL: not asked for */
	size_t n_tokens; /* generated so far, as far as it is known */
	size_t stop; /* index of the stop string that ended the text */
};

/* Borrowed while preparing. */
struct infill_fields {
	const json_t *prefix, *suffix, *extra, *prompt;
	bool return_tokens;
};

#define AT(field) offsetof(struct infill_fields, field)

static const struct odm_field fields[] = {
	{ "input_prefix", ODM_FIELD_JSON, AT(prefix), 0, 0, NULL },
	{ "input_suffix", ODM_FIELD_JSON, AT(suffix), 0, 0, NULL },
	{ "input_extra", ODM_FIELD_JSON, AT(extra), 0, 0, NULL },
	{ "prompt", ODM_FIELD_JSON, AT(prompt), 0, 0, NULL },
	{ "return_tokens", ODM_FIELD_BOOL, AT(return_tokens), 0, 0, NULL },
	{ 0 },
};

/* ---- The answer ---- */

/* Takes text. */
static json_t *piece_json(struct infill *f, json_t *text, bool stop)
{
	json_t *tokens = f->tokens != NULL ? f->tokens : json_array();

	if (f->tokens != NULL)
		f->tokens = json_array();
	return json_pack("{s:i, s:o, s:o, s:b, s:I, s:I}", "index", 0, "content", text, "tokens", tokens, "stop", stop,
			 "tokens_predicted", (json_int_t)f->n_tokens, "tokens_evaluated",
			 (json_int_t)odm_choices_prompt_tokens(f->reply.choices, 0));
}

static const char *stop_type(enum odm_finish finish)
{
	return finish == ODM_FINISH_STOP ? "word" : finish == ODM_FINISH_EOS ? "eos" : "limit";
}

static const char *stopping_word(const struct infill *f)
{
	const json_t *word = json_is_array(f->stops) ? json_array_get(f->stops, f->stop) : f->stops;

	return f->reply.ended[0].finish == ODM_FINISH_STOP && json_is_string(word) ? json_string_value(word) : "";
}

static json_t *last_json(struct infill *f, json_t *text)
{
	const struct odm_choice_end *end = &f->reply.ended[0];
	json_t *o = piece_json(f, text, true),
	       *more = json_pack("{s:s, s:b, s:s, s:s, s:I}", "model", f->reply.model, "truncated",
				 end->finish == ODM_FINISH_CONTEXT, "stop_type", stop_type(end->finish),
				 "stopping_word", stopping_word(f), "tokens_cached", (json_int_t)end->shared_tokens);

	if (json_object_update(o, more) != 0) {
		json_decref(o);
		o = NULL;
	}
	json_decref(more);
	return o;
}

static void add_tokens(struct infill *f, const struct odm_token_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		json_array_append_new(f->tokens, json_integer(l->record[i].token));
	f->n_tokens += l->n;
}

static bool on_news(void *arg, size_t i, const struct odm_news *news)
{
	struct infill *f = arg;
	struct odm_choice_end *end = &f->reply.ended[i];
	const size_t len = f->g.max_tokens == 0 ? 0 : news->text.len;
	const char *text = len > 0 ? news->text.text : "";

	if (f->tokens != NULL && f->g.max_tokens != 0)
		add_tokens(f, &news->tokens);
	if (end->done && f->g.max_tokens == 0) { /* the engine writes at least one token */
		end->finish = ODM_FINISH_LENGTH;
		end->n_tokens = 0;
	}
	if (end->done) {
		f->stop = news->stop;
		f->n_tokens = end->n_tokens;
	}
	if (!f->g.stream)
		od_strbuf_append(&f->text, text, len);
	else if (len > 0)
		odm_exchange_write_json(f->reply.exchange, piece_json(f, odm_json_text(text, len), false));
	return f->g.stream && len > 0;
}

static void on_end(void *arg)
{
	struct infill *f = arg;
	json_t *last = last_json(f, odm_json_text(od_strbuf_text(&f->text), f->text.len));

	if (f->g.stream)
		odm_exchange_write_json(f->reply.exchange, last);
	else
		odm_exchange_reply_json(f->reply.exchange, 200, last);
}

/* ---- The request ---- */

static int need_text(const json_t *v, const char *name, struct odm_api_error *e)
{
	char found[64];

	if (json_is_string(v))
		return OD_OK;
	return odm_api_fail(e, 400, name, v == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT, "%s: expected a string, found %s",
			    name, v == NULL ? "none" : odm_json_describe(v, found, sizeof(found)));
}

static int check_fields(const struct infill_fields *a, struct odm_api_error *e)
{
	int rc = need_text(a->prefix, "input_prefix", e);

	if (rc == OD_OK)
		rc = need_text(a->suffix, "input_suffix", e);
	if (rc == OD_OK && a->prompt != NULL)
		rc = need_text(a->prompt, "prompt", e);
	if (rc == OD_OK && a->extra != NULL && !json_is_array(a->extra))
		rc = odm_api_fail(e, 400, "input_extra", OD_ERR_FORMAT,
				  "input_extra: expected an array of objects with text and filename");
	return rc;
}

static int add_job(struct infill *f, const struct odm_engine *engine, const struct odm_fim *fim,
		   const struct odm_fim_parts *parts, bool tokens, struct odm_api_error *e)
{
	struct odm_job_spec spec = { 0 };
	struct odm_fim_prompt prompt;
	int rc = odm_fim_make(&prompt, fim, parts, e);

	if (rc != OD_OK) {
		odm_api_error_rename(e, "prompt", "input_prefix");
		odm_api_error_rename(e, "suffix", "input_suffix");
	}
	if (rc == OD_OK)
		rc = odm_check_prompt_length(engine, prompt.n, "input_prefix", e);
	if (rc == OD_OK) {
		odm_generation_request(&f->g, 0, &spec.req);
		spec.req.max_tokens = f->g.max_tokens == 0 ? 1 : spec.req.max_tokens;
		spec.req.prompt = prompt.ids;
		spec.req.n_prompt = prompt.n;
		spec.req.end = odm_fim_ends(fim, &spec.req.n_ends);
		spec.req.logprobs = tokens ? 0 : -1;
		spec.req.constraint = f->constraint;
		rc = odm_choices_add(f->reply.choices, &spec, e);
	}
	odm_fim_prompt_fini(&prompt);
	return rc;
}

/* The text before the gap is the prefix, and then the prompt. */
static int add_prompt(struct infill *f, const struct odm_engine *engine, const struct infill_fields *a,
		      struct odm_api_error *e)
{
	struct od_strbuf before = { 0 };
	struct odm_fim_parts parts = { .suffix = json_string_value(a->suffix),
				       .suffix_len = json_string_length(a->suffix),
				       .extra = a->extra };
	struct odm_fim *fim;
	int rc = odm_fim_new(&fim, odm_engine_tokenizer(engine), "input_prefix", e);

	od_strbuf_append(&before, json_string_value(a->prefix), json_string_length(a->prefix));
	if (a->prompt != NULL)
		od_strbuf_append(&before, json_string_value(a->prompt), json_string_length(a->prompt));
	if (rc == OD_OK && before.failed)
		rc = odm_no_memory(e);
	parts.prefix = od_strbuf_text(&before);
	parts.prefix_len = before.len;
	if (rc == OD_OK)
		rc = add_job(f, engine, fim, &parts, a->return_tokens, e);
	odm_fim_free(fim);
	od_strbuf_fini(&before);
	return rc;
}

static int read_form(struct infill *f, struct odm_exchange *x, const struct odm_engine *engine, const json_t *request,
		     struct odm_api_error *e)
{
	struct odm_output_form form;
	int rc = odm_output_form_read(&form, request, e);

	if (rc == OD_OK && form.kind != ODM_OUTPUT_FREE)
		rc = odm_constraints_get(odm_app_of(x)->constraints, &form, NULL, odm_app_of(x)->chat,
					 odm_engine_tokenizer(engine), od_pack_config(odm_engine_pack(engine))->vocab,
					 &f->constraint, e);
	return rc;
}

static int read_request(struct infill *f, struct odm_exchange *x, struct odm_api_error *e)
{
	const struct odm_engine *engine;
	struct infill_fields a = { 0 };
	json_t *request;
	int rc = odm_api_begin(x, ODM_API_INFILL, &request, &engine, e);

	if (rc == OD_OK)
		rc = odm_generation_read(&f->g, request, engine, e);
	if (rc == OD_OK)
		rc = odm_fields_read(fields, request, &a, e);
	if (rc == OD_OK)
		rc = check_fields(&a, e);
	if (rc == OD_OK)
		rc = read_form(f, x, engine, request, e);
	if (rc == OD_OK)
		rc = odm_choices_new(&f->reply.choices, x, e);
	if (rc == OD_OK)
		rc = add_prompt(f, engine, &a, e);
	if (rc == OD_OK && a.return_tokens && (f->tokens = json_array()) == NULL)
		rc = odm_no_memory(e);
	f->stops = json_incref(json_object_get(request, "stop"));
	f->reply.stream = f->g.stream;
	json_decref(request);
	return rc;
}

static void prepare(struct odm_exchange *x)
{
	static const struct odm_reply_ops ops = { .news = on_news, .end = on_end };
	struct infill *f = odm_exchange_new_state(x, sizeof(*f));
	struct odm_api_error e;
	int rc;

	if (f == NULL)
		return;
	odm_reply_init(&f->reply, &ops, f, x, odm_app_of(x)->model);
	rc = read_request(f, x, &e);
	odm_reply_submit(&f->reply, odm_app_of(x)->thread, rc, &e);
}

static void free_state(void *state)
{
	struct infill *f = state;

	if (f == NULL)
		return;
	odm_choices_free(f->reply.choices);
	odm_generation_fini(&f->g);
	od_strbuf_fini(&f->text);
	od_constraint_unref(f->constraint);
	json_decref(f->tokens);
	json_decref(f->stops);
	free(f);
}

const struct odm_endpoint odm_infill_endpoint = {
	.method = "POST",
	.path = "/infill",
	.prepare = prepare,
	.start = odm_reply_on_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
