#include "main-node/serve/api/choice_prompts.h"

#include "common/base/strbuf.h"
#include "common/text/tok_controls.h"
#include "main-node/serve/api/chat_turn.h"

#include <stdlib.h>
#include <string.h>

struct source {
	const struct odm_engine *engine;
	const struct od_tokenizer *tokenizer;
	const json_t *prompt; /* NULL: the turn's */
	struct odm_turn *turn;
	const char *param; /* the prompt's name in errors */
	/* the prompt without a choice */
	int32_t *ids;
	size_t n_ids;
};

static int fail_encode(const char *param, const struct od_err *err, struct odm_api_error *e)
{
	return odm_api_fail(e, err->code == OD_ERR_NOMEM ? 503 : 400, param, err->code, "%s: %s", param, err->msg);
}

/* Makes ids those of `before` and `then`; frees `then`. */
static int join(const int32_t *before, size_t n_before, int32_t *then, size_t n_then, int32_t **ids, size_t *n,
		struct odm_api_error *e)
{
	int32_t *all = malloc((n_before + n_then + 1) * sizeof(*all));

	if (all != NULL) {
		memcpy(all, before, n_before * sizeof(*all));
		memcpy(all + n_before, then, n_then * sizeof(*all));
		*ids = all;
		*n = n_before + n_then;
	}
	free(then);
	return all != NULL ? OD_OK : odm_no_memory(e);
}

/* Encodes text, whose bytes from `users` on are no control tokens. */
static int encode_text(const struct od_tokenizer *t, const char *text, size_t len, size_t users, int32_t **ids,
		       size_t *n, struct od_err *err)
{
	struct od_text_spans spans = { 0 };
	struct od_controls *controls = NULL;
	int rc = od_controls_new(&controls, t, err);

	if (rc == OD_OK && od_text_spans_add(&spans, users, len) != OD_OK)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a text");
	if (rc == OD_OK)
		rc = od_tokenizer_encode_mixed(t, text, len, &spans, controls, ids, n, err);
	od_controls_free(controls);
	od_text_spans_fini(&spans);
	return rc;
}

/* A prompt's text with a choice behind it; begins with what the tokenizer puts before every text. */
static int encode_behind_text(const struct source *s, const char *choice, size_t len, int32_t **ids, size_t *n,
			      struct odm_api_error *e)
{
	struct od_strbuf whole = { 0 };
	int32_t *begin = NULL, *then = NULL;
	size_t n_begin, n_then;
	struct od_err err;
	int rc;

	od_strbuf_append(&whole, json_string_value(s->prompt), json_string_length(s->prompt));
	od_strbuf_append(&whole, choice, len);
	if (whole.failed)
		rc = od_fail(&err, OD_ERR_NOMEM, "no memory for a text");
	else
		rc = od_tokenizer_encode(s->tokenizer, "", 0, OD_ENCODE_ADD_SPECIAL, &begin, &n_begin, &err);
	if (rc == OD_OK)
		rc = encode_text(s->tokenizer, od_strbuf_text(&whole), whole.len, json_string_length(s->prompt), &then,
				 &n_then, &err);
	od_strbuf_fini(&whole);
	rc = rc == OD_OK ? join(begin, n_begin, then, n_then, ids, n, e) : fail_encode(s->param, &err, e);
	free(begin);
	return rc;
}

static int encode_behind_ids(const struct source *s, const char *choice, size_t len, int32_t **ids, size_t *n,
			     struct odm_api_error *e)
{
	int32_t *then;
	size_t n_then;
	struct od_err err;

	if (encode_text(s->tokenizer, choice, len, 0, &then, &n_then, &err) != OD_OK)
		return fail_encode("choices", &err, e);
	return join(s->ids, s->n_ids, then, n_then, ids, n, e);
}

static int encode_behind(const struct source *s, const json_t *choice, int32_t **ids, size_t *n,
			 struct odm_api_error *e)
{
	const char *text = json_string_value(choice);
	const size_t len = json_string_length(choice);

	if (s->prompt == NULL)
		return odm_turn_encode_with(s->turn, text, len, ids, n, e);
	return (json_is_string(s->prompt) ? encode_behind_text : encode_behind_ids)(s, text, len, ids, n, e);
}

static int encode_prompt(struct source *s, struct odm_api_error *e)
{
	int rc;

	if (s->prompt != NULL && json_is_array(s->prompt)) {
		rc = odm_read_ids(s->engine, s->prompt, s->param, &s->ids, &s->n_ids, e);
	} else if (s->prompt != NULL) {
		rc = encode_behind_text(s, "", 0, &s->ids, &s->n_ids, e);
	} else {
		rc = odm_turn_encode_with(s->turn, "", 0, &s->ids, &s->n_ids, e);
	}
	return rc == OD_OK ? odm_check_prompt_length(s->engine, s->n_ids, s->param, e) : rc;
}

static size_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
	size_t n = 0;

	while (n < n_a && n < n_b && a[n] == b[n])
		n++;
	return n;
}

static int check_from(const struct odm_choice_prompts *p, const struct source *s, struct odm_api_error *e)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->n_ids[i] <= p->from)
			return odm_api_fail(e, 400, "choices", OD_ERR_ARG,
					    "choices[%zu]: the tokenizer makes no token of it behind the prompt", i);
	if (p->from == 0)
		return odm_api_fail(e, 400, s->param, OD_ERR_ARG,
				    "%s: expected at least one token before the choices: a text's first token has no "
				    "probability",
				    s->param);
	return OD_OK;
}

static int encode_all(struct odm_choice_prompts *p, const struct source *s, const json_t *texts,
		      struct odm_api_error *e)
{
	int rc = OD_OK;

	p->from = s->n_ids;
	for (size_t i = 0; rc == OD_OK && i < json_array_size(texts); i++) {
		size_t n;

		rc = encode_behind(s, json_array_get(texts, i), &p->ids[i], &p->n_ids[i], e);
		if (rc == OD_OK)
			rc = odm_check_prompt_length(s->engine, p->n_ids[i], s->param, e);
		if (rc != OD_OK)
			break;
		p->n++;
		n = common(s->ids, s->n_ids, p->ids[i], p->n_ids[i]);
		p->from = n < p->from ? n : p->from;
	}
	return rc == OD_OK ? check_from(p, s, e) : rc;
}

int odm_choice_prompts_make(struct odm_choice_prompts *out, const struct odm_engine *engine, const json_t *prompt,
			    struct odm_turn *turn, const json_t *texts, struct odm_api_error *e)
{
	const size_t n = json_array_size(texts);
	struct source s = { .engine = engine,
			    .tokenizer = odm_engine_tokenizer(engine),
			    .prompt = prompt,
			    .turn = turn,
			    .param = prompt != NULL ? "prompt" : "messages" };
	int rc;

	*out = (struct odm_choice_prompts){ .ids = calloc(n + 1, sizeof(*out->ids)),
					    .n_ids = calloc(n + 1, sizeof(*out->n_ids)) };
	if (out->ids == NULL || out->n_ids == NULL)
		return odm_no_memory(e);
	if (s.tokenizer == NULL)
		return odm_api_fail(e, 400, "choices", OD_ERR_UNSUPPORTED, "choices: the model has no tokenizer");
	rc = encode_prompt(&s, e);
	if (rc == OD_OK)
		rc = encode_all(out, &s, texts, e);
	free(s.ids);
	return rc;
}

void odm_choice_prompts_fini(struct odm_choice_prompts *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->ids[i]);
	free(p->ids);
	free(p->n_ids);
	*p = (struct odm_choice_prompts){ 0 };
}
