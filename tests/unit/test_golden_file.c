/* A small golden folder written by hand, and every way in which it can be wrong. */
#include "tests/conform/golden_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Two layers, four experts, top-2, ten tokens; three tokens of prompt, two generated: so one decode step. */
#define MOE_AND_DENSE .kind = { { .ffn = OD_FFN_MOE }, { .ffn = OD_FFN_DENSE } }, .n_kinds = 2
static const struct od_config cfg = { .n_layers = 2,
				      .n_experts = 4,
				      .top_k = 2,
				      .vocab = 10,
				      .eos = { 2, 9 },
				      .n_eos = 2,
				      MOE_AND_DENSE,
				      .kind_of = { 0, 0 } };

static const char first[] =
	"{\"name\": \"wolf\", \"unknown\": {}, \"prompt_text\": \"a\\u0000b\", \"prompt_ids\": [1, 5, 7],"
	" \"greedy_ids\": [4, 9], \"greedy_text\": \"\\u00fc\", \"margins\": [0.5, 1e-05],"
	" \"routes_prefill\": [[[0, 1], [2, 3], [3, 0]], [[1, 0], [3, 2], [0, 3]]],"
	" \"route_margin_prefill\": [[0.25, 0, 1], [0.125, 1e-05, 0.75]],"
	" \"routes_decode\": [[[1, 3], [2, 0]]], \"route_margin_decode\": [[0.375, 0.0625]],"
	" \"logits_file\": \"wolf.f32\", \"logits_shape\": [3, 10]}";
static const char second[] =
	"{\"name\": \"one\", \"prompt_text\": null, \"prompt_ids\": [1], \"greedy_ids\": [], \"margins\": [],"
	" \"routes_prefill\": [[[2, 1]], [[0, 3]]], \"route_margin_prefill\": [[0.5], [0.25]],"
	" \"routes_decode\": [], \"route_margin_decode\": []}";

static char dir[] = "/tmp/od-golden-XXXXXX";

static void write_file(const char *name, const void *bytes, size_t len)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
}

static void write_logits(size_t n_bytes)
{
	unsigned char bytes[512] = { 0 };

	/* 0.5 + i/64 as float32, little-endian, by hand: bits 0x3f000000 + (i << 18) up to 1. */
	for (size_t i = 0; i < 30; i++) {
		uint32_t bits = 0x3f000000u + ((uint32_t)i << 18);

		for (unsigned b = 0; b < 4; b++)
			bytes[4 * i + b] = (unsigned char)(bits >> (8 * b));
	}
	assert_true(n_bytes <= sizeof(bytes));
	write_file("wolf.f32", bytes, n_bytes);
}

/* The folder with one text replaced by another in its first entry. */
static void write_golden(const char *from, const char *to)
{
	const char *at = strstr(first, from);
	char text[4096];
	int n;

	assert_non_null(at);
	n = snprintf(text, sizeof(text), "[%.*s%s%s,\n %s]", (int)(at - first), first, to, at + strlen(from), second);
	assert_in_range(n, 1, sizeof(text) - 1);
	write_file("golden.json", text, (size_t)n);
}

static void reads_what_is_there(void **state)
{
	static const uint16_t routes[4][2][2] = {
		{ { 0, 1 }, { 1, 0 } }, { { 2, 3 }, { 3, 2 } }, { { 3, 0 }, { 0, 3 } }, { { 1, 3 }, { 2, 0 } }
	};
	static const double margins[4][2] = { { 0.25, 0.125 }, { 0, 1e-05 }, { 1, 0.75 }, { 0.375, 0.0625 } };
	const struct golden_entry *e;
	struct golden *g;

	(void)state;
	write_logits(120);
	write_golden("[1, 5, 7]", "[1, 5, 7]");
	assert_int_equal(golden_load(&g, dir, &cfg, NULL), 0);
	assert_int_equal(g->n_entries, 2);
	e = &g->entry[0];
	assert_string_equal(e->name, "wolf");
	assert_int_equal(e->prompt_text.len, 3);
	assert_memory_equal(e->prompt_text.bytes, "a\0b", 3);
	assert_string_equal(e->greedy_text.bytes, "\xc3\xbc");
	assert_int_equal(e->n_prompt, 3);
	assert_int_equal(e->prompt[0] + 10 * e->prompt[1] + 100 * e->prompt[2], 751);
	assert_int_equal(e->n_greedy, 2);
	assert_int_equal(e->greedy[0] + 10 * e->greedy[1], 94);
	assert_true(e->ends_at_eos && !e->passes_eos);
	assert_true(e->token_margin[0] == 0.5 && e->token_margin[1] == 1e-05);
	assert_int_equal(e->n_positions, 4);
	for (size_t p = 0; p < 4; p++) {
		for (uint32_t l = 0; l < 2; l++) {
			assert_memory_equal(golden_route(g, e, p, l), routes[p][l], sizeof(routes[p][l]));
			assert_true(golden_route_margin(g, e, p, l) == margins[p][l]);
		}
	}
	e = &g->entry[1];
	assert_int_equal(e->n_positions, 1);
	assert_null(e->logits_path);
	assert_null(e->decode_logits_path);
	assert_null(e->route_weight);
	assert_true(e->logit_tolerance == 0);
	assert_null(e->prompt_text.bytes);
	assert_false(e->ends_at_eos || e->passes_eos);
	golden_free(g);
}

static void logits_come_row_by_row(void **state)
{
	struct golden_logits *l;
	struct golden *g;
	const float *row;

	(void)state;
	write_logits(120);
	write_golden("[4, 9]", "[9, 4]");
	assert_int_equal(golden_load(&g, dir, &cfg, NULL), 0);
	assert_true(g->entry[0].passes_eos && !g->entry[0].ends_at_eos);
	assert_int_equal(golden_logits_open(&l, g->entry[0].logits_path, 3, 10, NULL), 0);
	for (size_t p = 3; p-- > 0;) {
		assert_int_equal(golden_logits_row(l, p, &row, NULL), 0);
		for (size_t i = 0; i < 10; i++)
			assert_true(row[i] == 0.5f + (float)(10 * p + i) / 64);
	}
	write_logits(100); /* it shrinks under our hands */
	assert_int_equal(golden_logits_row(l, 2, &row, NULL), OD_ERR_FORMAT);
	assert_null(row);
	golden_logits_close(l);
	golden_free(g);
}

static void every_wrong_field_is_named(void **state)
{
	static const struct {
		const char *from, *to, *words;
	} bad[] = {
		{ "\"wolf\"", "7", "entry 0: field \"name\": expected a printable text of 1 to 200 bytes, found 7" },
		{ "\"wolf\"", "\"\\u001b[2J\"", "field \"name\": expected a printable text" },
		{ "\"wolf\"", "\"\"", "field \"name\": expected a printable text" },
		{ "\"a\\u0000b\"", "[]", "(\"wolf\"): field \"prompt_text\": expected a text, found a list of 0" },
		{ "\"\\u00fc\"", "5", "field \"greedy_text\": expected a text, found 5" },
		{ "[1, 5, 7]", "[]",
		  "field \"prompt_ids\": expected a list of at least one token id, found a list of 0" },
		{ "[1, 5, 7]", "[1, 10, 7]", "field \"prompt_ids[1]\": expected a token id, 0 to 9, found 10" },
		{ "[1, 5, 7]", "[1, -1, 7]", "field \"prompt_ids[1]\": expected a token id, 0 to 9, found -1" },
		{ "[1, 5, 7]", "[1, 4294967297, 7]", "found 4294967297" },
		{ "[1, 5, 7]", "[1, 5.0, 7]", "field \"prompt_ids[1]\": expected a token id, 0 to 9, found 5.0" },
		{ "[1, 5, 7]", "[1, 5, 7, 8]",
		  "field \"routes_prefill[0]\": expected a list of 4 positions, as prompt_ids has, found a list of 3" },
		{ "\"prompt_ids\"", "\"ids\"",
		  "field \"prompt_ids\": expected a list of at least one token id, found nothing" },
		{ "[4, 9]", "{}", "field \"greedy_ids\": expected a list of token ids, found an object" },
		{ "[4, 9]", "[4]",
		  "field \"margins\": expected a list of 1 margins, as greedy_ids has tokens, found a list of 2" },
		{ "[0.5, 1e-05]", "[0.5, -1e-05]", "field \"margins[1]\": expected a margin, 0 to 1e+30, found -1" },
		{ "[0.5, 1e-05]", "[null, 1e-05]", "field \"margins[0]\": expected a margin, 0 to 1e+30, found null" },
		{ "[[[0, 1], [2, 3], [3, 0]], ", "[",
		  "field \"routes_prefill\": expected a list of 2 layers, as the model has, found a list of 1" },
		{ "[3, 0]]", "[3, 4]]", "field \"routes_prefill[0][2][1]\": expected an expert, 0 to 3, found 4" },
		{ "[3, 0]]", "[3, 3]]",
		  "field \"routes_prefill[0][2][1]\": expected another expert than before it, found 3" },
		{ "[3, 0]]", "[3]]",
		  "routes_prefill[0][2]\": expected a list of 2 experts, the model's top-k, found a list of 1" },
		{ "[3, 0]]", "[3, \"0\"]]", "found \"0\"" },
		{ "[0.25, 0, 1]", "[0.25, 0, 1.5]",
		  "field \"route_margin_prefill[0][2]\": expected a margin, 0 to 1, found 1.5" },
		{ "[0.25, 0, 1]", "3", "field \"route_margin_prefill[0]\": expected a list of 3 positions" },
		{ "[[[1, 3], [2, 0]]]", "[]",
		  "field \"routes_decode\": expected a list of 1 steps, one less than greedy_ids, found a list of 0" },
		{ "[[[1, 3], [2, 0]]]", "[[[1, 3]]]",
		  "field \"routes_decode[0]\": expected a list of 2 layers, as the model has, found a list of 1" },
		{ "[[0.375, 0.0625]]", "[[0.375, true]]",
		  "field \"route_margin_decode[0][1]\": expected a margin, 0 to 1, found true" },
		{ "\"wolf.f32\"", "\"../wolf.f32\"",
		  "field \"logits_file\": expected the name of a file in the same folder" },
		{ "\"wolf.f32\"", "1", "field \"logits_file\": expected the name of a file" },
		{ "\"wolf.f32\"", "\"gone.f32\"", "gone.f32" },
		{ "\"wolf.f32\"", "\"..\"", "is a folder, expected a file" },
		{ "[3, 10]", "[3, 11]", "field \"logits_shape[1]\": expected 10, the model's vocabulary, found 11" },
		{ "[3, 10]", "[2, 10]", "field \"logits_shape[0]\": expected 3, as prompt_ids has tokens, found 2" },
		{ "[3, 10]", "[30]", "field \"logits_shape\": expected a list of 2 numbers" },
		{ "\"logits_shape\"", "\"shape\"", "field \"logits_shape\": expected a list of 2 numbers" },
		{ "\"unknown\": {}", "\"name\": \"x\"", "not valid JSON" },
		{ "{\"name\"", "7, {\"name\"", "entry 0: expected an object" },
		{ "0.0625", "NaN", "not valid JSON: line 1" },
	};
	struct od_err err;
	struct golden *g;

	(void)state;
	write_logits(120);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_golden(bad[i].from, bad[i].to);
		assert_int_not_equal(golden_load(&g, dir, &cfg, &err), 0);
		assert_null(g);
		if (strstr(err.msg, bad[i].words) == NULL || strstr(err.msg, dir) == NULL)
			fail_msg("expected \"%s\", found \"%s\"", bad[i].words, err.msg);
	}
}

/* Four layers of which the first and the third are dense, all optional fields, weights that neither fall nor sum to
 * 1. */
static const struct od_config more_cfg = { .n_layers = 4,
					   .n_experts = 4,
					   .top_k = 2,
					   .vocab = 10,
					   .hidden = 5,
					   .eos = { 9 },
					   .n_eos = 1,
					   MOE_AND_DENSE,
					   .kind_of = { 1, 0, 1, 0 } };
static const char more[] =
	"[{\"name\": \"dense\", \"prompt_ids\": [1, 5], \"greedy_ids\": [4, 3], \"margins\": [0.5, 1e-05],"
	" \"logit_tolerance\": 0.0001,"
	" \"routes_prefill\": [[[], []], [[0, 1], [2, 3]], [[], []], [[3, 0], [1, 2]]],"
	" \"route_margin_prefill\": [[1, 1.0], [0.25, 0], [1, 1], [0.75, 0.125]],"
	" \"route_weight_prefill\": [[[], []], [[0.25, 2.5], [-1, 0]], [[], []], [[16, 1e-3], [0.5, 0.75]]],"
	" \"routes_decode\": [[[], [2, 1], [], [0, 3]]], \"route_margin_decode\": [[1, 0.375, 1, 0.0625]],"
	" \"route_weight_decode\": [[[], [0.625, 0.375], [], [1, 7]]],"
	" \"logits_file\": \"logits.f32\", \"logits_shape\": [2, 10],"
	" \"decode_logits_file\": \"logits.f32\", \"decode_logits_shape\": [2, 10],"
	" \"hidden_file\": \"hidden.f32\", \"hidden_shape\": [5, 2, 5]}]";

static void write_more(const char *from, const char *to)
{
	const char *at = strstr(more, from);
	char text[4096], zeros[200] = { 0 };
	int n;

	assert_non_null(at);
	n = snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - more), more, to, at + strlen(from));
	assert_in_range(n, 1, sizeof(text) - 1);
	write_file("golden.json", text, (size_t)n);
	write_file("logits.f32", zeros, 80);
	write_file("hidden.f32", zeros, 200);
}

static void layers_without_experts(void **state)
{
	static const uint16_t routes[3][2][2] = { { { 0, 1 }, { 3, 0 } },
						  { { 2, 3 }, { 1, 2 } },
						  { { 2, 1 }, { 0, 3 } } };
	static const float weights[3][2][2] = { { { 0.25f, 2.5f }, { 16, 1e-3f } },
						{ { -1, 0 }, { 0.5f, 0.75f } },
						{ { 0.625f, 0.375f }, { 1, 7 } } };
	static const double margins[3][2] = { { 0.25, 0.75 }, { 0, 0.125 }, { 0.375, 0.0625 } };
	const struct golden_entry *e;
	struct golden *g;

	(void)state;
	write_more("dense", "dense");
	assert_int_equal(golden_load(&g, dir, &more_cfg, NULL), 0);
	assert_int_equal(g->n_moe, 2);
	assert_int_equal(g->layer[0] + 10 * g->layer[1], 31);
	e = &g->entry[0];
	for (size_t p = 0; p < 3; p++) {
		for (uint32_t m = 0; m < 2; m++) {
			assert_memory_equal(golden_route(g, e, p, m), routes[p][m], sizeof(routes[p][m]));
			assert_memory_equal(golden_route_weight(g, e, p, m), weights[p][m], sizeof(weights[p][m]));
			assert_true(golden_route_margin(g, e, p, m) == margins[p][m]);
		}
	}
	assert_true(e->logit_tolerance == 1e-4);
	assert_non_null(strstr(e->logits_path, "/logits.f32"));
	assert_non_null(strstr(e->decode_logits_path, "/logits.f32"));
	golden_free(g);
}

static void no_layer_with_experts(void **state)
{
	static const char text[] = "[{\"name\": \"x\", \"prompt_ids\": [1], \"greedy_ids\": [4], \"margins\": [1],"
				   " \"routes_prefill\": [[[]], [[]]], \"route_margin_prefill\": [[1], [1]],"
				   " \"routes_decode\": [], \"route_margin_decode\": []}]";
	struct od_config dense = cfg;
	struct golden *g;

	(void)state;
	dense.kind_of[0] = dense.kind_of[1] = 1;
	write_file("golden.json", text, sizeof(text) - 1);
	assert_int_equal(golden_load(&g, dir, &dense, NULL), 0);
	assert_int_equal(g->n_moe, 0);
	golden_free(g);
}

static void every_wrong_field_of_the_longer_format(void **state)
{
	static const struct {
		const char *from, *to, *words;
	} bad[] = {
		/* a layer that is dense here and has experts there, and the other way round */
		{ "[[], []], [[0, 1], [2, 3]]", "[[0, 1], [2, 3]], [[0, 1], [2, 3]]",
		  "field \"routes_prefill[0][0]\": expected an empty list, as the layer has no experts, found a list of 2" },
		{ "[[0, 1], [2, 3]]", "[[], [2, 3]]",
		  "field \"routes_prefill[1][0]\": expected a list of 2 experts, the model's top-k, found a list of 0" },
		{ "[1, 1.0]", "[1, 0.5]",
		  "field \"route_margin_prefill[0][1]\": expected 1, as the layer has no experts, found 0.5" },
		{ "[[[], [0.625", "[[[1, 0], [0.625", "field \"route_weight_decode[0][0]\": expected an empty list" },
		{ "[0.25, 2.5]", "[0.25]",
		  "route_weight_prefill[1][0]\": expected a list of 2 weights, one for each expert, found a list of 1" },
		{ "[16, 1e-3]", "[16, \"1\"]", "expected a router weight, at most 1e+06, found \"1\"" },
		{ "[16, 1e-3]", "[16, -1e7]",
		  "field \"route_weight_prefill[3][0][1]\": expected a router weight, at most 1e+06, found -1000" },
		{ "\"route_weight_decode\"", "\"unknown\"",
		  "field \"route_weight_decode\": expected a list of 1 steps, one less than greedy_ids, found nothing" },
		{ "\"route_weight_prefill\"", "\"unknown\"",
		  "field \"route_weight_prefill\": expected a list of 4 layers, as the model has, found nothing" },
		{ "0.0001", "0", "\"logit_tolerance\": expected a part of the largest logit, above 0 and at most 1" },
		{ "0.0001", "2", "field \"logit_tolerance\": expected a part of the largest logit" },
		{ "0.0001", "null", "field \"logit_tolerance\": expected a part of the largest logit" },
		{ "decode_logits_shape\": [2,", "decode_logits_shape\": [1,",
		  "field \"decode_logits_shape[0]\": expected 2, as greedy_ids has tokens, found 1" },
		{ "\"decode_logits_file\": \"logits.f32\"", "\"decode_logits_file\": \"hidden.f32\"",
		  "field \"decode_logits_file\": " },
		{ "[5, 2, 5]", "[4, 2, 5]",
		  "field \"hidden_shape[0]\": expected 5, the model's layers and one more, found 4" },
		{ "[5, 2, 5]", "[5, 2, 6]", "field \"hidden_shape[2]\": expected 5, the model's hidden size, found 6" },
		{ "[5, 2, 5]", "[5, 10]",
		  "expected a list of 3 numbers: layers and one more, prompt tokens, hidden size" },
		{ "hidden.f32", "logits.f32", "expected 200 bytes (10 positions of 5 float32), found 80" },
		{ "hidden.f32", "gone.f32", "gone.f32" },
	};
	struct od_err err;
	struct od_config other;
	struct golden *g;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_more(bad[i].from, bad[i].to);
		assert_int_not_equal(golden_load(&g, dir, &more_cfg, &err), 0);
		assert_null(g);
		if (strstr(err.msg, bad[i].words) == NULL || strstr(err.msg, "entry 0 (\"dense\")") == NULL)
			fail_msg("expected \"%s\", found \"%s\"", bad[i].words, err.msg);
	}
	/* One file for a model with experts in every layer, too. */
	write_more("dense", "dense");
	other = more_cfg;
	other.kind_of[0] = other.kind_of[2] = 0;
	assert_int_equal(golden_load(&g, dir, &other, &err), OD_ERR_SHAPE);
	assert_non_null(strstr(err.msg, "routes_prefill[0][0]"));
}

static void a_file_of_another_size_is_refused(void **state)
{
	struct od_err err;
	struct golden *g;

	(void)state;
	write_golden("[1, 5, 7]", "[1, 5, 7]");
	for (size_t bytes = 116; bytes <= 124; bytes += 8) {
		char words[64];

		write_logits(bytes);
		assert_int_equal(golden_load(&g, dir, &cfg, &err), OD_ERR_SHAPE);
		snprintf(words, sizeof(words), "expected 120 bytes (3 positions of 10 float32), found %zu", bytes);
		assert_non_null(strstr(err.msg, words));
		assert_non_null(strstr(err.msg, "entry 0 (\"wolf\"): field \"logits_file\""));
	}
}

static void a_list_of_prompts_is_expected(void **state)
{
	static const char *const text[] = { "[]", "{}", "null", "", "[[]]", "[{}]", "[", "[{\"name\": \"\xff\"}]" };
	struct od_err err;
	struct golden *g;

	(void)state;
	for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
		write_file("golden.json", text[i], strlen(text[i]));
		assert_int_not_equal(golden_load(&g, dir, &cfg, &err), 0);
		assert_non_null(strstr(err.msg, dir));
	}
	assert_int_equal(golden_load(&g, "/nonexistent/folder", &cfg, &err), OD_ERR_MISSING);
	assert_non_null(strstr(err.msg, "/nonexistent/folder/golden.json"));
}

/* No byte changed at random may do more than be refused or be read as something else. */
static void damage_bytes(const char *good, const struct od_config *c)
{
	uint32_t x = 2463534242u;
	char text[4096];
	int n = snprintf(text, sizeof(text), "%s", good);

	for (int round = 0; round < 2000; round++) {
		size_t where;
		struct golden *g;
		char old;

		x ^= x << 13, x ^= x >> 17, x ^= x << 5; /* Marsaglia 2003 */
		where = x % (uint32_t)n;
		old = text[where];
		text[where] = "0123456789[]{},.-\"e \\"[(x >> 16) % 21];
		write_file("golden.json", text, (size_t)n);
		if (golden_load(&g, dir, c, NULL) == 0)
			golden_free(g);
		text[where] = old;
	}
}

static void damaged_bytes_do_no_harm(void **state)
{
	char text[4096];

	(void)state;
	write_logits(120);
	write_more("dense", "dense");
	snprintf(text, sizeof(text), "[%s,%s]", first, second);
	damage_bytes(text, &cfg);
	damage_bytes(more, &more_cfg);
}

static int make_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state)
{
	static const char *const names[] = { "golden.json", "wolf.f32", "logits.f32", "hidden.f32" };
	char path[128];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		unlink(path);
	}
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_what_is_there),
		cmocka_unit_test(logits_come_row_by_row),
		cmocka_unit_test(every_wrong_field_is_named),
		cmocka_unit_test(layers_without_experts),
		cmocka_unit_test(no_layer_with_experts),
		cmocka_unit_test(every_wrong_field_of_the_longer_format),
		cmocka_unit_test(a_file_of_another_size_is_refused),
		cmocka_unit_test(a_list_of_prompts_is_expected),
		cmocka_unit_test(damaged_bytes_do_no_harm),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
