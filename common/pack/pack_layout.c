#include "common/pack/pack_layout.h"

#include "common/pack/checksum.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

bool od_bias_type_ok(const struct od_mat_type *t)
{
	const struct od_format *f = od_format(t->dtype);

	return t->scale == 0 && f != NULL && (f->uses & OD_USE_VECTOR) != 0;
}

bool od_dense_type_ok(enum od_role role, const struct od_mat_type *t, uint64_t n_in)
{
	const bool rows = role == OD_ROLE_EMBED || role == OD_ROLE_LAYER_EMBED;

	return od_bias_type_ok(t) ||
	       (n_in > 0 && od_mat_type_ok(t, n_in) && !(rows && (od_format(t->dtype)->uses & OD_USE_BLOCKS) == 0));
}

uint32_t od_shard_rows(uint64_t n_out, uint64_t n_in)
{
	uint64_t rows = n_in >= OD_SHARD_WEIGHTS ? 1 : OD_SHARD_WEIGHTS / n_in;

	return (uint32_t)(rows < n_out ? rows : n_out);
}

uint32_t od_mat_shards(const struct od_config *cfg, enum od_expert_mat mat)
{
	uint64_t n_out, n_in, rows;

	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	rows = od_shard_rows(n_out, n_in);
	return (uint32_t)((n_out + rows - 1) / rows);
}

uint32_t od_expert_shards(const struct od_config *cfg)
{
	uint32_t n = 0;

	for (int mat = 0; mat < od_expert_tensors(cfg); mat++)
		n += od_mat_shards(cfg, (enum od_expert_mat)mat);
	return n;
}

/* Where the shard table is. */
static size_t table_at(const struct od_config *cfg)
{
	return sizeof(struct od_disk_expert) + (cfg->expert_bias ? sizeof(struct od_disk_biases) : 0);
}

uint64_t od_expert_header_bytes(const struct od_config *cfg)
{
	uint64_t table = (uint64_t)od_expert_shards(cfg) * sizeof(struct od_disk_shard);

	return od_round_up(table_at(cfg) + table, OD_PAGE_BYTES);
}

/* each(n_in): of a row. */
static uint64_t shard_max(const struct od_config *cfg, uint64_t (*each)(uint64_t n_in))
{
	uint64_t most = 0, n_out, n_in;

	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		n_out = od_shard_rows(n_out, n_in) * each(n_in);
		most = n_out > most ? n_out : most;
	}
	return most;
}

static uint64_t row_weights(uint64_t n_in)
{
	return n_in;
}

/* A byte a weight, and as many scales as there can be, of the widest type. */
static uint64_t row_e_bytes(uint64_t n_in)
{
	return n_in + (n_in / OD_SCALE_BLOCK_MIN + 1) * sizeof(float);
}

static uint64_t row_memory(uint64_t n_in)
{
	uint64_t plain = n_in * sizeof(float), scaled = row_e_bytes(n_in);

	return plain > scaled ? plain : scaled;
}

uint64_t od_shard_max_weights(const struct od_config *cfg)
{
	return shard_max(cfg, row_weights);
}

uint64_t od_shard_max_e_bytes(const struct od_config *cfg)
{
	return shard_max(cfg, row_e_bytes) + sizeof(float); /* a divisor */
}

uint64_t od_shard_max_memory(const struct od_config *cfg)
{
	return shard_max(cfg, row_memory) + 5 * OD_PAD_BYTES;
}

uint64_t od_region_end(uint64_t end_of_data)
{
	return od_round_up(end_of_data + OD_PAD_BYTES, OD_PAGE_BYTES);
}

uint64_t od_expert_e_offset(const struct od_config *cfg, const struct od_mat_type type[OD_N_EXPERT_TENSORS])
{
	uint64_t at = od_expert_header_bytes(cfg), n_out, n_in;

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		at += n_out * n_in * od_codec_sm_bytes(type[mat].dtype);
	}
	return od_region_end(at);
}

/* Walks through the shards of an expert in their only order. */
struct cursor {
	const struct od_config *cfg;
	int mat;
	uint64_t n_out, n_in, row;
};

static struct cursor cursor_start(const struct od_config *cfg)
{
	struct cursor c = { .cfg = cfg };

	od_expert_mat_shape(cfg, OD_MAT_GATE, &c.n_out, &c.n_in);
	return c;
}

static void cursor_next(struct cursor *c, uint64_t n_rows)
{
	c->row += n_rows;
	if (c->row < c->n_out || ++c->mat == od_expert_tensors(c->cfg))
		return;
	c->row = 0;
	od_expert_mat_shape(c->cfg, (enum od_expert_mat)c->mat, &c->n_out, &c->n_in);
}

static uint64_t cursor_rows(const struct cursor *c)
{
	uint64_t rows = od_shard_rows(c->n_out, c->n_in);

	return rows < c->n_out - c->row ? rows : c->n_out - c->row;
}

static int bad_header(struct od_err *err, const char *where, uint32_t m, uint32_t expert, const char *field,
		      uint64_t expected, uint64_t found)
{
	return od_fail(err, OD_ERR_FORMAT,
		       "%s: expert (%u, %u): header field \"%s\": expected %" PRIu64 ", found %" PRIu64, where, m,
		       expert, field, expected, found);
}

static bool all_zero(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != 0)
			return false;
	return true;
}

static struct od_mat_type type_from_disk(const struct od_disk_expert *d, const struct od_disk_biases *b, int mat)
{
	if (od_expert_is_bias(mat))
		return (struct od_mat_type){ .dtype = (enum od_dtype)b->dtype[mat - OD_N_EXPERT_MATS] };
	return (struct od_mat_type){ (enum od_dtype)d->dtype[mat], (enum od_dtype)d->scale[mat], d->block[mat].rows,
				     d->block[mat].cols };
}

static bool type_ok(const struct od_config *cfg, int mat, const struct od_mat_type *t)
{
	uint64_t n_out, n_in;

	od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
	return od_expert_is_bias(mat) ? od_bias_type_ok(t) : od_mat_type_ok(t, n_in);
}

/* The fixed fields. Their own checksum is checked by the caller. */
static int check_fixed(const struct od_disk_expert *d, const struct od_disk_biases *b, const struct od_config *cfg,
		       uint32_t m, uint32_t expert, uint64_t room, const char *where, struct od_err *err)
{
	const struct {
		const char *name;
		uint64_t expected, found;
	} field[] = {
		{ "m", m, d->m },
		{ "expert", expert, d->expert },
		{ "n_shards", od_expert_shards(cfg), d->n_shards },
		{ "header_bytes", od_expert_header_bytes(cfg), d->header_bytes },
		{ "sm_offset", od_expert_header_bytes(cfg), d->sm_offset },
		{ "n_mats", OD_N_EXPERT_MATS, d->n_mats },
		{ "n_biases", cfg->expert_bias ? OD_N_EXPERT_MATS : 0, d->n_biases },
		{ "zero", 0, !all_zero(b->zero, sizeof(b->zero)) },
	};
	struct od_mat_type type[OD_N_EXPERT_TENSORS];

	if (d->schema != OD_PACK_SCHEMA)
		return od_fail(err, OD_ERR_MISMATCH,
			       "%s: expert (%u, %u): header field \"schema\": expected %d, found %u: " OD_MAKE_AGAIN,
			       where, m, expert, OD_PACK_SCHEMA, d->schema);
	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		if (field[i].expected != field[i].found)
			return bad_header(err, where, m, expert, field[i].name, field[i].expected, field[i].found);
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		type[mat] = type_from_disk(d, b, mat);
		if (!type_ok(cfg, mat, &type[mat]))
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "%s: expert (%u, %u): %s of type %u with scales of type %u for "
				       "%u x %u of them, which this version does not support: " OD_MAKE_AGAIN,
				       where, m, expert, od_expert_mat_name((enum od_expert_mat)mat), type[mat].dtype,
				       type[mat].scale, type[mat].block_rows, type[mat].block_cols);
	}
	if (d->e_offset != od_expert_e_offset(cfg, type))
		return bad_header(err, where, m, expert, "e_offset", od_expert_e_offset(cfg, type), d->e_offset);
	if (d->bytes > room || d->bytes < d->e_offset)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: expert (%u, %u): %" PRIu64 " bytes by its header, the file has "
			       "room for %" PRIu64,
			       where, m, expert, d->bytes, room);
	return OD_OK;
}

/* One shard's row: the run of rows, the lengths, and that its chunks follow the ones before without a gap. */
static int check_shard(const struct od_disk_shard *s, const struct cursor *c, const struct od_mat_type *type,
		       uint64_t sm_at, uint64_t e_at, const char *where, const struct od_disk_expert *d,
		       struct od_err *err)
{
	/* Biases stay as they are; scales behind codes are no rows of exponents. */
	const enum od_codec last_codec = od_expert_is_bias(c->mat) ? OD_CODEC_RAW :
					 type->scale != 0	   ? OD_CODEC_LZ4 :
								     OD_CODEC_PLANES;
	const uint64_t sm_bytes = cursor_rows(c) * c->n_in * od_codec_sm_bytes(od_tensor_coding(c->mat, type));
	const uint64_t e_bytes = od_mat_bytes(type, c->n_in, c->row, cursor_rows(c)) - sm_bytes;
	const struct {
		const char *name;
		uint64_t expected, found;
	} field[] = {
		{ "mat", (uint64_t)c->mat, s->mat },
		{ "row_begin", c->row, s->row_begin },
		{ "n_rows", cursor_rows(c), s->n_rows },
		{ "sm_codec", OD_CODEC_RAW, s->sm_codec },
		{ "sm_stored_bytes", sm_bytes, s->sm_stored_bytes },
		{ "sm_raw_bytes", sm_bytes, s->sm_raw_bytes },
		{ "e_raw_bytes", e_bytes, s->e_raw_bytes },
		{ "sm_offset", sm_at, s->sm_offset },
		{ "e_offset", e_at, s->e_offset },
		{ "zero", 0, (uint64_t)s->zero + s->more_zero },
	};

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		if (field[i].expected != field[i].found)
			return bad_header(err, where, d->m, d->expert, field[i].name, field[i].expected,
					  field[i].found);
	if (s->e_codec > last_codec)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: expert (%u, %u): codec %u, expected 0 to %d: " OD_MAKE_AGAIN, where, d->m,
			       d->expert, s->e_codec, (int)last_codec);
	if (s->e_codec == OD_CODEC_RAW ? s->e_stored_bytes != e_bytes : s->e_stored_bytes >= e_bytes)
		return bad_header(err, where, d->m, d->expert, "e_stored_bytes", e_bytes, s->e_stored_bytes);
	return OD_OK;
}

static void shard_from_disk(struct od_shard *out, const struct od_disk_shard *s, uint64_t base)
{
	*out = (struct od_shard){
		.mat = s->mat,
		.row_begin = s->row_begin,
		.n_rows = s->n_rows,
		.sm = { base + s->sm_offset, s->sm_stored_bytes, s->sm_raw_bytes, s->sm_codec, s->sm_xxh3 },
		.e = { base + s->e_offset, s->e_stored_bytes, s->e_raw_bytes, s->e_codec, s->e_xxh3 },
	};
}

static int read_table(struct od_expert_entry *out, struct od_shard *shard, uint64_t *e_chunk,
		      const struct od_disk_expert *d, const uint8_t *table, const struct od_config *cfg,
		      const char *where, struct od_err *err)
{
	uint64_t sm_at = d->sm_offset, e_at = d->e_offset;
	struct cursor c = cursor_start(cfg);

	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct od_disk_shard s;
		int rc;

		memcpy(&s, table + i * sizeof(s), sizeof(s));
		rc = check_shard(&s, &c, &out->type[c.mat], sm_at, e_at, where, d, err);
		if (rc != OD_OK)
			return od_fail_within(err, "shard %u", i);
		shard_from_disk(&shard[i], &s, out->x.offset);
		e_chunk[i] = e_at - d->e_offset;
		sm_at += s.sm_stored_bytes;
		e_at += s.e_stored_bytes;
		cursor_next(&c, s.n_rows);
	}
	if (d->bytes != od_region_end(e_at))
		return bad_header(err, where, d->m, d->expert, "bytes", od_region_end(e_at), d->bytes);
	return OD_OK;
}

static uint64_t header_xxh3(const uint8_t *buf, size_t len)
{
	const size_t from = offsetof(struct od_disk_expert, schema);

	return XXH3_64bits(buf + from, len - from);
}

int od_expert_header_parse(struct od_expert_entry *out, const struct od_config *cfg, uint32_t m, uint32_t expert,
			   const uint8_t *buf, uint64_t offset, uint64_t file_bytes, const char *where,
			   struct od_err *err)
{
	const size_t len = od_expert_header_bytes(cfg);
	struct od_disk_biases b = { 0 };
	struct od_disk_expert d;
	struct od_shard *shard;
	uint64_t *e_chunk;
	size_t end;
	int rc;

	memset(out, 0, sizeof(*out));
	memcpy(&d, buf, sizeof(d));
	memcpy(&b, buf + sizeof(d), table_at(cfg) - sizeof(d));
	if (memcmp(d.magic, OD_EXPERT_MAGIC, sizeof(d.magic)) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: expert (%u, %u): no expert header at offset %" PRIu64, where, m,
			       expert, offset);
	rc = od_check_xxh3(header_xxh3(buf, len), d.xxh3, err,
			   "%s: expert (%u, %u): header at offset %" PRIu64 ": checksum", where, m, expert, offset);
	if (rc == OD_OK)
		rc = check_fixed(&d, &b, cfg, m, expert, offset <= file_bytes ? file_bytes - offset : 0, where, err);
	if (rc != OD_OK)
		return rc;
	end = table_at(cfg) + d.n_shards * sizeof(struct od_disk_shard);
	if (!all_zero(buf + end, len - end))
		return bad_header(err, where, m, expert, "zero", 0, 1);

	shard = calloc(d.n_shards, sizeof(*shard) + sizeof(*out->e_at));
	if (shard == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for shard tables", where);
	e_chunk = (uint64_t *)(void *)(shard + d.n_shards);
	out->x = (struct od_pack_expert){ offset, d.bytes, d.n_shards, shard };
	out->e_at = e_chunk;
	out->sm_offset = offset + d.sm_offset;
	out->e_offset = offset + d.e_offset;
	memcpy(out->sha256, d.sha256, sizeof(d.sha256));
	memcpy(out->sha256[OD_BIAS_GATE], b.sha256, sizeof(b.sha256));
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++)
		out->type[mat] = type_from_disk(&d, &b, mat);
	rc = read_table(out, shard, e_chunk, &d, buf + table_at(cfg), cfg, where, err);
	if (rc != OD_OK) {
		free(shard);
		memset(out, 0, sizeof(*out));
	}
	return rc;
}

void od_expert_header_write(const struct od_expert_entry *in, const struct od_config *cfg, uint32_t m, uint32_t expert,
			    uint8_t *buf)
{
	const size_t len = od_expert_header_bytes(cfg);
	const uint64_t base = in->x.offset;
	struct od_disk_biases b = { 0 };
	struct od_disk_expert d = {
		.schema = OD_PACK_SCHEMA,
		.n_mats = OD_N_EXPERT_MATS,
		.n_biases = cfg->expert_bias ? OD_N_EXPERT_MATS : 0,
		.m = m,
		.expert = expert,
		.n_shards = in->x.n_shards,
		.header_bytes = len,
		.bytes = in->x.bytes,
		.sm_offset = in->sm_offset - base,
		.e_offset = in->e_offset - base,
	};

	memset(buf, 0, len);
	memcpy(d.magic, OD_EXPERT_MAGIC, sizeof(d.magic));
	memcpy(d.sha256, in->sha256, sizeof(d.sha256));
	memcpy(b.sha256, in->sha256[OD_BIAS_GATE], sizeof(b.sha256));
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		d.dtype[mat] = (uint8_t)in->type[mat].dtype;
		b.dtype[mat] = (uint8_t)in->type[OD_BIAS_GATE + mat].dtype;
		d.scale[mat] = (uint8_t)in->type[mat].scale;
		d.block[mat].rows = in->type[mat].block_rows;
		d.block[mat].cols = in->type[mat].block_cols;
	}
	for (uint32_t i = 0; i < in->x.n_shards; i++) {
		const struct od_shard *x = &in->x.shard[i];
		struct od_disk_shard s = {
			.row_begin = x->row_begin,
			.n_rows = x->n_rows,
			.mat = x->mat,
			.sm_codec = x->sm.codec,
			.e_codec = x->e.codec,
			.sm_stored_bytes = x->sm.stored_bytes,
			.sm_offset = x->sm.offset - base,
			.e_offset = x->e.offset - base,
			.e_stored_bytes = x->e.stored_bytes,
			.sm_raw_bytes = x->sm.raw_bytes,
			.e_raw_bytes = x->e.raw_bytes,
			.sm_xxh3 = x->sm.xxh3,
			.e_xxh3 = x->e.xxh3,
		};

		memcpy(buf + table_at(cfg) + i * sizeof(s), &s, sizeof(s));
	}
	memcpy(buf, &d, sizeof(d));
	memcpy(buf + sizeof(d), &b, table_at(cfg) - sizeof(d));
	d.xxh3 = header_xxh3(buf, len);
	memcpy(buf, &d, sizeof(d));
}

/* ---- experts whose weights are stored whole ---- */

/* Appends the shards of a matrix, whose rows begin at `begin`; returns their number. */
static uint32_t cut_matrix(const struct od_config *cfg, const struct od_mat_type *type, int mat, uint64_t begin,
			   struct od_shard *shard)
{
	uint64_t n_out, n_in, row_bytes;
	uint32_t n = 0, rows;

	od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
	rows = od_shard_rows(n_out, n_in);
	row_bytes = od_mat_row_bytes(type, n_in);
	for (uint64_t row = 0; row < n_out; row += rows, n++) {
		struct od_shard *s = &shard[n];

		*s = (struct od_shard){ .mat = (uint8_t)mat, .row_begin = (uint32_t)row };
		s->n_rows = (uint32_t)(n_out - row < rows ? n_out - row : rows);
		s->e.offset = s->sm.offset = begin + row * row_bytes;
		s->e.stored_bytes = s->e.raw_bytes = (uint32_t)(s->n_rows * row_bytes);
		s->e.codec = s->sm.codec = OD_CODEC_RAW;
	}
	return n;
}

int od_expert_whole(struct od_expert_entry *out, const struct od_config *cfg, const struct od_mat_type *type,
		    const uint64_t *begin, struct od_err *err)
{
	const uint32_t n_shards = od_expert_shards(cfg);
	struct od_shard *shard = calloc(n_shards, sizeof(*shard));
	uint32_t n = 0;

	*out = (struct od_expert_entry){ .as_bytes = true };
	if (shard == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for expert tables");
	out->x.shard = shard;
	out->x.n_shards = n_shards;
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		out->type[mat] = type[mat];
		n += cut_matrix(cfg, &type[mat], mat, begin[mat], shard + n);
	}
	out->x.offset = begin[0];
	for (uint32_t i = 0; i < n_shards; i++)
		out->x.bytes += shard[i].e.stored_bytes;
	out->sm_offset = out->e_offset = out->x.offset + out->x.bytes; /* it has no regions */
	return OD_OK;
}

uint64_t od_share_header_bytes(const struct od_config *cfg)
{
	return od_round_up(OD_SHARE_HEADER_WORDS(od_expert_shards(cfg)) * sizeof(uint64_t), OD_PAGE_BYTES);
}

int od_share_expert_bytes(const struct od_config *cfg, const struct od_mat_type *type, uint64_t *bytes,
			  struct od_err *err)
{
	uint64_t at = od_share_header_bytes(cfg), n_out, n_in, row, all;

	*bytes = 0;
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		row = od_mat_row_bytes(&type[mat], n_in);
		if (!od_mul(row, n_out, &all) || !od_add(at, all, &at) || at > INT64_MAX ||
		    row > UINT32_MAX / od_shard_rows(n_out, n_in))
			return od_fail(err, OD_ERR_RANGE, "%s of %" PRIu64 " rows of %" PRIu64 " bytes is too large",
				       od_expert_mat_name((enum od_expert_mat)mat), n_out, row);
	}
	*bytes = od_round_up(at, OD_PAGE_BYTES);
	return OD_OK;
}

int od_share_expert(struct od_expert_entry *out, const struct od_config *cfg, const struct od_mat_type *type,
		    uint64_t offset, struct od_err *err)
{
	uint64_t begin[OD_N_EXPERT_TENSORS], at = offset + od_share_header_bytes(cfg), n_out, n_in;
	int rc;

	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		begin[mat] = at;
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		at += n_out * od_mat_row_bytes(&type[mat], n_in);
	}
	rc = od_expert_whole(out, cfg, type, begin, err);
	out->x.offset = offset;
	out->x.bytes = od_round_up(at, OD_PAGE_BYTES) - offset;
	out->sm_offset = out->e_offset = offset + out->x.bytes;
	return rc;
}
