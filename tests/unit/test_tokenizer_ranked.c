/* tokenizer.model and tiktoken.model that must be refused, each for a reason that names what is wrong. */
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
#include "common/text/tokenizer.h"

/* says NULL: it is taken. */
static void check(enum od_tokenizer_kind kind, const char *data, size_t len, const char *config, int code,
		  const char *says)
{
	struct od_tokenizer *t;
	struct od_err err = { 0 };
	json_t *root = NULL;
	int rc;

	if (config != NULL)
		assert_int_equal(od_json_parse(config, strlen(config), "config", &root, &err), OD_OK);
	rc = od_tokenizer_parse(&t, kind, data, len, root, "the file", &err);
	if (says == NULL && rc != OD_OK)
		fail_msg("%s", err.msg);
	if (says != NULL &&
	    (rc != code || t != NULL || strstr(err.msg, says) == NULL || strstr(err.msg, "the file") == NULL))
		fail_msg("expected code %d and \"%s\", found %d: %s", code, says, rc, err.msg);
	od_tokenizer_free(t);
	json_decref(root);
}

/* ---- tiktoken.model ---- */

#define FILE_BYTES 8192

static size_t bytes_but(int left_out, char *file)
{
	size_t n = 0;
	unsigned rank = 0;
	char line[8];

	for (int b = 0; b < 256; b++) {
		if (b == left_out)
			continue;
		sodium_bin2base64(line, sizeof(line), &(const uint8_t){ (uint8_t)b }, 1,
				  sodium_base64_VARIANT_ORIGINAL);
		n += (size_t)snprintf(file + n, FILE_BYTES - n, "%s %u\n", line, rank++);
	}
	return n;
}

static void tiktoken(void **state)
{
	static const struct {
		int left_out;
		const char *more, *config;
		int code;
		const char *says;
	} cases[] = {
		{ -1, "YWI= 256\n", NULL, OD_OK, NULL },
		{ -1, "YWI= 256\r\n\n", "{\"tokenizer_class\":\"TikTokenTokenizer\"}", OD_OK, NULL },
		{ -1, "", "{\"tokenizer_class\":\"QWenTokenizer\"}", OD_ERR_UNSUPPORTED, "QWenTokenizer" },
		{ -1, "YWI=\n", NULL, OD_ERR_FORMAT, "BASE64 RANK" },
		{ -1, "YWI= 25x\n", NULL, OD_ERR_FORMAT, "BASE64 RANK" },
		{ -1, "YWI= \n", NULL, OD_ERR_FORMAT, "BASE64 RANK" },
		{ -1, "YWI= 99999999999\n", NULL, OD_ERR_FORMAT, "BASE64 RANK" },
		{ -1, "Y!I= 256\n", NULL, OD_ERR_FORMAT, "in base64" },
		{ -1, "YWI= 257\n", NULL, OD_ERR_RANGE, "0 to 256" },
		{ -1, "YWI= 255\n", NULL, OD_ERR_FORMAT, "twice" },
		{ -1, "YQ== 256\n", NULL, OD_ERR_FORMAT, "twice" },
		{ 0x7f, "YWI= 255\n", NULL, OD_ERR_FORMAT, "0x7f" },
		{ 0x7f, "", NULL, OD_ERR_RANGE, "found 255" },
		{ -1, "", "{\"added_tokens_decoder\":{\"255\":{\"content\":\"x\"}}}", OD_ERR_RANGE, "found 255" },
		{ -1, "", "{\"added_tokens_decoder\":{\"512\":{\"content\":\"x\"}}}", OD_ERR_RANGE, "256 to 511" },
		{ -1, "", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"x\"}}}", OD_ERR_FORMAT, "\"x\"" },
		{ -1, "", "{\"added_tokens_decoder\":{\"256\":7}}", OD_ERR_FORMAT, "added_tokens_decoder" },
		{ -1, "", "{\"added_tokens_decoder\":{\"256\":{}}}", OD_ERR_MISSING, "content" },
		{ -1, "", "{\"added_tokens_decoder\":{\"256\":{\"content\":\"x\"},\"0256\":{\"content\":\"y\"}}}",
		  OD_ERR_FORMAT, "twice" },
		{ -1, "", "{\"added_tokens_decoder\":[]}", OD_ERR_FORMAT, "added_tokens_decoder" },
	};
	static char file[FILE_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n = bytes_but(cases[i].left_out, file);

		n += (size_t)snprintf(file + n, FILE_BYTES - n, "%s", cases[i].more);
		check(OD_TOKENIZER_TIKTOKEN, file, n, cases[i].config, cases[i].code, cases[i].says);
	}
	check(OD_TOKENIZER_TIKTOKEN, "", 0, NULL, OD_ERR_RANGE, "found 0");
}

/* ---- tokenizer.model ---- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static size_t put_piece(char *out, const char *text, int type)
{
	const size_t len = strlen(text);

	out[0] = 0x0a;
	out[1] = (char)(len + 4);
	out[2] = 0x0a;
	out[3] = (char)len;
	memcpy(out + 4, text, len);
	out[4 + len] = 0x18;
	out[5 + len] = (char)type;
	return len + 6;
}

struct extra {
	const char *text;
	int type;
};

static size_t put_model(char *out, struct extra e, const char *fields, size_t n_fields)
{
	static const struct extra usual[] = { { "<unk>", UNKNOWN }, { "<s>", CONTROL }, { "</s>", CONTROL },
					      { "a", NORMAL },	    { "b", NORMAL },	{ "ab", NORMAL } };
	size_t n = 0;

	for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
		n += put_piece(out + n, usual[i].text, usual[i].type);
	if (e.text != NULL)
		n += put_piece(out + n, e.text, e.type);
	memcpy(out + n, "\x12\x02\x18\x02", 4); /* BPE */
	n += 4;
	memcpy(out + n, fields, n_fields);
	return n + n_fields;
}

#define FIELDS(s) s, sizeof(s) - 1

static void sentencepiece(void **state)
{
	static const struct {
		struct extra piece;
		const char *fields;
		size_t n_fields;
		const char *config;
		int code;
		const char *says;
	} cases[] = {
		{ { NULL, 0 }, FIELDS(""), NULL, OD_OK, NULL },
		{ { "<x>", USER_DEFINED }, FIELDS("\x1a\x0a\x0a\x08identity"), "{\"legacy\":false}", OD_OK, NULL },
		{ { NULL, 0 }, FIELDS("\x12\x02\x18\x01"), NULL, OD_ERR_UNSUPPORTED, "\"Unigram\"" },
		{ { NULL, 0 }, FIELDS("\x12\x02\x18\x03"), NULL, OD_ERR_UNSUPPORTED, "\"Word\"" },
		{ { NULL, 0 }, FIELDS("\x12\x02\x18\x09"), NULL, OD_ERR_UNSUPPORTED, "newer" },
		{ { NULL, 0 }, FIELDS("\x12\x03\xc0\x01\x01"), NULL, OD_ERR_UNSUPPORTED, "treat_whitespace_as_suffix" },
		{ { NULL, 0 }, FIELDS("\x1a\x0c\x0a\x08nmt_nfkc\x12\x00"), NULL, OD_OK, NULL }, /* an empty table */
		{ { NULL, 0 }, FIELDS("\x1a\x0d\x0a\x08nmt_nfkc\x12\x01x"), NULL, OD_ERR_UNSUPPORTED, "\"nmt_nfkc\"" },
		{ { NULL, 0 }, FIELDS("\x1a\x02\x28\x00"), NULL, OD_ERR_UNSUPPORTED, "escape_whitespaces" },
		{ { NULL, 0 }, FIELDS("\x2a\x03\x12\x01x"), NULL, OD_ERR_UNSUPPORTED, "denormalizer_spec" },
		{ { NULL, 0 }, FIELDS("\x12\x05"), NULL, OD_ERR_FORMAT, "a field of a SentencePiece model" },
		{ { NULL, 0 }, FIELDS("\x12\x02\x18\xff"), NULL, OD_ERR_FORMAT, "a field of a SentencePiece model" },
		{ { NULL, 0 }, FIELDS("\x0f"), NULL, OD_ERR_FORMAT, "a field of a SentencePiece model" },
		{ { "x", UNUSED }, FIELDS(""), NULL, OD_ERR_UNSUPPORTED, "piece 6: type 5" },
		{ { "x", 7 }, FIELDS(""), NULL, OD_ERR_UNSUPPORTED, "piece 6: type 7" },
		{ { "<x>", UNKNOWN }, FIELDS(""), NULL, OD_ERR_FORMAT, "found two" },
		{ { "ab", USER_DEFINED }, FIELDS(""), NULL, OD_ERR_FORMAT, "\"ab\" is there twice" },
		{ { "ac", NORMAL }, FIELDS(""), NULL, OD_ERR_UNSUPPORTED, "\"ac\"" },
		{ { "", NORMAL }, FIELDS(""), NULL, OD_ERR_FORMAT, "found 0 bytes" },
		{ { "\xff", NORMAL }, FIELDS(""), NULL, OD_ERR_FORMAT, "UTF-8" },
		{ { "<0x41>", BYTE }, FIELDS(""), NULL, OD_ERR_FORMAT, "byte_fallback" },
		{ { "<0x41>", BYTE }, FIELDS("\x12\x03\x98\x02\x01"), NULL, OD_ERR_FORMAT, "none for 0x00" },
		{ { "x", BYTE }, FIELDS("\x12\x03\x98\x02\x01"), NULL, OD_ERR_FORMAT, "\"x\"" },
		{ { NULL, 0 }, FIELDS(""), "{\"bos_token\":\"<bos>\"}", OD_ERR_FORMAT, "\"<bos>\" is no token" },
		{ { NULL, 0 }, FIELDS(""), "{\"bos_token\":7}", OD_ERR_FORMAT, "bos_token" },
		{ { NULL, 0 }, FIELDS(""), "{\"add_bos_token\":7}", OD_ERR_FORMAT, "add_bos_token" },
		{ { NULL, 0 },
		  FIELDS(""),
		  "{\"added_tokens_decoder\":{\"1\":{\"content\":\"<b>\"}}}",
		  OD_ERR_FORMAT,
		  "\"<s>\"" },
		{ { NULL, 0 },
		  FIELDS(""),
		  "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<b>\"}}}",
		  OD_ERR_FORMAT,
		  "expected id 6" },
		{ { NULL, 0 }, FIELDS(""), "{\"added_tokens_decoder\":{\"6\":{\"content\":\"<b>\"}}}", OD_OK, NULL },
	};
	char file[512];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n = put_model(file, cases[i].piece, cases[i].fields, cases[i].n_fields);

		check(OD_TOKENIZER_SENTENCEPIECE, file, n, cases[i].config, cases[i].code, cases[i].says);
	}
	check(OD_TOKENIZER_SENTENCEPIECE, "", 0, NULL, OD_ERR_FORMAT, "found 0");
	check(OD_TOKENIZER_SENTENCEPIECE, "YQ== 0\n", 7, NULL, OD_ERR_FORMAT, "SentencePiece");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tiktoken),
		cmocka_unit_test(sentencepiece),
	};

	return cmocka_run_group_tests_name("tokenizer_ranked", tests, NULL, NULL);
}
