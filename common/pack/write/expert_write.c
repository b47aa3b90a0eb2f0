#include "common/pack/write/expert_write.h"

#include "common/base/file.h"
#include "common/pack/checksum.h"
#include "common/pack/import/source.h"
#include "common/pack/write/mat_sums.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES (32ull << 20) /* source weights in memory at a time */
#define BATCH_SHARDS_MAX 64

/* A shard of the batch that is being coded. */
struct coding {
	size_t n, row; /* weights, of codes bytes, of the shard and of a row */
	size_t e_bytes; /* behind codes e has their scales already */
	const uint8_t *raw; /* in writer.raw */
	uint8_t *sm, *e, *coded;
	struct od_shard *out;
	int rc;
	struct od_err err;
};

struct od_expert_writer {
	const struct od_checkpoint *source;
	const struct od_config *cfg;
	struct od_pool *pool;
	int fd;
	const char *path;
	struct od_coder **coder; /* [threads] */
	uint8_t *header, *raw, *sm, *e, *coded;
	size_t max_weights, max_e_bytes, raw_room, coded_room; /* the largest shard's */
	uint32_t batch; /* shards */
	struct od_shard *shard; /* the expert's that is being written */
	/* the batch */
	struct coding job[BATCH_SHARDS_MAX];
	struct od_source from;
	enum od_dtype coding; /* od_tensor_coding */
	size_t raw_bytes;
	struct od_mat_sums sums;
};

void od_expert_writer_free(struct od_expert_writer *w)
{
	if (w == NULL)
		return;
	for (unsigned i = 0; w->coder != NULL && i < od_pool_threads(w->pool); i++)
		od_coder_free(w->coder[i]);
	free(w->coder);
	free(w->header);
	free(w->shard);
	od_free(w->raw);
	od_free(w->sm);
	od_free(w->e);
	od_free(w->coded);
	free(w);
}

/* Room for the largest shard of each matrix. */
static size_t coded_room(const struct od_expert_writer *w)
{
	size_t most = od_coder_bound(w->coder[0], w->max_e_bytes, w->max_e_bytes);

	for (int mat = 0; mat < od_expert_tensors(w->cfg); mat++) {
		uint64_t n_out, n_in;
		size_t room;

		od_expert_mat_shape(w->cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		room = od_coder_bound(w->coder[0], od_shard_rows(n_out, n_in) * n_in, n_in);
		most = room > most ? room : most;
	}
	return most;
}

static int writer_init(struct od_expert_writer *w, enum od_codec codec, struct od_err *err)
{
	unsigned threads = od_pool_threads(w->pool);
	uint64_t shards;
	int rc = OD_OK;

	w->max_weights = od_shard_max_weights(w->cfg);
	w->max_e_bytes = od_shard_max_e_bytes(w->cfg);
	w->raw_room = od_shard_max_memory(w->cfg);
	shards = BATCH_BYTES / w->raw_room;
	shards = shards < 1 ? 1 : shards > BATCH_SHARDS_MAX ? BATCH_SHARDS_MAX : shards;
	w->batch = (uint32_t)shards;
	w->coder = calloc(threads, sizeof(*w->coder));
	if (w->coder == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to code experts");
	for (unsigned i = 0; rc == OD_OK && i < threads; i++)
		rc = od_coder_new(&w->coder[i], codec, err);
	if (rc != OD_OK)
		return rc;
	w->coded_room = coded_room(w);
	w->header = malloc(od_expert_header_bytes(w->cfg));
	w->shard = calloc(od_expert_shards(w->cfg), sizeof(*w->shard));
	w->raw = od_alloc(shards * w->raw_room);
	w->sm = od_alloc(shards * w->max_weights * 3);
	w->e = od_alloc(shards * w->max_e_bytes);
	w->coded = od_alloc(shards * w->coded_room);
	if (w->header == NULL || w->shard == NULL || w->raw == NULL || w->sm == NULL || w->e == NULL ||
	    w->coded == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to code experts");
	return OD_OK;
}

int od_expert_writer_new(struct od_expert_writer **out, const struct od_checkpoint *source, const struct od_config *cfg,
			 enum od_codec codec, struct od_pool *pool, int fd, const char *path, struct od_err *err)
{
	struct od_expert_writer *w = calloc(1, sizeof(*w));
	int rc;

	*out = NULL;
	if (w == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to code experts");
	w->source = source;
	w->cfg = cfg;
	w->pool = pool;
	w->fd = fd;
	w->path = path;
	rc = writer_init(w, codec, err);
	if (rc != OD_OK) {
		od_expert_writer_free(w);
		return rc;
	}
	*out = w;
	return OD_OK;
}

/* Item 0 is the SHA-256 of the whole batch, which cannot be split; the others are a shard each. */
static void code_item(struct od_expert_writer *w, size_t item, unsigned thread)
{
	enum od_codec codec;
	struct od_plane plane;
	struct coding *c;
	size_t stored;

	if (item == 0) {
		crypto_hash_sha256_update(&w->sums.weights, w->raw, w->raw_bytes);
		return;
	}
	c = &w->job[item - 1];
	od_codec_split(w->coding, c->raw, c->n, c->sm, c->e);
	plane = (struct od_plane){ .dtype = w->coding, .e = c->e, .n = c->e_bytes, .row = c->row, .n_codes = c->n };
	if (od_expert_is_bias(c->out->mat)) {
		c->rc = OD_OK;
		codec = OD_CODEC_RAW;
		stored = c->e_bytes;
		memcpy(c->coded, c->e, stored);
	} else {
		c->rc = od_coder_encode(w->coder[thread], &plane, c->coded, &stored, &codec, &c->err);
	}
	c->out->e.codec = (uint8_t)codec;
	c->out->e.stored_bytes = (uint32_t)stored;
	c->out->e.raw_bytes = (uint32_t)c->e_bytes;
	c->out->e.xxh3 = XXH3_64bits(c->coded, stored);
	c->out->sm.codec = OD_CODEC_RAW;
	c->out->sm.stored_bytes = c->out->sm.raw_bytes = (uint32_t)(c->n * od_codec_sm_bytes(w->coding));
	c->out->sm.xxh3 = XXH3_64bits(c->sm, c->out->sm.stored_bytes);
}

static void code_items(void *arg, size_t begin, size_t end, unsigned thread)
{
	for (size_t i = begin; i < end; i++)
		code_item(arg, i, thread);
}

/* n shards, coded, to the file: SM at *sm_at, E at *e_at. */
static int write_batch(struct od_expert_writer *w, uint32_t n, uint64_t *sm_at, uint64_t *e_at, struct od_err *err)
{
	for (uint32_t i = 0; i < n; i++) {
		struct coding *c = &w->job[i];
		struct od_shard *s = c->out;
		int rc = c->rc;

		if (rc != OD_OK) {
			if (err != NULL)
				*err = c->err;
			return rc;
		}
		s->sm.offset = *sm_at;
		s->e.offset = *e_at;
		*sm_at += s->sm.stored_bytes;
		*e_at += s->e.stored_bytes;
		rc = od_file_pwrite(w->fd, c->sm, s->sm.stored_bytes, s->sm.offset, w->path, err);
		if (rc == OD_OK)
			rc = od_file_pwrite(w->fd, c->coded, s->e.stored_bytes, s->e.offset, w->path, err);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

/* A shard of the batch, whose rows are to be read to raw; what scales these have is read now. */
static int plan_shard(struct od_expert_writer *w, uint32_t i, struct od_shard *s, uint64_t n_in, const uint8_t *raw,
		      struct od_err *err)
{
	const struct od_mat_type *type = &w->from.type;
	const uint64_t row_bytes = od_mat_row_bytes(type, n_in);
	const bool codes = od_codec_sm_bytes(w->coding) == 0;
	struct coding *c = &w->job[i];
	uint8_t *at;
	int rc = OD_OK;

	*c = (struct coding){
		.n = s->n_rows * (codes ? row_bytes : n_in),
		.row = codes ? row_bytes : n_in,
		.raw = raw,
		.sm = w->sm + i * w->max_weights * 3,
		.e = w->e + i * w->max_e_bytes,
		.coded = w->coded + i * w->coded_room,
		.out = s,
	};
	c->e_bytes = c->n;
	if (type->scale == 0)
		return OD_OK;
	c->e_bytes = od_mat_bytes(type, n_in, s->row_begin, s->n_rows);
	at = c->e + c->n;
	if (w->from.divisor != NULL)
		rc = od_checkpoint_read(w->source, w->from.divisor, 0, at, od_mat_divisor_bytes(type), err);
	at += od_mat_divisor_bytes(type);
	return rc != OD_OK ? rc :
			     od_source_read_scales(w->source, &w->from, n_in, od_mat_scale_row(type, s->row_begin),
						   od_mat_scale_rows(type, s->row_begin, s->n_rows), at, err);
}

/* Sums scales and divisors, which stand beside the weights; raw is free by then. */
static int sum_scales(struct od_expert_writer *w, uint64_t n_out, uint64_t n_in, struct od_err *err)
{
	const struct od_mat_type *type = &w->from.type;
	const uint64_t each = od_mat_scale_row_bytes(type, n_in), n = od_mat_scale_rows(type, 0, n_out);
	const uint64_t step = each > 0 && w->raw_room / each > 0 ? w->raw_room / each : 1;
	int rc = OD_OK;

	for (uint64_t row = 0; rc == OD_OK && row < n; row += step) {
		const uint64_t k = step < n - row ? step : n - row;

		rc = od_source_read_scales(w->source, &w->from, n_in, row, k, w->raw, err);
		if (rc == OD_OK)
			crypto_hash_sha256_update(&w->sums.scales, w->raw, k * each);
	}
	if (rc == OD_OK && w->from.divisor != NULL)
		rc = od_checkpoint_read(w->source, w->from.divisor, 0, w->raw, od_mat_divisor_bytes(type), err);
	if (rc == OD_OK && w->from.divisor != NULL)
		crypto_hash_sha256_update(&w->sums.divisor, w->raw, od_mat_divisor_bytes(type));
	return rc;
}

/* All shards of one matrix. *shard moves on. */
static int write_mat(struct od_expert_writer *w, enum od_expert_mat mat, struct od_shard **shard, uint64_t *sm_at,
		     uint64_t *e_at, struct od_err *err)
{
	uint64_t n_out, n_in, row = 0, each;
	int rc = OD_OK;

	od_expert_mat_shape(w->cfg, mat, &n_out, &n_in);
	each = od_mat_row_bytes(&w->from.type, n_in);
	od_mat_sums_init(&w->sums);
	while (rc == OD_OK && row < n_out) {
		const uint64_t step = od_shard_rows(n_out, n_in), first = row;
		uint32_t n = 0;

		for (; rc == OD_OK && n < w->batch && row < n_out; n++) {
			uint64_t rows = step < n_out - row ? step : n_out - row;

			*(*shard) = (struct od_shard){ .mat = (uint8_t)mat,
						       .row_begin = (uint32_t)row,
						       .n_rows = (uint32_t)rows };
			rc = plan_shard(w, n, (*shard)++, n_in, w->raw + (row - first) * each, err);
			row += rows;
		}
		w->raw_bytes = (row - first) * each;
		if (rc == OD_OK)
			rc = od_source_read(w->source, &w->from, n_in, first, row - first, w->raw, err);
		if (rc != OD_OK)
			break;
		od_pool_for(w->pool, n + 1, 1, code_items, w);
		rc = write_batch(w, n, sm_at, e_at, err);
	}
	return rc == OD_OK ? sum_scales(w, n_out, n_in, err) : rc;
}

int od_expert_write(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset,
		    struct od_expert_entry *entry, uint64_t *header_xxh3, struct od_err *err)
{
	const size_t header_bytes = od_expert_header_bytes(w->cfg);
	const int n_tensors = od_expert_tensors(w->cfg);
	struct od_source from[OD_N_EXPERT_TENSORS];
	struct od_shard *shard = w->shard;
	uint64_t sm_at, e_at;
	int rc = OD_OK;

	memset(entry, 0, sizeof(*entry));
	for (int mat = 0; mat < n_tensors; mat++) {
		from[mat] = od_source_expert(w->source, w->cfg, m, expert, (enum od_expert_mat)mat);
		entry->type[mat] = from[mat].type;
	}
	sm_at = entry->sm_offset = offset + header_bytes;
	e_at = entry->e_offset = offset + od_expert_e_offset(w->cfg, entry->type);
	for (int mat = 0; rc == OD_OK && mat < n_tensors; mat++) {
		w->from = from[mat];
		w->coding = od_tensor_coding(mat, &w->from.type);
		rc = write_mat(w, (enum od_expert_mat)mat, &shard, &sm_at, &e_at, err);
		od_mat_sums_final(&w->sums, &w->from.type, entry->sha256[mat]);
	}
	if (rc != OD_OK)
		return rc;
	entry->x.offset = offset;
	entry->x.bytes = od_region_end(e_at) - offset;
	entry->x.n_shards = od_expert_shards(w->cfg);
	entry->x.shard = w->shard;
	od_expert_header_write(entry, w->cfg, m, expert, w->header);
	*header_xxh3 = XXH3_64bits(w->header, header_bytes);
	rc = od_file_pwrite(w->fd, w->header, header_bytes, offset, w->path, err);
	if (rc != OD_OK)
		return rc;
	/* The last padding: the file ends where the expert ends. */
	return od_file_pwrite(w->fd, "", 1, offset + entry->x.bytes - 1, w->path, err);
}

/* ---- checking what is there ---- */

int od_check_zeros(int fd, const char *path, uint64_t begin, uint64_t end, struct od_err *err)
{
	uint8_t buf[2 * OD_PAGE_BYTES];
	int rc = od_file_pread(fd, buf, end - begin, begin, path, err);

	for (uint64_t i = 0; rc == OD_OK && i < end - begin; i++)
		if (buf[i] != 0)
			rc = od_fail(err, OD_ERR_CORRUPT, "%s: padding at offset %" PRIu64 ": expected 00, found %02x",
				     path, begin + i, buf[i]);
	return rc;
}

int od_expert_check_padding(const struct od_expert_entry *e, int fd, const char *path, struct od_err *err)
{
	const struct od_shard *last = &e->x.shard[e->x.n_shards - 1];
	int rc = od_check_zeros(fd, path, last->sm.offset + last->sm.stored_bytes, e->e_offset, err);

	if (rc == OD_OK)
		rc = od_check_zeros(fd, path, last->e.offset + last->e.stored_bytes, e->x.offset + e->x.bytes, err);
	return rc;
}

static int recheck_chunk(struct od_expert_writer *w, const struct od_chunk *c, struct od_err *err)
{
	/* Both planes of a shard fit where its weights did. */
	int rc = od_file_pread(w->fd, w->raw, c->stored_bytes, c->offset, w->path, err);

	if (rc == OD_OK && XXH3_64bits(w->raw, c->stored_bytes) != c->xxh3)
		rc = od_fail(err, OD_ERR_CORRUPT, "%s: chunk at offset %" PRIu64 ": checksum does not match", w->path,
			     c->offset);
	return rc;
}

int od_expert_recheck(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset, uint64_t file_bytes,
		      struct od_expert_entry *entry, uint64_t *header_xxh3, struct od_err *err)
{
	const size_t header_bytes = od_expert_header_bytes(w->cfg);
	const struct od_shard *shard;
	int rc;

	memset(entry, 0, sizeof(*entry));
	if (!od_within(offset, header_bytes, file_bytes))
		return od_fail(err, OD_ERR_MISSING, "%s ends before expert (%u, %u)", w->path, m, expert);
	rc = od_file_pread(w->fd, w->header, header_bytes, offset, w->path, err);
	if (rc == OD_OK)
		rc = od_expert_header_parse(entry, w->cfg, m, expert, w->header, offset, file_bytes, w->path, err);
	if (rc != OD_OK)
		return rc;
	shard = entry->x.shard;
	memcpy(w->shard, shard, entry->x.n_shards * sizeof(*shard));
	free((void *)shard);
	entry->x.shard = w->shard;
	*header_xxh3 = XXH3_64bits(w->header, header_bytes);
	for (uint32_t i = 0; rc == OD_OK && i < entry->x.n_shards; i++) {
		rc = recheck_chunk(w, &w->shard[i].sm, err);
		if (rc == OD_OK)
			rc = recheck_chunk(w, &w->shard[i].e, err);
	}
	return rc == OD_OK ? od_expert_check_padding(entry, w->fd, w->path, err) : rc;
}
