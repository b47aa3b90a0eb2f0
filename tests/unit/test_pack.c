/* A pack of a tiny checkpoint with all three dtypes, through every loader; what they give is compared with the bits
 * that went in. The format itself is held to its text by tests/integ/test_pack.py. */
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/device_internal.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/pack_verify.h"
#include "common/pack/shadow/shadow_load.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_files.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct tiny_files tiny;
static struct od_pack *pack;
static struct od_device *device;

static int setup(void **state)
{
	struct od_err err;

	(void)state;
	tiny_files_make(&tiny);
	device = device_new(OD_CPU_AUTO, 1);
	const struct od_pack_job job = { .checkpoint = tiny.checkpoint,
					 .pack = tiny.pack,
					 .codec = OD_CODEC_PLANES,
					 .shadows = OD_SHADOW_ALL,
					 .n_threads = 2 };

	if (od_pack_write(&job, &err) != OD_OK || od_pack_open(&pack, tiny.pack, &err) != OD_OK) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	od_pack_close(pack);
	od_device_free(device);
	tiny_files_free(&tiny);
	return 0;
}

static const struct tiny_tensor *layer_tensor(uint32_t layer, const char *middle)
{
	const struct tiny_tensor *t;
	char name[128];

	snprintf(name, sizeof(name), "model.layers.%u.%s.weight", layer, middle);
	t = tiny_files_find(&tiny, name);
	assert_non_null(t);
	return t;
}

static const struct tiny_tensor *expert_tensor(uint32_t m, uint32_t e, int mat)
{
	static const char *const middle[] = { "w1", "w3", "w2" };
	char name[128];

	snprintf(name, sizeof(name), "block_sparse_moe.experts.%u.%s", e, middle[mat]);
	return layer_tensor(m, name);
}

static void assert_mat(const struct od_weight *m, const struct tiny_tensor *t)
{
	static const uint8_t zero[OD_PAD_BYTES];
	uint8_t *data;

	assert_non_null(t);
	assert_string_equal(od_dtype_name(m->dtype), t->dtype);
	assert_int_equal(m->n_out, t->n_out);
	assert_int_equal(m->n_in, t->n_in);
	assert_null(m->scale.buf);
	assert_int_equal(m->data.at % OD_PAD_BYTES, 0);
	data = copy_at(device, m->data, t->bytes + OD_PAD_BYTES);
	assert_memory_equal(data, t->data, t->bytes);
	assert_memory_equal(data + t->bytes, zero, OD_PAD_BYTES);
	free(data);
}

static void assert_norm(struct od_ref at, const struct tiny_tensor *t)
{
	float *w = copy_at(device, at, t->n_out * sizeof(*w));

	for (size_t i = 0; i < t->n_out; i++)
		assert_true((double)w[i] == tiny_weight(t, i));
	free(w);
}

static void assert_experts(const struct od_expert *x)
{
	for (uint32_t m = 0; m < TINY_LAYERS; m++)
		for (uint32_t e = 0; e < TINY_EXPERTS; e++)
			for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
				assert_mat(&x[m * TINY_EXPERTS + e].mat[mat], expert_tensor(m, e, mat));
}

static void assert_dense(const struct od_dense *d, bool attention)
{
	assert_mat(&d->embed, tiny_files_find(&tiny, "model.embed_tokens.weight"));
	assert_mat(&d->head, tiny_files_find(&tiny, "lm_head.weight"));
	assert_norm(d->final_norm, tiny_files_find(&tiny, "model.norm.weight"));
	for (uint32_t l = 0; l < TINY_LAYERS; l++) {
		assert_norm(d->layer[l].w[OD_ROLE_ATTN_NORM].data, layer_tensor(l, "input_layernorm"));
		assert_norm(d->layer[l].w[OD_ROLE_FFN_NORM].data, layer_tensor(l, "post_attention_layernorm"));
		assert_mat(&d->layer[l].w[OD_ROLE_ROUTER], layer_tensor(l, "block_sparse_moe.gate"));
		if (!attention)
			continue;
		assert_mat(&d->layer[l].w[OD_ROLE_Q], layer_tensor(l, "self_attn.q_proj"));
		assert_mat(&d->layer[l].w[OD_ROLE_K], layer_tensor(l, "self_attn.k_proj"));
		assert_mat(&d->layer[l].w[OD_ROLE_V], layer_tensor(l, "self_attn.v_proj"));
		assert_mat(&d->layer[l].w[OD_ROLE_O], layer_tensor(l, "self_attn.o_proj"));
	}
}

static void test_open(void **state)
{
	struct od_pack *other;
	struct od_err err;
	char path[160];

	(void)state;
	assert_string_equal(od_pack_dir(pack), tiny.pack);
	assert_int_equal(od_pack_config(pack)->hidden, TINY_HIDDEN);
	assert_int_equal(strlen(od_pack_fingerprint(pack)), OD_FINGERPRINT_CHARS);
	snprintf(path, sizeof(path), "%s/tokenizer.json", tiny.pack);
	assert_string_equal(od_pack_tokenizer_path(pack), path);
	assert_true(json_is_true(json_object_get(od_pack_generation_config(pack), "do_sample")));
	/* Dtypes come in turn, so each expert has one matrix of each. */
	assert_int_equal(od_pack_expert_raw_bytes(pack), 2u * 32 * 48 * 2 + 32 * 48 * 4);
	assert_true(od_pack_expert_stored_bytes(pack) < od_pack_expert_raw_bytes(pack));

	setenv("OD_PACK", tiny.pack, 1);
	assert_int_equal(od_pack_open(&other, NULL, &err), OD_OK);
	assert_string_equal(od_pack_fingerprint(other), od_pack_fingerprint(pack));
	od_pack_close(other);
	setenv("OD_PACK", "/nonexistent", 1);
	assert_int_equal(od_pack_open(&other, NULL, &err), OD_ERR_MISSING);
	assert_null(other);
	unsetenv("OD_PACK");
	od_pack_close(NULL);
}

static void test_dense(void **state)
{
	struct od_dense_store *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_dense_load(&s, pack, device, OD_DENSE_ALL, &err), OD_OK);
	assert_dense(od_dense_get(s), true);
	od_dense_free(s);
	od_dense_free(NULL);
}

/* Each row of the embedding, from the file. */
static void test_rows_of_a_table(void **state)
{
	const struct tiny_tensor *embed = tiny_files_find(&tiny, "model.embed_tokens.weight");
	const struct od_row_reader *reader;
	struct od_dense_store *whole, *s;
	const struct od_weight *w;
	uint8_t *row, *want;
	size_t row_bytes;
	struct od_err err;

	(void)state;
	assert_int_equal(od_dense_load(&whole, pack, device, OD_DENSE_ALL, &err), OD_OK);
	assert_int_equal(od_dense_load(&s, pack, device, OD_DENSE_WITHOUT_TABLES, &err), OD_OK);
	assert_mat(&od_dense_get(s)->head, tiny_files_find(&tiny, "lm_head.weight"));
	w = &od_dense_get(s)->embed;
	reader = &od_dense_get(s)->embed_reader;
	assert_true(w->data.buf == NULL && w->n_out == embed->n_out && w->n_in == embed->n_in);
	assert_null(od_dense_get(whole)->embed_reader.read);
	assert_null(od_dense_get(s)->layer_embed_reader.read);
	row_bytes = od_row_bytes(w->dtype, w->n_in);
	assert_int_equal(od_dense_row_bytes(pack, OD_DENSE_WITHOUT_TABLES, OD_ROLE_EMBED), row_bytes);
	assert_int_equal(od_dense_row_bytes(pack, OD_DENSE_WITHOUT_TABLES, OD_ROLE_HEAD), 0);
	assert_int_equal(od_dense_row_bytes(pack, OD_DENSE_ALL, OD_ROLE_EMBED), 0);
	assert_in_range(od_dense_need_bytes(pack, OD_DENSE_ALL) - od_dense_need_bytes(pack, OD_DENSE_WITHOUT_TABLES),
			w->n_out * (row_bytes - 4) - 256, w->n_out * (row_bytes - 4) + 256);
	want = copy_at(device, od_dense_get(whole)->embed.data, w->n_out * row_bytes);
	row = malloc(row_bytes);
	for (uint32_t i = 0; i < w->n_out; i++) {
		memset(row, 0xa5, row_bytes);
		assert_int_equal(reader->read(reader->arg, i, row, &err), OD_OK);
		assert_memory_equal(row, want + i * row_bytes, row_bytes);
	}
	assert_int_equal(reader->read(reader->arg, (uint32_t)w->n_out, row, &err), OD_ERR_RANGE);
	assert_int_equal(reader->read(reader->arg, UINT32_MAX, row, &err), OD_ERR_RANGE);
	free(row);
	free(want);
	od_dense_free(whole);
	od_dense_free(s);
}

static uint64_t last_done, last_all;

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
	assert_ptr_equal(arg, &tiny);
	assert_true(done >= last_done && done <= all);
	last_done = done;
	last_all = all;
}

static void test_load_all(void **state)
{
	struct od_expert_store *s;
	struct od_err err;

	(void)state;
	for (unsigned threads = 1; threads <= 9; threads += 4) {
		last_done = last_all = 0;
		assert_int_equal(
			od_experts_load_all(&s, pack, device, OD_FORM_PLAIN, threads, on_progress, &tiny, &err), OD_OK);
		assert_experts(od_experts_get(s));
		assert_true(last_done == last_all && last_all > 0);
		od_experts_free(s);
	}
	od_experts_free(NULL);
}

static enum od_op_kind refused_op;

static bool all_but_f16(const struct od_device *d, enum od_op_kind op, enum od_dtype t)
{
	(void)d;
	return t != OD_F16 || op != refused_op;
}

static void a_device_that_lacks_a_format_is_named(void **state)
{
	const struct od_device_ops *ops = device->ops;
	struct od_device_ops lacking = *ops;
	struct od_dense_store *dense;
	struct od_expert_store *experts;
	struct od_err err;

	(void)state;
	lacking.supports = all_but_f16;
	device->ops = &lacking;
	refused_op = OD_OP_LINEAR;
	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_ALL, &err), OD_ERR_UNSUPPORTED);
	assert_null(dense);
	assert_non_null(strstr(err.msg, "head has F16 weights, and cpu "));
	assert_int_equal(od_experts_load_all(&experts, pack, device, OD_FORM_PLAIN, 1, NULL, NULL, &err), OD_OK);
	od_experts_free(experts);
	refused_op = OD_OP_EXPERTS;
	assert_int_equal(od_experts_load_all(&experts, pack, device, OD_FORM_PLAIN, 1, NULL, NULL, &err),
			 OD_ERR_UNSUPPORTED);
	assert_null(experts);
	assert_non_null(strstr(err.msg, "of expert "));
	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_ALL, &err), OD_OK);
	od_dense_free(dense);
	device->ops = ops;
}

static void load_slot(struct od_inflater *inf, uint32_t m, uint32_t e, const struct od_expert_mem *mem,
		      struct od_load_stats *stats)
{
	for (uint32_t s = 0; s < od_pack_expert(pack, m, e)->n_shards; s++)
		assert_int_equal(od_inflater_load(inf, m, e, s, mem, stats, NULL), OD_OK);
}

/* One slot for one expert after the other, as a worker uses it. */
static void test_slot_reuse(void **state)
{
	struct od_load_stats stats = { 0 };
	struct od_inflater *inf;
	struct od_buf *slot = buf_new(device, od_pack_slot_bytes(pack, OD_FORM_PLAIN));
	const struct od_expert_mem mem = od_pack_slot_mem(pack, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	uint64_t stored = 0;

	(void)state;
	assert_int_equal(od_inflater_new(&inf, pack, device, OD_FORM_PLAIN, NULL), OD_OK);
	assert_true(od_inflater_bytes(pack, device, OD_FORM_PLAIN) < 2u << 20);
	for (uint32_t i = 0; i < 2 * TINY_LAYERS * TINY_EXPERTS; i++) {
		uint32_t m = i % TINY_LAYERS, e = i / TINY_LAYERS % TINY_EXPERTS;
		const struct od_pack_expert *x = od_pack_expert(pack, m, e);
		struct od_expert w;

		load_slot(inf, m, e, &mem, &stats);
		od_pack_bind(pack, m, e, &mem, &w);
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			const struct tiny_tensor *t = expert_tensor(m, e, mat);
			void *data = copy_at(device, w.mat[mat].data, t->bytes);

			assert_memory_equal(data, t->data, t->bytes);
			free(data);
		}
		for (uint32_t s = 0; s < x->n_shards; s++)
			stored += x->shard[s].e.stored_bytes + x->shard[s].sm.stored_bytes;
	}
	assert_int_equal(stats.read_bytes, stored);
	assert_true(stats.read_ns > 0 && stats.inflate_ns > 0);
	od_inflater_free(inf);
	od_inflater_free(NULL);
	od_buf_free(slot);
}

/* The weight that a quantised matrix stands for, read by the words of quant.h and backend.h. */
static double weight_of(const struct od_mat *m, size_t row, size_t i)
{
	const size_t groups = od_quant_groups(m->n_in), group = row * groups + i / OD_QUANT_GROUP;
	double scale = 1;

	if (m->scale != NULL)
		scale = (double)m->scale[m->dtype == OD_NF4 ? group : row];
	if (m->dtype == OD_F16)
		return (double)od_f16_f32(((const uint16_t *)m->data)[row * m->n_in + i]);
	if (m->dtype == OD_INT8)
		return scale * ((const int8_t *)m->data)[row * m->n_in + i];
	const uint8_t *piece = (const uint8_t *)m->data + row * od_row_bytes(OD_NF4, m->n_in) + i / 128 * 64;
	const uint8_t byte = piece[4 * (i % 16) + i % 64 / 16];

	return scale * (double)od_nf4_values[i % 128 < 64 ? byte & 15 : byte >> 4];
}

struct precision_facts {
	enum od_dtype dtype;
	double error; /* largest of a weight, over the largest weight of its row */
};

static const struct precision_facts facts[] = {
	[OD_PRECISION_INT8] = { OD_INT8, 0.5 / 127 },
	[OD_PRECISION_FP16] = { OD_F16, 0x1p-11 },
	[OD_PRECISION_NF4] = { OD_NF4, 0.152 },
};

/* The matrix on the host; free data and scale. */
static struct od_mat host_mat(const struct od_weight *w)
{
	const size_t n_scales = w->n_out * (w->dtype == OD_NF4 ? od_quant_groups(w->n_in) : 1);

	return (struct od_mat){
		.dtype = w->dtype,
		.n_out = w->n_out,
		.n_in = w->n_in,
		.data = copy_at(device, w->data, w->n_out * od_row_bytes(w->dtype, w->n_in)),
		.scale = w->scale.buf != NULL ? copy_at(device, w->scale, n_scales * sizeof(float)) : NULL,
	};
}

static void assert_quantised(const struct od_weight *w, enum od_precision precision, enum od_activations act,
			     const struct tiny_tensor *t)
{
	const struct precision_facts *f = &facts[precision];
	struct od_mat m;
	double sum = 0;

	assert_int_equal(w->dtype, f->dtype);
	assert_int_equal(w->n_out, t->n_out);
	assert_int_equal(w->n_in, t->n_in);
	assert_int_equal(w->act, act);
	assert_int_equal(w->scale.buf == NULL, f->dtype == OD_F16);
	assert_int_equal(w->data.at % OD_PAD_BYTES, 0);
	m = host_mat(w);
	for (size_t r = 0; r < m.n_out; r++) {
		double most = 0;

		for (size_t i = 0; i < m.n_in; i++)
			most = fmax(most, fabs(tiny_weight(t, r * m.n_in + i)));
		for (size_t i = 0; i < m.n_in; i++) {
			double off = fabs(tiny_weight(t, r * m.n_in + i) - weight_of(&m, r, i));

			assert_true(off <= 1.0001 * f->error * most);
			sum += off;
		}
	}
	free((void *)(uintptr_t)m.data);
	free((void *)(uintptr_t)m.scale);
	assert_true(sum > 0 || precision == OD_PRECISION_FP16); /* it is not the published one */
}

static void assert_shadow(const struct od_shadow_choice *c, const struct od_shadow_store *s)
{
	const struct od_dense *d = od_shadow_dense(s);

	assert_dense(d, c->dense == OD_PRECISION_BF16);
	for (uint32_t l = 0; c->dense != OD_PRECISION_BF16 && l < TINY_LAYERS; l++) {
		assert_quantised(&d->layer[l].w[OD_ROLE_Q], c->dense, c->act, layer_tensor(l, "self_attn.q_proj"));
		assert_quantised(&d->layer[l].w[OD_ROLE_K], c->dense, c->act, layer_tensor(l, "self_attn.k_proj"));
		assert_quantised(&d->layer[l].w[OD_ROLE_V], c->dense, c->act, layer_tensor(l, "self_attn.v_proj"));
		assert_quantised(&d->layer[l].w[OD_ROLE_O], c->dense, c->act, layer_tensor(l, "self_attn.o_proj"));
	}
	if (c->experts == OD_PRECISION_BF16) {
		assert_experts(od_shadow_experts(s));
		return;
	}
	for (uint32_t i = 0; i < TINY_LAYERS * TINY_EXPERTS; i++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			assert_quantised(&od_shadow_experts(s)[i].mat[mat], c->experts, c->act,
					 expert_tensor(i / TINY_EXPERTS, i % TINY_EXPERTS, mat));
}

static uint64_t file_bytes(const char *name)
{
	char path[160];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", tiny.pack, name);
	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

/* Each precision for experts with each for attention. */
static void test_shadow(void **state)
{
	struct od_shadow_store *s;
	struct od_err err;
	uint64_t need, same = 0;

	(void)state;
	for (int e = 1; e <= OD_N_PRECISIONS; e++)
		for (int d = 1; d <= OD_N_PRECISIONS; d++) {
			const struct od_shadow_choice c = { (enum od_precision)e, (enum od_precision)d,
							    (e + d) % 2 == 0 ? OD_ACT_F32 : OD_ACT_INT8,
							    OD_FORM_PLAIN };

			last_done = last_all = 0;
			assert_int_equal(od_shadow_need_bytes(pack, &c, &need, &err), OD_OK);
			assert_int_equal(od_shadow_load(&s, pack, device, &c, 3, on_progress, &tiny, &err), OD_OK);
			assert_true(last_done == last_all && last_all > 0);
			/* A file gives no more than its part, and that is all of the other part. */
			if (e == d && e != OD_PRECISION_BF16) {
				same = file_bytes(od_shadow_file_names[e - 1]);
				assert_int_equal(last_all, same - 4096);
				/* Matrices are not there twice; the table of layers is. */
				assert_true(need > last_all && need < last_all +
									       od_dense_need_bytes(pack, OD_DENSE_ALL) +
									       od_pack_config(pack)->n_layers *
										       sizeof(struct od_layer_weights));
			}
			assert_shadow(&c, s);
			od_shadow_free(s);
		}
	od_shadow_free(NULL);
}

static void test_shadow_names(void **state)
{
	const struct od_shadow_choice one = { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_F32, OD_FORM_PLAIN };
	const struct od_shadow_choice two = { OD_PRECISION_INT8, OD_PRECISION_BF16, OD_ACT_F32, OD_FORM_PLAIN };
	const struct od_shadow_choice odd[] = { { (enum od_precision)5, OD_PRECISION_INT8, OD_ACT_F32, OD_FORM_PLAIN },
						{ OD_PRECISION_INT8, (enum od_precision)0, OD_ACT_F32,
						  OD_FORM_PLAIN } };
	char text[OD_SHADOW_CHOICE_CHARS];
	struct od_shadow_store *s;
	struct od_err err;
	uint64_t need;

	(void)state;
	assert_string_equal(od_shadow_choice_text(&one, text), "nf4");
	assert_string_equal(od_shadow_choice_text(&two, text), "int8+bf16");
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(od_shadow_load(&s, pack, device, &odd[i], 2, NULL, NULL, &err), OD_ERR_ARG);
		assert_null(s);
		assert_int_equal(od_shadow_need_bytes(pack, &odd[i], &need, &err), OD_ERR_ARG);
	}
}

static const struct od_shadow_choice int8 = { OD_PRECISION_INT8, OD_PRECISION_INT8, OD_ACT_F32, OD_FORM_PLAIN };
static const struct od_shadow_choice experts_only = { OD_PRECISION_INT8, OD_PRECISION_BF16, OD_ACT_F32, OD_FORM_PLAIN };

static void test_no_shadow(void **state)
{
	char dir[160];
	const struct od_pack_job job = { .checkpoint = tiny.checkpoint, .pack = dir, .n_threads = 1 };
	struct od_shadow_store *s;
	struct od_pack *p;
	struct od_err err;
	char command[200];
	uint64_t need;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/bare", tiny.root);
	assert_int_equal(od_pack_write(&job, &err), OD_OK);
	assert_int_equal(od_pack_open(&p, dir, &err), OD_OK);
	assert_string_equal(od_pack_fingerprint(p), od_pack_fingerprint(pack));
	assert_int_equal(od_shadow_need_bytes(p, &int8, &need, &err), OD_ERR_MISSING);
	snprintf(command, sizeof(command), "od-pack shadow %s int8", dir);
	assert_non_null(strstr(err.msg, command));
	assert_non_null(strstr(err.msg, "--precision bf16"));
	assert_non_null(strstr(err.msg, "--predictor none"));
	assert_int_equal(od_shadow_load(&s, p, device, &int8, 1, NULL, NULL, &err), OD_ERR_MISSING);
	assert_null(s);
	od_pack_close(p);
}

static void flip(const char *name, uint64_t offset)
{
	char path[160];
	uint8_t b;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", tiny.pack, name);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &b, 1, (off_t)offset), 1);
	b ^= 0x10;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)offset), 1);
	close(fd);
}

/* In a row of the embedding, which stands first in dense.bin, after it was checked. */
static void check_flipped_row(void)
{
	const struct od_row_reader *reader;
	struct od_dense_store *dense;
	struct od_err err;
	uint64_t row_bytes;
	char where[160];
	void *row;

	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_WITHOUT_TABLES, &err), OD_OK);
	row_bytes = od_dense_row_bytes(pack, OD_DENSE_WITHOUT_TABLES, OD_ROLE_EMBED);
	reader = &od_dense_get(dense)->embed_reader;
	row = malloc(row_bytes);
	flip("dense.bin", 4 * row_bytes - 1);
	for (uint32_t i = 0; i < TINY_VOCAB; i++)
		assert_int_equal(reader->read(reader->arg, i, row, &err), i == 3 ? OD_ERR_CORRUPT : OD_OK);
	assert_int_equal(reader->read(reader->arg, 3, row, NULL), OD_ERR_CORRUPT);
	assert_int_equal(reader->read(reader->arg, 3, row, &err), OD_ERR_CORRUPT);
	snprintf(where, sizeof(where), "/dense.bin at offset %llu: checksum: expected ",
		 (unsigned long long)(3 * row_bytes));
	assert_true(strncmp(err.msg, "tensor embed, row 3: ", 21) == 0 && strstr(err.msg, where) != NULL &&
		    strstr(err.msg, " (tried 3 times)") != NULL);
	flip("dense.bin", 4 * row_bytes - 1);
	assert_int_equal(reader->read(reader->arg, 3, row, &err), OD_OK);
	free(row);
	od_dense_free(dense);
}

/* A daemon meets a flipped bit in what it reads, after the pack was opened. */
static void test_flipped_while_open(void **state)
{
	const struct od_shard *shard = &od_pack_expert(pack, 1, 2)->shard[2];
	struct od_buf *slot = buf_new(device, od_pack_slot_bytes(pack, OD_FORM_PLAIN));
	const struct od_expert_mem mem = od_pack_slot_mem(pack, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	struct od_expert_store *experts;
	struct od_shadow_store *shadow;
	struct od_dense_store *dense;
	struct od_inflater *inf;
	struct od_err err, whole;
	char where[64];

	(void)state;
	assert_int_equal(od_inflater_new(&inf, pack, device, OD_FORM_PLAIN, &err), OD_OK);
	for (int plane = 0; plane < 2; plane++) {
		const struct od_chunk *c = plane == 0 ? &shard->e : &shard->sm;
		uint64_t at = c->offset + c->stored_bytes - 1;

		flip("experts.bin", at);
		assert_int_equal(od_inflater_load(inf, 1, 2, 2, &mem, NULL, &err), OD_ERR_CORRUPT);
		snprintf(where, sizeof(where), "expert (1, 2) shard 2, %s-chunk at offset %llu",
			 plane == 0 ? "E" : "SM", (unsigned long long)c->offset);
		assert_non_null(strstr(err.msg, "experts.bin"));
		assert_non_null(strstr(err.msg, where));
		assert_int_equal(od_inflater_load(inf, 1, 2, 2, &mem, NULL, NULL), OD_ERR_CORRUPT);
		assert_int_equal(od_experts_load_all(&experts, pack, device, OD_FORM_PLAIN, 4, NULL, NULL, &err),
				 OD_ERR_CORRUPT);
		assert_null(experts);
		flip("experts.bin", at);
		assert_int_equal(od_inflater_load(inf, 1, 2, 2, &mem, NULL, &err), OD_OK);
	}
	flip("dense.bin", 100);
	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_ALL, &err), OD_ERR_CORRUPT);
	assert_non_null(strstr(err.msg, "embed"));
	assert_null(dense);
	whole = err;
	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_WITHOUT_TABLES, &err), OD_ERR_CORRUPT);
	assert_string_equal(err.msg, whole.msg);
	assert_null(dense);
	flip("dense.bin", 100);
	check_flipped_row();
	flip("shadow-int8.bin", 4096 + 5); /* in attention */
	assert_int_equal(od_shadow_load(&shadow, pack, device, &int8, 2, NULL, NULL, &err), OD_ERR_CORRUPT);
	assert_null(shadow);
	assert_non_null(strstr(err.msg, "shadow-int8.bin: tensor 0 at offset 4096"));
	assert_non_null(strstr(err.msg, "od-pack shadow --force"));
	/* not read */
	assert_int_equal(od_shadow_load(&shadow, pack, device, &experts_only, 2, NULL, NULL, &err), OD_OK);
	od_shadow_free(shadow);
	flip("shadow-int8.bin", 4096 + 5);
	flip("shadow-int8.bin", 200); /* in the header */
	assert_int_equal(od_shadow_load(&shadow, pack, device, &experts_only, 2, NULL, NULL, &err), OD_ERR_CORRUPT);
	assert_null(shadow);
	flip("shadow-int8.bin", 200);
	od_inflater_free(inf);
	od_buf_free(slot);
}

/* Threads fill different shards of the same slot, each with its own inflater. */
struct filler {
	pthread_t thread;
	uint32_t shard;
	struct od_expert_mem mem;
	int rc;
};

static void *fill_main(void *arg)
{
	struct filler *f = arg;
	struct od_inflater *inf;

	f->rc = od_inflater_new(&inf, pack, device, OD_FORM_PLAIN, NULL);
	for (int i = 0; i < 20 && f->rc == OD_OK; i++)
		f->rc = od_inflater_load(inf, 1, 1, f->shard, &f->mem, NULL, NULL);
	od_inflater_free(inf);
	return NULL;
}

static void test_threads_on_one_slot(void **state)
{
	struct od_buf *slot = buf_new(device, od_pack_slot_bytes(pack, OD_FORM_PLAIN));
	const struct od_expert_mem mem = od_pack_slot_mem(pack, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	struct filler f[3];
	struct od_expert w;

	(void)state;
	assert_int_equal(od_pack_expert(pack, 1, 1)->n_shards, 3);
	for (uint32_t i = 0; i < 3; i++) {
		f[i] = (struct filler){ .shard = i, .mem = mem };
		assert_int_equal(pthread_create(&f[i].thread, NULL, fill_main, &f[i]), 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(f[i].thread, NULL);
		assert_int_equal(f[i].rc, OD_OK);
	}
	od_pack_bind(pack, 1, 1, &mem, &w);
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
		assert_mat(&w.mat[mat], expert_tensor(1, 1, mat));
	od_buf_free(slot);
}

static void test_verify(void **state)
{
	const struct od_verify_job job = { .pack = tiny.pack, .against = tiny.checkpoint, .n_threads = 3 };
	struct od_err err;

	(void)state;
	assert_int_equal(od_pack_verify(&job, &err), OD_OK);
	flip("experts.bin", 8192 - 1); /* padding that no daemon reads */
	assert_int_equal(od_pack_verify(&job, &err), OD_ERR_CORRUPT);
	flip("experts.bin", 8192 - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_dense),
		cmocka_unit_test(test_rows_of_a_table),
		cmocka_unit_test(test_load_all),
		cmocka_unit_test(a_device_that_lacks_a_format_is_named),
		cmocka_unit_test(test_slot_reuse),
		cmocka_unit_test(test_shadow),
		cmocka_unit_test(test_shadow_names),
		cmocka_unit_test(test_no_shadow),
		cmocka_unit_test(test_flipped_while_open),
		cmocka_unit_test(test_threads_on_one_slot),
		cmocka_unit_test(test_verify),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
