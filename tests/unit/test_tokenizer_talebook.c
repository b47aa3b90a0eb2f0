/* The demo checkpoint's tokenizer against texts and ids that Hugging Face tokenizers made of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/text/tok_decode.h"
#include "common/text/tokenizer.h"

#define MODEL "deploy/models/talebook/tokenizer.json"

static struct od_tokenizer *tok;

static int load(void **state)
{
	struct od_err err;

	(void)state;
	return od_tokenizer_load(&tok, MODEL, &err);
}

static int unload(void **state)
{
	(void)state;
	od_tokenizer_free(tok);
	return 0;
}

static void golden_ids(void **state)
{
	struct od_err err;
	json_t *root, *cases, *c, *want;
	size_t i, n_checked = 0;

	(void)state;
	assert_int_equal(od_json_load("tests/golden/tokenizer/talebook.json", 1 << 20, &root, &err), OD_OK);
	assert_int_equal(od_json_arr(root, "cases", &cases, "golden", &err), OD_OK);
	json_array_foreach(cases, i, c)
	{
		const json_t *text = json_object_get(c, "text");
		char *back;
		size_t n, len;
		int32_t *ids;

		want = json_object_get(c, "ids");
		assert_int_equal(
			od_tokenizer_encode(tok, json_string_value(text), json_string_length(text), 0, &ids, &n, &err),
			OD_OK);
		assert_int_equal(n, json_array_size(want));
		for (size_t k = 0; k < n; k++)
			assert_int_equal(ids[k], json_integer_value(json_array_get(want, k)));
		assert_int_equal(od_tokenizer_decode(tok, ids, n, true, &back, &len, &err), OD_OK);
		assert_int_equal(len, json_string_length(text)); /* a byte-level vocabulary loses nothing */
		assert_memory_equal(back, json_string_value(text), len);
		free(back);
		free(ids);
		n_checked += n;
	}
	assert_true(n_checked > 300);
	json_decref(root);
}

static void bos_and_specials(void **state)
{
	static const char text[] = "<s>Once</s>";
	struct od_err err;
	int32_t *ids;
	size_t n;

	(void)state;
	assert_int_equal(od_tokenizer_vocab(tok), 4096);
	assert_int_equal(od_tokenizer_find(tok, "<s>"), 1);
	assert_int_equal(od_tokenizer_find(tok, "nowhere to be found"), -1);
	assert_true(od_tokenizer_is_special(tok, 2));
	assert_false(od_tokenizer_is_special(tok, 2140));
	assert_false(od_tokenizer_is_special(tok, -1));
	assert_false(od_tokenizer_is_special(tok, 4096));

	assert_int_equal(od_tokenizer_encode(tok, text, strlen(text), OD_ENCODE_ADD_SPECIAL | OD_ENCODE_PARSE_SPECIAL,
					     &ids, &n, &err),
			 OD_OK);
	assert_int_equal(n, 4);
	assert_int_equal(ids[0], 1);
	assert_int_equal(ids[1], 1);
	assert_int_equal(ids[2], 2140);
	assert_int_equal(ids[3], 2);
	free(ids);
	/* As plain text no part of it may become a special token. */
	assert_int_equal(od_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n, &err), OD_OK);
	assert_true(n > 4);
	for (size_t i = 0; i < n; i++)
		assert_false(od_tokenizer_is_special(tok, ids[i]));
	free(ids);
}

static void stream_of_a_story(void **state)
{
	static const char text[] = "The wolf said: \xe2\x80\x9cna\xc3\xafve \xf0\x9f\x90\xba!\xe2\x80\x9d";
	struct od_err err;
	struct od_detok *d;
	const char *piece;
	char shown[128];
	size_t n, len, at = 0;
	int32_t *ids;

	(void)state;
	assert_int_equal(od_tokenizer_encode(tok, text, strlen(text), OD_ENCODE_ADD_SPECIAL, &ids, &n, &err), OD_OK);
	assert_int_equal(od_detok_new(&d, tok, &err), OD_OK);
	assert_int_equal(od_detok_prime(d, ids, 2, &err), OD_OK); /* <s>, The */
	for (size_t i = 2; i <= n; i++) {
		int rc = i < n ? od_detok_push(d, ids[i], &piece, &len, &err) : od_detok_flush(d, &piece, &len, &err);

		assert_int_equal(rc, OD_OK);
		assert_int_equal(piece[len], 0);
		/* No piece ends inside a character: none begins with a byte from the middle of one. */
		assert_true(len == 0 || ((unsigned char)piece[0] & 0xc0) != 0x80);
		assert_true(at + len < sizeof(shown));
		memcpy(shown + at, piece, len + 1);
		at += len;
	}
	assert_string_equal(shown, text + 3);
	od_detok_free(d);
	free(ids);
}

/* Special tokens are left out of a stream, but for those that are asked for. */
static void shown_specials(void **state)
{
	static const int32_t ids[] = { 2140, 1, 2140, 2, 0, 2140 }, unk_and_eos[] = { 0, 2 };
	static const char *const expected[] = { "OnceOnceOnce", "OnceOnce</s><unk>Once" };
	struct od_err err;
	const char *piece;
	size_t len, at;

	(void)state;
	for (size_t shown = 0; shown <= 2; shown += 2) {
		struct od_detok *d;
		char text[64];

		at = 0;
		assert_int_equal(od_detok_new(&d, tok, &err), OD_OK);
		od_detok_show(d, unk_and_eos, shown);
		for (size_t i = 0; i <= 6; i++) {
			int rc = i < 6 ? od_detok_push(d, ids[i], &piece, &len, &err) :
					 od_detok_flush(d, &piece, &len, &err);

			assert_int_equal(rc, OD_OK);
			assert_true(at + len < sizeof(text));
			memcpy(text + at, piece, len + 1);
			at += len;
		}
		assert_string_equal(text, expected[shown / 2]);
		od_detok_free(d);
	}
}

static void broken_utf8(void **state)
{
	struct od_err err;
	int32_t *ids;
	size_t n;

	(void)state;
	assert_int_equal(od_tokenizer_encode(tok, "ab\xc3(", 4, 0, &ids, &n, &err), OD_ERR_FORMAT);
	assert_null(ids);
	assert_non_null(strstr(err.msg, "byte 2"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_ids),	     cmocka_unit_test(bos_and_specials),
		cmocka_unit_test(stream_of_a_story), cmocka_unit_test(shown_specials),
		cmocka_unit_test(broken_utf8),
	};

	return cmocka_run_group_tests_name("tokenizer_talebook", tests, load, unload);
}
