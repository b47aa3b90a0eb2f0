#include "main-node/serve/jobs/token_text.h"

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/text/tok_decode.h"
#include "common/text/utf8_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RAW_BYTES 256 /* limit of a token's bytes if it is no text by itself */

/* The first token of a text loses its blank in some tokenisers, so another one goes before it. */
static char *text_behind(const struct od_tokenizer *t, int32_t token, size_t *len)
{
	struct od_detok *d = NULL;
	struct od_strbuf b = { 0 };
	const char *piece;
	size_t n;
	bool good = od_detok_new(&d, t, NULL) == OD_OK && od_detok_prime(d, &token, 1, NULL) == OD_OK &&
		    od_detok_push(d, token, &piece, &n, NULL) == OD_OK;

	if (good) {
		od_strbuf_append(&b, piece, n);
		good = od_detok_flush(d, &piece, &n, NULL) == OD_OK;
	}
	if (good)
		od_strbuf_append(&b, piece, n);
	od_detok_free(d);
	if (good)
		return od_strbuf_take(&b, len);
	od_strbuf_fini(&b);
	return NULL;
}

char *odm_token_text(const struct od_tokenizer *t, int32_t token, size_t *len, size_t *shown)
{
	char *text = NULL;

	*len = *shown = 0;
	if (od_tokenizer_is_special(t, token)) {
		if (od_tokenizer_decode(t, &token, 1, false, &text, len, NULL) != OD_OK)
			return NULL;
		return text;
	}
	text = text_behind(t, token, len);
	if (text != NULL)
		*shown = odm_utf8_count(text, *len);
	return text;
}

static json_t *token_json(const struct od_tokenizer *t, int32_t token, size_t *shown)
{
	size_t len;
	char *text = odm_token_text(t, token, &len, shown);
	json_t *s = text != NULL ? odm_json_text(text, len) : NULL;

	free(text);
	return s;
}

/* {text: log probability}; two tokens may have one text: the better one counts. */
static void put(json_t *top, const struct od_tokenizer *t, int32_t token, double logprob)
{
	size_t shown;
	json_t *text = token_json(t, token, &shown);

	if (text != NULL && od_json_getn(top, json_string_value(text), json_string_length(text)) == NULL)
		(void)!od_json_setn(top, json_string_value(text), json_string_length(text), json_real(logprob));
	json_decref(text);
}

static json_t *top_json(const struct od_tokenizer *t, const struct odm_token_record *r, size_t n_top)
{
	json_t *top = json_object();

	for (size_t i = 0; i < r->n_top && i < n_top; i++)
		put(top, t, r->top[i].token, r->top[i].logprob);
	put(top, t, r->token, r->logprob);
	return top;
}

json_t *odm_logprobs_new(void)
{
	return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

void odm_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
		      size_t n_top, size_t *offset)
{
	for (size_t i = 0; i < n; i++) {
		size_t shown = 0;

		json_array_append_new(json_object_get(logprobs, "tokens"), token_json(t, r[i].token, &shown));
		json_array_append_new(json_object_get(logprobs, "token_logprobs"),
				      r[i].has_logprob ? json_real(r[i].logprob) : json_null());
		json_array_append_new(json_object_get(logprobs, "top_logprobs"),
				      r[i].has_logprob ? top_json(t, &r[i], n_top) : json_null());
		json_array_append_new(json_object_get(logprobs, "text_offset"), json_integer((json_int_t)*offset));
		*offset += shown;
	}
}

/* ---- Chats ---- */

static json_t *bytes_json(const struct od_tokenizer *t, int32_t token, const char *text, size_t len)
{
	char raw[MAX_RAW_BYTES];
	json_t *bytes;

	if (memmem(text, len, "\xef\xbf\xbd", 3) != NULL) { /* a part of a character: clients put the bytes together */
		len = od_tokenizer_bytes(t, token, raw, sizeof(raw));
		text = raw;
		if (len == 0)
			return json_null();
	}
	bytes = json_array();
	for (size_t i = 0; i < len; i++)
		json_array_append_new(bytes, json_integer((unsigned char)text[i]));
	return bytes;
}

static json_t *chat_token_json(const struct od_tokenizer *t, int32_t token, double logprob)
{
	size_t len, shown;
	char *text = odm_token_text(t, token, &len, &shown);
	json_t *o = NULL;

	if (text != NULL)
		o = json_pack("{s:o, s:f, s:o}", "token", odm_json_text(text, len), "logprob", logprob, "bytes",
			      bytes_json(t, token, text, len));
	free(text);
	return o;
}

json_t *odm_chat_logprobs_new(void)
{
	return json_pack("{s:[]}", "content");
}

void odm_chat_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
			   size_t n_top)
{
	for (size_t i = 0; i < n; i++) {
		json_t *o = chat_token_json(t, r[i].token, r[i].logprob), *top = json_array();

		for (size_t k = 0; k < r[i].n_top && k < n_top; k++)
			json_array_append_new(top, chat_token_json(t, r[i].top[k].token, r[i].top[k].logprob));
		json_object_set_new(o, "top_logprobs", top);
		json_array_append_new(json_object_get(logprobs, "content"), o);
	}
}

/* ---- Prompts ---- */

/* The first one of a token counts. */
static void put_ranked(json_t *position, const struct od_tokenizer *t, int32_t token, double logprob, size_t rank)
{
	char key[16];
	size_t shown;

	snprintf(key, sizeof(key), "%d", token);
	if (json_object_get(position, key) == NULL)
		json_object_set_new(position, key,
				    json_pack("{s:f, s:I, s:o}", "logprob", logprob, "rank", (json_int_t)rank,
					      "decoded_token", token_json(t, token, &shown)));
}

void odm_prompt_logprobs_add(json_t *logprobs, const struct od_tokenizer *t, const struct odm_token_record *r, size_t n,
			     size_t n_top)
{
	for (size_t i = 0; i < n; i++) {
		json_t *position = r[i].has_logprob ? json_object() : json_null();

		if (r[i].has_logprob)
			put_ranked(position, t, r[i].token, r[i].logprob, r[i].rank);
		for (size_t k = 0; k < r[i].n_top && k < n_top; k++)
			put_ranked(position, t, r[i].top[k].token, r[i].top[k].logprob, k + 1);
		json_array_append_new(logprobs, position);
	}
}

size_t odm_prompt_records(const struct odm_token_record *r, size_t n)
{
	size_t of_prompt = 0;

	while (of_prompt < n && r[of_prompt].of_prompt)
		of_prompt++;
	return of_prompt;
}
