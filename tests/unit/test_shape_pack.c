/* A model without its pack has the sizes that od-pack gives it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/shape_pack.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_files.h"

static struct od_pack *open_shape(const char *given, enum od_shape_source expected)
{
	enum od_shape_source source;
	struct od_pack *p;
	struct od_err err;

	if (od_pack_open_shape(&p, given, &source, &err) != OD_OK)
		fail_msg("%s: %s", given, err.msg);
	assert_int_equal(source, expected);
	return p;
}

struct dense_sums {
	uint64_t n, bytes, weights;
};

static void add_dense(void *arg, const struct od_dense_size *t)
{
	struct dense_sums *s = arg;

	s->n++;
	s->bytes += t->bytes;
	s->weights += t->n_out * (t->n_in > 0 ? t->n_in : 1);
}

/* percent: what experts as stored may differ by. */
static void compare(const struct od_pack *shape, const struct od_pack *pack, double percent)
{
	const struct od_config *cfg = od_pack_config(pack);
	const double stored = (double)od_pack_expert_stored_bytes(pack);
	struct dense_sums a = { 0 }, b = { 0 };

	assert_int_equal(od_dense_need_bytes(shape, OD_DENSE_ALL), od_dense_need_bytes(pack, OD_DENSE_ALL));
	assert_int_equal(od_dense_need_bytes(shape, OD_DENSE_UNQUANTISED),
			 od_dense_need_bytes(pack, OD_DENSE_UNQUANTISED));
	assert_int_equal(od_dense_token_bytes(shape), od_dense_token_bytes(pack));
	assert_int_equal(od_pack_weights(shape), od_pack_weights(pack));
	assert_int_equal(od_pack_expert_raw_bytes(shape), od_pack_expert_raw_bytes(pack));
	for (uint32_t m = 0; m < cfg->n_moe; m++)
		assert_int_equal(od_layer_slot_bytes(shape, OD_FORM_PLAIN, m),
				 od_layer_slot_bytes(pack, OD_FORM_PLAIN, m));
	od_pack_each_dense(shape, add_dense, &a);
	od_pack_each_dense(pack, add_dense, &b);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_true(a.n > 0 && a.bytes > 0);
	if (stored * (1 - percent / 100) > (double)od_pack_expert_stored_bytes(shape) ||
	    stored * (1 + percent / 100) < (double)od_pack_expert_stored_bytes(shape))
		fail_msg("stored: %.0f, expected about %.0f", (double)od_pack_expert_stored_bytes(shape), stored);
}

static void make_pack(const char *checkpoint, const char *dir)
{
	struct od_pack_job job = { .checkpoint = checkpoint, .pack = dir, .codec = OD_CODEC_PLANES, .n_threads = 2 };
	struct od_err err;

	if (od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void a_checkpoint_and_its_config(void **state)
{
	struct od_pack *shape, *pack;
	const char *path = temp_path("pack");

	(void)state;
	make_pack("deploy/models/talebook", path);
	pack = open_shape(path, OD_SHAPE_PACK);
	assert_int_equal(od_pack_disk_bytes(pack), od_pack_bytes(pack));
	shape = open_shape("deploy/models/talebook", OD_SHAPE_CHECKPOINT);
	compare(shape, pack, 1.5);
	assert_int_equal(od_pack_can_form(shape, OD_FORM_PLANES, NULL), OD_OK);
	assert_int_equal(od_pack_disk_bytes(shape), od_pack_bytes(pack));
	od_pack_close(shape);
	shape = open_shape("deploy/models/talebook/config.json", OD_SHAPE_CONFIG);
	compare(shape, pack, 1.5);
	od_pack_close(shape);
	od_pack_close(pack);
}

/* Types differ from tensor to tensor, and random bits are not like weights: only what does not depend on them. */
static void scales(void **state)
{
	struct od_pack *shape, *pack;
	struct tiny_files t;

	(void)state;
	tiny_files_make_scaled(&t);
	make_pack(t.checkpoint, t.pack);
	pack = open_shape(t.pack, OD_SHAPE_PACK);
	shape = open_shape(t.checkpoint, OD_SHAPE_CHECKPOINT);
	assert_int_equal(od_dense_need_bytes(shape, OD_DENSE_ALL), od_dense_need_bytes(pack, OD_DENSE_ALL));
	assert_int_equal(od_pack_can_form(shape, OD_FORM_PLANES, NULL), OD_ERR_UNSUPPORTED);
	od_pack_close(shape);
	od_pack_close(pack);
	tiny_files_free(&t);
}

static void refuse(const char *given, int code, const char *says)
{
	enum od_shape_source source;
	struct od_pack *p;
	struct od_err err;

	assert_int_equal(od_pack_open_shape(&p, given, &source, &err), code);
	assert_null(p);
	if (strstr(err.msg, says) == NULL)
		fail_msg("%s: \"%s\" does not contain \"%s\"", given, err.msg, says);
}

static void what_is_no_model(void **state)
{
	static const char dense[] = "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"]}";
	const char *dir = temp_path("folder"), *path = temp_path("folder/config.json");

	(void)state;
	assert_int_equal(mkdir(dir, 0755), 0);
	tiny_write(dir, "config.json", dense, strlen(dense));
	refuse(path, OD_ERR_UNSUPPORTED, "llama");
	refuse(dir, OD_ERR_UNSUPPORTED, "llama");
	tiny_write(dir, "config.json", "{\"model_type\": ", 15);
	refuse(path, OD_ERR_FORMAT, "config.json");
	tiny_write(dir, "model-00001-of-00002.safetensors", "", 0);
	refuse(dir, OD_ERR_MISSING, "model-00002-of-00002.safetensors is missing");
	refuse("/nowhere/at/all", OD_ERR_MISSING, "/nowhere/at/all");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_checkpoint_and_its_config),
		cmocka_unit_test(scales),
		cmocka_unit_test(what_is_no_model),
	};

	return cmocka_run_group_tests_name("shape_pack", tests, temp_dir_make, temp_dir_remove);
}
