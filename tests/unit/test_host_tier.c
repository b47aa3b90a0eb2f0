/* Stored experts in host memory beside a card, here the far device: what is read from the file, and how often. */
#include "common/base/mem.h"
#include "common/compute/device_internal.h"
#include "common/compute/scratch.h"
#include "common/pack/write/pack_write.h"
#include "common/residency/host_tier.h"
#include "tests/gpu/far_device.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"

enum { PLANES, PLAIN, CODED, N_PACKS };
static struct od_pack *packs[N_PACKS];
static struct od_device *device, *cpu;
static const struct od_expert_mem nowhere;

/* ---- The file ---- */

static struct {
	unsigned n; /* slices that were read */
	bool damage;
} file;

int __real_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref at, struct od_shard_bytes *b,
			  struct od_err *err);
int __wrap_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref at, struct od_shard_bytes *b,
			  struct od_err *err);
int __wrap_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref at, struct od_shard_bytes *b,
			  struct od_err *err)
{
	const int rc = __real_od_shards_read(p, m, expert, first, n, mem, at, b, err);

	file.n++;
	if (file.damage)
		*(uint8_t *)od_ref_stage(b[n - 1].e) ^= 1;
	return rc;
}

#define SPARE ((64u << 20) + OD_PAD_BYTES) /* tried, and left to others */

/* The host pins no more than `most`; 0: no limit. */
static struct {
	uint64_t most, now; /* now: also what was unpinned */
} pinned;

static void *pin(struct od_device *d, uint64_t bytes)
{
	(void)d;
	if (pinned.most > 0 && pinned.now + bytes > pinned.most)
		return NULL;
	pinned.now += bytes;
	return aligned_alloc(OD_PAGE_BYTES, od_round_up(bytes, OD_PAGE_BYTES));
}

static void unpin(struct od_device *d, void *at)
{
	(void)d;
	free(at);
}

static struct od_device_ops ops;

static struct od_pack *pack_of(const char *checkpoint, const char *name, enum od_codec codec)
{
	const struct od_pack_job job = {
		.checkpoint = checkpoint, .pack = temp_path(name), .codec = codec, .n_threads = 2
	};
	struct od_err err = { 0 };
	struct od_pack *p;

	must(od_pack_write(&job, &err), &err);
	must(od_pack_open(&p, temp_path(name), &err), &err);
	return p;
}

static int setup(void **state)
{
	struct od_err err = { 0 };

	if (temp_dir_make(state) != 0)
		return -1;
	must(od_device_far_new(&device, OD_CPU_SCALAR, 2, "test", &err), &err);
	ops = *device->ops;
	ops.host_new = pin;
	ops.host_free = unpin;
	device->ops = &ops;
	must(od_device_open_beside(&cpu, device, OD_PROFILE_F32, OD_CPU_SCALAR, 1, "test", &err), &err);
	packs[PLANES] = pack_of("deploy/models/talebook", "planes", OD_CODEC_PLANES);
	packs[PLAIN] = pack_of("tests/golden/families/gpt_oss_mxfp4", "plain", OD_CODEC_RAW);
	packs[CODED] = pack_of("tests/golden/families/gpt_oss_mxfp4", "coded", OD_CODEC_ZSTD);
	return 0;
}

static int teardown(void **state)
{
	for (int i = 0; i < N_PACKS; i++)
		od_pack_close(packs[i]);
	od_device_free(cpu);
	od_device_free(device);
	return temp_dir_remove(state);
}

static size_t n_experts(const struct od_pack *p)
{
	return (size_t)od_pack_config(p)->n_moe * od_pack_config(p)->n_experts;
}

static struct od_host_tier *tier_with(const struct od_pack *p, struct od_device *with, uint64_t most_bytes)
{
	struct od_host_tier *t;
	struct od_err err = { 0 };

	must(od_host_tier_new(&t, p, device, with, most_bytes, &err), &err);
	return t;
}

static struct od_host_tier *tier_new(const struct od_pack *p, uint64_t most_bytes)
{
	return tier_with(p, NULL, most_bytes);
}

/* Where a load reads a slice to. */
static struct od_buf *stage_new(const struct od_pack *p)
{
	return shared_buf_new(device, OD_SLICE_SHARDS * od_staging_bytes(p, device, OD_FORM_PLAIN) + OD_PAGE_BYTES);
}

/* Reads an expert; returns its stored bytes. The bytes are the file's. */
static uint64_t read_expert(struct od_host_tier *t, const struct od_pack *p, uint32_t m, uint32_t expert)
{
	const struct od_pack_expert *x = od_pack_expert(p, m, expert);
	const uint32_t each = od_slice_shards(device, x->n_shards);
	struct od_buf *staging = stage_new(p);
	struct od_shard_bytes b[OD_SLICE_SHARDS];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < x->n_shards; i++) {
		const struct od_shard *s = &x->shard[i];
		const uint32_t n = x->n_shards - i < each ? x->n_shards - i : each;
		uint8_t *e = test_malloc(s->e.stored_bytes), *sm = test_malloc(s->sm.stored_bytes + 1);
		struct od_err err = { 0 };

		if (i % each == 0)
			must(od_host_tier_read(t, m, expert, i, n, &nowhere, od_buf_ref(staging, 0), b, &err), &err);
		must(od_pack_read_stored(p, &s->e, e, &err), &err);
		must(od_pack_read_stored(p, &s->sm, sm, &err), &err);
		if (b[i % each].plain.buf == NULL) { /* else experts_are_computed_where_they_are compares it */
			assert_memory_equal(od_ref_stage(b[i % each].e), e, s->e.stored_bytes);
			assert_memory_equal(od_ref_stage(b[i % each].sm), sm, s->sm.stored_bytes);
		}
		bytes += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
		test_free(e);
		test_free(sm);
	}
	od_buf_free(staging);
	return bytes;
}

static uint64_t read_all(struct od_host_tier *t, const struct od_pack *p)
{
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < od_pack_config(p)->n_moe; m++)
		for (uint32_t i = 0; i < od_pack_config(p)->n_experts; i++)
			bytes += read_expert(t, p, m, i);
	return bytes;
}

/* Experts of a layer that are not read again. */
static size_t n_held(struct od_host_tier *t, const struct od_pack *p, uint32_t m)
{
	size_t n = 0;

	for (uint32_t i = 0; i < od_pack_config(p)->n_experts; i++) {
		const unsigned before = file.n;

		(void)read_expert(t, p, m, i);
		n += file.n == before;
	}
	return n;
}

/* ---- Tests ---- */

static void bytes_are_read_once(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * N_PACKS; i++) {
		const struct od_pack *p = packs[i / 2];
		struct od_host_tier *t = tier_with(p, i % 2 ? cpu : NULL, UINT64_MAX);
		uint64_t bytes;

		file.n = 0;
		bytes = read_all(t, p);
		assert_true(file.n >= n_experts(p));
		assert_true(od_host_tier_served_bytes(t) == 0);
		file.n = 0;
		assert_true(read_all(t, p) == bytes && file.n == 0);
		assert_true(od_host_tier_served_bytes(t) == bytes);
		od_host_tier_free(t);
	}
}

/* y: the results of an expert of the CPUs for some rows. */
static void compute(const struct od_pack *p, const struct od_expert *w, float *y, size_t n_rows)
{
	const struct od_config *c = od_pack_config(p);
	const struct od_ffn_segment segment = od_expert_segment(w, (uint32_t)n_rows);
	const uint64_t bytes = n_rows * c->hidden * sizeof(float);
	struct od_buf *x = buf_new(cpu, bytes), *out = buf_new(cpu, bytes),
		      *scratch = buf_new(cpu, od_ffn_scratch_bytes(c->intermediate, n_rows));
	const struct od_op op = { .kind = OD_OP_FFN,
				  .profile = OD_PROFILE_F32,
				  .n_rows = (uint32_t)n_rows,
				  .ffn = { .segment = &segment,
					   .n_segments = 1,
					   .routed = true,
					   .act = c->act,
					   .x = od_buf_ref(x, 0),
					   .y = od_buf_ref(out, 0),
					   .scratch = od_buf_ref(scratch, 0) } };
	struct od_err err = { 0 };

	for (size_t i = 0; i < n_rows * c->hidden; i++)
		((float *)od_ref_map(od_buf_ref(x, 0)))[i] = (float)((i * 37) % 101) / 50 - 1;
	od_device_run(cpu, OD_QUEUE_COMPUTE, &op);
	must(od_device_sync(cpu, &err), &err);
	memcpy(y, od_ref_map(od_buf_ref(out, 0)), bytes);
	od_buf_free(x);
	od_buf_free(out);
	od_buf_free(scratch);
}

/* The CPUs compute on an expert when all of it is there, as on one with plain weights. */
static void experts_are_computed_where_they_are(void **state)
{
	enum { N_ROWS = 3 };

	(void)state;
	for (int i = 0; i < N_PACKS; i++) {
		const struct od_pack *p = packs[i];
		const struct od_config *c = od_pack_config(p);
		struct od_host_tier *t = tier_with(p, cpu, UINT64_MAX);
		const size_t n = N_ROWS * c->hidden;
		float *is = test_malloc(n * sizeof(*is)), *should = test_malloc(n * sizeof(*should));
		struct od_expert_store *all;
		struct od_expert w;
		struct od_err err = { 0 };

		assert_int_equal(od_host_tier_form(t), i == PLANES ? OD_FORM_PLANES : i == PLAIN ? OD_FORM_PLAIN : -1);
		must(od_experts_load_all(&all, p, cpu, OD_FORM_PLAIN, 1, NULL, NULL, &err), &err);
		for (uint32_t m = 0; i != CODED && m < c->n_moe; m++)
			for (uint32_t expert = 0; expert < c->n_experts; expert++) {
				assert_false(od_host_tier_expert(t, m, expert, &w));
				(void)read_expert(t, p, m, expert);
				assert_true(od_host_tier_expert(t, m, expert, &w));
				compute(p, &w, is, N_ROWS);
				compute(p, &od_experts_get(all)[m * c->n_experts + expert], should, N_ROWS);
				assert_true(should[0] != should[1]);
				assert_memory_equal(is, should, n * sizeof(*is));
			}
		od_experts_free(all);
		od_host_tier_free(t);
		test_free(is);
		test_free(should);
	}
}

static void layers_have_equally_many(void **state)
{
	(void)state;
	for (int i = 0; i < N_PACKS; i++) {
		const uint32_t n_moe = od_pack_config(packs[i])->n_moe;
		struct od_host_tier *t;
		uint64_t all;
		size_t first, held = 0;

		pinned.now = 0;
		od_host_tier_free(tier_with(packs[i], cpu, UINT64_MAX));
		all = pinned.now - SPARE;
		pinned.now = 0;
		t = tier_with(packs[i], cpu, all / 2);
		assert_in_range(pinned.now - SPARE, all / 4, all / 2 + 64 * OD_PAD_BYTES);
		(void)read_all(t, packs[i]);
		first = n_held(t, packs[i], 0);
		for (uint32_t m = 0; m < n_moe; m++) {
			const size_t n = n_held(t, packs[i], m);

			assert_true(n <= first && n + 1 >= first);
			held += n;
		}
		assert_in_range(held, n_experts(packs[i]) / 4, n_experts(packs[i]) / 2 + 1);
		od_host_tier_free(t);
	}
}

/* The start goes on with what there is; some of what the system pins is left to others. */
static void the_system_may_pin_less(void **state)
{
	struct od_host_tier *t;
	uint64_t all;
	size_t held = 0;

	(void)state;
	pinned.now = 0;
	od_host_tier_free(tier_new(packs[0], UINT64_MAX));
	all = pinned.now - SPARE;
	pinned.most = SPARE + all / 2;
	pinned.now = 0;
	t = tier_new(packs[0], UINT64_MAX);
	assert_non_null(t);
	pinned.most = 0;
	(void)read_all(t, packs[0]);
	for (uint32_t m = 0; m < od_pack_config(packs[0])->n_moe; m++)
		held += n_held(t, packs[0], m);
	assert_in_range(held, n_experts(packs[0]) / 4, n_experts(packs[0]) / 2);
	od_host_tier_free(t);
	pinned.now = 0;
	pinned.most = SPARE;
	assert_null(tier_new(packs[0], UINT64_MAX));
	pinned.most = 0;
	assert_null(tier_new(packs[0], 0));
}

static void damage_is_found_when_a_place_is_filled(void **state)
{
	struct od_shard_bytes b[OD_SLICE_SHARDS];

	(void)state;
	for (int i = 0; i < N_PACKS; i++) {
		struct od_host_tier *t = tier_with(packs[i], cpu, UINT64_MAX);
		struct od_buf *staging = stage_new(packs[i]);
		struct od_err err = { 0 };
		struct od_expert w;

		file.damage = true;
		assert_int_equal(od_host_tier_read(t, 1, 2, 0, 1, &nowhere, od_buf_ref(staging, 0), b, &err),
				 OD_ERR_CORRUPT);
		assert_non_null(strstr(err.msg, "expert (1, 2) shard 0, E-chunk"));
		assert_false(i != CODED && od_host_tier_expert(t, 1, 2, &w));
		file.damage = false;
		file.n = 0;
		(void)read_expert(t, packs[i], 1, 2);
		assert_true(file.n > 0);
		file.n = 0;
		(void)read_expert(t, packs[i], 1, 2);
		assert_true(file.n == 0);
		od_host_tier_free(t);
		od_buf_free(staging);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_are_read_once),
		cmocka_unit_test(experts_are_computed_where_they_are),
		cmocka_unit_test(layers_have_equally_many),
		cmocka_unit_test(the_system_may_pin_less),
		cmocka_unit_test(damage_is_found_when_a_place_is_filled),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
