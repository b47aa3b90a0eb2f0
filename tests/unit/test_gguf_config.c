/* config.json from the metadata and tensors of GGUF files that llama.cpp's converter wrote (tests/golden/gguf), and
 * refusals: of the same files with one thing changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above */
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/strbuf.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "common/pack/gguf/gguf_config.h"
#include "tests/unit/temp_dir.h"

#define FOLDER "tests/golden/gguf/"
#define MAX_HEADER (1u << 17)
#define FILE_BYTES (1ll << 28) /* more than the tensors of any of them; a hole */

/* ---- files ---- */

static struct {
	uint8_t bytes[MAX_HEADER];
	size_t len;
} file;

static void read_file(const char *name)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), FOLDER "%s.gguf", name);
	f = fopen(path, "rb");
	assert_non_null(f);
	file.len = fread(file.bytes, 1, sizeof(file.bytes), f);
	fclose(f);
	assert_true(file.len > 64 && file.len < sizeof(file.bytes));
}

/* Where the text is in the file, as a string with its length before it. */
static uint8_t *find(const char *text)
{
	const size_t n = strlen(text);

	for (size_t i = 8; i + n <= file.len; i++) {
		uint64_t len;

		memcpy(&len, file.bytes + i - 8, sizeof(len));
		if (len == n && memcmp(file.bytes + i, text, n) == 0)
			return file.bytes + i;
	}
	fail_msg("\"%s\" is not in the file", text);
	return NULL;
}

/* All have the same length. */
static void rename_text(const char *from, const char *to)
{
	assert_int_equal(strlen(from), strlen(to));
	memcpy(find(from), to, strlen(to));
}

/* The value of a key, of 4 bytes. */
static void set_value(const char *key, uint32_t value)
{
	memcpy(find(key) + strlen(key) + 4, &value, sizeof(value));
}

static void set_kind(const char *key, uint32_t kind)
{
	memcpy(find(key) + strlen(key), &kind, sizeof(kind));
}

static void set_float(const char *key, float value)
{
	memcpy(find(key) + strlen(key) + 4, &value, sizeof(value));
}

/* Element i of an array of booleans or of 32-bit integers. */
static void set_element(const char *key, unsigned i, uint32_t value, size_t bytes)
{
	memcpy(find(key) + strlen(key) + 16 + i * bytes, &value, bytes);
}

static void set_dim(const char *tensor, unsigned dim, uint64_t n)
{
	memcpy(find(tensor) + strlen(tensor) + 4 + 8 * (size_t)dim, &n, sizeof(n));
}

static int make(json_t **out, struct od_err *err)
{
	const char *path = temp_path("model.gguf");
	struct od_gguf *g = NULL;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), rc;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, file.bytes, file.len), (ssize_t)file.len);
	assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
	close(fd);
	*out = NULL;
	rc = od_gguf_open(&g, path, err);
	if (rc == OD_OK)
		rc = od_gguf_config(g, out, err);
	od_gguf_close(g);
	return rc;
}

static json_t *make_good(void)
{
	struct od_err err = { 0 };
	json_t *o;

	if (make(&o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_non_null(o);
	return o;
}

/* ---- what must come back ---- */

static char *text_of(const struct od_config *c)
{
	struct od_strbuf b = { 0 };
	struct od_err err;

	assert_int_equal(od_config_canonical(c, &b, &err), OD_OK);
	return b.text;
}

/* The form of the tensors in the file, which "gguf" is about, is no part of the model that both are. MTP layers of
 * MiniMax-M2 are in no file, and the end of a text is the tokenizer's. */
static void check_same(const char *name)
{
	static struct od_config got, want;
	char path[128], *a, *b;
	struct od_err err = { 0 };
	json_t *o;

	read_file(name);
	o = make_good();
	assert_int_equal(json_object_del(o, "gguf"), 0);
	if (od_config_parse(&got, o, name, &err) != OD_OK)
		fail_msg("%s", err.msg);
	snprintf(path, sizeof(path), FOLDER "%s.json", name);
	if (od_config_load(&want, path, &err) != OD_OK)
		fail_msg("%s", err.msg);
	a = text_of(&got);
	b = text_of(&want);
	assert_string_equal(a, b);
	assert_int_equal(got.ctx_max, want.ctx_max);
	if (strcmp(name, "minimax_m2") != 0)
		assert_int_equal(got.n_mtp, want.n_mtp);
	assert_false(got.multimodal || got.scaled);
	free(a);
	free(b);
	json_decref(o);
}

static void test_same_as_checkpoints(void **state)
{
	static const char *const names[] = {
		"mixtral",     "qwen2_moe",	"qwen3_moe",	   "qwen3_moe_lists",  "qwen3_next",
		"qwen3_5_moe", "olmoe",		"deepseek_v2",	   "deepseek_v2-lite", "deepseek_v2_older",
		"deepseek_v3", "glm4_moe_lite", "glm4_moe",	   "minimax_m2",       "gpt_oss",
		"gemma4",      "phimoe",	"gpt_oss_pattern", "qwen3_5_moe_mtp",  "mixtral_one_by_one",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		check_same(names[i]);
}

/* kv_b is split, or whole in older files. */
static void test_latents_apart(void **state)
{
	static const struct {
		const char *name;
		bool apart;
	} files[] = { { "deepseek_v2", true }, { "deepseek_v2_older", false }, { "mixtral", false } };

	(void)state;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		json_t *o;

		read_file(files[i].name);
		o = make_good();
		assert_int_equal(json_is_true(json_object_get(json_object_get(o, "gguf"), "kv_apart")), files[i].apart);
		json_decref(o);
	}
}

/* GGUF has 32-bit floats; config.json has the decimals that they were made of. */
static void test_shortest_numbers(void **state)
{
	json_t *o, *rope;

	(void)state;
	read_file("deepseek_v2");
	o = make_good();
	rope = json_object_get(o, "rope_scaling");
	assert_true(json_real_value(json_object_get(o, "rms_norm_eps")) == 1e-6);
	assert_true(json_real_value(json_object_get(rope, "mscale_all_dim")) == 0.707);
	assert_true(json_real_value(json_object_get(rope, "factor")) == 40);
	json_decref(o);
	read_file("phimoe");
	o = make_good();
	rope = json_object_get(o, "rope_scaling");
	assert_true(json_real_value(json_array_get(json_object_get(rope, "long_factor"), 1)) == 1.05);
	json_decref(o);
}

/* The converter writes LongRoPE's formula of the lengths, which the published model does not have. */
static void test_published_phimoe(void **state)
{
	json_t *o, *rope;

	(void)state;
	read_file("phimoe");
	set_value("phimoe.context_length", 131072);
	set_value("phimoe.rope.scaling.original_context_length", 4096);
	set_float("phimoe.rope.scaling.attn_factor", 1.1902381f);
	o = make_good();
	rope = json_object_get(o, "rope_scaling");
	assert_true(json_real_value(json_object_get(rope, "short_mscale")) == 1.243163121016122);
	assert_true(json_real_value(json_object_get(rope, "long_mscale")) == 1.243163121016122);
	json_decref(o);
}

/* They are counted in block_count, and are not layers of the model. */
static void test_layers_that_predict_tokens(void **state)
{
	static const struct {
		const char *name;
		uint32_t n_layers;
	} files[] = { { "qwen3_5_moe_mtp", 2 }, { "glm4_moe", 2 }, { "glm4_moe_lite", 47 } };
	static struct od_config c;
	struct od_err err = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		json_t *o;

		read_file(files[i].name);
		o = make_good();
		if (od_config_parse(&c, o, files[i].name, &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_int_equal(c.n_layers, files[i].n_layers);
		assert_int_equal(c.n_mtp, 1);
		json_decref(o);
	}
}

static void test_any_part_of_a_head(void **state)
{
	static struct od_config c;
	struct od_err err = { 0 };

	(void)state;
	for (uint32_t head = 2; head <= 512; head += 2)
		for (uint32_t dims = 2; dims <= head; dims += head > 64 ? 14 : 2) {
			json_t *o;

			if (head != 98 && head != 110 && head != 196 && head % 64 != 0)
				continue;
			read_file("glm4_moe");
			set_value("glm4moe.attention.key_length", head);
			set_value("glm4moe.rope.dimension_count", dims);
			o = make_good();
			if (od_config_parse(&c, o, "glm4_moe", &err) != OD_OK)
				fail_msg("%s", err.msg);
			assert_int_equal(c.rope[0].dims, dims);
			json_decref(o);
		}
}

/* ---- refusals ---- */

static void refuses(int code, const char *const *words)
{
	struct od_err err = { 0 };
	json_t *o;
	const int rc = make(&o, &err);

	if (rc != code)
		fail_msg("expected %s, found %s: %s", od_status_text(code), od_status_text(rc), err.msg);
	assert_null(o);
	for (; *words != NULL; words++)
		if (strstr(err.msg, *words) == NULL)
			fail_msg("\"%s\" is not in \"%s\"", *words, err.msg);
}

#define REFUSES(code, ...) refuses(code, (const char *const[]){ "model.gguf", __VA_ARGS__, NULL })

static void test_other_files(void **state)
{
	(void)state;
	read_file("mixtral");
	memcpy(find("general.architecture") + strlen("general.architecture") + 12, "bloom", 5);
	REFUSES(OD_ERR_UNSUPPORTED, "\"bloom\"", "llama", "qwen35moe", "gpt-oss", "phimoe");
	read_file("mixtral");
	set_value("llama.expert_count", 0);
	REFUSES(OD_ERR_UNSUPPORTED, "dense", "llama", "qwen3moe");
	read_file("mixtral");
	rename_text("llama.expert_count", "llama.expert_coun_");
	REFUSES(OD_ERR_UNSUPPORTED, "dense", "llama");
	read_file("mmproj");
	REFUSES(OD_ERR_UNSUPPORTED, "mmproj");
}

static void test_metadata_against_tensors(void **state)
{
	(void)state;
	read_file("mixtral");
	set_value("llama.expert_count", 5);
	REFUSES(OD_ERR_MISMATCH, "llama.expert_count is 5", "ffn_down_exps.weight has 4");
	read_file("mixtral");
	set_value("llama.feed_forward_length", 64);
	REFUSES(OD_ERR_MISMATCH, "llama.feed_forward_length is 64", "ffn_down_exps.weight has 32");
	read_file("mixtral");
	set_value("llama.vocab_size", 377);
	REFUSES(OD_ERR_MISMATCH, "llama.vocab_size is 377", "token_embd.weight has 376");
	read_file("mixtral");
	set_value("llama.embedding_length", 128);
	REFUSES(OD_ERR_MISMATCH, "llama.embedding_length is 128", "token_embd.weight has 256");
	read_file("deepseek_v3");
	set_value("deepseek2.leading_dense_block_count", 0);
	REFUSES(OD_ERR_MISMATCH, "deepseek2.leading_dense_block_count is 0");
	read_file("deepseek_v3");
	set_value("deepseek2.feed_forward_length", 65);
	REFUSES(OD_ERR_MISMATCH, "deepseek2.feed_forward_length is 65", "blk.0.ffn_down.weight has 64");
	read_file("deepseek_v2");
	set_value("deepseek2.expert_shared_count", 1);
	REFUSES(OD_ERR_MISMATCH, "deepseek2.expert_shared_count is 1", "ffn_down_shexp.weight has 2");
	read_file("qwen2_moe");
	set_value("qwen2moe.expert_shared_feed_forward_length", 16);
	REFUSES(OD_ERR_MISMATCH, "expert_shared_feed_forward_length is 16", "ffn_down_shexp.weight has 32");
	read_file("qwen3_next");
	set_element("qwen3next.attention.recurrent_layers", 1, 1, 1);
	REFUSES(OD_ERR_MISMATCH, "recurrent_layers is true for layer 1", "blk.1.ssm_a");
}

static void test_kinds_and_lengths(void **state)
{
	(void)state;
	read_file("mixtral");
	set_kind("llama.block_count", 6); /* float32 */
	REFUSES(OD_ERR_FORMAT, "llama.block_count", "integer");
	read_file("mixtral");
	set_value("llama.block_count", 0);
	REFUSES(OD_ERR_RANGE, "llama.block_count", "0");
	read_file("mixtral");
	set_value("llama.block_count", 0xffffffff);
	REFUSES(OD_ERR_RANGE, "llama.block_count");
	read_file("mixtral");
	rename_text("llama.context_length", "llama.context_lengt_");
	REFUSES(OD_ERR_MISSING, "llama.context_length");
	read_file("mixtral");
	set_kind("llama.rope.freq_base", 4);
	REFUSES(OD_ERR_FORMAT, "llama.rope.freq_base");
	read_file("glm4_moe");
	set_value("glm4moe.nextn_predict_layers", 3);
	REFUSES(OD_ERR_RANGE, "glm4moe.block_count", "3");
	read_file("qwen3_moe_lists");
	set_element("qwen3moe.attention.head_count_kv", 1, 1, 4);
	REFUSES(OD_ERR_UNSUPPORTED, "qwen3moe.attention.head_count_kv", "1 for layer 1 after 2");
	read_file("qwen3_moe_lists");
	set_element("qwen3moe.attention.head_count_kv", 0, 0xffffffff, 4);
	REFUSES(OD_ERR_UNSUPPORTED, "qwen3moe.attention.head_count_kv", "-1 for layer 0");
	read_file("gemma4");
	set_element("gemma4.attention.head_count_kv", 1, 0, 4);
	REFUSES(OD_ERR_UNSUPPORTED, "gemma4.attention.head_count_kv", "0 for layer 1");
	read_file("gemma4");
	rename_text("gemma4.attention.sliding_window_pattern", "gemma4.attention.sliding_window_patter_");
	REFUSES(OD_ERR_FORMAT, "gemma4.attention.sliding_window_pattern");
}

static void test_settings(void **state)
{
	(void)state;
	read_file("deepseek_v3");
	set_value("deepseek2.expert_gating_func", 3);
	REFUSES(OD_ERR_UNSUPPORTED, "deepseek2.expert_gating_func", "3");
	read_file("minimax_m2");
	set_value("minimax-m2.expert_gating_func", 1);
	REFUSES(OD_ERR_UNSUPPORTED, "minimax-m2.expert_gating_func", "sigmoid");
	read_file("mixtral");
	set_value("llama.rope.dimension_count", 8);
	REFUSES(OD_ERR_UNSUPPORTED, "llama.rope.dimension_count", "16", "8");
	read_file("mixtral");
	rename_text("llama.rope.freq_base", "llama.residual_scale");
	REFUSES(OD_ERR_UNSUPPORTED, "llama.residual_scale", "1e+06");
	read_file("mixtral");
	set_dim("blk.1.ffn_down_exps.weight", 0, 16);
	REFUSES(OD_ERR_MISMATCH, "llama.feed_forward_length is 32", "blk.1.ffn_down_exps.weight has 16");
	read_file("deepseek_v2");
	memcpy(find("deepseek2.rope.scaling.type") + strlen("deepseek2.rope.scaling.type") + 12, "ntk ", 4);
	REFUSES(OD_ERR_UNSUPPORTED, "deepseek2.rope.scaling.type", "\"ntk \"", "yarn");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_checkpoints),
		cmocka_unit_test(test_latents_apart),
		cmocka_unit_test(test_shortest_numbers),
		cmocka_unit_test(test_published_phimoe),
		cmocka_unit_test(test_layers_that_predict_tokens),
		cmocka_unit_test(test_any_part_of_a_head),
		cmocka_unit_test(test_other_files),
		cmocka_unit_test(test_metadata_against_tensors),
		cmocka_unit_test(test_kinds_and_lengths),
		cmocka_unit_test(test_settings),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
