#include "main-node/chat/answer_space.h"

#include "common/base/strbuf.h"
#include "common/text/tok_decode.h"

#include <stdlib.h>
#include <string.h>

#define ANSWER "Xyz"
#define MAX_ANSWER_TOKENS 16

struct rendering {
	char *text;
	size_t len;
	int32_t *ids;
	size_t n_ids;
};

static void fini(struct rendering *r)
{
	free(r->text);
	free(r->ids);
}

/* Renders a question and, if `answered`, its answer and the next question. False: the template refuses, or memory is
 * out. */
static bool render(struct rendering *r, const struct odm_chat_template *t, const struct od_tokenizer *tokenizer,
		   bool with_tools, bool answered)
{
	json_t *vars = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "Uuu",
				 "add_generation_prompt", !answered);
	json_t *messages = json_object_get(vars, "messages");
	struct od_err err;
	bool good = vars != NULL;

	if (answered)
		good = good &&
		       json_array_append_new(messages,
					     json_pack("{s:s, s:s}", "role", "assistant", "content", ANSWER)) == 0 &&
		       json_array_append(messages, json_array_get(messages, 0)) == 0;
	if (with_tools)
		good = good && json_object_set_new(vars, "tools",
						   json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function",
							     "function", "name", "f", "description", "d", "parameters",
							     "type", "object", "properties")) == 0;
	good = good && odm_chat_template_prompt(t, vars, NULL, &r->text, &r->len, &err) == OD_OK &&
	       od_tokenizer_encode(tokenizer, r->text, r->len, OD_ENCODE_PARSE_SPECIAL, &r->ids, &r->n_ids, &err) ==
		       OD_OK;
	json_decref(vars);
	return good;
}

static size_t space_len(const char *text, size_t len)
{
	size_t n = 0;

	while (n < len && n < ODM_MAX_SPACE_BYTES - 1 && memchr(" \n\r\t", text[n], 4) != NULL)
		n++;
	return n;
}

/* Sets out to the white space at the start of text if ANSWER, or a part of it, follows. False: something else
 * follows. */
static bool lead_of(char out[ODM_MAX_SPACE_BYTES], const char *text, size_t len)
{
	const size_t n = space_len(text, len), left = len - n;

	if (left == 0 || memcmp(text + n, ANSWER, left < strlen(ANSWER) ? left : strlen(ANSWER)) != 0)
		return false;
	memcpy(out, text, n);
	out[n] = '\0';
	return true;
}

/* Measures by tokens, if the tokens of the question are the first ones of the answered conversation. */
static void find_lead_of_tokens(char out[ODM_MAX_SPACE_BYTES], const struct od_tokenizer *tokenizer,
				const struct rendering *asked, const struct rendering *answered)
{
	struct od_detok *d = NULL;
	struct od_strbuf text = { 0 };
	const char *piece;
	size_t len;
	bool good = asked->n_ids < answered->n_ids &&
		    memcmp(asked->ids, answered->ids, asked->n_ids * sizeof(*asked->ids)) == 0 &&
		    od_detok_new(&d, tokenizer, NULL) == OD_OK &&
		    od_detok_prime(d, asked->ids, asked->n_ids, NULL) == OD_OK;

	for (size_t i = asked->n_ids; good && i < answered->n_ids && i < asked->n_ids + MAX_ANSWER_TOKENS; i++) {
		good = od_detok_push(d, answered->ids[i], &piece, &len, NULL) == OD_OK;
		if (good)
			od_strbuf_append(&text, piece, len);
	}
	if (good && text.len > 0 && !text.failed)
		(void)lead_of(out, text.text, text.len);
	od_detok_free(d);
	od_strbuf_fini(&text);
}

static size_t common_len(const struct rendering *a, const struct rendering *b)
{
	size_t n = 0;

	while (n < a->len && n < b->len && a->text[n] == b->text[n])
		n++;
	return n;
}

void odm_answer_space_find(struct odm_answer_space *out, const struct odm_chat_template *t,
			   const struct od_tokenizer *tokenizer, bool with_tools)
{
	struct rendering asked = { 0 }, answered = { 0 };

	*out = (struct odm_answer_space){ { 0 }, { 0 } };
	if (render(&asked, t, tokenizer, with_tools, false) && render(&answered, t, tokenizer, with_tools, true)) {
		const size_t common = common_len(&asked, &answered);
		const char *end = memmem(answered.text, answered.len, ANSWER, strlen(ANSWER));

		if (lead_of(out->lead, answered.text + common, answered.len - common))
			find_lead_of_tokens(out->lead, tokenizer, &asked, &answered);
		if (end != NULL) {
			end += strlen(ANSWER);
			memcpy(out->tail, end, space_len(end, (size_t)(answered.text + answered.len - end)));
		}
	}
	fini(&asked);
	fini(&answered);
}
