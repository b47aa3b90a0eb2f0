/* The share of a GGUF file that a worker pulls: its model.json, and the layout of experts.bin that follows from it.
 * Expected numbers are calculated by hand from docs/PACK-FORMAT.md. */
#include "common/pack/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/config_util.h"
#include "tests/unit/temp_dir.h"

#define FINGERPRINT "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Two layers of three experts; rows of 64 and 512 weights. */
static struct od_config small(void)
{
	return uniform_config((struct uniform){ .n_layers = 2,
						.hidden = 512,
						.heads = 4,
						.kv_heads = 2,
						.head_dim = 16,
						.n_experts = 3,
						.top_k = 2,
						.intermediate = 64,
						.vocab = 32,
						.ctx = 64 });
}

static const struct od_layer_types mixed[2] = {
	{ { { .dtype = OD_Q4_K }, { .dtype = OD_Q4_K }, { .dtype = OD_Q8_0 } } },
	{ { { .dtype = OD_IQ2_XS }, { .dtype = OD_BF16 }, { .dtype = OD_F32 } } },
};

static void write_text(const char *text)
{
	struct od_err err;

	assert_int_equal(od_file_write_atomic(temp_path("model.json"), text, strlen(text), &err), OD_OK);
}

static void reads_what_it_writes(void **state)
{
	const struct od_config cfg = small();
	struct od_manifest m;
	struct od_err err;
	/* A page for the header; 64 rows of two blocks of 144 bytes twice, 512 rows of two blocks of 34 bytes: 71680
	 * bytes, 17.5 pages. */
	const uint64_t first = 4096 + 18 * 4096;
	/* 64 rows of 2 * 74, of 1024, and 512 of 256 bytes: 206080, 50.3 pages. */
	const uint64_t second = 4096 + 51 * 4096;

	(void)state;
	assert_int_equal(od_manifest_write_share(FINGERPRINT, mixed, &cfg, temp_path("model.json"), &err), OD_OK);
	assert_int_equal(od_manifest_read(&m, &cfg, temp_path("model.json"), &err), OD_OK);
	assert_string_equal(m.fingerprint, FINGERPRINT);
	assert_non_null(m.layer);
	for (int l = 0; l < 2; l++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			assert_int_equal(m.layer[l].type[mat].dtype, mixed[l].type[mat].dtype);
	for (uint64_t i = 0; i < 6; i++) {
		assert_int_equal(m.expert[i].bytes, i < 3 ? first : second);
		assert_int_equal(m.expert[i].offset, i < 3 ? i * first : 3 * first + (i - 3) * second);
	}
	assert_int_equal(m.experts_bytes, 3 * first + 3 * second);
	od_manifest_fini(&m);
}

static void lays_chunks_behind_the_header(void **state)
{
	const struct od_config cfg = small();
	struct od_expert_entry e;
	struct od_err err;

	(void)state;
	assert_int_equal(od_share_expert(&e, &cfg, mixed[0].type, 8192, &err), OD_OK);
	assert_int_equal(e.x.n_shards, 3); /* each matrix has fewer weights than a shard */
	assert_true(e.as_bytes);
	assert_int_equal(e.x.offset, 8192);
	assert_int_equal(e.x.bytes, 4096 + 18 * 4096);
	assert_int_equal(e.x.shard[0].e.offset, 8192 + 4096);
	assert_int_equal(e.x.shard[0].e.stored_bytes, 64 * 2 * 144);
	assert_int_equal(e.x.shard[1].e.offset, 8192 + 4096 + 64 * 2 * 144);
	assert_int_equal(e.x.shard[2].e.offset, 8192 + 4096 + 2 * 64 * 2 * 144);
	assert_int_equal(e.x.shard[2].e.stored_bytes, 512 * 2 * 34);
	assert_int_equal(e.x.shard[2].n_rows, 512);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(e.x.shard[i].mat, i);
		assert_int_equal(e.x.shard[i].sm.stored_bytes, 0);
	}
	free((void *)e.x.shard);
}

static void cuts_large_matrices(void **state)
{
	struct od_config cfg = small();
	const struct od_mat_type type[3] = { { .dtype = OD_Q6_K }, { .dtype = OD_Q6_K }, { .dtype = OD_Q6_K } };
	struct od_expert_entry e;
	struct od_err err;
	uint64_t at;

	(void)state;
	cfg.hidden = 2048;
	cfg.intermediate = 768; /* gate and up: 256 rows a shard, so 3; down: 682 rows a shard, so 4, the last of 2 */
	assert_int_equal(od_share_expert(&e, &cfg, type, 0, &err), OD_OK);
	assert_int_equal(e.x.n_shards, 3 + 3 + 4);
	at = e.x.shard[0].e.offset;
	for (uint32_t i = 0; i < e.x.n_shards; i++) { /* without gaps */
		assert_int_equal(e.x.shard[i].e.offset, at);
		at += e.x.shard[i].e.stored_bytes;
	}
	assert_int_equal(at - e.x.shard[0].e.offset, 3ull * 2048 * 768 / 256 * 210);
	assert_int_equal(e.x.shard[9].n_rows, 2);
	free((void *)e.x.shard);
}

static void refuse(const char *text, int code, const char *part)
{
	const struct od_config cfg = small();
	struct od_manifest m;
	struct od_err err;

	write_text(text);
	assert_int_equal(od_manifest_read(&m, &cfg, temp_path("model.json"), &err), code);
	if (strstr(err.msg, part) == NULL)
		fail_msg("expected \"%s\", found \"%s\"", part, err.msg);
}

#define HEAD "{\"schema_version\": 3, \"family\": \"mixtral\", \"fingerprint\": \"" FINGERPRINT "\", \"gguf\": "
#define GOOD "{\"gate\": \"Q4_K\", \"up\": \"Q4_K\", \"down\": \"Q8_0\"}"

static void refuses_other_tables(void **state)
{
	(void)state;
	refuse(HEAD "[" GOOD "]}", OD_ERR_FORMAT, "\"gguf\": expected 2 entries, found 1");
	refuse(HEAD "[" GOOD ", " GOOD ", " GOOD "]}", OD_ERR_FORMAT, "expected 2 entries, found 3");
	refuse(HEAD "{}}", OD_ERR_FORMAT, "gguf");
	refuse(HEAD "[" GOOD ", 7]}", OD_ERR_MISSING, "MoE layer 1");
	refuse(HEAD "[" GOOD ", {\"gate\": \"Q4_K\", \"up\": \"Q4_K\"}]}", OD_ERR_MISSING, "down");
	refuse(HEAD "[" GOOD ", {\"gate\": \"Q4_X\", \"up\": \"Q4_K\", \"down\": \"Q8_0\"}]}", OD_ERR_UNSUPPORTED,
	       "type \"Q4_X\"");
	/* Rows of 64 weights are no whole blocks. */
	refuse(HEAD "[" GOOD ", {\"gate\": \"Q4_K\", \"up\": \"Q4_K\", \"down\": \"Q6_K\"}]}", OD_ERR_UNSUPPORTED,
	       "does not fit rows of 64");
	/* A code that needs scales beside it. */
	refuse(HEAD "[{\"gate\": \"I8\", \"up\": \"Q4_K\", \"down\": \"Q8_0\"}, " GOOD "]}", OD_ERR_UNSUPPORTED,
	       "MoE layer 0");
}

static void refuses_sizes_beyond_numbers(void **state)
{
	struct od_config cfg = small();
	const struct od_mat_type type[3] = { { .dtype = OD_F32 }, { .dtype = OD_F32 }, { .dtype = OD_F32 } };
	struct od_err err;
	uint64_t bytes;

	(void)state;
	cfg.hidden = 1u << 30; /* a row of 4 GiB, which is a chunk */
	assert_int_equal(od_share_expert_bytes(&cfg, type, &bytes, &err), OD_ERR_RANGE);
	assert_int_equal(bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_what_it_writes),		cmocka_unit_test(lays_chunks_behind_the_header),
		cmocka_unit_test(cuts_large_matrices),		cmocka_unit_test(refuses_other_tables),
		cmocka_unit_test(refuses_sizes_beyond_numbers),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
