/* Small tokenizers against what other libraries make of the same texts and ids: tokenizer.json of every kind of
 * component against Hugging Face tokenizers (tests/golden/tokenizer/make_golden.py), tokenizer.model and tiktoken.model
 * against sentencepiece and tiktoken (make_ranked.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/text/tok_decode.h"
#include "common/text/tokenizer.h"

#define FOLDER "tests/golden/tokenizer/"
#define MAX_IDS 1024

static json_t *golden, *ranked;
static size_t n_encoded, n_decoded, n_streamed;

static size_t read_ids(const json_t *list, int32_t *ids)
{
	size_t n = json_array_size(list);

	assert_true(n <= MAX_IDS);
	for (size_t i = 0; i < n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
	return n;
}

static void check_encode(const struct od_tokenizer *t, const char *name, const json_t *text, const json_t *want,
			 unsigned flags)
{
	struct od_err err;
	int32_t *ids;
	size_t n;
	int rc = od_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &n, &err);
	bool same = rc == OD_OK && n == json_array_size(want);

	for (size_t i = 0; same && i < n; i++)
		same = ids[i] == json_integer_value(json_array_get(want, i));
	if (!same)
		fail_msg("%s, flags %u: \"%s\" has other ids", name, flags, json_string_value(text));
	free(ids);
	n_encoded++;
}

static void check_decode(const struct od_tokenizer *t, const char *name, const json_t *list, const json_t *want,
			 bool skip_special)
{
	int32_t ids[MAX_IDS];
	size_t n = read_ids(list, ids), len;
	struct od_err err;
	char *text;

	if (!json_is_string(want)) /* the reference itself fell over */
		return;
	assert_int_equal(od_tokenizer_decode(t, ids, n, skip_special, &text, &len, &err), OD_OK);
	if (len != json_string_length(want) || memcmp(text, json_string_value(want), len) != 0)
		fail_msg("%s: decoded \"%s\", expected \"%s\"", name, text, json_string_value(want));
	assert_int_equal(text[len], 0);
	free(text);
	n_decoded++;
}

static bool is_byte_token(const struct od_tokenizer *t, int32_t id)
{
	char name[8];

	for (unsigned b = 0; b < 256; b++) {
		snprintf(name, sizeof(name), "<0x%02X>", b);
		if (od_tokenizer_find(t, name) == id)
			return true;
	}
	return false;
}

/* The pieces add up to the text; none cuts a character; none shows what is not final; and none is late, except for
 * a run of byte tokens, which can still turn out not to be UTF-8. */
static void check_stream(const struct od_tokenizer *t, const char *name, const json_t *list, const json_t *stream)
{
	const json_t *want = json_object_get(stream, "text"), *final = json_object_get(stream, "final");
	size_t context = (size_t)json_integer_value(json_object_get(stream, "context")), len, at = 0, n;
	const char *piece, *text = json_string_value(want);
	int32_t ids[MAX_IDS];
	bool in_run = false;
	struct od_detok *d;
	struct od_err err;

	n = read_ids(list, ids);
	assert_int_equal(od_detok_new(&d, t, &err), OD_OK);
	assert_int_equal(od_detok_prime(d, ids, context, &err), OD_OK);
	for (size_t i = context; i <= n; i++) {
		int rc = i < n ? od_detok_push(d, ids[i], &piece, &len, &err) : od_detok_flush(d, &piece, &len, &err);
		size_t safe = (size_t)json_integer_value(json_array_get(final, i - context));

		assert_int_equal(rc, OD_OK);
		assert_int_equal(piece[len], 0);
		if (len > json_string_length(want) - at || memcmp(text + at, piece, len) != 0)
			fail_msg("%s: streamed \"%s\" in \"%s\" at %zu", name, piece, text, at);
		at += len;
		assert_true(((unsigned char)text[at] & 0xc0) != 0x80);
		if (i < n) {
			assert_true(at <= safe);
			if (!od_tokenizer_is_special(t, ids[i])) /* one that is left out ends no run */
				in_run = is_byte_token(t, ids[i]);
			assert_true(at + 8 >= safe || in_run);
		}
	}
	assert_int_equal(at, json_string_length(want));
	od_detok_free(d);
	n_streamed++;
}

static void check_case(const json_t *all, const struct od_tokenizer *t, const char *name, const json_t *c)
{
	const json_t *parse = json_object_get(c, "parse"), *other, *at = json_object_get(c, "text");

	if (at != NULL) {
		const json_t *text = json_array_get(json_object_get(all, "texts"), (size_t)json_integer_value(at));

		check_encode(t, name, text, parse, OD_ENCODE_PARSE_SPECIAL);
		other = json_object_get(c, "plain");
		check_encode(t, name, text, other != NULL ? other : parse, 0);
		other = json_object_get(c, "both");
		check_encode(t, name, text, other != NULL ? other : parse,
			     OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL);
	}
	check_decode(t, name, parse, json_object_get(c, "decoded"), true);
	other = json_object_get(c, "with_special");
	check_decode(t, name, parse, other != NULL ? other : json_object_get(c, "decoded"), false);
	if (json_is_object(json_object_get(c, "stream")))
		check_stream(t, name, parse, json_object_get(c, "stream"));
}

/* before, after: what a tokenizer's path has around its name. */
static void check_all(const json_t *all, size_t n, const char *before, const char *after)
{
	const json_t *list = json_object_get(all, "tokenizers");
	json_t *entry, *c;
	size_t i, k;

	assert_int_equal(json_array_size(list), n);
	json_array_foreach(list, i, entry)
	{
		const char *name = json_string_value(json_object_get(entry, "name"));
		struct od_tokenizer *t;
		struct od_err err;
		char path[128];

		snprintf(path, sizeof(path), FOLDER "%s%s%s", before, name, after);
		if (od_tokenizer_load(&t, path, &err) != OD_OK)
			fail_msg("%s", err.msg);
		json_array_foreach(json_object_get(entry, "cases"), k, c) check_case(all, t, name, c);
		od_tokenizer_free(t);
	}
}

static void against_hugging_face(void **state)
{
	(void)state;
	check_all(golden, 22, "tok_", ".json");
	/* So that an empty file of cases is not a good one. */
	assert_true(n_encoded > 3000 && n_decoded > 2600 && n_streamed > 280);
}

static void against_sentencepiece_and_tiktoken(void **state)
{
	(void)state;
	n_encoded = n_decoded = 0;
	check_all(ranked, 6, "", "");
	assert_true(n_encoded > 1700 && n_decoded > 800);
}

/* An id that the context left unfinished is completed by the stream, not repeated. */
static void context_ends_inside_a_character(void **state)
{
	struct od_tokenizer *t;
	struct od_detok *d;
	struct od_err err;
	const char *piece;
	int32_t ids[4];
	size_t len;

	(void)state;
	assert_int_equal(od_tokenizer_load(&t, FOLDER "tok_mixtral.json", &err), OD_OK);
	ids[0] = od_tokenizer_find(t, "<0xE2>");
	ids[1] = od_tokenizer_find(t, "<0x82>");
	ids[2] = od_tokenizer_find(t, "<0xAC>");
	ids[3] = od_tokenizer_find(t, "a");
	assert_int_equal(od_detok_new(&d, t, &err), OD_OK);
	assert_int_equal(od_detok_prime(d, ids, 2, &err), OD_OK);
	assert_int_equal(od_detok_push(d, ids[2], &piece, &len, &err), OD_OK);
	assert_int_equal(len, 0);
	assert_int_equal(od_detok_push(d, ids[3], &piece, &len, &err), OD_OK);
	assert_string_equal(piece, "\xe2\x82\xac"
				   "a");
	od_detok_free(d);
	/* The whole character in the context: it has been shown. */
	assert_int_equal(od_detok_new(&d, t, &err), OD_OK);
	assert_int_equal(od_detok_prime(d, ids, 3, &err), OD_OK);
	assert_int_equal(od_detok_push(d, ids[3], &piece, &len, &err), OD_OK);
	assert_string_equal(piece, "a");
	od_detok_free(d);
	od_tokenizer_free(t);
}

/* Byte-level: the bytes of a text's tokens make the text again, also where a token is only a part of a character. */
static void bytes_of_byte_level_tokens(void **state)
{
	static const char text[] = "\xc3\xa9\xf0\x9f\xa6\x9a \xe6\x97\xa5 a";
	struct od_tokenizer *t;
	struct od_err err;
	char bytes[64], all[64] = "";
	int32_t *ids;
	size_t n_ids, len = 0;

	(void)state;
	assert_int_equal(od_tokenizer_load(&t, FOLDER "tok_gpt2.json", &err), OD_OK);
	assert_int_equal(od_tokenizer_encode(t, text, strlen(text), 0, &ids, &n_ids, &err), OD_OK);
	for (size_t i = 0; i < n_ids; i++) {
		size_t n = od_tokenizer_bytes(t, ids[i], bytes, sizeof(bytes));

		assert_true(n > 0 && len + n < sizeof(all));
		assert_int_equal(od_tokenizer_bytes(t, ids[i], bytes, n - 1), 0);
		memcpy(all + len, bytes, n);
		len += n;
	}
	assert_string_equal(all, text);
	assert_true(n_ids > 6); /* characters were cut */
	assert_int_equal(od_tokenizer_bytes(t, -1, bytes, sizeof(bytes)), 0);
	assert_int_equal(od_tokenizer_bytes(t, INT32_MAX, bytes, sizeof(bytes)), 0);
	free(ids);
	od_tokenizer_free(t);
}

static void bytes_of_fallback_tokens(void **state)
{
	struct od_tokenizer *t;
	struct od_err err;
	char byte = 0;

	(void)state;
	assert_int_equal(od_tokenizer_load(&t, FOLDER "tok_mixtral.json", &err), OD_OK);
	assert_int_equal(od_tokenizer_bytes(t, od_tokenizer_find(t, "<0xE2>"), &byte, 1), 1);
	assert_int_equal((unsigned char)byte, 0xe2);
	assert_int_equal(od_tokenizer_bytes(t, od_tokenizer_find(t, "a"), &byte, 1), 0);
	od_tokenizer_free(t);
}

/* Small files that no trainer makes, and the ids of Hugging Face tokenizers. */
#define FILE_WITH(added, model) \
	"{\"version\":\"1.0\",\"added_tokens\":[" added "],\"model\":{\"type\":\"BPE\"," model "}}"
#define ADDED(id, content, flag) "{\"id\":" id ",\"content\":\"" content "\",\"normalized\":false," flag ":true}"

static void hand_written(void **state)
{
	/* Behind a lost or unknown character, or one that is its bytes, stands what may merge with what is in front of
	 * it. */
	static const char lost[] = FILE_WITH("", "\"vocab\":{\"a\":0,\"\\n\":1,\"a\\n\":2,\"\u2581\":3,\"a\u2581\":4},"
						 "\"merges\":[[\"a\",\"\\n\"],[\"a\",\"\u2581\"]]");
	static const char unknown[] = FILE_WITH("", "\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"\\n\":1,\"u\\n\":2},"
						    "\"merges\":[[\"u\",\"\\n\"]]");
	static const char swallowed[] = FILE_WITH(ADDED("2", "<r>", "\"rstrip\"") "," ADDED("1", "\\t", "\"lstrip\""),
						  "\"vocab\":{\"a\":0,\"\\t\":1},\"merges\":[]");
	static const struct {
		const char *file, *text;
		size_t n;
		int32_t ids[4];
	} cases[] = {
		{ lost, "axx\n", 1, { 2 } },	      { lost, "ax\u2581\u2581", 2, { 4, 3 } },
		{ lost, "a\na\n", 2, { 2, 2 } },      { unknown, "x\n\nu\n", 3, { 2, 1, 2 } },
		{ swallowed, "<r>\ta", 2, { 2, 0 } }, { swallowed, "<r>a\ta", 4, { 2, 0, 1, 0 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct od_tokenizer *t;
		struct od_err err;
		int32_t *ids;
		size_t n;

		if (od_tokenizer_parse(&t, OD_TOKENIZER_JSON, cases[i].file, strlen(cases[i].file), NULL, "file",
				       &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_int_equal(od_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 0, &ids, &n, &err),
				 OD_OK);
		if (n != cases[i].n || memcmp(ids, cases[i].ids, n * sizeof(*ids)) != 0)
			fail_msg("case %zu: other ids", i);
		free(ids);
		od_tokenizer_free(t);
	}
}

/* Words and texts of a size at which anything quadratic takes minutes. */
static void long_texts(void **state)
{
	static const char *const files[] = { "mixtral", "gpt2", "nfd_strip", "added" };
	static const char *const units[] = { "a", " ", "\xcc\x81\xcc\xa3", "\xe2\x82\xac", "the " };
	size_t max = 1u << 20;
	char *text = malloc(max);

	(void)state;
	assert_non_null(text);
	for (size_t f = 0; f < 4; f++) {
		struct od_tokenizer *t;
		struct od_err err;
		char path[128];

		snprintf(path, sizeof(path), FOLDER "tok_%s.json", files[f]);
		assert_int_equal(od_tokenizer_load(&t, path, &err), OD_OK);
		for (size_t u = 0; u < 5; u++) {
			size_t len = strlen(units[u]), n, n_ids;
			int32_t *ids;

			for (n = 0; n + len <= max; n += len)
				memcpy(text + n, units[u], len);
			assert_int_equal(od_tokenizer_encode(t, text, n, 0, &ids, &n_ids, &err), OD_OK);
			assert_true(n_ids <= n + 1); /* a space in front */
			free(ids);
		}
		od_tokenizer_free(t);
	}
	free(text);
}

/* Kimi's code cuts these before tiktoken sees them (make_ranked.py). */
static void long_texts_of_kimi(void **state)
{
	struct od_tokenizer *t;
	struct od_err err;
	json_t *root, *c, *repeated;
	size_t i, k;

	(void)state;
	assert_int_equal(od_json_load(FOLDER "slices.json", 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_tokenizer_load(&t, FOLDER "ranked_kimi/tiktoken.model", &err), OD_OK);
	json_array_foreach(json_object_get(root, "cases"), i, c)
	{
		struct od_strbuf text = { 0 };
		unsigned char sum[crypto_hash_sha256_BYTES];
		char hex[2 * crypto_hash_sha256_BYTES + 1];
		int32_t *ids;
		size_t n;

		json_array_foreach(json_object_get(c, "parts"), k,
				   repeated) for (json_int_t again = json_integer_value(json_array_get(repeated, 1));
						  again > 0; again--)
			od_strbuf_append(&text, json_string_value(json_array_get(repeated, 0)),
					 json_string_length(json_array_get(repeated, 0)));
		assert_false(text.failed);
		assert_int_equal(od_tokenizer_encode(t, text.text, text.len, OD_ENCODE_PARSE_SPECIAL, &ids, &n, &err),
				 OD_OK);
		crypto_hash_sha256(sum, (const unsigned char *)ids, n * sizeof(*ids));
		sodium_bin2hex(hex, sizeof(hex), sum, sizeof(sum));
		if ((json_int_t)n != json_integer_value(json_object_get(c, "n")) ||
		    strcmp(hex, json_string_value(json_object_get(c, "sha256"))) != 0)
			fail_msg("case %zu of %zu bytes: %zu ids, expected %lld, or other ones", i, text.len, n,
				 (long long)json_integer_value(json_object_get(c, "n")));
		free(ids);
		od_strbuf_fini(&text);
	}
	assert_true(i > 25);
	od_tokenizer_free(t);
	json_decref(root);
}

static int load(void **state)
{
	struct od_err err;

	(void)state;
	return od_json_load(FOLDER "golden.json", 1 << 22, &golden, &err) != OD_OK ||
	       od_json_load(FOLDER "ranked.json", 1 << 22, &ranked, &err) != OD_OK;
}

static int unload(void **state)
{
	(void)state;
	json_decref(golden);
	json_decref(ranked);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_hugging_face),
		cmocka_unit_test(against_sentencepiece_and_tiktoken),
		cmocka_unit_test(context_ends_inside_a_character),
		cmocka_unit_test(bytes_of_byte_level_tokens),
		cmocka_unit_test(bytes_of_fallback_tokens),
		cmocka_unit_test(hand_written),
		cmocka_unit_test(long_texts),
		cmocka_unit_test(long_texts_of_kimi),
	};

	return cmocka_run_group_tests_name("tokenizer_golden", tests, load, unload);
}
