/* Experts that stay as they are stored: the same weights to the bit, what cannot be is said, what is broken is
 * found. */
#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/device_internal.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_files.h"

#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECKPOINT "deploy/models/talebook"

static struct od_pack *planes, *zstd; /* packs of the demo checkpoint */
static struct od_device *device;

static int pack_of(const char *checkpoint, const char *name, enum od_codec codec, struct od_pack **out)
{
	const struct od_pack_job job = {
		.checkpoint = checkpoint, .pack = temp_path(name), .codec = codec, .n_threads = 2
	};
	struct od_err err;

	if (od_pack_write(&job, &err) == OD_OK && od_pack_open(out, temp_path(name), &err) == OD_OK)
		return 0;
	fprintf(stderr, "%s\n", err.msg);
	return -1;
}

static int setup(void **state)
{
	if (temp_dir_make(state) != 0)
		return -1;
	device = device_new(OD_CPU_AUTO, 1);
	return pack_of(CHECKPOINT, "planes", OD_CODEC_PLANES, &planes) |
	       pack_of(CHECKPOINT, "zstd", OD_CODEC_ZSTD, &zstd);
}

static int teardown(void **state)
{
	od_pack_close(planes);
	od_pack_close(zstd);
	od_device_free(device);
	return temp_dir_remove(state);
}

/* A slot as a worker has them, with something in it already. */
static struct od_buf *slot_new(enum od_form form)
{
	const uint64_t bytes = od_pack_slot_bytes(planes, form);
	struct od_buf *slot = shared_buf_new(device, bytes);
	void *dirt = malloc(bytes);

	memset(dirt, 0xa5, bytes);
	put_at(device, od_buf_ref(slot, 0), dirt, bytes);
	free(dirt);
	return slot;
}

/* The weights of a matrix in planes, bit by bit as PACK-FORMAT.md puts them together. */
static void assert_weights(const struct od_backend *be, const struct od_weight *coded, const struct od_weight *plain)
{
	uint16_t *want = copy_at(device, plain->data, plain->n_out * plain->n_in * sizeof(*want));
	uint8_t *sm = copy_at(device, coded->data, coded->n_out * coded->n_in);

	assert_non_null(coded->chunk_at);
	assert_null(plain->chunk_at);
	for (size_t row = 0, c = 0; row < coded->n_out; row += coded->chunk_rows, c++) {
		size_t left = coded->n_out - row, rows = left < coded->chunk_rows ? left : coded->chunk_rows;
		size_t n = rows * coded->n_in, bound = od_planes_bound(n, coded->n_in);
		uint64_t at = coded->chunk_at[c], behind = od_buf_bytes(coded->coded.buf) - coded->coded.at - at;
		uint8_t *chunk = od_alloc(bound), e[OD_PLANES_BLOCK + 64];

		get_at(device, chunk, od_ref_at(coded->coded, at), bound < behind ? bound : behind);
		for (size_t b = 0; b < od_planes_blocks(n, coded->n_in); b++) {
			size_t first, weights;

			od_planes_span(n, coded->n_in, b, &first, &weights);
			be->planes_decode(chunk, n, coded->n_in, b, e);
			for (size_t i = 0; i < weights; i++) {
				size_t k = row * coded->n_in + first + i;

				assert_int_equal(want[k], (uint16_t)(sm[k] << 15 | e[i] << 7 | sm[k] >> 1));
			}
		}
		od_free(chunk);
	}
	free(want);
	free(sm);
}

static void the_same_weights_in_two_thirds(void **state)
{
	const struct od_config *cfg = od_pack_config(planes);
	const struct od_backend *be;
	struct od_expert_store *a, *b;

	(void)state;
	assert_int_equal(od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, NULL), OD_OK);
	assert_int_equal(od_experts_load_all(&a, zstd, device, OD_FORM_PLAIN, 1, NULL, NULL, NULL), OD_OK);
	assert_int_equal(od_experts_load_all(&b, planes, device, OD_FORM_PLANES, 3, NULL, NULL, NULL), OD_OK);
	for (size_t i = 0; i < (size_t)cfg->n_moe * cfg->n_experts; i++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			const struct od_weight *p = &od_experts_get(a)[i].mat[mat], *q = &od_experts_get(b)[i].mat[mat];

			assert_true(q->n_out == p->n_out && q->n_in == p->n_in && q->dtype == OD_BF16);
			assert_weights(be, q, p);
		}
	/* Pages are much beside so small an expert, of 384 KiB. */
	assert_true(od_experts_need_bytes(planes, OD_FORM_PLANES) * 100 <
		    od_experts_need_bytes(planes, OD_FORM_PLAIN) * 71);
	assert_true(od_inflater_bytes(planes, device, OD_FORM_PLANES) <
		    1024 + od_staging_bytes(planes, device, OD_FORM_PLANES));
	od_experts_free(a);
	od_experts_free(b);
}

/* Matrices point to their own chunks, as the pack's table of shards has them. */
static void assert_chunks(const struct od_pack_expert *x, const struct od_expert_mem *mem, const struct od_expert *w)
{
	uint32_t chunk[OD_N_EXPERT_MATS] = { 0 };

	for (uint32_t i = 0; i < x->n_shards; i++) {
		const struct od_shard *s = &x->shard[i];
		const struct od_weight *m = &w->mat[s->mat];

		assert_ptr_equal(m->data.buf, mem->at[OD_BUF_SM].buf);
		assert_ptr_equal(m->coded.buf, mem->at[OD_BUF_E].buf);
		assert_true(chunk[s->mat] > 0 || m->chunk_rows == s->n_rows);
		assert_int_equal(m->data.at + s->row_begin * m->n_in - mem->at[OD_BUF_SM].at,
				 s->sm.offset - x->shard[0].sm.offset);
		assert_int_equal(m->coded.at + m->chunk_at[chunk[s->mat]++] - mem->at[OD_BUF_E].at,
				 s->e.offset - x->shard[0].e.offset);
	}
}

/* One slot for one expert after the other, as a worker uses it. */
static void one_slot(void **state)
{
	struct od_buf *plain = slot_new(OD_FORM_PLAIN), *slot = slot_new(OD_FORM_PLANES);
	const struct od_expert_mem plain_mem = od_pack_slot_mem(planes, OD_FORM_PLAIN, od_buf_ref(plain, 0));
	const struct od_expert_mem slot_mem = od_pack_slot_mem(planes, OD_FORM_PLANES, od_buf_ref(slot, 0));
	struct od_inflater *inflate, *keep;
	struct od_load_stats stats = { 0 };
	const struct od_backend *be;
	uint64_t stored = 0;

	(void)state;
	assert_int_equal(od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, NULL), OD_OK);
	assert_int_equal(od_inflater_new(&inflate, planes, device, OD_FORM_PLAIN, NULL), OD_OK);
	assert_int_equal(od_inflater_new(&keep, planes, device, OD_FORM_PLANES, NULL), OD_OK);
	for (uint32_t e = 0; e < 4; e++) {
		const struct od_pack_expert *x = od_pack_expert(planes, e, e);
		struct od_expert a, b;

		for (uint32_t s = 0; s < x->n_shards; s++) {
			assert_int_equal(od_inflater_load(inflate, e, e, s, &plain_mem, NULL, NULL), OD_OK);
			assert_int_equal(od_inflater_load(keep, e, e, s, &slot_mem, &stats, NULL), OD_OK);
			stored += x->shard[s].e.stored_bytes + x->shard[s].sm.stored_bytes;
		}
		od_pack_bind(planes, e, e, &plain_mem, &a);
		od_pack_bind(planes, e, e, &slot_mem, &b);
		assert_chunks(x, &slot_mem, &b);
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			assert_weights(be, &b.mat[mat], &a.mat[mat]);
	}
	assert_int_equal(stats.read_bytes, stored);
	od_inflater_free(inflate);
	od_inflater_free(keep);
	od_buf_free(plain);
	od_buf_free(slot);
}

static void assert_same_bytes(const struct od_weight *found, const struct od_weight *want)
{
	const size_t bytes = want->n_out * want->n_in * sizeof(uint16_t);
	void *a = copy_at(device, found->data, bytes), *b = copy_at(device, want->data, bytes);

	assert_memory_equal(a, b, bytes);
	free(a);
	free(b);
}

static struct od_ref dirty_buf(enum od_expert_buf i)
{
	const size_t bytes = od_pack_buf_bytes(planes, i);
	void *dirt = malloc(bytes);
	struct od_ref at;

	memset(dirt, 0xa5, bytes);
	at = od_buf_ref(buf_of(device, dirt, bytes), 0);
	free(dirt);
	return at;
}

/* Data that is read into buffers of its own stays as it was stored beside the weights, and can be computed on too. */
static void buffers_apart(void **state)
{
	struct od_expert_mem mem, plain = { 0 }, stored;
	const struct od_backend *be;
	struct od_inflater *inf;
	struct od_expert a, b;

	(void)state;
	assert_int_equal(od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, NULL), OD_OK);
	assert_int_equal(od_inflater_new(&inf, planes, device, OD_FORM_PLAIN, NULL), OD_OK);
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		mem.at[i] = dirty_buf((enum od_expert_buf)i);
	stored = mem;
	stored.at[OD_BUF_PLAIN].buf = NULL;
	plain.at[OD_BUF_PLAIN] = od_buf_ref(slot_new(OD_FORM_PLAIN), 0);
	for (uint32_t s = 0; s < od_pack_expert(planes, 2, 3)->n_shards; s++) {
		assert_int_equal(od_inflater_load(inf, 2, 3, s, &mem, NULL, NULL), OD_OK);
		assert_int_equal(od_inflater_load(inf, 2, 3, s, &plain, NULL, NULL), OD_OK);
	}
	od_pack_bind(planes, 2, 3, &plain, &a);
	for (int with_plain = 0; with_plain < 2; with_plain++) {
		od_pack_bind(planes, 2, 3, with_plain ? &mem : &stored, &b);
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			assert_int_equal(b.mat[mat].chunk_at == NULL, with_plain);
			if (with_plain)
				assert_same_bytes(&b.mat[mat], &a.mat[mat]);
			else
				assert_weights(be, &b.mat[mat], &a.mat[mat]);
		}
	}
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		od_buf_free(mem.at[i].buf);
	od_buf_free(plain.at[OD_BUF_PLAIN].buf);
	od_inflater_free(inf);
}

/* Exponents of the largest shard; SM bytes too where they cannot be read to where they stay; an inflater has room for
 * exponents that it decodes besides, and all that on both sides where the device's is not the host's. */
static void what_loads_take(void **state)
{
	const bool maps = od_device_shares(device);
	uint64_t e = 0, sm = 0, staging, inflater;

	(void)state;
	for (uint32_t m = 0; m < od_pack_config(zstd)->n_moe; m++)
		for (uint32_t i = 0; i < od_pack_config(zstd)->n_experts; i++)
			for (uint32_t s = 0; s < od_pack_expert(zstd, m, i)->n_shards; s++) {
				const struct od_shard *shard = &od_pack_expert(zstd, m, i)->shard[s];

				e = shard->e.raw_bytes > e ? shard->e.raw_bytes : e;
				sm = shard->sm.raw_bytes > sm ? shard->sm.raw_bytes : sm;
			}
	staging = od_staging_bytes(zstd, device, OD_FORM_PLAIN);
	assert_in_range(staging, maps ? e : e + sm, (maps ? e : e + sm) + 3 * OD_PAD_BYTES);
	inflater = (staging + e) * (maps ? 1 : 2);
	/* zstd's tables */
	assert_in_range(od_inflater_bytes(zstd, device, OD_FORM_PLAIN), inflater, inflater + (256u << 10));
	assert_true((od_staging_bytes(planes, device, OD_FORM_PLANES) == 0) == maps);
}

/* An expert of a pack in plain memory, all of its shards as one slice. */
struct expert_form_slice {
	struct od_pack *pack;
	struct od_buf *slot, *staging;
	struct od_expert_mem mem;
	struct od_inflater *inf;
	struct od_shard_bytes b[8];
	uint32_t n_shards, n_decoded; /* decoded by the host */
};

static void slice_open(struct expert_form_slice *p, struct od_pack *pack)
{
	const struct od_pack_expert *x = od_pack_expert(pack, 3, 2);

	*p = (struct expert_form_slice){ .pack = pack, .slot = slot_new(OD_FORM_PLAIN), .n_shards = x->n_shards };
	assert_in_range(x->n_shards, 2, 8);
	for (uint32_t i = 0; i < x->n_shards; i++)
		p->n_decoded += x->shard[i].e.codec == OD_CODEC_ZSTD;
	p->mem = od_pack_slot_mem(pack, OD_FORM_PLAIN, od_buf_ref(p->slot, 0));
	p->staging = shared_buf_new(device, x->n_shards * od_staging_bytes(pack, device, OD_FORM_PLAIN));
	assert_int_equal(od_inflater_new(&p->inf, pack, device, OD_FORM_PLAIN, NULL), OD_OK);
}

static void slice_read(struct expert_form_slice *p)
{
	assert_int_equal(od_shards_read(p->pack, 3, 2, 0, p->n_shards, &p->mem, od_buf_ref(p->staging, 0), p->b, NULL),
			 OD_OK);
}

static int slice_finish(struct expert_form_slice *p, struct od_err *err)
{
	return od_inflater_finish(p->inf, 3, 2, 0, p->n_shards, &p->mem, od_buf_ref(p->staging, 0), p->b, err);
}

static void slice_close(struct expert_form_slice *p)
{
	od_buf_free(p->staging); /* the far device aborts when something queued would still use it */
	od_buf_free(p->slot);
	od_inflater_free(p->inf);
}

/* The host waits once for what the device puts together, but for exponents that it decodes itself: these have one
 * place. And it needs memory of its own for slices, not for whole experts. */
static void a_slice_is_one_wait(void **state)
{
	struct od_pack *packs[] = { planes, zstd };
	struct od_expert w[2];
	struct expert_form_slice slice[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct expert_form_slice *p = &slice[i];
		uint64_t waits;

		slice_open(p, packs[i]);
		assert_int_equal(p->n_decoded, i == 0 ? 0 : p->n_shards);
		slice_read(p);
		waits = od_device_waits(device);
		assert_int_equal(slice_finish(p, NULL), OD_OK);
		assert_int_equal(od_device_waits(device) - waits, i == 0 ? 1 : p->n_shards);
		assert_null(p->slot->stage);
		od_pack_bind(packs[i], 3, 2, &p->mem, &w[i]);
	}
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
		assert_same_bytes(&w[0].mat[mat], &w[1].mat[mat]);
	slice_close(&slice[0]);
	slice_close(&slice[1]);
}

/* ---- Experts of several shards a matrix ---- */

static void synth_large(char dir[128])
{
	char program[128];
	char *const args[] = { program, "synth",     dir,   "--layers", "1", "--hidden", "1024", "--intermediate",
			       "640",	"--experts", "2",   "--top-k",	"1", "--heads",	 "8",	 "--kv-heads",
			       "8",	"--vocab",   "260", "--json",	NULL };
	const char *b = getenv("B");
	posix_spawn_file_actions_t actions;
	int status;
	pid_t pid;

	snprintf(dir, 128, "%s", temp_path("large"));
	snprintf(program, sizeof(program), "%s/bin/od-bench", b != NULL ? b : "build");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	assert_int_equal(posix_spawn(&pid, program, &actions, NULL, args, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static struct {
	const struct od_device_ops *ops;
	unsigned n_puts, n_runs;
} counted;

static void counted_put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	counted.n_puts++;
	counted.ops->put(d, q, to, from, n);
}

static void counted_run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	counted.n_runs++;
	counted.ops->run(d, q, op);
}

/* An expert of several shards a matrix to memory, as one slice, or shard by shard. */
static void load_large(struct od_pack *p, const struct od_expert_mem *mem, enum od_form form, bool at_once)
{
	const uint32_t n = od_pack_expert(p, 0, 1)->n_shards;
	struct od_buf *staging;
	struct od_shard_bytes b[OD_SLICE_SHARDS];
	struct od_device_ops counting = *device->ops;
	struct od_inflater *inf;
	struct od_ref at;

	assert_int_equal(od_inflater_new(&inf, p, device, form, NULL), OD_OK);
	for (uint32_t i = 0; !at_once && i < n; i++)
		assert_int_equal(od_inflater_load(inf, 0, 1, i, mem, NULL, NULL), OD_OK);
	if (at_once) {
		staging = shared_buf_new(device, n * od_staging_bytes(p, device, form) + 64);
		at = od_buf_ref(staging, 0);
		assert_int_equal(od_shards_read(p, 0, 1, 0, n, mem, at, b, NULL), OD_OK);
		counted.ops = device->ops;
		counted.n_puts = counted.n_runs = 0;
		counting.put = counted_put;
		counting.run = counted_run;
		device->ops = &counting;
		assert_int_equal(od_inflater_finish(inf, 0, 1, 0, n, mem, at, b, NULL), OD_OK);
		device->ops = counted.ops;
		od_buf_free(staging);
	}
	od_inflater_free(inf);
}

/* Where the device's memory is not the host's: a copy of exponents, one of SM bytes and a merge for each matrix, or
 * both copies for all of them. The bits are those of loads shard by shard. */
static void a_slice_is_few_operations(void **state)
{
	static const enum od_codec codecs[] = { OD_CODEC_PLANES, OD_CODEC_RAW };
	char checkpoint[128];

	(void)state;
	synth_large(checkpoint);
	for (size_t i = 0; i < 3; i++) { /* planes that are merged, raw exponents, planes that stay */
		const enum od_form form = i == 2 ? OD_FORM_PLANES : OD_FORM_PLAIN;
		const enum od_codec codec = codecs[i % 2];
		struct od_expert_mem mem[2];
		struct od_buf *slot[2];
		struct od_pack *p;
		uint8_t *got[2];
		uint64_t bytes;
		char name[16];

		snprintf(name, sizeof(name), "large.%zu", i);
		assert_int_equal(pack_of(checkpoint, name, codec, &p), 0);
		assert_int_equal(od_pack_expert(p, 0, 1)->n_shards, 6);
		bytes = od_pack_slot_bytes(p, form);
		for (int at_once = 0; at_once < 2; at_once++) {
			slot[at_once] = shared_buf_new(device, bytes);
			mem[at_once] = od_pack_slot_mem(p, form, od_buf_ref(slot[at_once], 0));
			load_large(p, &mem[at_once], form, at_once);
			got[at_once] = copy_at(device, od_buf_ref(slot[at_once], 0), bytes);
		}
		assert_memory_equal(got[0], got[1], bytes);
		if (!od_device_shares(device)) {
			assert_int_equal(counted.n_puts, i == 2 ? 2 : 6);
			assert_int_equal(counted.n_runs, i == 2 ? 0 : 3);
		}
		for (int at_once = 0; at_once < 2; at_once++) {
			od_buf_free(slot[at_once]);
			free(got[at_once]);
		}
		od_pack_close(p);
	}
}

/* A shard that is damaged, behind one whose work is queued: that is done when the error is told, and the inflater goes
 * on. */
static void a_failed_slice_leaves_nothing_queued(void **state)
{
	struct od_pack *packs[] = { planes, zstd };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct expert_form_slice p;
		struct od_err err;

		slice_open(&p, packs[i]);
		slice_read(&p);
		*(uint8_t *)od_ref_stage(p.b[1].sm) ^= 1;
		assert_int_equal(slice_finish(&p, &err), OD_ERR_CORRUPT);
		assert_non_null(strstr(err.msg, "expert (3, 2) shard 1, SM-chunk"));
		od_buf_free(p.staging);
		p.staging = shared_buf_new(device, p.n_shards * od_staging_bytes(p.pack, device, OD_FORM_PLAIN));
		slice_read(&p);
		assert_int_equal(slice_finish(&p, &err), OD_OK);
		slice_close(&p);
	}
}

/* As a launch that the device refuses: the error is noted, and another thread's wait takes it. */
static void refuse(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	(void)op;
	assert_int_equal(q, OD_QUEUE_LOADS);
	atomic_fetch_add(&d->load_errors, 1);
}

static void another_threads_wait_may_take_the_error(void **state)
{
	const struct od_device_ops *ops = device->ops;
	struct od_device_ops refusing = *ops;
	struct od_err err = { 0 };
	struct expert_form_slice p;

	(void)state;
	refusing.run = refuse;
	slice_open(&p, planes);
	for (int i = 0; i < 2; i++) { /* later slices are fine */
		slice_read(&p);
		device->ops = &refusing;
		assert_int_equal(slice_finish(&p, &err), OD_ERR_IO);
		assert_non_null(strstr(err.msg, "its load queue failed during the load"));
		assert_int_equal(od_inflater_load(p.inf, 3, 2, 1, &p.mem, NULL, &err), OD_ERR_IO);
		device->ops = ops;
		slice_read(&p);
		assert_int_equal(slice_finish(&p, &err), OD_OK);
		assert_int_equal(od_inflater_load(p.inf, 3, 2, 1, &p.mem, NULL, &err), OD_OK);
	}
	slice_close(&p);
}

/* The first whole page of a buffer: reads past the page cache go to such. */
static struct od_ref page_in(struct od_buf *b)
{
	const uintptr_t begin = (uintptr_t)od_ref_stage(od_buf_ref(b, 0));

	return od_buf_ref(b, od_round_up(begin, OD_PAGE_BYTES) - begin);
}

/* All of an expert at once, through the page cache and past it; where the file system has no such thing, twice
 * through. */
static void past_the_page_cache(void **state)
{
	const struct od_pack_expert *x = od_pack_expert(planes, 4, 1);
	struct od_shard_bytes b[2][8];
	struct od_expert_mem mem[2] = { 0 };
	struct od_buf *buf[2][OD_N_EXPERT_BUFS];

	(void)state;
	assert_true(x->n_shards <= 8);
	for (int direct = 0; direct < 2; direct++) {
		for (int i = OD_BUF_SM; i <= OD_BUF_E; i++) {
			const uint64_t bytes =
				od_round_up(od_pack_buf_bytes(planes, (enum od_expert_buf)i), OD_PAGE_BYTES);

			buf[direct][i] = shared_buf_new(device, bytes + OD_PAGE_BYTES);
			mem[direct].at[i] = page_in(buf[direct][i]);
			memset(od_ref_stage(mem[direct].at[i]), 0xa5, bytes);
		}
		if (od_pack_read_direct(planes, direct) != direct)
			print_message("# this file system is only read through the page cache\n");
		assert_int_equal(od_shards_read(planes, 4, 1, 0, x->n_shards, &mem[direct], (struct od_ref){ 0 },
						b[direct], NULL),
				 OD_OK);
	}
	assert_false(od_pack_read_direct(planes, false));
	for (uint32_t i = 0; i < x->n_shards; i++) {
		assert_memory_equal(od_ref_stage(b[0][i].sm), od_ref_stage(b[1][i].sm), x->shard[i].sm.stored_bytes);
		assert_memory_equal(od_ref_stage(b[0][i].e), od_ref_stage(b[1][i].e), x->shard[i].e.stored_bytes);
	}
	for (int i = OD_BUF_SM; i <= OD_BUF_E; i++) { /* and nothing else was written */
		assert_memory_equal(od_ref_stage(mem[0].at[i]), od_ref_stage(mem[1].at[i]),
				    od_pack_buf_bytes(planes, (enum od_expert_buf)i));
		od_buf_free(buf[0][i]);
		od_buf_free(buf[1][i]);
	}
}

static void what_cannot_be_is_said(void **state)
{
	struct od_device *scalar;
	struct tiny_files tiny;
	struct od_pack *mixed, *raw;
	enum od_form form;
	struct od_err err;

	(void)state;
	tiny_files_make(&tiny); /* experts of three types */
	assert_int_equal(pack_of(tiny.checkpoint, "mixed", OD_CODEC_PLANES, &mixed), 0);
	assert_int_equal(od_pack_can_form(planes, OD_FORM_PLANES, &err), OD_OK);
	assert_int_equal(od_pack_can_form(mixed, OD_FORM_PLAIN, &err), OD_OK);
	assert_int_equal(od_pack_can_form(mixed, OD_FORM_PLANES, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "--resident-form bf16"));
	assert_int_equal(od_pack_can_form(zstd, OD_FORM_PLANES, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "expert (0, 0) shard 0: its exponents are stored with codec zstd"));
	assert_non_null(strstr(err.msg, "od-pack --codec planes"));
	/* Raw because that was asked for, not because planes would not be smaller. */
	assert_int_equal(pack_of(CHECKPOINT, "raw", OD_CODEC_RAW, &raw), 0);
	assert_int_equal(od_pack_can_form(raw, OD_FORM_PLANES, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "od-pack --codec planes"));

	scalar = device_new(OD_CPU_SCALAR, 1);
	assert_int_equal(od_pack_choose_form(planes, scalar, OD_FORM_AUTO, &form, &err), OD_OK);
	/* nothing is gained without the instructions for it */
	assert_true(form == OD_FORM_PLAIN || od_device_likes_planes(scalar, UINT64_MAX));
	assert_int_equal(od_pack_choose_form(planes, scalar, OD_FORM_PLANES, &form, &err), OD_OK);
	assert_int_equal(form, OD_FORM_PLANES);
	assert_int_equal(od_pack_choose_form(zstd, scalar, OD_FORM_PLANES, &form, &err), OD_ERR_UNSUPPORTED);
	od_device_free(scalar);
	od_pack_close(raw);
	od_pack_close(mixed);
	tiny_files_free(&tiny);
}

/* Any byte of a chunk. */
static void what_is_broken_is_found(void **state)
{
	const struct od_shard *s = &od_pack_expert(planes, 1, 2)->shard[1];
	const uint64_t at[] = { s->sm.offset, s->sm.offset + s->sm.stored_bytes - 1, s->e.offset + 20,
				s->e.offset + s->e.stored_bytes - 1 };
	struct od_buf *slot = slot_new(OD_FORM_PLANES);
	const struct od_expert_mem mem = od_pack_slot_mem(planes, OD_FORM_PLANES, od_buf_ref(slot, 0));
	struct od_inflater *inf;
	struct od_err err;
	uint8_t byte;
	int fd = open(temp_path("planes/experts.bin"), O_RDWR | O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(od_inflater_new(&inf, planes, device, OD_FORM_PLANES, NULL), OD_OK);
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		assert_int_equal(pread(fd, &byte, 1, (off_t)at[i]), 1);
		byte ^= 1;
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)at[i]), 1);
		assert_int_equal(od_inflater_load(inf, 1, 2, 1, &mem, NULL, &err), OD_ERR_CORRUPT);
		assert_non_null(
			strstr(err.msg, i < 2 ? "expert (1, 2) shard 1, SM-chunk" : "expert (1, 2) shard 1, E-chunk"));
		assert_int_equal(od_inflater_load(inf, 1, 2, 1, &mem, NULL, NULL), OD_ERR_CORRUPT);
		byte ^= 1;
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)at[i]), 1);
		assert_int_equal(od_inflater_load(inf, 1, 2, 1, &mem, NULL, &err), OD_OK);
	}
	close(fd);
	od_inflater_free(inf);
	od_buf_free(slot);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_same_weights_in_two_thirds),
		cmocka_unit_test(one_slot),
		cmocka_unit_test(buffers_apart),
		cmocka_unit_test(what_loads_take),
		cmocka_unit_test(a_slice_is_one_wait),
		cmocka_unit_test(a_slice_is_few_operations),
		cmocka_unit_test(a_failed_slice_leaves_nothing_queued),
		cmocka_unit_test(another_threads_wait_may_take_the_error),
		cmocka_unit_test(past_the_page_cache),
		cmocka_unit_test(what_cannot_be_is_said),
		cmocka_unit_test(what_is_broken_is_found),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
