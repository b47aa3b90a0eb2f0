/* Users' text and control tokens: over all tokenisers of tests/golden/tokenizer, texts of which some bytes are a
 * user's. The control tokens that come out are those of the text's twin, in which a user's bytes are harmless; a text
 * without hostile bytes has the ids that it always had, and all of a user's text those of Hugging Face with
 * encode_special_tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/text/tok_controls.h"
#include "common/text/tok_internal.h"

#define FOLDER "tests/golden/tokenizer/"
#define MAX_TEXT 4096
#define MAX_MARKS 64

static const char *const files[] = {
	"tok_added.json",
	"tok_affixes.json",
	"tok_deepseek.json",
	"tok_deepseek_v2.json",
	"tok_deepseek_v3.json",
	"tok_gemma.json",
	"tok_gpt2.json",
	"tok_gpt2_prefix.json",
	"tok_llama3.json",
	"tok_merged_next.json",
	"tok_metaspace.json",
	"tok_metaspace_first.json",
	"tok_metaspace_old.json",
	"tok_mixtral.json",
	"tok_nfd_strip.json",
	"tok_nfkc_lower.json",
	"tok_nfkd.json",
	"tok_o200k.json",
	"tok_olmoe.json",
	"tok_phi.json",
	"tok_qwen3.json",
	"tok_qwen3_5.json",
	"ranked_extra/tokenizer.model",
	"ranked_first/tokenizer.model",
	"ranked_gemma/tokenizer.model",
	"ranked_kimi/tiktoken.model",
	"ranked_llama/tokenizer.model",
	"ranked_unknown/tokenizer.model",
};
#define N_FILES (sizeof(files) / sizeof(files[0]))

static uint64_t seed = 88172645463325252u;

static size_t below(size_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (size_t)(seed % n);
}

static struct od_tokenizer *load(const char *name)
{
	struct od_tokenizer *t;
	struct od_err err;
	char path[128];

	snprintf(path, sizeof(path), FOLDER "%s", name);
	if (od_tokenizer_load(&t, path, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return t;
}

/* Texts of control tokens and of other added tokens, as the file has them. */
struct marks {
	const char *v[MAX_MARKS];
	size_t len[MAX_MARKS], n;
	struct od_controls *controls;
};

static void add_marks(struct marks *m, const struct od_tokenizer *t, const struct tok_matcher *from, bool all)
{
	for (uint32_t i = 0; i < from->n && m->n < MAX_MARKS; i++) {
		const struct tok_entry *e = &t->vocab.entry[from->v[i].id];

		if (!all && !od_controls_has(m->controls, from->v[i].id))
			continue;
		m->v[m->n] = t->vocab.bytes.data + e->at;
		m->len[m->n++] = e->len;
	}
}

static void find_marks(struct marks *m, const struct od_tokenizer *t, const char *template, bool all)
{
	*m = (struct marks){ 0 };
	assert_int_equal(od_controls_new(&m->controls, t, NULL), OD_OK);
	od_controls_add(m->controls, template, strlen(template));
	add_marks(m, t, &t->raw, all);
	add_marks(m, t, &t->normalized, all);
}

/* ---- texts ---- */

struct tok_controls_text {
	char data[MAX_TEXT];
	size_t len;
	struct od_text_spans users;
};

static void add(struct tok_controls_text *x, const char *s, size_t len, bool user)
{
	if (len > MAX_TEXT - x->len)
		return;
	memcpy(x->data + x->len, s, len);
	if (user)
		assert_int_equal(od_text_spans_add(&x->users, x->len, x->len + len), OD_OK);
	x->len += len;
}

static void add_plain(struct tok_controls_text *x, bool user)
{
	static const char *const plain[] = {
		"a",	    " ",	 "  ",	     "\n",	     "the ",	     "hi", ".",
		"\xc3\xa9", "e\xcc\x81", "\xcc\xb8", "\xe4\xb8\xad", "\xe2\x96\x81", "<",  ">",
		"|",	    "[",	 "A",	     "\xef\xac\x81", "\xef\xbc\x9c", "\t", "1"
	};
	const char *s = plain[below(sizeof(plain) / sizeof(plain[0]))];

	add(x, s, strlen(s), user);
}

static void add_words(struct tok_controls_text *x)
{
	static const char *const words[] = { "a",
					     " ",
					     "  ",
					     "\n",
					     "\n\n\n",
					     "the ",
					     "hi",
					     ". ",
					     "\xc3\xa9",
					     "e\xcc\x81",
					     "\xe4\xb8\xad",
					     "\t",
					     "12",
					     "\xef\xac\x81",
					     "A",
					     "\xe2\x96\x81",
					     "\xf0\x9f\xa6\x9a",
					     "(",
					     "{x: 'y'}" };
	const char *s = words[below(sizeof(words) / sizeof(words[0]))];

	add(x, s, strlen(s), true);
}

/* A mark, or one cut in two at a character. */
static void add_mark(struct tok_controls_text *x, const struct marks *m, bool user)
{
	const size_t i = below(m->n);
	size_t cut = below(m->len[i] + 1);

	while (cut < m->len[i] && ((unsigned char)m->v[i][cut] & 0xc0) == 0x80)
		cut++;
	switch (below(4)) {
	case 0: add(x, m->v[i], cut, user); break;
	case 1: add(x, m->v[i] + cut, m->len[i] - cut, user); break;
	case 2: add(x, m->v[i], cut, user), add(x, m->v[i] + cut, m->len[i] - cut, !user); break;
	default: add(x, m->v[i], m->len[i], user); break;
	}
}

static bool is_users(const struct tok_controls_text *x, size_t at)
{
	for (size_t i = 0; i < x->users.n; i++)
		if (at >= x->users.v[i].begin && at < x->users.v[i].end)
			return true;
	return false;
}

static size_t encode(const struct od_tokenizer *t, const struct tok_controls_text *x, const struct od_controls *c,
		     int32_t **ids)
{
	struct od_err err;
	size_t n;
	int rc = c != NULL ? od_tokenizer_encode_mixed(t, x->data, x->len, &x->users, c, ids, &n, &err) :
			     od_tokenizer_encode(t, x->data, x->len, OD_ENCODE_PARSE_SPECIAL, ids, &n, &err);

	if (rc != OD_OK)
		fail_msg("%s", err.msg);
	return n;
}

static void show(const struct tok_controls_text *x)
{
	fprintf(stderr, "the text, users' bytes in {}: ");
	for (size_t i = 0; i < x->len; i++)
		fprintf(stderr, is_users(x, i) ? "{%c}" : "%c", x->data[i]);
	fprintf(stderr, "\n");
}

/* ---- the control tokens of a text ---- */

/* A user's characters become harmless ones of the same kind; white space, which a template's token may swallow,
 * stays. */
static void make_twin(struct tok_controls_text *twin, const struct tok_controls_text *x)
{
	int32_t cp;

	twin->len = 0;
	twin->users.n = 0;
	for (size_t at = 0, n; at < x->len; at += n) {
		n = tok_char(x->data + at, x->len - at, &cp);
		if (!is_users(x, at) || tok_is_space(cp) || cp == 0x2581)
			add(twin, x->data + at, n, false);
		else if (tok_is_mark(cp))
			add(twin, "\xcc\xa7", 2, false); /* composes with q no more than with brackets */
		else
			add(twin, tok_is_word(cp) ? "q" : ";", 1, false);
	}
}

/* Without the unknown token: that stands for characters, too. */
static size_t keep_controls(const struct od_tokenizer *t, const struct od_controls *c, int32_t *ids, size_t n)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		if (od_controls_has(c, ids[i]) && ids[i] != t->bpe.unk)
			ids[kept++] = ids[i];
	return kept;
}

static void compare_with_twin(const char *name, const struct od_tokenizer *t, const struct marks *m,
			      const struct tok_controls_text *x, struct tok_controls_text *twin)
{
	int32_t *ids, *expected;
	size_t n, n_expected;

	make_twin(twin, x);
	n = encode(t, x, m->controls, &ids);
	n = keep_controls(t, m->controls, ids, n);
	n_expected = encode(t, twin, NULL, &expected);
	n_expected = keep_controls(t, m->controls, expected, n_expected);
	if (n != n_expected || memcmp(ids, expected, n * sizeof(*ids)) != 0) {
		show(x);
		fail_msg("%s: %zu control tokens, expected %zu", name, n, n_expected);
	}
	free(ids);
	free(expected);
}

/* A template's text between users': each control token that the template wrote is there, and no other. */
static void hostile_texts(void **state)
{
	struct tok_controls_text *x = calloc(1, sizeof(*x)), *twin = calloc(1, sizeof(*twin));
	size_t n_controls = 0;

	(void)state;
	for (size_t f = 0; f < N_FILES; f++) {
		struct od_tokenizer *t = load(files[f]);
		struct marks m;

		find_marks(&m, t, "", false);
		n_controls += m.n;
		for (int i = 0; i < 400 && m.n > 0; i++) {
			x->len = x->users.n = 0;
			for (size_t k = below(12) + 1; k > 0; k--) {
				const bool user = below(2) == 0;

				if (below(2) == 0)
					add_mark(x, &m, user);
				else
					add_plain(x, user);
			}
			compare_with_twin(files[f], t, &m, x, twin);
		}
		od_controls_free(m.controls);
		od_tokenizer_free(t);
	}
	assert_true(n_controls > 60);
	od_text_spans_fini(&x->users);
	free(x);
	free(twin);
}

/* Harmless texts get the ids that the whole text gets without users: the reference's. */
static void harmless_texts(void **state)
{
	struct tok_controls_text *x = calloc(1, sizeof(*x));
	int32_t *ids, *expected;

	(void)state;
	for (size_t f = 0; f < N_FILES; f++) {
		struct od_tokenizer *t = load(files[f]);
		struct marks m;

		find_marks(&m, t, "", false);
		for (int i = 0; i < 300; i++) {
			size_t n;

			x->len = x->users.n = 0;
			for (size_t k = below(16) + 1; k > 0; k--) {
				const size_t mark = m.n > 0 ? below(m.n) : 0;

				if (below(3) == 0 && m.n > 0)
					add(x, m.v[mark], m.len[mark], false);
				else if (below(8) == 0)
					add_plain(x, false);
				else
					add_words(x);
			}
			n = encode(t, x, m.controls, &ids);
			if (n != encode(t, x, NULL, &expected) || memcmp(ids, expected, n * sizeof(*ids)) != 0) {
				show(x);
				fail_msg("%s: other ids than without users", files[f]);
			}
			free(ids);
			free(expected);
		}
		od_controls_free(m.controls);
		od_tokenizer_free(t);
	}
	od_text_spans_fini(&x->users);
	free(x);
}

/* Whether a token that this test's files do not call special stands in text. */
static bool has_other_controls(const struct od_tokenizer *t, const struct marks *m, const char *text, size_t len)
{
	for (size_t i = 0; i < m->n; i++) {
		const int32_t id = tok_vocab_find(&t->vocab, m->v[i], m->len[i]);

		if (!od_tokenizer_is_special(t, id) && memmem(text, len, m->v[i], m->len[i]) != NULL)
			return true;
	}
	return false;
}

static size_t check_reference(const char *name, const struct od_tokenizer *t, const struct marks *m, const json_t *text,
			      const json_t *want)
{
	struct od_text_span all = { 0, json_string_length(text) };
	const struct od_text_spans users = { .v = &all, .n = 1 };
	int32_t *ids;
	size_t n;
	bool same;

	if (has_other_controls(t, m, json_string_value(text), all.end))
		return 0;
	assert_int_equal(
		od_tokenizer_encode_mixed(t, json_string_value(text), all.end, &users, m->controls, &ids, &n, NULL),
		OD_OK);
	same = n == json_array_size(want);
	for (size_t i = 0; same && i < n; i++)
		same = ids[i] == json_integer_value(json_array_get(want, i));
	if (!same)
		fail_msg("%s: \"%s\" has other ids", name, json_string_value(text));
	free(ids);
	return 1;
}

/* All of it a user's text: what Hugging Face makes of it with encode_special_tokens. */
static void against_hugging_face(void **state)
{
	json_t *golden, *entry, *c;
	size_t i, k, n = 0;

	(void)state;
	assert_int_equal(od_json_load(FOLDER "golden.json", (size_t)16 << 20, &golden, NULL), OD_OK);
	json_array_foreach(json_object_get(golden, "tokenizers"), i, entry)
	{
		char name[64];
		struct od_tokenizer *t;
		struct marks m;

		snprintf(name, sizeof(name), "tok_%s.json", json_string_value(json_object_get(entry, "name")));
		t = load(name);
		find_marks(&m, t, "", false);
		json_array_foreach(json_object_get(entry, "cases"), k, c)
		{
			const json_t *at = json_object_get(c, "text"), *plain = json_object_get(c, "plain");

			if (at != NULL)
				n += check_reference(name, t, &m,
						     json_array_get(json_object_get(golden, "texts"),
								    (size_t)json_integer_value(at)),
						     plain != NULL ? plain : json_object_get(c, "parse"));
		}
		od_controls_free(m.controls);
		od_tokenizer_free(t);
	}
	assert_true(n > 1000);
	json_decref(golden);
}

/* ---- by hand ---- */

#define FILE_OF(added, normalizer, model) \
	"{\"version\":\"1.0\",\"added_tokens\":[" added "],\"normalizer\":" normalizer \
	",\"model\":{\"type\":\"BPE\"," model "}}"
#define ADDED(id, content, fields) "{\"id\":" id ",\"content\":\"" content "\"" fields "}"
#define LETTERS "\"<\":0,\"s\":1,\">\":2,\"a\":3,\" \":4,\"/\":5,\"b\":6,\"\u2581\":7,\"S\":8,\"|\":9"
#define SPECIAL ",\"special\":true,\"normalized\":false"
#define ORDINARY ",\"special\":false,\"normalized\":false"
#define NO_MERGES "\"vocab\":{" LETTERS "},\"merges\":[]"
#define MERGES "\"vocab\":{" LETTERS ",\"<s\":10,\"<s>\":11},\"merges\":[[\"<\",\"s\"],[\"<s\",\">\"]]"

struct tok_controls_hand {
	const char *file, *template, *text; /* users' text in braces */
	size_t n;
	int32_t ids[12];
};

static void check_hand(const struct tok_controls_hand *h, size_t number)
{
	struct od_controls *controls;
	struct od_tokenizer *t;
	struct tok_controls_text x = { .len = 0 };
	struct od_err err;
	int32_t *ids;
	bool user = false;
	size_t n;

	if (od_tokenizer_parse(&t, OD_TOKENIZER_JSON, h->file, strlen(h->file), NULL, "file", &err) != OD_OK)
		fail_msg("case %zu: %s", number, err.msg);
	for (const char *p = h->text; *p != '\0'; p++) {
		if (*p == '{' || *p == '}')
			user = *p == '{';
		else
			add(&x, p, 1, user);
	}
	assert_int_equal(od_controls_new(&controls, t, &err), OD_OK);
	od_controls_add(controls, h->template, strlen(h->template));
	n = encode(t, &x, controls, &ids);
	if (n != h->n || memcmp(ids, h->ids, n * sizeof(*ids)) != 0) {
		for (size_t i = 0; i < n; i++)
			fprintf(stderr, "%d ", ids[i]);
		fail_msg("case %zu: %s: other ids", number, h->text);
	}
	free(ids);
	od_controls_free(controls);
	od_tokenizer_free(t);
	od_text_spans_fini(&x.users);
}

static void by_hand(void **state)
{
	static const char special[] = FILE_OF(ADDED("10", "<s>", SPECIAL), "null", NO_MERGES);
	static const char ordinary[] =
		FILE_OF(ADDED("10", "<s>", ORDINARY) "," ADDED("11", "  ", ORDINARY) "," ADDED("12", "<|a|>", ORDINARY),
			"null", NO_MERGES);
	static const char longer[] =
		FILE_OF(ADDED("10", "<s>", ORDINARY) "," ADDED("11", "<s><a>", SPECIAL) "," ADDED("12", "><", SPECIAL),
			"null", NO_MERGES);
	static const char strips[] =
		FILE_OF(ADDED("10", "<s>", SPECIAL ",\"lstrip\":true,\"rstrip\":true"), "null", NO_MERGES);
	static const char alone[] = FILE_OF(ADDED("10", "<s>", SPECIAL ",\"single_word\":true"), "null", NO_MERGES);
	static const char merged[] = FILE_OF(ADDED("11", "<s>", SPECIAL), "null", MERGES);
	static const char whole[] = FILE_OF(ADDED("11", "<s>", SPECIAL), "null", "\"ignore_merges\":true," MERGES);
	static const char lower[] = FILE_OF(ADDED("10", "<S>", ",\"special\":true,\"normalized\":true"),
					    "{\"type\":\"Lowercase\"}", NO_MERGES);
	static const char prefixed[] =
		FILE_OF(ADDED("10", "<s>", ",\"special\":true,\"normalized\":true"),
			"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
			"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}",
			NO_MERGES);
	static const struct tok_controls_hand cases[] = {
		{ special, "", "<s>{<s>}<s>", 5, { 10, 0, 1, 2, 10 } },
		{ special, "", "{<s}>", 3, { 0, 1, 2 } },
		{ special, "", "<{s>}", 3, { 0, 1, 2 } },
		{ special, "", "{<s><}s>", 6, { 0, 1, 2, 0, 1, 2 } },
		{ special, "", "{<}<s>{>}", 3, { 0, 10, 2 } },
		{ ordinary, "", "{<s>  a}", 3, { 10, 11, 3 } }, /* ordinary ones still match */
		/* but for a mark of the template */
		{ ordinary, "it writes <s>", "{<s>  a}<s>", 6, { 0, 1, 2, 11, 3, 10 } },
		{ ordinary, "", "{<|a|>}<|a|>", 6, { 0, 9, 3, 9, 2, 12 } }, /* or what looks like one */
		{ longer, "", "{<s><a>}<s><a>", 5, { 10, 0, 3, 2, 11 } }, /* the shorter one counts */
		{ longer, "", "{<s>}<a>", 4, { 10, 0, 3, 2 } },
		{ longer, "", "{a>}<s>", 3, { 3, 2, 10 } }, /* a barred token hides nothing */
		{ strips, "", "{a }<s>{ a}", 3, { 3, 10, 3 } },
		{ strips, "", "{a <s> a}", 7, { 3, 4, 0, 1, 2, 4, 3 } },
		{ alone, "", "{;}<s>{;}", 1, { 10 } },
		{ merged, "", "{<s>}<s>", 4, { 0, 1, 2, 11 } },
		{ merged, "", "{a<s><s}", 5, { 3, 0, 1, 2, 10 } },
		{ whole, "", "{<s>}<s>", 4, { 0, 1, 2, 11 } },
		{ lower, "", "<s>{<S>}<S>{<s}>", 8, { 10, 0, 1, 2, 10, 0, 1, 2 } },
		{ lower, "", "{<}s>", 3, { 0, 1, 2 } },
		{ prefixed, "", "<s>{a }<s>{a <s>}", 8, { 10, 3, 10, 3, 7, 0, 1, 2 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_hand(&cases[i], i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hostile_texts),
		cmocka_unit_test(harmless_texts),
		cmocka_unit_test(against_hugging_face),
		cmocka_unit_test(by_hand),
	};

	return cmocka_run_group_tests_name("tok_controls", tests, NULL, NULL);
}
