#include "common/pack/shadow/shadow_layout.h"

#include "common/pack/checksum.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const od_precision_names[] = { "bf16", "int8", "fp16", "nf4", NULL };
const char *const od_shadow_file_names[] = { NULL, "shadow-int8.bin", "shadow-fp16.bin", "shadow-nf4.bin" };
const char *const od_shadow_temp_names[] = { NULL, "shadow-int8.bin.tmp", "shadow-fp16.bin.tmp", "shadow-nf4.bin.tmp" };
const char *const od_shadow_old_names[] = { "shadow-int8-g64.bin", "shadow-nf4-dq.bin", NULL };

/* Pinned: the number of a precision in its file's header. 4 was int8-g64, 6 nf4-dq. */
static const uint32_t disk_number[] = { 1, 2, 3, 5 }; /* index precision - 1 */

/* ---- sets ---- */

int od_shadow_set_parse(const char *text, unsigned *set, struct od_err *err)
{
	*set = 0;
	if (strcmp(text, "none") == 0)
		return OD_OK;
	for (const char *at = text;; at++) {
		size_t len = strcspn(at, ",");
		int p = OD_PRECISION_BF16 + 1;

		while (p <= OD_N_PRECISIONS &&
		       (strlen(od_precision_names[p - 1]) != len || strncmp(od_precision_names[p - 1], at, len) != 0))
			p++;
		if (p > OD_N_PRECISIONS) {
			*set = 0;
			return od_fail(err, OD_ERR_ARG,
				       "shadow precisions: expected none, or some of int8, fp16, nf4 "
				       "with commas between them, found \"%.*s\"%s",
				       (int)len, at,
				       len == 4 && strncmp(at, "bf16", len) == 0 ? " (the pack itself is that)" : "");
		}
		*set |= OD_SHADOW_BIT(p);
		at += len;
		if (*at == '\0')
			return OD_OK;
	}
}

const char *od_shadow_set_text(unsigned set, char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = '\0';
	for (int p = 1; p <= OD_N_PRECISIONS; p++)
		if ((set & OD_SHADOW_BIT(p)) != 0 && len < size)
			len += (size_t)snprintf(buf + len, size - len, "%s%s", len > 0 ? "," : "",
						od_precision_names[p - 1]);
	return buf;
}

/* ---- records ---- */

uint64_t od_shadow_row_bytes(enum od_precision precision, uint64_t n_in)
{
	switch (precision) {
	case OD_PRECISION_INT8: return n_in;
	case OD_PRECISION_BF16:
	case OD_PRECISION_FP16: return 2 * n_in;
	case OD_PRECISION_NF4: return od_row_bytes(OD_NF4, n_in);
	}
	return 0;
}

uint64_t od_shadow_row_scales(enum od_precision precision, uint64_t n_in)
{
	switch (precision) {
	case OD_PRECISION_BF16:
	case OD_PRECISION_FP16: return 0;
	case OD_PRECISION_INT8: return 1;
	case OD_PRECISION_NF4: return od_quant_groups(n_in);
	}
	return 0;
}

/* Scales stand behind 64 bytes of padding at least, so that vector loads may run over. */
struct od_shadow_sections od_shadow_sections(enum od_precision precision, uint64_t n_out, uint64_t n_in)
{
	struct od_shadow_sections p = {
		.data_bytes = n_out * od_shadow_row_bytes(precision, n_in),
		.n_scales = n_out * od_shadow_row_scales(precision, n_in),
	};

	p.scale_at = od_round_up(p.data_bytes + OD_PAD_BYTES, OD_PAD_BYTES);
	p.bytes = od_region_end(p.n_scales > 0 ? p.scale_at + p.n_scales * sizeof(float) : p.data_bytes);
	return p;
}

/* ---- tables ---- */

size_t od_shadow_expert_index(const struct od_shadow_table *t, const struct od_config *cfg, uint32_t m, uint32_t expert,
			      enum od_expert_mat mat)
{
	return t->n_dense + ((size_t)m * cfg->n_experts + expert) * OD_N_EXPERT_MATS + mat;
}

/* Lists the matrices that a shadow quantises, in their order; t->dense NULL: only counts them. */
static void list_dense(struct od_shadow_table *t, const struct od_config *cfg)
{
	t->n_dense = 0;
	for (uint32_t layer = 0; layer < cfg->n_layers; layer++)
		for (int i = 0; i < OD_N_ROLES; i++) {
			const enum od_role role = (enum od_role)i;
			uint64_t n_out, n_in;

			if (!od_role_quantised(role))
				continue;
			od_role_shape(cfg, role, layer, &n_out, &n_in);
			if (n_out == 0)
				continue;
			if (t->dense != NULL) {
				t->dense[t->n_dense].role = role;
				t->dense[t->n_dense].layer = layer;
			}
			t->n_dense++;
		}
}

int od_shadow_table_init(struct od_shadow_table *t, const struct od_config *cfg, enum od_precision precision,
			 struct od_err *err)
{
	uint64_t at;

	*t = (struct od_shadow_table){ .precision = precision };
	list_dense(t, cfg);
	t->n = od_shadow_expert_index(t, cfg, cfg->n_moe, 0, OD_MAT_GATE);
	t->tensor = calloc(t->n, sizeof(*t->tensor));
	t->dense = calloc(t->n_dense + 1, sizeof(*t->dense));
	if (t->tensor == NULL || t->dense == NULL) {
		od_shadow_table_fini(t);
		return od_fail(err, OD_ERR_NOMEM, "no memory for a shadow's table of %zu tensors", t->n);
	}
	list_dense(t, cfg);
	t->header_bytes = od_round_up(sizeof(struct od_disk_shadow) + t->n * sizeof(*t->tensor), OD_PAGE_BYTES);
	at = t->header_bytes;
	for (size_t i = 0; i < t->n; i++) {
		struct od_disk_shadow_tensor *x = &t->tensor[i];

		if (i < t->n_dense)
			od_role_shape(cfg, t->dense[i].role, t->dense[i].layer, &x->n_out, &x->n_in);
		else
			od_expert_mat_shape(cfg, (enum od_expert_mat)((i - t->n_dense) % OD_N_EXPERT_MATS), &x->n_out,
					    &x->n_in);
		x->offset = at;
		x->bytes = od_shadow_sections(precision, x->n_out, x->n_in).bytes;
		if (!od_add(at, x->bytes, &at)) {
			od_shadow_table_fini(t);
			return od_fail(err, OD_ERR_RANGE, "a shadow of this model exceeds the largest file size");
		}
	}
	t->file_bytes = at;
	return OD_OK;
}

void od_shadow_table_fini(struct od_shadow_table *t)
{
	free(t->tensor);
	free(t->dense);
	memset(t, 0, sizeof(*t));
}

uint64_t od_shadow_weights(const struct od_shadow_table *t)
{
	uint64_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		n += t->tensor[i].n_out * t->tensor[i].n_in;
	return n;
}

uint64_t od_shadow_set_bytes(const struct od_config *cfg, unsigned set)
{
	uint64_t sum = 0;

	for (int p = 1; p <= OD_N_PRECISIONS; p++) {
		struct od_shadow_table t;

		if ((set & OD_SHADOW_BIT(p)) == 0 || od_shadow_table_init(&t, cfg, (enum od_precision)p, NULL) != OD_OK)
			continue; /* making it will fail too, and say why */
		sum += t.file_bytes;
		od_shadow_table_fini(&t);
	}
	return sum;
}

/* ---- headers ---- */

static uint64_t header_xxh3(const uint8_t *buf, size_t len)
{
	const size_t from = offsetof(struct od_disk_shadow, schema);

	return XXH3_64bits(buf + from, len - from);
}

void od_shadow_header_write(const struct od_shadow_table *t, const char *fingerprint, uint8_t *buf)
{
	struct od_disk_shadow d = {
		.schema = OD_SHADOW_SCHEMA,
		.precision = disk_number[t->precision - 1],
		.n_tensors = (uint32_t)t->n,
		.header_bytes = t->header_bytes,
		.file_bytes = t->file_bytes,
	};

	memcpy(d.magic, OD_SHADOW_MAGIC, sizeof(d.magic));
	if (!od_unhex(fingerprint, d.fingerprint, sizeof(d.fingerprint)))
		abort(); /* whoever made or opened the pack has seen to it */
	memset(buf, 0, t->header_bytes);
	memcpy(buf, &d, sizeof(d));
	memcpy(buf + sizeof(d), t->tensor, t->n * sizeof(*t->tensor));
	d.xxh3 = header_xxh3(buf, t->header_bytes);
	memcpy(buf, &d, sizeof(d));
}

static int check_fixed(const struct od_disk_shadow *d, const struct od_shadow_table *t, const char *path,
		       struct od_err *err)
{
	const struct {
		const char *name;
		uint64_t expected, found;
	} field[] = {
		{ "n_tensors", t->n, d->n_tensors },
		{ "header_bytes", t->header_bytes, d->header_bytes },
		{ "file_bytes", t->file_bytes, d->file_bytes },
		{ "zero", 0,
		  d->zero | d->more_zero[0] | d->more_zero[1] | d->more_zero[2] | d->more_zero[3] | d->more_zero[4] |
			  d->more_zero[5] },
	};

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		if (field[i].expected != field[i].found)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: header field \"%s\": expected %" PRIu64 ", found %" PRIu64, path,
				       field[i].name, field[i].expected, field[i].found);
	return OD_OK;
}

/* Everything but the checksums is redundant, and must agree. */
static int check_tensor(const struct od_disk_shadow_tensor *expected, const struct od_disk_shadow_tensor *found,
			size_t i, const char *path, struct od_err *err)
{
	struct od_disk_shadow_tensor same = *found;

	same.xxh3 = expected->xxh3;
	if (memcmp(&same, expected, sizeof(same)) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_FORMAT,
		       "%s: tensor %zu: expected [%" PRIu64 "][%" PRIu64 "], %" PRIu64 " bytes at "
		       "offset %" PRIu64 ", found [%" PRIu64 "][%" PRIu64 "], %" PRIu64 " bytes at offset %" PRIu64,
		       path, i, expected->n_out, expected->n_in, expected->bytes, expected->offset, found->n_out,
		       found->n_in, found->bytes, found->offset);
}

static const char *disk_name(uint32_t number)
{
	for (size_t i = 0; i < OD_N_PRECISIONS; i++)
		if (disk_number[i] == number)
			return od_precision_names[i];
	return "unknown";
}

static int check_identity(const struct od_disk_shadow *d, const struct od_shadow_table *t, const char *fingerprint,
			  const char *path, struct od_err *err)
{
	char hex[OD_FINGERPRINT_CHARS + 1];

	if (d->precision != disk_number[t->precision - 1])
		return od_fail(err, OD_ERR_MISMATCH, "%s: precision: expected %u (%s), as the name says, found %u (%s)",
			       path, disk_number[t->precision - 1], od_precision_names[t->precision - 1], d->precision,
			       disk_name(d->precision));
	od_hex(d->fingerprint, sizeof(d->fingerprint), hex);
	if (strcmp(hex, fingerprint) != 0)
		return od_fail(err, OD_ERR_MISMATCH,
			       "%s: this shadow was made from another model: fingerprint: expected %s, "
			       "as the pack has, found %s",
			       path, fingerprint, hex);
	return OD_OK;
}

int od_shadow_header_parse(struct od_shadow_table *t, const char *fingerprint, const uint8_t *buf, const char *path,
			   struct od_err *err)
{
	struct od_disk_shadow d;
	int rc = OD_OK;

	memcpy(&d, buf, sizeof(d));
	if (memcmp(d.magic, OD_SHADOW_MAGIC, sizeof(d.magic)) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: no shadow, or one from before shadows had headers", path);
	if (d.schema != OD_SHADOW_SCHEMA)
		return od_fail(err, OD_ERR_MISMATCH,
			       "%s: schema version: expected %d, found %u: made by another version of "
			       "od-pack",
			       path, OD_SHADOW_SCHEMA, d.schema);
	/* Another model's header has another length: then its fingerprint, not its checksum, is what there is to
	 * say. */
	if (d.header_bytes == t->header_bytes)
		rc = od_check_xxh3(header_xxh3(buf, t->header_bytes), d.xxh3, err, "%s: header: checksum", path);
	if (rc == OD_OK)
		rc = check_identity(&d, t, fingerprint, path, err);
	if (rc == OD_OK)
		rc = check_fixed(&d, t, path, err);
	for (size_t i = 0; rc == OD_OK && i < t->n; i++) {
		struct od_disk_shadow_tensor x;

		memcpy(&x, buf + sizeof(d) + i * sizeof(x), sizeof(x));
		rc = check_tensor(&t->tensor[i], &x, i, path, err);
		t->tensor[i].xxh3 = x.xxh3;
	}
	for (size_t i = sizeof(d) + t->n * sizeof(*t->tensor); rc == OD_OK && i < t->header_bytes; i++)
		if (buf[i] != 0)
			rc = od_fail(err, OD_ERR_FORMAT, "%s: byte at offset %zu: expected 0, found %u", path, i,
				     buf[i]);
	return rc;
}
