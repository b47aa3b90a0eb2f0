/* A good little pack that is changed in any places and opened, by somebody who can compute checksums: it is refused
 * with a reason, or all that is in it can be loaded.
 * Input: a byte (bit 0: expert headers and chunks get checksums that fit; bits 1 and 2: which pack), then changes:
 * which file, where (4 bytes), how many bytes, the bytes. A file number from 128 on sets the file's length instead. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/compute/scratch.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_info.h"
#include "common/pack/pack_layout.h"
#include "common/pack/write/pack_write.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/tiny_files.h"

#define N_FILES 5
#define N_PACKS 4
#define MAX_EXPERTS 16 /* experts of a pack */
#define HEX 16
/* Dense layers first, so that a MoE layer's number is not m, a latent, shared experts. Read where run.sh stands. */
#define OTHER_FAMILY "tests/golden/families/deepseek_v2_groups"
#define WITH_BIASES "tests/golden/families/gpt_oss_bf16"

static const char *const names[N_FILES] = { OD_MODEL_NAME, OD_EXPERTS_NAME, OD_DENSE_NAME, "config.json",
					    "generation_config.json" };

struct image {
	uint8_t *bytes;
	size_t n;
	bool changed;
};

struct pack_good {
	struct tiny_files tiny;
	struct image whole[N_FILES];
	uint32_t n_experts;
	size_t header_bytes, shards_at, n_shards; /* the latter two of each header */
	size_t header_at[MAX_EXPERTS], hex_at[MAX_EXPERTS]; /* in experts.bin; its checksum's digits in model.json */
};

static struct pack_good goods[N_PACKS]; /* plain, with scales, of another family, with biases */
static struct od_device *device;
static FILE *nowhere;

static struct image read_file(const struct pack_good *g, const char *name)
{
	struct image im = { 0 };
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", g->tiny.pack, name);
	f = fopen(path, "rb");
	check(f != NULL && fseek(f, 0, SEEK_END) == 0);
	im.n = (size_t)ftell(f);
	im.bytes = malloc(im.n);
	rewind(f);
	check(fread(im.bytes, 1, im.n, f) == im.n);
	fclose(f);
	return im;
}

/* Over what is there: a file that is emptied and written anew is hurried to the disk by some file systems. */
static void put_file(const struct pack_good *g, const char *name, const void *bytes, size_t n)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", g->tiny.pack, name);
	fd = open(path, O_WRONLY);
	check(fd >= 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0);
	close(fd);
}

static void hex_of(const struct pack_good *g, const uint8_t *header, char hex[HEX + 1])
{
	snprintf(hex, HEX + 1, "%016llx", (unsigned long long)XXH3_64bits(header, g->header_bytes));
}

static void remove_packs(void)
{
	for (int i = 0; i < N_PACKS; i++)
		tiny_files_free(&goods[i].tiny);
}

static void make_pack(struct pack_good *g)
{
	const struct od_config *cfg;
	struct od_pack *p;
	char hex[HEX + 1];
	const struct od_pack_job job = {
		.checkpoint = g->tiny.checkpoint, .pack = g->tiny.pack, .codec = OD_CODEC_PLANES, .n_threads = 1
	};

	check(od_pack_write(&job, NULL) == OD_OK && od_pack_open(&p, g->tiny.pack, NULL) == OD_OK);
	for (int i = 0; i < N_FILES; i++)
		g->whole[i] = read_file(g, names[i]);
	cfg = od_pack_config(p);
	g->header_bytes = od_expert_header_bytes(cfg);
	g->shards_at = sizeof(struct od_disk_expert) + (cfg->expert_bias ? sizeof(struct od_disk_biases) : 0);
	g->n_shards = od_expert_shards(cfg);
	g->n_experts = cfg->n_moe * cfg->n_experts;
	check(g->n_experts <= MAX_EXPERTS);
	for (uint32_t i = 0; i < g->n_experts; i++) {
		const uint8_t *found;

		g->header_at[i] = od_pack_expert(p, i / cfg->n_experts, i % cfg->n_experts)->offset;
		hex_of(g, g->whole[1].bytes + g->header_at[i], hex);
		found = memmem(g->whole[0].bytes, g->whole[0].n, hex, HEX);
		check(found != NULL);
		g->hex_at[i] = (size_t)(found - g->whole[0].bytes);
	}
	od_pack_close(p);
}

static void make_packs(void)
{
	nowhere = fopen("/dev/null", "w");
	check(nowhere != NULL && od_device_cpu_new(&device, OD_CPU_AUTO, 1, "fuzz", NULL) == OD_OK);
	tiny_files_make(&goods[0].tiny);
	tiny_files_make_scaled(&goods[1].tiny);
	tiny_files_make(&goods[2].tiny); /* for its folder */
	snprintf(goods[2].tiny.checkpoint, sizeof(goods[2].tiny.checkpoint), "%s", OTHER_FAMILY);
	tiny_files_make(&goods[3].tiny);
	snprintf(goods[3].tiny.checkpoint, sizeof(goods[3].tiny.checkpoint), "%s", WITH_BIASES);
	atexit(remove_packs);
	for (int i = 0; i < N_PACKS; i++)
		make_pack(&goods[i]);
}

/* One change of the input to the images; returns what is left of it. */
static const uint8_t *change(struct image *im, const uint8_t *at, const uint8_t *end)
{
	struct image *f = &im[at[0] % 128 % N_FILES];
	size_t where = (size_t)at[1] | (size_t)at[2] << 8 | (size_t)at[3] << 16 | (size_t)at[4] << 24, n = at[5];
	const bool cut = at[0] >= 128;

	at += 6;
	f->changed = true;
	if (cut) {
		size_t to = where % (f->n + OD_PAGE_BYTES);

		f->bytes = realloc(f->bytes, to + 1);
		if (to > f->n)
			memset(f->bytes + f->n, 0, to - f->n);
		f->n = to;
		return at;
	}
	n = n < (size_t)(end - at) ? n : (size_t)(end - at);
	if (f->n > 0) {
		where %= f->n;
		memcpy(f->bytes + where, at, n < f->n - where ? n : f->n - where);
	}
	return at + n;
}

/* Chunks, headers, and what model.json says of them. */
static void sign(const struct pack_good *g, struct image *im)
{
	struct image *model = &im[0], *experts = &im[1];

	for (uint32_t i = 0; i < g->n_experts; i++) {
		uint8_t *header = experts->bytes + g->header_at[i];
		struct od_disk_shard s;
		uint64_t sum;
		char hex[HEX + 1];

		if (!od_within(g->header_at[i], g->header_bytes, experts->n) || !od_within(g->hex_at[i], HEX, model->n))
			continue;
		for (size_t k = g->shards_at; k < g->shards_at + g->n_shards * sizeof(s); k += sizeof(s)) {
			memcpy(&s, header + k, sizeof(s));
			if (od_within(s.e_offset, s.e_stored_bytes, experts->n - g->header_at[i]))
				s.e_xxh3 = XXH3_64bits(header + s.e_offset, s.e_stored_bytes);
			memcpy(header + k, &s, sizeof(s));
		}
		sum = XXH3_64bits(header + 16, g->header_bytes - 16);
		memcpy(header + 8, &sum, sizeof(sum));
		hex_of(g, header, hex);
		memcpy(model->bytes + g->hex_at[i], hex, HEX);
	}
	model->changed = experts->changed = true;
}

/* As od_sums_write does, but nobody waits for the disk. */
static void write_sums(const struct pack_good *g)
{
	char text[1024], path[256], hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1];
	uint8_t sum[OD_SHA256_BYTES];
	size_t len = 0;

	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++) {
		snprintf(path, sizeof(path), "%s/%s", g->tiny.pack, f->name);
		if (access(path, F_OK) != 0)
			continue;
		check(od_sha256_file(path, sum, NULL) == OD_OK);
		od_hex(sum, sizeof(sum), hex);
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s  %s\n", hex, f->name);
	}
	put_file(g, OD_SUMS_NAME, text, len);
}

static struct od_buf *buf_new(uint64_t bytes)
{
	struct od_buf *b;

	check(od_buf_new(&b, device, bytes, "a fuzzer", NULL) == OD_OK);
	return b;
}

/* Computes on data that was checked when it was loaded, and is trusted from then on. */
static void compute(const struct od_pack *p, uint32_t m, uint32_t expert, const struct od_expert_mem *mem)
{
	const struct od_config *cfg = od_pack_config(p);
	struct od_buf *x = buf_new(cfg->hidden * sizeof(float)), *y = buf_new(cfg->hidden * sizeof(float));
	struct od_buf *scratch = buf_new(od_ffn_scratch_bytes(cfg->intermediate, 1));
	struct od_expert w;
	struct od_ffn_segment segment;
	const struct od_op op = { .kind = OD_OP_FFN,
				  .profile = OD_PROFILE_F32,
				  .n_rows = 1,
				  .ffn = { .segment = &segment,
					   .n_segments = 1,
					   .routed = true,
					   .x = od_buf_ref(x, 0),
					   .y = od_buf_ref(y, 0),
					   .scratch = od_buf_ref(scratch, 0),
					   .act = cfg->act } };

	od_pack_bind(p, m, expert, mem, &w);
	segment = od_expert_segment(&w, 1);
	od_device_run(device, OD_QUEUE_COMPUTE, &op);
	check(od_device_sync(device, NULL) == OD_OK);
	od_buf_free(scratch);
	od_buf_free(y);
	od_buf_free(x);
}

static void load_all(const struct od_pack *p, enum od_form form)
{
	const struct od_config *cfg = od_pack_config(p);
	struct od_inflater *inf;
	struct od_err err = { 0 };
	struct od_buf *slot = buf_new(od_pack_slot_bytes(p, form));
	const struct od_expert_mem mem = od_pack_slot_mem(p, form, od_buf_ref(slot, 0));

	check(od_inflater_new(&inf, p, device, form, NULL) == OD_OK);
	for (uint32_t i = 0; i < cfg->n_moe * cfg->n_experts; i++) {
		const uint32_t m = i / cfg->n_experts, expert = i % cfg->n_experts;
		const uint32_t n_shards = od_pack_expert(p, m, expert)->n_shards;
		uint32_t s = 0;

		while (s < n_shards && od_inflater_load(inf, m, expert, s, &mem, NULL, &err) == OD_OK)
			s++;
		if (s == n_shards)
			compute(p, m, expert, &mem);
		else
			check(err.msg[0] != '\0');
	}
	od_inflater_free(inf);
	od_buf_free(slot);
}

static void use_pack(const struct od_pack *p)
{
	struct od_dense_store *dense;

	load_all(p, OD_FORM_PLAIN);
	if (od_pack_can_form(p, OD_FORM_PLANES, NULL) == OD_OK)
		load_all(p, OD_FORM_PLANES);
	for (enum od_dense_choice c = OD_DENSE_ALL; c <= OD_DENSE_WITHOUT_TABLES; c++)
		if (od_dense_load(&dense, p, device, c, NULL) == OD_OK)
			od_dense_free(dense);
	check(od_pack_info(p, true, nowhere, NULL) == OD_OK && od_pack_info(p, false, nowhere, NULL) == OD_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size;
	struct image im[N_FILES];
	struct od_err err = { 0 };
	const struct pack_good *g;
	struct od_pack *p;

	if (nowhere == NULL)
		make_packs();
	if (size == 0)
		return 0;
	g = &goods[(data[0] >> 1 & 3) % N_PACKS];
	for (int i = 0; i < N_FILES; i++) {
		im[i] = (struct image){ malloc(g->whole[i].n + 1), g->whole[i].n, false };
		memcpy(im[i].bytes, g->whole[i].bytes, g->whole[i].n);
	}
	for (const uint8_t *at = data + 1; end - at >= 6;)
		at = change(im, at, end);
	if (data[0] & 1)
		sign(g, im);
	for (int i = 0; i < N_FILES; i++)
		if (im[i].changed)
			put_file(g, names[i], im[i].bytes, im[i].n);
	write_sums(g);
	if (od_pack_open(&p, g->tiny.pack, &err) == OD_OK)
		use_pack(p);
	else
		check(p == NULL && err.msg[0] != '\0');
	od_pack_close(p);
	for (int i = 0; i < N_FILES; i++) {
		if (im[i].changed)
			put_file(g, names[i], g->whole[i].bytes, g->whole[i].n);
		free(im[i].bytes);
	}
	return 0;
}
