/* Any JSON as a schema, changed from schemas.json: it is refused with a reason, or its texts are JSON, none comes to a
 * dead end, and masks of tokens are what the automaton says of their bytes.
 * Input: json_mix.h's, or '{' and the rest of a schema, and a zero byte; then choices of bytes. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/json.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mix.h"

/* Read where run.sh stands. */
#define SCHEMAS "tests/fuzz/schemas.json"
#define TOKENIZER "deploy/models/talebook/tokenizer.json"
#define MAX_TEXT 200
#define STEP_WORK 150000u /* as od_re_work counts */
#define MASK_EVERY 151 /* bytes between masks that are looked at */

static struct json_mix *mix;
static struct od_vocab *vocab;

static void start(void)
{
	struct od_tokenizer *t;
	struct od_controls *controls = NULL;
	struct od_err err;
	json_t *docs;

	if (mix != NULL)
		return;
	docs = json_load_file(SCHEMAS, 0, NULL);
	check(docs != NULL);
	mix = json_mix_new(docs, NULL);
	check(od_tokenizer_load(&t, TOKENIZER, &err) == OD_OK && od_controls_new(&controls, t, &err) == OD_OK);
	check(od_vocab_new(&vocab, t, controls, od_tokenizer_vocab(t), &err) == OD_OK);
	od_controls_free(controls);
	od_tokenizer_free(t);
}

/* The schema, and behind it the choices. NULL: the input has none. */
static json_t *read_schema(const uint8_t **data, size_t *size)
{
	json_error_t why;
	const uint8_t *end;
	size_t len;
	json_t *v;

	if (*size == 0 || **data != '{')
		return json_mix_make(mix, data, size);
	end = memchr(*data, 0, *size);
	len = end != NULL ? (size_t)(end - *data) : *size;
	v = od_json_decode((const char *)*data, len, JSON_ALLOW_NUL, &why);
	*data += len;
	*size -= len;
	return v;
}

static struct od_grammar *compile(const json_t *schema, struct od_err *err)
{
	struct od_grammar *g;

	check(od_grammar_new(&g, err) == OD_OK);
	*err = (struct od_err){ 0 };
	if (od_json_schema_compile(g, schema, err) == OD_OK)
		return g;
	check(err->msg[0] == '#' && err->code != OD_OK);
	od_grammar_free(g);
	return NULL;
}

static void check_mask(struct od_constraint *c, uint32_t at)
{
	const uint64_t *mask;
	struct od_err err;
	int rc = od_constraint_mask(c, at, &mask, &err);

	check(rc != OD_ERR_UNSUPPORTED); /* the vocabulary has every byte */
	if (rc != OD_OK)
		return;
	for (uint32_t t = 0; t < vocab->n_tokens; t++) {
		const bool allowed = mask[t / 64] >> t % 64 & 1;
		const uint32_t next = od_constraint_step(c, at, (int32_t)t);
		const uint64_t *again;

		if (allowed != (next != OD_STATE_DEAD)) {
			check(od_constraint_mask(c, next, &again, &err) != OD_OK); /* too much work */
			return;
		}
	}
}

/* jansson takes no zero byte in a key, and no real beyond doubles. */
static bool jansson_takes(const char *text, size_t len)
{
	return memmem(text, len, "\\u0000", 6) == NULL && memchr(text, 'e', len) == NULL &&
	       memchr(text, 'E', len) == NULL;
}

static void walk(struct od_constraint *c, struct od_automaton *a, const uint8_t *data, size_t size)
{
	uint32_t state = od_automaton_start(a), masked = od_constraint_start(c), next[256];
	char text[MAX_TEXT];
	struct od_err err;
	json_error_t why;
	uint32_t chance = 1;

	for (size_t n = 0; n < MAX_TEXT; n++) {
		unsigned n_next = 0, byte;
		uint8_t able[256], forced;

		if (od_automaton_ends(a, state) && jansson_takes(text, n)) {
			json_t *v = od_json_decode(text, n, JSON_DECODE_ANY, &why);

			check(v != NULL);
			json_decref(v);
		}
		od_re_allow(od_automaton_res(a), STEP_WORK);
		for (byte = 0; byte < 256; byte++) {
			next[byte] = od_automaton_step(a, state, (uint8_t)byte);
			if (next[byte] != OD_STATE_DEAD)
				able[n_next++] = (uint8_t)byte;
		}
		if (od_automaton_check(a, &err) != OD_OK)
			return;
		check(n_next > 0 || od_automaton_ends(a, state));
		if (od_automaton_forced(a, state, &forced))
			check(n_next == 1 && able[0] == forced && !od_automaton_ends(a, state));
		if (n_next == 0)
			return;
		if (masked != OD_STATE_DEAD && n % MASK_EVERY == 0)
			check_mask(c, masked);
		chance = chance * 1664525u + 1013904223u + (n < size ? data[n] : 0);
		byte = able[(chance >> 16) % n_next];
		text[n] = (char)byte;
		state = next[byte];
		for (uint32_t t = 0; t < vocab->n_tokens && masked != OD_STATE_DEAD; t++)
			if (vocab->at[t + 1] - vocab->at[t] == 1 && (uint8_t)vocab->text[vocab->at[t]] == byte) {
				masked = od_constraint_step(c, masked, (int32_t)t);
				break;
			}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_grammar *g;
	struct od_automaton *a = NULL;
	struct od_constraint *c = NULL;
	struct od_err err;
	json_t *schema;

	start();
	schema = read_schema(&data, &size);
	if (schema == NULL)
		return 0;
	g = compile(schema, &err);
	if (g != NULL && od_automaton_new(&a, g, &err) != OD_OK)
		check(err.msg[0] != '\0');
	g = a != NULL ? compile(schema, &err) : NULL;
	check(a == NULL || g != NULL);
	if (g != NULL && od_constraint_new(&c, g, vocab, &err) != OD_OK)
		check(err.msg[0] != '\0' && err.code != OD_ERR_UNSUPPORTED);
	if (c != NULL)
		walk(c, a, data, size);
	od_constraint_unref(c);
	od_automaton_free(a);
	json_decref(schema);
	return 0;
}
