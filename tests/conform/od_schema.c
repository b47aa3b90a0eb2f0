/* od-schema: JSON schemas as od-main serve enforces them, for tests in other languages.
 *
 *   od-schema [TOKENIZER.JSON]
 *
 * Reads lines of JSON: {"schema": S, "check": [TEXT...], "texts": N, "seed": N}, of which all but S may be missing.
 * Answers each with a line: {"error": WHY}, or {"ok": [BOOL...], "texts": [TEXT...]}, beside {"cpu_ms": X, "work": N}:
 * what compiling cost, with a tokeniser also the first mask of its vocabulary. ok says which texts to check satisfy the
 * schema. texts are written by chance, among the bytes that it allows; one that would be longer than MAX_TEXT is left
 * out. {"late": WHY}: the automaton failed while texts were read or written. */
#include "common/base/json.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_TEXT 20000u
#define TEXT_WORK 12000000u /* as od_re_work counts; the server allows more for each token */
#define LONG_TEXT 300u /* behind so many bytes texts are brought to their end */

static double cpu_ms(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- Texts ---- */

static bool accepts(struct od_automaton *a, const char *text, size_t len)
{
	uint32_t state = od_automaton_start(a);

	od_re_allow(od_automaton_res(a), TEXT_WORK);
	for (size_t i = 0; i < len && state != OD_STATE_DEAD; i++)
		state = od_automaton_step(a, state, (uint8_t)text[i]);
	return state != OD_STATE_DEAD && od_automaton_ends(a, state);
}

/* How likely a byte is: those that close something more than others, and more so in a long text. */
static unsigned weight(unsigned byte, size_t n)
{
	if (byte == '"' || byte == '}' || byte == ']')
		return n > LONG_TEXT ? 300 : 20;
	if (n > LONG_TEXT && (byte == '[' || byte == '{' || byte == ','))
		return 1;
	return byte < 0x80 ? 4 : 1;
}

/* A text; its length, or SIZE_MAX: it is too long, or it came to a dead end, which *dead says. */
static size_t write_text(struct od_automaton *a, unsigned *seed, char *text, bool *dead)
{
	uint32_t state = od_automaton_start(a), next[256];
	unsigned likely[256], byte, at, all;

	*dead = false;
	od_re_allow(od_automaton_res(a), TEXT_WORK);
	for (size_t n = 0; n < MAX_TEXT; n++) {
		all = 0;
		for (byte = 0; byte < 256; byte++) {
			next[byte] = od_automaton_step(a, state, (uint8_t)byte);
			likely[byte] = next[byte] != OD_STATE_DEAD ? weight(byte, n) : 0;
			all += likely[byte];
		}
		if (od_automaton_ends(a, state) && (all == 0 || rand_r(seed) % 3 == 0))
			return n;
		if (all == 0) {
			*dead = true;
			return SIZE_MAX;
		}
		at = (unsigned)rand_r(seed) % all;
		for (byte = 0; at >= likely[byte]; byte++)
			at -= likely[byte];
		text[n] = (char)byte;
		state = next[byte];
	}
	return SIZE_MAX;
}

static json_t *write_texts(struct od_automaton *a, const json_t *in, bool *dead)
{
	unsigned seed = (unsigned)json_integer_value(json_object_get(in, "seed"));
	json_t *texts = json_array(), *one;
	char text[MAX_TEXT];

	*dead = false;
	for (json_int_t i = json_integer_value(json_object_get(in, "texts")); i > 0 && !*dead; i--) {
		const size_t len = write_text(a, &seed, text, dead);

		if (len == SIZE_MAX)
			continue;
		one = json_stringn(text, len); /* NULL: invalid UTF-8 */
		(void)json_array_append_new(texts, one != NULL ? one : json_null());
	}
	return texts;
}

/* ---- Schemas ---- */

static void use(struct od_automaton *a, const json_t *in, json_t *out)
{
	json_t *ok = json_array(), *text;
	struct od_err err;
	bool dead;
	size_t i;

	json_array_foreach(json_object_get(in, "check"), i, text)(void)
		json_array_append_new(ok, json_boolean(accepts(a, json_string_value(text), json_string_length(text))));
	(void)json_object_set_new(out, "ok", ok);
	(void)json_object_set_new(out, "texts", write_texts(a, in, &dead));
	if (od_automaton_check(a, &err) != OD_OK)
		(void)json_object_set_new(out, "late", json_string(err.msg));
	else if (dead)
		(void)json_object_set_new(out, "late", json_string("a dead end"));
}

/* The schema as a grammar; *work: in derivatives. */
static int compile(const json_t *schema, struct od_grammar **g, uint64_t *work, struct od_err *err)
{
	int rc = od_grammar_new(g, err);

	if (rc != OD_OK)
		return rc;
	rc = od_json_schema_compile(*g, schema, err);
	*work = od_re_work(od_grammar_res(*g));
	if (rc != OD_OK) {
		od_grammar_free(*g);
		*g = NULL;
	}
	return rc;
}

static int measure(const json_t *schema, const struct od_vocab *vocab, json_t *out, struct od_err *err)
{
	const double begin = cpu_ms();
	struct od_constraint *c = NULL;
	struct od_grammar *g;
	uint64_t work = 0;
	int rc = compile(schema, &g, &work, err);

	if (rc == OD_OK && vocab != NULL)
		rc = od_constraint_new(&c, g, vocab, err);
	else
		od_grammar_free(g);
	(void)json_object_set_new(out, "cpu_ms", json_real(cpu_ms() - begin));
	(void)json_object_set_new(out, "work", json_integer((json_int_t)work));
	od_constraint_unref(c);
	return rc;
}

static json_t *answer(const json_t *in, const struct od_vocab *vocab)
{
	const json_t *schema = json_object_get(in, "schema");
	json_t *out = json_object();
	struct od_err err = { 0 };
	struct od_automaton *a;
	struct od_grammar *g;
	uint64_t work;
	int rc = measure(schema, vocab, out, &err);

	if (rc == OD_OK)
		rc = compile(schema, &g, &work, &err);
	if (rc == OD_OK)
		rc = od_automaton_new(&a, g, &err);
	if (rc == OD_OK) {
		use(a, in, out);
		od_automaton_free(a);
	} else {
		(void)json_object_set_new(out, "error", json_string(err.msg));
	}
	return out;
}

static int open_vocab(const char *path, struct od_tokenizer **t, struct od_vocab **v, struct od_err *err)
{
	struct od_controls *controls = NULL;
	int rc = od_tokenizer_load(t, path, err);

	if (rc == OD_OK)
		rc = od_controls_new(&controls, *t, err);
	if (rc == OD_OK)
		rc = od_vocab_new(v, *t, controls, od_tokenizer_vocab(*t), err);
	od_controls_free(controls);
	return rc;
}

int main(int argc, char **argv)
{
	struct od_tokenizer *t = NULL;
	struct od_vocab *vocab = NULL;
	struct od_err err;
	char *line = NULL, *text;
	size_t cap = 0;
	ssize_t len;

	if (argc > 1 && open_vocab(argv[1], &t, &vocab, &err) != OD_OK) {
		fprintf(stderr, "od-schema: %s\n", err.msg);
		return 1;
	}
	while ((len = getline(&line, &cap, stdin)) > 0) {
		json_error_t why;
		json_t *in = od_json_decode(line, (size_t)len, JSON_ALLOW_NUL, &why);
		json_t *out = in != NULL ? answer(in, vocab) : json_pack("{s:s}", "error", why.text);

		text = json_dumps(out, JSON_COMPACT);
		puts(text != NULL ? text : "{}");
		(void)fflush(stdout);
		free(text);
		json_decref(out);
		json_decref(in);
	}
	free(line);
	od_vocab_free(vocab);
	od_tokenizer_free(t);
	return 0;
}
