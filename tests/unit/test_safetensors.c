/* Checkpoints: what opens is what was written; hostile headers are in tests/golden/pack and integ/test_pack.py, and
 * here as random damage, which no reader may crash on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/import/safetensors.h"
#include "common/pack/import/source.h"
#include "tests/unit/tiny_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct tiny_files tiny;

static int setup(void **state)
{
	(void)state;
	tiny_files_make(&tiny);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tiny_files_free(&tiny);
	return 0;
}

static void load_config(struct od_config *cfg)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/config.json", tiny.checkpoint);
	assert_int_equal(od_config_load(cfg, path, NULL), OD_OK);
}

static void test_tensors(void **state)
{
	struct od_checkpoint *c;
	struct od_config cfg;
	struct od_err err;

	(void)state;
	assert_int_equal(od_checkpoint_open(&c, tiny.checkpoint, &err), OD_OK);
	assert_int_equal(od_checkpoint_n_files(c), 1);
	assert_int_equal(od_checkpoint_n_tensors(c), tiny.n);
	for (size_t i = 1; i < tiny.n; i++)
		assert_true(strcmp(od_checkpoint_tensor(c, i - 1)->name, od_checkpoint_tensor(c, i)->name) < 0);
	for (size_t i = 0; i < tiny.n; i++) {
		const struct tiny_tensor *want = &tiny.tensor[i];
		const struct od_tensor *t = od_checkpoint_find(c, want->name);
		uint8_t *buf = malloc(want->bytes);

		assert_non_null(t);
		assert_string_equal(t->dtype_name, want->dtype);
		assert_int_equal(t->n_dims, want->n_in > 0 ? 2 : 1);
		assert_int_equal(t->shape[0], want->n_out);
		assert_true(want->n_in == 0 || t->shape[1] == want->n_in);
		assert_int_equal(od_checkpoint_read(c, t, 0, buf, want->bytes, &err), OD_OK);
		assert_memory_equal(buf, want->data, want->bytes);
		assert_int_equal(od_checkpoint_read(c, t, 10, buf, 7, &err), OD_OK);
		assert_memory_equal(buf, want->data + 10, 7);
		assert_int_equal(od_checkpoint_read(c, t, want->bytes - 6, buf, 7, &err), OD_ERR_RANGE);
		free(buf);
	}
	assert_null(od_checkpoint_find(c, "model.norm"));
	load_config(&cfg);
	assert_int_equal(od_source_check(c, &cfg, &err), OD_OK);
	cfg.n_experts--;
	assert_int_equal(od_source_check(c, &cfg, &err), OD_ERR_SHAPE); /* the router comes first */
	od_checkpoint_close(c);
}

/* One file in a folder of its own; what opening says. */
static int open_bytes(const void *data, size_t len, struct od_err *err)
{
	struct od_checkpoint *c;
	char dir[160];
	int rc;

	snprintf(dir, sizeof(dir), "%s/one", tiny.root);
	assert_int_equal(od_mkdir_p(dir, NULL), OD_OK);
	tiny_write(dir, "model.safetensors", data, len);
	rc = od_checkpoint_open(&c, dir, err);
	assert_true((rc == OD_OK) == (c != NULL));
	od_checkpoint_close(c);
	return rc;
}

static int open_header(const char *header, size_t data_bytes, struct od_err *err)
{
	uint64_t len = strlen(header);
	char *buf = calloc(1, 8 + len + data_bytes);
	int rc;

	memcpy(buf, &len, 8);
	memcpy(buf + 8, header, len);
	rc = open_bytes(buf, 8 + len + data_bytes, err);
	free(buf);
	return rc;
}

static void test_accepted(void **state)
{
	static const char *const good[] = {
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}",
		" {\"a\" : {\"shape\":[4,4],\"data_offsets\":[0,64],\"dtype\":\"F32\"} }   \n ",
		"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"I8\",\"shape\":[64],\"data_offsets\":[0,64]}}",
		"{\"b\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[32,64]},"
		"\"a\":{\"dtype\":\"BF16\",\"shape\":[16],\"data_offsets\":[0,32]}}",
		"{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
		"\"b\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[8,8]},"
		"\"c\":{\"dtype\":\"F16\",\"shape\":[28],\"data_offsets\":[8,64]}}",
	};
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(open_header(good[i], 64, &err), OD_OK);
}

/* Bit flips, cuts and insertions in a real header: an error or not, but never a crash or a leak. */
static void test_random_damage(void **state)
{
	char path[160], *good;
	size_t len, refused = 0;
	struct od_err err;
	uint64_t header;
	unsigned seed = 7;

	(void)state;
	snprintf(path, sizeof(path), "%s/model.safetensors", tiny.checkpoint);
	assert_int_equal(od_file_read(path, 1 << 20, &good, &len, &err), OD_OK);
	memcpy(&header, good, 8);
	for (int round = 0; round < 1500; round++) {
		char *bad = malloc(len);
		size_t n = len, at = 8 + (size_t)rand_r(&seed) % header;

		memcpy(bad, good, len);
		switch (round % 4) {
		case 0: bad[at] = (char)(bad[at] ^ 1 << rand_r(&seed) % 8); break;
		case 1: n = at; break;
		case 2: memmove(bad + at, bad + at + 3, len - at - 3); break;
		case 3: bad[at] = "0123456789[]{},:\"-e."[rand_r(&seed) % 20]; break;
		}
		refused += open_bytes(bad, n, &err) != OD_OK;
		free(bad);
	}
	assert_in_range(refused, 800, 1500); /* a changed letter of a name is still a file */
	free(good);
}

static void test_deep_json(void **state)
{
	char *text = malloc(200001);
	struct od_err err;

	(void)state;
	memset(text, '[', 200000);
	memcpy(text, "{\"a\":", 5);
	text[200000] = '\0';
	assert_int_equal(open_header(text, 64, &err), OD_ERR_FORMAT);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_accepted),
		cmocka_unit_test(test_random_damage),
		cmocka_unit_test(test_deep_json),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
