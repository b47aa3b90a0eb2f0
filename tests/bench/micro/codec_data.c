#include "tests/bench/micro/codec_data.h"

#include "common/base/mem.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_layout.h"
#include "tests/bench/bench_draw.h"
#include "tests/bench/synth/synth_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define GAUSSIAN_ROW 4096u /* Mixtral's hidden size */
#define GAUSSIAN_SIGMA 0.02
#define INT8_SIGMAS 4.5 /* sigmas that reach 127 */
#define PIECE_ALIGN 64u

const char *const codec_bench_names[] = { "raw", "zstd", "lz4", "planes", "zstd-3", NULL };

/* ---- stores ---- */

void codec_store_free(struct codec_store *s)
{
	od_free(s->base);
	free(s->piece);
	memset(s, 0, sizeof(*s));
}

static int store_grow(struct codec_store *s, size_t bytes, struct od_err *err)
{
	if (s->n == s->most) {
		size_t most = s->most > 0 ? 2 * s->most : 64;
		struct codec_piece *piece = realloc(s->piece, most * sizeof(*piece));

		if (piece == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for %zu chunks", most);
		s->piece = piece;
		s->most = most;
	}
	if (s->span + bytes > s->room) {
		size_t room = 2 * (s->span + bytes);
		uint8_t *base = od_alloc(room);

		if (base == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for %zu bytes of chunks", room);
		if (s->span > 0)
			memcpy(base, s->base, s->span);
		od_free(s->base);
		s->base = base;
		s->room = room;
	}
	return OD_OK;
}

/* Copied; OD_PAD_BYTES and more lie between pieces. */
static int store_add(struct codec_store *s, const void *bytes, size_t n, enum od_codec codec, struct od_err *err)
{
	size_t each = (n + OD_PAD_BYTES + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
	int rc = store_grow(s, each, err);

	if (rc != OD_OK)
		return rc;
	s->piece[s->n++] = (struct codec_piece){ s->span, n, codec };
	if (n > 0)
		memcpy(s->base + s->span, bytes, n);
	s->span += each;
	return OD_OK;
}

static int store_seal(struct codec_store *s, size_t least_bytes, struct od_err *err)
{
	uint8_t *base;

	s->copies = s->span > 0 ? (least_bytes + s->span - 1) / s->span : 1;
	s->copies = s->copies > 0 ? s->copies : 1;
	base = od_alloc_array(s->copies, s->span);
	if (base == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu copies of %zu bytes", s->copies, s->span);
	for (size_t i = 0; i < s->copies; i++)
		memcpy(base + i * s->span, s->base, s->span);
	od_free(s->base);
	s->base = base;
	return OD_OK;
}

/* ---- weights ---- */

static double entropy_of(const uint8_t *e, size_t n)
{
	size_t count[256] = { 0 };
	double bits = 0;

	for (size_t i = 0; i < n; i++)
		count[e[i]]++;
	for (int v = 0; v < 256; v++)
		if (count[v] > 0)
			bits -= (double)count[v] / (double)n * log2((double)count[v] / (double)n);
	return bits;
}

static int add_chunk(struct codec_data *d, const void *weights, size_t n, size_t row, struct od_err *err)
{
	const size_t sm_bytes = od_codec_sm_bytes(d->dtype);
	uint8_t *sm = od_alloc_array(n, sm_bytes), *e = od_alloc(n);
	int rc = OD_OK;

	if (d->n == d->most) {
		size_t most = d->most > 0 ? 2 * d->most : 64;
		struct codec_chunk *chunk = realloc(d->chunk, most * sizeof(*chunk));

		if (chunk != NULL)
			d->chunk = chunk;
		d->most = chunk != NULL ? most : d->most;
	}
	if (sm == NULL || e == NULL || d->n == d->most)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a chunk of %zu weights", n);
	if (rc == OD_OK) {
		od_codec_split(d->dtype, weights, n, sm, e);
		rc = store_add(&d->weights, weights, n * (sm_bytes + 1), OD_CODEC_RAW, err);
	}
	if (rc == OD_OK)
		rc = store_add(&d->sm, sm, n * sm_bytes, OD_CODEC_RAW, err);
	if (rc == OD_OK)
		rc = store_add(&d->e, e, n, OD_CODEC_RAW, err);
	if (rc == OD_OK) {
		d->chunk[d->n++] = (struct codec_chunk){ n, row };
		d->n_weights += n;
		d->max_n = n > d->max_n ? n : d->max_n;
		d->entropy += (double)n * (8.0 * (double)sm_bytes + entropy_of(e, n)); /* a sum until it is sealed */
	}
	od_free(sm);
	od_free(e);
	return rc;
}

static int seal(struct codec_data *d, size_t least_bytes, struct od_err *err)
{
	int rc = OD_OK;

	if (d->n == 0)
		return OD_OK;
	d->entropy /= (double)d->n_weights;
	rc = store_seal(&d->weights, least_bytes, err);
	if (rc == OD_OK)
		rc = store_seal(&d->sm, least_bytes, err);
	return rc == OD_OK ? store_seal(&d->e, 0, err) : rc;
}

void codec_data_free(struct codec_data *d)
{
	codec_store_free(&d->weights);
	codec_store_free(&d->sm);
	codec_store_free(&d->e);
	free(d->chunk);
	memset(d, 0, sizeof(*d));
}

static double uniform(uint64_t *state)
{
	return ((double)(od_draw(state) >> 11) + 0.5) * 0x1p-53;
}

static void gaussian_weight(enum od_dtype t, uint64_t *state, char *out)
{
	double z = sqrt(-2 * log(uniform(state))) * cos(6.283185307179586 * uniform(state)), q;
	float f = (float)(z * GAUSSIAN_SIGMA);
	uint16_t h = t == OD_BF16 ? od_f32_bf16(f) : synth_f32_f16(f);

	if (t == OD_F32) {
		memcpy(out, &f, sizeof(f));
	} else if (od_dtype_bytes(t) == sizeof(h)) {
		memcpy(out, &h, sizeof(h));
	} else if (t == OD_INT8) {
		q = rint(z * 127 / INT8_SIGMAS);
		*(int8_t *)out = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
	} else {
		*(uint8_t *)out = synth_f32_f8(t, f);
	}
}

int codec_data_gaussian(struct codec_data *d, enum od_dtype dtype, uint64_t n_weights, uint64_t seed,
			size_t least_bytes, struct od_err *err)
{
	const size_t n = od_shard_rows(UINT32_MAX, GAUSSIAN_ROW) * GAUSSIAN_ROW, each = od_dtype_bytes(dtype);
	char *weights = od_alloc_array(n, each);
	uint64_t state = seed;
	int rc = OD_OK;

	*d = (struct codec_data){ .dtype = dtype };
	if (weights == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu weights", n);
	while (rc == OD_OK && (d->n == 0 || d->n_weights < n_weights)) {
		for (size_t i = 0; i < n; i++)
			gaussian_weight(dtype, &state, weights + i * each);
		rc = add_chunk(d, weights, n, GAUSSIAN_ROW, err);
	}
	od_free(weights);
	return rc == OD_OK ? seal(d, least_bytes, err) : rc;
}

/* The chunks of an expert's matrices of d's type. */
static int add_expert(struct codec_data *d, const struct od_expert *x, uint64_t n_weights, struct od_err *err)
{
	int rc = OD_OK;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		const struct od_weight *w = &x->mat[mat];
		const size_t step = od_shard_rows(w->n_out, w->n_in);
		const char *data = od_ref_map(w->data);

		if (w->scales.at.buf != NULL)
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "experts are %s weights with scales, expected plain ones: od-pack info "
				       "shows their bits per weight",
				       od_dtype_name(w->dtype));
		for (size_t row = 0; rc == OD_OK && w->dtype == d->dtype && row < w->n_out && d->n_weights < n_weights;
		     row += step) {
			size_t rows = step < w->n_out - row ? step : w->n_out - row;

			rc = add_chunk(d, data + row * w->n_in * od_dtype_bytes(w->dtype), rows * w->n_in, w->n_in,
				       err);
		}
	}
	return rc;
}

int codec_data_pack(struct codec_data *d, const struct od_pack *p, enum od_dtype dtype, uint64_t n_weights,
		    size_t least_bytes, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(p);
	struct od_inflater *inf = NULL;
	struct od_device *cpu;
	struct od_buf *slot = NULL;
	/* whatever $OD_DEVICE says: its weights are read here */
	int rc = od_device_open(&cpu, "cpu", OD_CPU_AUTO, 1, "od-bench", err);

	*d = (struct codec_data){ .dtype = dtype };
	if (rc == OD_OK)
		rc = od_buf_new(&slot, cpu, od_pack_slot_bytes(p, OD_FORM_PLAIN), "an expert", err);
	if (rc == OD_OK)
		rc = od_inflater_new(&inf, p, cpu, OD_FORM_PLAIN, err);
	for (uint32_t i = 0; rc == OD_OK && i < cfg->n_moe * cfg->n_experts && d->n_weights < n_weights; i++) {
		const struct od_expert_mem mem = od_pack_slot_mem(p, OD_FORM_PLAIN, od_buf_ref(slot, 0));
		const uint32_t m = i / cfg->n_experts, expert = i % cfg->n_experts;
		struct od_expert x;

		for (uint32_t s = 0; rc == OD_OK && s < od_pack_expert(p, m, expert)->n_shards; s++)
			rc = od_inflater_load(inf, m, expert, s, &mem, NULL, err);
		od_pack_bind(p, m, expert, &mem, &x);
		if (rc == OD_OK && add_expert(d, &x, n_weights, err) != OD_OK)
			rc = od_fail_within(err, "%s", od_pack_dir(p));
	}
	od_inflater_free(inf);
	od_buf_free(slot);
	od_device_free(cpu);
	return rc == OD_OK ? seal(d, least_bytes, err) : rc;
}

/* ---- coding ---- */

static int code_zstd_3(const struct codec_data *d, struct codec_store *out, uint8_t *room, struct od_err *err)
{
	ZSTD_CCtx *ctx = ZSTD_createCCtx();
	int rc = ctx != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for zstd");

	for (size_t i = 0; rc == OD_OK && i < d->n; i++) {
		size_t n = d->chunk[i].n;
		size_t got = ZSTD_compressCCtx(ctx, room, ZSTD_compressBound(n), codec_store_at(&d->e, i, 0), n, 3);

		if (ZSTD_isError(got))
			rc = od_fail(err, OD_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(got));
		else
			rc = store_add(out, room, got, OD_CODEC_ZSTD, err);
	}
	ZSTD_freeCCtx(ctx);
	return rc;
}

static int code_chunks(const struct codec_data *d, struct od_coder *c, struct codec_store *out, uint8_t *room,
		       struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < d->n; i++) {
		const struct od_plane plane = { .dtype = d->dtype,
						.e = codec_store_at(&d->e, i, 0),
						.n = d->chunk[i].n,
						.row = d->chunk[i].row,
						.n_codes = d->chunk[i].n };
		enum od_codec codec;
		size_t got;

		rc = od_coder_encode(c, &plane, room, &got, &codec, err);
		if (rc == OD_OK)
			rc = store_add(out, room, got, codec, err);
	}
	return rc;
}

int codec_data_code(const struct codec_data *d, int codec, size_t least_bytes, struct codec_store *out,
		    struct od_err *err)
{
	struct od_coder *c;
	size_t most = ZSTD_compressBound(d->max_n);
	uint8_t *room;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = od_coder_new(&c, codec == CODEC_ZSTD_3 ? OD_CODEC_ZSTD : (enum od_codec)codec, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < d->n; i++) {
		size_t bound = od_coder_bound(c, d->chunk[i].n, d->chunk[i].row);

		most = bound > most ? bound : most;
	}
	room = malloc(most);
	if (room == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %zu bytes", most);
	else if (codec == CODEC_ZSTD_3)
		rc = code_zstd_3(d, out, room, err);
	else
		rc = code_chunks(d, c, out, room, err);
	free(room);
	od_coder_free(c);
	return rc == OD_OK ? store_seal(out, least_bytes, err) : rc;
}
