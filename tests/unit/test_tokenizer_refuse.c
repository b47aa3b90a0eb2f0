/* tokenizer.json files that must be refused, each for a reason that names what is wrong; and hostile patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "common/text/tok_decode.h"
#include "common/text/tokenizer.h"

enum { VERSION, ADDED, NORM, PRE, POST, DEC, MODEL, N_FIELDS };

static const char *const names[N_FIELDS] = { "version",	       "added_tokens", "normalizer", "pre_tokenizer",
					     "post_processor", "decoder",      "model" };
static const char *const good[N_FIELDS] = {
	"\"1.0\"",
	"[]",
	"null",
	"null",
	"null",
	"null",
	"{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3},\"merges\":[\"a b\"]}"
};

static int load_text(struct od_tokenizer **t, const char *text, size_t len, struct od_err *err)
{
	char path[] = "/tmp/od_tokenizer_XXXXXX";
	int fd = mkstemp(path), rc;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), (ssize_t)len);
	close(fd);
	rc = od_tokenizer_load(t, path, err);
	if (rc != OD_OK) {
		assert_null(*t);
		assert_int_equal(err->code, rc);
		if (strstr(err->msg, path) == NULL)
			fail_msg("does not name the file: %s", err->msg);
	}
	unlink(path);
	return rc;
}

static int load(struct od_tokenizer **t, int field, const char *value, struct od_err *err)
{
	char *text = malloc(1 << 20);
	size_t at = 0;
	int rc;

	assert_non_null(text);
	for (int i = 0; i < N_FIELDS; i++)
		at += (size_t)snprintf(text + at, (1 << 20) - at, "%c\"%s\":%s", i == 0 ? '{' : ',', names[i],
				       i == field ? value : good[i]);
	text[at++] = '}';
	rc = load_text(t, text, at, err);
	free(text);
	return rc;
}

#define MODEL_WITH(fields) "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]," fields "}"
#define MERGES(list) "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":" list "}"
#define VOCAB(map) "{\"type\":\"BPE\",\"vocab\":" map ",\"merges\":[]}"
#define REGEX(re) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define A100 "aaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbb"
#define A1100 A100 A100 A100 A100 A100 A100 A100 A100 A100 A100 A100
#define TEMPLATE(single, special) \
	"{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{" special "}}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static const struct {
	int field;
	const char *value;
	int code;
	const char *says;
} refused[] = {
	{ VERSION, "\"2.0\"", OD_ERR_UNSUPPORTED, "2.0" },
	{ VERSION, "1", OD_ERR_FORMAT, "version" },
	{ MODEL, "null", OD_ERR_FORMAT, "model" },
	{ MODEL, "{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}", OD_ERR_UNSUPPORTED,
	  "\"WordPiece\" is not supported; supported: BPE" },
	{ MODEL, "{\"type\":\"Unigram\",\"vocab\":[[\"a\",0.5]]}", OD_ERR_UNSUPPORTED, "Unigram" },
	{ MODEL, "{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}", OD_ERR_UNSUPPORTED, "WordLevel" },
	{ MODEL, "{\"vocab\":{\"a\":0}}", OD_ERR_UNSUPPORTED, "BPE" },
	{ MODEL, VOCAB("{}"), OD_ERR_FORMAT, "model.vocab" },
	{ MODEL, VOCAB("[]"), OD_ERR_FORMAT, "vocab" },
	{ MODEL, VOCAB("{\"a\":-1}"), OD_ERR_RANGE, "\"a\"" },
	{ MODEL, VOCAB("{\"a\":16777216}"), OD_ERR_RANGE, "16777215" },
	{ MODEL, VOCAB("{\"a\":9223372036854775807}"), OD_ERR_RANGE, "9223372036854775807" },
	{ MODEL, VOCAB("{\"a\":1.5}"), OD_ERR_RANGE, "\"a\"" },
	{ MODEL, VOCAB("{\"a\":0,\"b\":0}"), OD_ERR_FORMAT, "different ids" },
	{ MODEL, VOCAB("{\"a\":0,\"a\":1}"), OD_ERR_FORMAT, "duplicate" },
	{ MODEL, MERGES("[\"a b c\"]"), OD_ERR_FORMAT, "entry 0" },
	{ MODEL, MERGES("[\"ab\"]"), OD_ERR_FORMAT, "entry 0" },
	{ MODEL, MERGES("[\"a b\",[\"a\",\"b\",\"a\"]]"), OD_ERR_FORMAT, "entry 1" },
	{ MODEL, MERGES("[[1,2]]"), OD_ERR_FORMAT, "entry 0" },
	{ MODEL, MERGES("[\"b a\"]"), OD_ERR_FORMAT, "whole in the vocabulary" },
	{ MODEL, MERGES("[\"a z\"]"), OD_ERR_FORMAT, "\"z\"" },
	{ MODEL, MODEL_WITH("\"dropout\":0.1"), OD_ERR_UNSUPPORTED, "dropout" },
	{ MODEL, MODEL_WITH("\"unk_token\":\"<unk>\""), OD_ERR_FORMAT, "unk_token" },
	{ MODEL, MODEL_WITH("\"fuse_unk\":3"), OD_ERR_FORMAT, "fuse_unk" },
	{ MODEL, MODEL_WITH("\"continuing_subword_prefix\":7"), OD_ERR_FORMAT, "continuing_subword_prefix" },
	{ MODEL, MODEL_WITH("\"end_of_word_suffix\":\"" A1100 "\""), OD_ERR_RANGE, "end_of_word_suffix" },
	{ ADDED, "{}", OD_ERR_FORMAT, "added_tokens" },
	{ ADDED, "[{\"id\":9}]", OD_ERR_MISSING, "content" },
	{ ADDED, "[{\"content\":\"<x>\",\"id\":-4}]", OD_ERR_RANGE, "id" },
	{ ADDED, "[{\"content\":\"<x>\",\"id\":4294967297}]", OD_ERR_RANGE, "id" },
	{ ADDED, "[{\"content\":\"<x>\",\"id\":9}]", OD_ERR_FORMAT, "expected id 4" },
	{ ADDED, "[{\"content\":\"ab\",\"id\":4}]", OD_ERR_FORMAT, "expected id 2" },
	{ ADDED, "[{\"content\":\"<x>\",\"id\":4},{\"content\":\"<x>\",\"id\":4}]", OD_ERR_FORMAT, "twice" },
	{ ADDED, "[{\"content\":\"<x>\",\"id\":4,\"lstrip\":\"yes\"}]", OD_ERR_FORMAT, "lstrip" },
	{ NORM, "{\"type\":\"Precompiled\"}", OD_ERR_UNSUPPORTED, "normalizer \"Precompiled\"" },
	{ NORM, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"BertNormalizer\"}]}",
	  OD_ERR_UNSUPPORTED, "BertNormalizer" },
	{ NORM, "{\"type\":\"Nmt\"}", OD_ERR_UNSUPPORTED, "normalizer \"Nmt\"" },
	{ NORM, "{\"type\":\"ByteLevel\"}", OD_ERR_UNSUPPORTED, "normalizer \"ByteLevel\"" },
	{ NORM, "{\"type\":\"Sequence\"}", OD_ERR_MISSING, "normalizers" },
	{ NORM, "[]", OD_ERR_FORMAT, "normalizer" },
	{ NORM, "{}", OD_ERR_MISSING, "type" },
	{ NORM, "{\"type\":\"Prepend\"}", OD_ERR_MISSING, "prepend" },
	{ NORM, "{\"type\":\"Replace\",\"content\":\"x\"}", OD_ERR_MISSING, "pattern" },
	{ NORM, "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":{\"Glob\":\"*\"}}", OD_ERR_FORMAT, "pattern" },
	{ PRE, "{\"type\":\"BertPreTokenizer\"}", OD_ERR_UNSUPPORTED, "pre_tokenizer \"BertPreTokenizer\"" },
	{ PRE, "{\"type\":\"UnicodeScripts\"}", OD_ERR_UNSUPPORTED, "pre_tokenizer \"UnicodeScripts\"" },
	{ PRE, "{\"type\":\"FixedLength\",\"length\":5}", OD_ERR_UNSUPPORTED, "pre_tokenizer \"FixedLength\"" },
	{ PRE, "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"-\"}", OD_ERR_UNSUPPORTED, "\"CharDelimiterSplit\"" },
	{ PRE, "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Shuffled\"}", OD_ERR_UNSUPPORTED,
	  "Shuffled" },
	{ PRE, "{\"type\":\"Metaspace\",\"replacement\":\"__\"}", OD_ERR_FORMAT, "one character" },
	{ PRE, "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}", OD_ERR_UNSUPPORTED,
	  "last" },
	{ PRE, "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"add_prefix_space\":false}",
	  OD_ERR_FORMAT, "add_prefix_space" },
	{ PRE, REGEX("(a"), OD_ERR_UNSUPPORTED, "(a" },
	{ PRE, REGEX("a)"), OD_ERR_UNSUPPORTED, "a)" },
	{ PRE, REGEX("[a"), OD_ERR_UNSUPPORTED, "[a" },
	{ PRE, REGEX("[a&&b]"), OD_ERR_UNSUPPORTED, "&&" },
	{ PRE, REGEX("[a[bc]]"), OD_ERR_UNSUPPORTED, "class in a class" },
	{ PRE, REGEX("(?m:a)"), OD_ERR_UNSUPPORTED, "group" },
	{ PRE, REGEX("(*LIMIT_MATCH=1)a"), OD_ERR_UNSUPPORTED, "(*" },
	{ PRE, REGEX("\\\\p{Klingon}"), OD_ERR_UNSUPPORTED, "Klingon" },
	{ PRE, REGEX("\\\\pL"), OD_ERR_UNSUPPORTED, "braces" },
	{ PRE, REGEX("\\\\C"), OD_ERR_UNSUPPORTED, "escape" },
	{ PRE, REGEX("(a)\\\\1"), OD_ERR_UNSUPPORTED, "escape" },
	{ PRE, REGEX("\\\\"), OD_ERR_UNSUPPORTED, "escape" },
	{ PRE, REGEX("\\\\p{L"), OD_ERR_UNSUPPORTED, "\\p" },
	{ PRE, REGEX("a{1,999999}"), OD_ERR_UNSUPPORTED, "a{1,999999}" },
	{ POST, "{\"type\":\"BertProcessing\"}", OD_ERR_UNSUPPORTED, "post_processor \"BertProcessing\"" },
	{ POST, "{\"type\":\"RobertaProcessing\"}", OD_ERR_UNSUPPORTED, "post_processor \"RobertaProcessing\"" },
	{ POST, TEMPLATE(TEXT "," TEXT, ""), OD_ERR_UNSUPPORTED, "2 times" },
	{ POST, TEMPLATE("", ""), OD_ERR_UNSUPPORTED, "0 times" },
	{ POST, TEMPLATE("7," TEXT, ""), OD_ERR_FORMAT, "SpecialToken" },
	{ POST, TEMPLATE("{\"SpecialToken\":{\"id\":\"<s>\"}}," TEXT, ""), OD_ERR_FORMAT, "<s>" },
	{ POST, TEMPLATE("{\"SpecialToken\":{\"id\":\"<s>\"}}," TEXT, "\"<s>\":{\"ids\":[4]}"), OD_ERR_RANGE,
	  "below 4" },
	{ POST, TEMPLATE("{\"SpecialToken\":{\"id\":\"<s>\"}}," TEXT, "\"<s>\":{\"ids\":[-1]}"), OD_ERR_RANGE, "-1" },
	{ POST, TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", ""), OD_ERR_UNSUPPORTED, "\"B\"" },
	{ DEC, "{\"type\":\"WordPiece\"}", OD_ERR_UNSUPPORTED, "decoder \"WordPiece\"" },
	{ DEC, "{\"type\":\"CTC\"}", OD_ERR_UNSUPPORTED, "decoder \"CTC\"" },
	{ DEC, "{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", OD_ERR_UNSUPPORTED, "decoder \"BPEDecoder\"" },
	{ DEC, "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}", OD_ERR_RANGE, "start" },
	{ DEC, "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}",
	  OD_ERR_UNSUPPORTED, "behind Fuse" },
};

static void names_what_is_wrong(void **state)
{
	struct od_tokenizer *t;
	struct od_err err;

	(void)state;
	assert_int_equal(load(&t, VERSION, good[VERSION], &err), OD_OK); /* the file that is varied is good */
	od_tokenizer_free(t);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		int rc = load(&t, refused[i].field, refused[i].value, &err);

		if (rc != refused[i].code || strstr(err.msg, refused[i].says) == NULL)
			fail_msg("case %zu: %s %s: %d: %s", i, names[refused[i].field], refused[i].value, rc,
				 rc == OD_OK ? "loaded" : err.msg);
	}
}

static void deep_and_wide(void **state)
{
	char *text = malloc(1 << 19);
	struct od_tokenizer *t;
	struct od_err err;
	size_t at = 0;

	(void)state;
	assert_non_null(text);
	for (int i = 0; i < 12; i++) /* Sequences in Sequences */
		at += (size_t)snprintf(text + at, 64, "{\"type\":\"Sequence\",\"decoders\":[");
	for (int i = 0; i < 12; i++)
		at += (size_t)snprintf(text + at, 64, "]}");
	assert_int_equal(load(&t, DEC, text, &err), OD_ERR_UNSUPPORTED);
	at = (size_t)snprintf(text, 64, "{\"type\":\"Sequence\",\"normalizers\":[");
	for (int i = 0; i < 100; i++)
		at += (size_t)snprintf(text + at, 64, "%s{\"type\":\"NFC\"}", i > 0 ? "," : "");
	snprintf(text + at, 64, "]}");
	assert_int_equal(load(&t, NORM, text, &err), OD_ERR_RANGE);
	/* An id far out is legal as long as it is below the limit; holes are no tokens. */
	assert_int_equal(load(&t, MODEL, VOCAB("{\"a\":0,\"b\":1000000}"), &err), OD_OK);
	assert_int_equal(od_tokenizer_vocab(t), 1000001);
	od_tokenizer_free(t);
	free(text);
}

/* A pattern that tries exponentially many ways ends with an error. */
static void patterns_have_a_limit(void **state)
{
	static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
	struct od_tokenizer *t;
	struct od_err err;
	int32_t *ids;
	size_t n;

	(void)state;
	assert_int_equal(load(&t, PRE, REGEX("(?:a|a)*$"), &err), OD_OK);
	assert_int_equal(od_tokenizer_encode(t, text, strlen(text), 0, &ids, &n, &err), OD_ERR_UNSUPPORTED);
	assert_null(ids);
	assert_non_null(strstr(err.msg, "limit"));
	od_tokenizer_free(t);
}

/* n components, comma-separated, in a Sequence whose list is called key. *to is malloc'd. */
static char *sequence(const char *key, const char *component, int n)
{
	size_t size = 128 + (size_t)n * (strlen(component) + 1), at;
	char *to = malloc(size);

	assert_non_null(to);
	at = (size_t)snprintf(to, size, "{\"type\":\"Sequence\",\"%s\":[", key);
	for (int i = 0; i < n; i++)
		at += (size_t)snprintf(to + at, size - at, "%s%s", i > 0 ? "," : "", component);
	snprintf(to + at, size - at, "]}");
	return to;
}

/* {"type": "Replace"} of one "a" by n of them. Its own buffer. */
static const char *many_a(int n)
{
	static char text[2048];
	char content[1025];

	memset(content, 'a', (size_t)n);
	content[n] = '\0';
	snprintf(text, sizeof(text), "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}",
		 content);
	return text;
}

static void encoding_ends(int field, const char *value, const char *text, int code)
{
	struct od_tokenizer *t;
	struct od_err err;
	int32_t *ids;
	size_t n;

	if (load(&t, field, value, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(od_tokenizer_encode(t, text, strlen(text), 0, &ids, &n, &err), code);
	if (code == OD_ERR_RANGE && (ids != NULL || strstr(err.msg, "the tokenizer turns it into more than") == NULL))
		fail_msg("%s", err.msg);
	free(ids);
	od_tokenizer_free(t);
}

/* A file of a few lines must not make megabytes of a word: here each would, and with some steps more all memory. */
static void texts_grow_within_a_limit(void **state)
{
	char *norms = sequence("normalizers", many_a(100), 3), *one = sequence("normalizers", many_a(1024), 1);
	char *bytes = sequence("pretokenizers",
			       "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", 22);
	char *few = sequence("pretokenizers", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}",
			     10);
	char *unknown = malloc(4096 + 1), prefix[1025], model[1200];

	(void)state;
	encoding_ends(NORM, norms, "aaaa", OD_ERR_RANGE); /* 4,000,000 bytes */
	encoding_ends(NORM, one, "aaaa", OD_OK); /* 4096 */
	encoding_ends(PRE, bytes, "\xc3\xa9", OD_ERR_RANGE); /* 8 MiB: each byte of two becomes two */
	encoding_ends(PRE, few, "\xc3\xa9", OD_OK);
	/* Each unknown character is a token for each byte of the prefix. */
	assert_non_null(unknown);
	memset(prefix, 'x', 1024);
	prefix[1024] = '\0';
	memset(unknown, 'x', 4096);
	unknown[4096] = '\0';
	snprintf(model, sizeof(model),
		 "{\"type\":\"BPE\",\"vocab\":{\"<0x78>\":0},\"merges\":[],\"byte_fallback\":true,"
		 "\"continuing_subword_prefix\":\"%s\"}",
		 prefix);
	encoding_ends(MODEL, model, unknown, OD_ERR_RANGE); /* 4,197,377 tokens */
	unknown[64] = '\0';
	encoding_ends(MODEL, model, unknown, OD_OK);
	free(norms);
	free(one);
	free(bytes);
	free(few);
	free(unknown);
}

/* Files that list something once and refer to it a hundred times; and added tokens that are normalised when they are
 * read. */
static void files_grow_within_a_limit(void **state)
{
	char *text = malloc(1 << 17),
	     *norms[] = { sequence("normalizers", many_a(1000), 1), sequence("normalizers", many_a(100), 3) };
	struct od_tokenizer *t;
	struct od_err err;
	size_t at;

	(void)state;
	assert_non_null(text);
	at = (size_t)snprintf(text, 1 << 17, "{\"type\":\"TemplateProcessing\",\"single\":[");
	for (int i = 0; i < 100; i++)
		at += (size_t)snprintf(text + at, 64, "{\"SpecialToken\":{\"id\":\"s\"}},");
	at += (size_t)snprintf(text + at, 128, TEXT "],\"special_tokens\":{\"s\":{\"ids\":[0");
	for (int i = 1; i < 100; i++)
		at += (size_t)snprintf(text + at, 64, ",0");
	snprintf(text + at, 64, "]}}}");
	assert_int_equal(load(&t, POST, text, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "at most 4096 ids"));

	/* 60 tokens of 60,000 bytes each; one of 60,000,000. */
	for (int k = 0; k < 2; k++) {
		at = (size_t)snprintf(text, 1 << 17,
				      "{\"version\":\"1.0\",\"model\":%s,\"normalizer\":%s,\"added_tokens\":[",
				      good[MODEL], norms[k]);
		for (int i = 0; i < 60; i++)
			at += (size_t)snprintf(text + at, 256, "%s{\"content\":\"%s%d\",\"id\":%d}", i > 0 ? "," : "",
					       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", i,
					       4 + i);
		at += (size_t)snprintf(text + at, 64, "]}");
		assert_int_equal(load_text(&t, text, at, &err), OD_ERR_RANGE);
		assert_non_null(
			strstr(err.msg, k == 0 ? "their normalized text is too long" : "turns it into more than"));
		free(norms[k]);
	}
	free(text);
}

static void decoding_ends(const char *decoder, int code)
{
	static const int32_t ids[] = { 0 };
	struct od_tokenizer *t;
	struct od_detok *d = NULL;
	struct od_err err;
	const char *piece;
	size_t n;

	if (load(&t, DEC, decoder, &err) != OD_OK || od_detok_new(&d, t, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(od_detok_push(d, 0, &piece, &n, &err), code);
	if (code != OD_OK && strstr(err.msg, "turns a token into more than") == NULL)
		fail_msg("%s", err.msg);
	od_detok_free(d);
	assert_int_equal(od_detok_new(&d, t, &err), OD_OK);
	assert_int_equal(od_detok_prime(d, ids, 1, &err), code);
	od_detok_free(d);
	od_tokenizer_free(t);
}

static void decoders_grow_within_a_limit(void **state)
{
	char fused[4096], *many = sequence("decoders", many_a(100), 4), *few = sequence("decoders", many_a(100), 3);

	(void)state;
	decoding_ends(many, OD_ERR_RANGE); /* 100 MB */
	decoding_ends(few, OD_OK);
	snprintf(fused, sizeof(fused), "%s", many_a(1000));
	free(many);
	many = malloc(16384);
	assert_non_null(many);
	snprintf(many, 16384, "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},%s,%s,%s]}", fused, fused,
		 many_a(10));
	decoding_ends(many, OD_ERR_RANGE); /* 10 MB */
	snprintf(many, 16384, "{\"type\":\"Sequence\",\"decoders\":[%s,%s,%s,%s]}", fused, fused, many_a(10),
		 "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}");
	decoding_ends(many, OD_ERR_RANGE); /* though nothing is shown */
	free(many);
	free(few);
}

static void not_a_file(void **state)
{
	struct od_tokenizer *t;
	struct od_err err;

	(void)state;
	assert_int_not_equal(od_tokenizer_load(&t, "tests/golden/tokenizer/nowhere.json", &err), OD_OK);
	assert_null(t);
	assert_non_null(strstr(err.msg, "nowhere.json"));
	od_tokenizer_free(NULL);
	od_detok_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_what_is_wrong),
		cmocka_unit_test(deep_and_wide),
		cmocka_unit_test(patterns_have_a_limit),
		cmocka_unit_test(texts_grow_within_a_limit),
		cmocka_unit_test(files_grow_within_a_limit),
		cmocka_unit_test(decoders_grow_within_a_limit),
		cmocka_unit_test(not_a_file),
	};

	return cmocka_run_group_tests_name("tokenizer_refuse", tests, NULL, NULL);
}
