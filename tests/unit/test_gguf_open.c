/* A GGUF file of 65 GB opens with few reads: the headers, and at most one of 4 KiB for each tensor or expert. The file
 * has the structure of a published model and no data. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/pack/gguf/gguf_folder.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_data.h"
#include "common/pack/pack.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"

#define N_LAYERS 48u
#define N_EXPERTS 128u
#define HIDDEN 4096u
#define WIDTH 1536u /* an expert's */
#define HEADS 64u
#define KV_HEADS 4u
#define HEAD_DIM 128u
#define VOCAB 151936u
#define ALIGNMENT 32u
#define LEAST_FILE_BYTES ((uint64_t)60000000000)
#define HEADER_READ_BYTES (1u << 20) /* the header is read in steps of as much */
#define FIRST_BYTES 4096u
#define MOST_EXPERTS 4096u /* a tensor of more matrices is read as one */

enum { KIND_U32 = 4, KIND_F32 = 6, KIND_STRING = 8 };
enum { TYPE_F32 = 0, TYPE_Q4_K = 12 };

/* ---- What is read ---- */

#define MAX_READS 100000

static struct {
	bool on;
	uint64_t data_offset; /* the file's */
	size_t n_header, n_data; /* reads that begin in the header, or behind it */
	uint64_t offset[MAX_READS]; /* where the latter begin */
} reads;

ssize_t __real_pread(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t offset);

ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t offset)
{
	struct stat st;

	if (!reads.on || fstat(fd, &st) != 0 || (uint64_t)st.st_size < LEAST_FILE_BYTES)
		return __real_pread(fd, buf, len, offset); /* a small file of the model's folder */
	if ((uint64_t)offset < reads.data_offset) {
		reads.n_header++;
	} else {
		assert_true(len <= FIRST_BYTES && reads.n_data < MAX_READS);
		reads.offset[reads.n_data++] = (uint64_t)offset;
	}
	return __real_pread(fd, buf, len, offset);
}

/* Reads past the page cache. */
static struct {
	size_t n;
	uint64_t bytes;
} direct;

ssize_t __real_preadv(int fd, const struct iovec *io, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *io, int n, off_t offset);

ssize_t __wrap_preadv(int fd, const struct iovec *io, int n, off_t offset)
{
	assert_int_equal(offset % 4096, 0);
	for (int i = 0; i < n; i++) {
		assert_int_equal((uintptr_t)io[i].iov_base % 4096, 0);
		assert_int_equal(io[i].iov_len % 4096, 0);
		direct.bytes += io[i].iov_len;
	}
	direct.n++;
	return __real_preadv(fd, io, n, offset);
}

static const char *replaced; /* before it is opened for its data; NULL: nothing is */

int __real_od_data_add(struct od_pack_data *d, const char *path, struct od_err *err);
int __wrap_od_data_add(struct od_pack_data *d, const char *path, struct od_err *err);

int __wrap_od_data_add(struct od_pack_data *d, const char *path, struct od_err *err)
{
	if (replaced != NULL) {
		FILE *f = fopen(temp_path("other"), "w");

		assert_non_null(f);
		fprintf(f, "GGUF");
		fclose(f);
		assert_int_equal(rename(temp_path("other"), replaced), 0);
		replaced = NULL;
	}
	return __real_od_data_add(d, path, err);
}

static int by_number(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* ---- The file ---- */

struct big_file {
	char path[96];
	FILE *f;
	uint64_t n_tensors, n_slices; /* slices: matrices of experts, and tensors without any */
	uint64_t end; /* the data's */
	bool counting; /* the first time only the number of tensors is found out */
};

static void put(struct big_file *b, const void *bytes, size_t n)
{
	assert_int_equal(fwrite(bytes, 1, n, b->f), n);
}

static void put_u64(struct big_file *b, uint64_t v)
{
	put(b, &v, sizeof(v));
}

static void put_u32(struct big_file *b, uint32_t v)
{
	put(b, &v, sizeof(v));
}

static void put_text(struct big_file *b, const char *text)
{
	put_u64(b, strlen(text));
	put(b, text, strlen(text));
}

static void put_number(struct big_file *b, const char *key, uint32_t v)
{
	char full[64];

	snprintf(full, sizeof(full), "qwen3moe.%s", key);
	put_text(b, full);
	put_u32(b, KIND_U32);
	put_u32(b, v);
}

static void put_float(struct big_file *b, const char *key, float v)
{
	char full[64];

	snprintf(full, sizeof(full), "qwen3moe.%s", key);
	put_text(b, full);
	put_u32(b, KIND_F32);
	put(b, &v, sizeof(v));
}

/* n_out 0: a vector; n_slices 1: no experts. */
static void put_tensor(struct big_file *b, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
		       uint64_t n_slices)
{
	const uint64_t n = n_in * (n_out > 0 ? n_out : 1) * n_slices;

	b->n_tensors++;
	b->n_slices += n_slices <= MOST_EXPERTS ? n_slices : 1;
	if (b->counting)
		return;
	put_text(b, name);
	put_u32(b, n_slices > 1 ? 3 : n_out > 0 ? 2 : 1);
	put_u64(b, n_in);
	if (n_out > 0)
		put_u64(b, n_out);
	if (n_slices > 1)
		put_u64(b, n_slices);
	put_u32(b, type);
	put_u64(b, b->end);
	b->end += type == TYPE_F32 ? n * 4 : n / 256 * 144;
	b->end = (b->end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_in_layer(struct big_file *b, uint32_t layer, const char *name, uint32_t type, uint64_t n_in,
			 uint64_t n_out, uint64_t n_slices)
{
	char full[64];

	snprintf(full, sizeof(full), "blk.%u.%s.weight", layer, name);
	put_tensor(b, full, type, n_in, n_out, n_slices);
}

static void put_tensors(struct big_file *b)
{
	b->n_tensors = b->n_slices = b->end = 0;
	put_tensor(b, "token_embd.weight", TYPE_F32, HIDDEN, VOCAB, 1);
	put_tensor(b, "output_norm.weight", TYPE_F32, HIDDEN, 0, 1);
	put_tensor(b, "output.weight", TYPE_Q4_K, HIDDEN, VOCAB, 1);
	for (uint32_t i = 0; i < N_LAYERS; i++) {
		put_in_layer(b, i, "attn_norm", TYPE_F32, HIDDEN, 0, 1);
		put_in_layer(b, i, "attn_q", TYPE_Q4_K, HIDDEN, HEADS * HEAD_DIM, 1);
		put_in_layer(b, i, "attn_k", TYPE_Q4_K, HIDDEN, KV_HEADS * HEAD_DIM, 1);
		put_in_layer(b, i, "attn_v", TYPE_Q4_K, HIDDEN, KV_HEADS * HEAD_DIM, 1);
		put_in_layer(b, i, "attn_output", TYPE_Q4_K, HEADS * HEAD_DIM, HIDDEN, 1);
		put_in_layer(b, i, "attn_q_norm", TYPE_F32, HEAD_DIM, 0, 1);
		put_in_layer(b, i, "attn_k_norm", TYPE_F32, HEAD_DIM, 0, 1);
		put_in_layer(b, i, "ffn_norm", TYPE_F32, HIDDEN, 0, 1);
		put_in_layer(b, i, "ffn_gate_inp", TYPE_F32, HIDDEN, N_EXPERTS, 1);
		put_in_layer(b, i, "ffn_gate_exps", TYPE_Q4_K, HIDDEN, WIDTH, N_EXPERTS);
		put_in_layer(b, i, "ffn_up_exps", TYPE_Q4_K, HIDDEN, WIDTH, N_EXPERTS);
		put_in_layer(b, i, "ffn_down_exps", TYPE_Q4_K, WIDTH, HIDDEN, N_EXPERTS);
	}
	put_tensor(b, "v.patch_embd.weight", TYPE_F32, 1, 1, 100000000); /* it is left out: no shape is expected */
}

static void make_file(struct big_file *b)
{
	*b = (struct big_file){ .counting = true };
	assert_int_equal(setenv("CACHE_DIRECTORY", temp_dir, 1), 0);
	snprintf(b->path, sizeof(b->path), "%s/big.gguf", temp_dir);
	b->f = fopen(b->path, "wb");
	assert_non_null(b->f);
	put_tensors(b);
	b->counting = false;
	put(b, "GGUF", 4);
	put_u32(b, 3);
	put_u64(b, b->n_tensors);
	put_u64(b, 13);
	put_text(b, "general.architecture");
	put_u32(b, KIND_STRING);
	put_text(b, "qwen3moe");
	put_number(b, "block_count", N_LAYERS);
	put_number(b, "context_length", 32768);
	put_number(b, "embedding_length", HIDDEN);
	put_number(b, "attention.head_count", HEADS);
	put_number(b, "attention.head_count_kv", KV_HEADS);
	put_number(b, "attention.key_length", HEAD_DIM);
	put_number(b, "attention.value_length", HEAD_DIM);
	put_number(b, "expert_count", N_EXPERTS);
	put_number(b, "expert_used_count", 8);
	put_number(b, "expert_feed_forward_length", WIDTH);
	put_float(b, "attention.layer_norm_rms_epsilon", 1e-6f);
	put_float(b, "rope.freq_base", 1e6f);
	put_tensors(b);
	reads.data_offset = ((uint64_t)ftell(b->f) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	assert_int_equal(fclose(b->f), 0);
	assert_true(reads.data_offset + b->end > LEAST_FILE_BYTES);
	assert_int_equal(truncate(b->path, (off_t)(reads.data_offset + b->end)), 0);
}

/* ---- Tests ---- */

static void few_reads(void **state)
{
	struct big_file b;
	struct od_pack *p;
	struct od_err err = { 0 };
	char *folder;
	bool temporary;

	(void)state;
	make_file(&b);
	reads.on = true;
	assert_int_equal(od_pack_open(&p, b.path, &err), OD_OK);
	od_pack_close(p);
	/* A server wants the folder for the template, too: what the fingerprint needs is not read again. */
	assert_int_equal(od_gguf_folder_of(b.path, &folder, &temporary, &err), OD_OK);
	reads.on = false;
	assert_false(temporary);
	assert_true(reads.n_data <= b.n_slices);
	assert_true(reads.n_header <=
		    2 * (1 + reads.data_offset / HEADER_READ_BYTES) + 1); /* opened twice, and its magic */
	qsort(reads.offset, reads.n_data, sizeof(reads.offset[0]), by_number);
	for (size_t i = 1; i < reads.n_data; i++)
		assert_true(reads.offset[i] > reads.offset[i - 1]);
	free(folder);
}

/* Bytes that are not constant, to where the first matrix of expert 5 lies. */
static uint8_t *write_expert(const struct big_file *b, const struct od_pack *p, uint64_t bytes)
{
	uint8_t *expert = malloc(bytes);
	const int fd = open(b->path, O_WRONLY);
	uint32_t x = 1;

	assert_true(expert != NULL && fd >= 0);
	for (uint64_t i = 0; i < bytes; i++) {
		x = x * 1664525 + 1013904223;
		expert[i] = (uint8_t)(x >> 24);
	}
	assert_int_equal(pwrite(fd, expert, bytes, (off_t)od_pack_expert(p, 0, 5)->shard[0].e.offset), bytes);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	return expert;
}

/* Chunks begin anywhere in a page: whole pages are read to staging, and the chunk goes to its place. */
static void past_the_page_cache(void **state)
{
	const uint64_t bytes = (uint64_t)WIDTH * HIDDEN / 256 * 144;
	struct od_device *device = device_new(OD_CPU_SCALAR, 1);
	const struct od_pack_expert *x;
	struct od_expert_mem mem;
	struct od_inflater *inf;
	struct od_err err = { 0 };
	struct od_buf *slot;
	struct od_pack *p;
	struct big_file b;
	uint8_t *expert, *found = malloc(bytes);
	uint32_t n = 0;

	(void)state;
	make_file(&b);
	assert_int_equal(od_pack_open(&p, b.path, &err), OD_OK);
	expert = write_expert(&b, p, bytes);
	x = od_pack_expert(p, 0, 5);
	assert_int_not_equal(x->shard[0].e.offset % 4096, 0);
	slot = shared_buf_new(device, od_pack_slot_bytes(p, OD_FORM_PLAIN));
	mem = od_pack_slot_mem(p, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	must(od_inflater_new(&inf, p, device, OD_FORM_PLAIN, &err), &err);
	if (!od_pack_read_direct(p, true)) {
		print_message("# this file system is only read through the page cache\n");
	} else {
		for (; x->shard[n].mat == 0; n++)
			must(od_inflater_load(inf, 0, 5, n, &mem, NULL, &err), &err);
		get_at(device, found, mem.at[OD_BUF_PLAIN], bytes);
		assert_memory_equal(found, expert, bytes);
		assert_int_equal(direct.n, n);
		assert_in_range(direct.bytes, bytes, bytes + n * 2 * 4096);
	}
	od_inflater_free(inf);
	od_buf_free(slot);
	od_pack_close(p);
	free(expert);
	free(found);
	od_device_free(device);
}

static void another_file_takes_its_place(void **state)
{
	struct od_err err = { 0 };
	struct od_pack *p;
	struct big_file b;

	(void)state;
	make_file(&b);
	replaced = b.path;
	assert_int_equal(od_pack_open(&p, b.path, &err), OD_ERR_MISMATCH);
	assert_non_null(strstr(err.msg, "big.gguf: another file took its place"));
	assert_null(replaced);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(few_reads), cmocka_unit_test(past_the_page_cache),
					    cmocka_unit_test(another_file_takes_its_place) };

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
