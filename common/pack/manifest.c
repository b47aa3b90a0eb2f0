#include "common/pack/manifest.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/import/source.h"

#include <inttypes.h>
#include <limits.h>
#include <lz4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* ---- tables ---- */

static size_t list_dense(const struct od_config *cfg, struct od_dense_tensor *out)
{
	size_t n = 0;

	for (int round = 0; round < 2; round++)
		for (uint32_t layer = 0; layer < (round == 0 ? 1 : cfg->n_layers); layer++)
			for (int role = 0; role < OD_N_ROLES; role++) {
				struct od_dense_tensor t = { .role = (enum od_role)role, .layer = layer };

				if (od_role_per_layer(t.role) != (round == 1))
					continue;
				od_role_shape(cfg, t.role, layer, &t.n_out, &t.n_in);
				if (t.n_out == 0)
					continue;
				if (out != NULL)
					out[n] = t;
				n++;
			}
	return n;
}

int od_manifest_init(struct od_manifest *m, const struct od_config *cfg, struct od_err *err)
{
	memset(m, 0, sizeof(*m));
	m->n_dense = list_dense(cfg, NULL);
	m->n_experts = (size_t)cfg->n_moe * cfg->n_experts;
	m->dense = calloc(m->n_dense, sizeof(*m->dense));
	m->expert = calloc(m->n_experts, sizeof(*m->expert));
	if (m->dense == NULL || m->expert == NULL) {
		od_manifest_fini(m);
		return od_fail(err, OD_ERR_NOMEM, "no memory for the tables of %zu tensors and %zu experts", m->n_dense,
			       m->n_experts);
	}
	list_dense(cfg, m->dense);
	return OD_OK;
}

void od_manifest_fini(struct od_manifest *m)
{
	free(m->dense);
	free(m->expert);
	free(m->layer);
	memset(m, 0, sizeof(*m));
}

uint64_t od_dense_row(enum od_dense_form form, uint32_t run, uint64_t row)
{
	const uint64_t at = run > 0 ? row % run : 0, first = row - at;

	switch (form) {
	case OD_DENSE_PAIRS: return first + (at < run / 2 ? 2 * at : 2 * (at - run / 2) + 1);
	case OD_DENSE_FIRST_RUNS: return 2 * first + at;
	case OD_DENSE_SECOND_RUNS: return 2 * first + run + at;
	case OD_DENSE_AS_IS:
	case OD_DENSE_NEGATIVE_EXP: break;
	}
	return row;
}

uint64_t od_manifest_row_bytes(const struct od_manifest *m)
{
	uint64_t most = 0;

	for (size_t i = 0; i < m->n_dense; i++) {
		const uint64_t each = od_mat_row_bytes(&m->dense[i].type, m->dense[i].n_in);

		most = each > most ? each : most;
	}
	return most;
}

void od_manifest_lay_out_dense(struct od_manifest *m)
{
	uint64_t at = 0;

	for (size_t i = 0; i < m->n_dense; i++) {
		struct od_dense_tensor *t = &m->dense[i];

		t->offset = at;
		t->bytes = od_mat_bytes(&t->type, t->n_in > 0 ? t->n_in : 1, 0, t->n_out);
		at = od_region_end(at + t->bytes);
	}
	m->dense_bytes = at;
}

/* ---- reading ---- */

static int json_hex64(const json_t *o, const char *key, uint64_t *out, const char *where, struct od_err *err)
{
	uint8_t b[8];
	const char *s;
	int rc = od_json_str(o, key, &s, where, err);

	*out = 0;
	if (rc != OD_OK)
		return rc;
	if (!od_unhex(s, b, sizeof(b)))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected 16 hexadecimal digits, found \"%.32s\"",
			       where, key, s);
	for (size_t i = 0; i < sizeof(b); i++)
		*out = *out << 8 | b[i];
	return OD_OK;
}

static int json_is(const json_t *o, const char *key, uint64_t expected, const char *where, struct od_err *err)
{
	uint64_t found;
	int rc = od_json_u64(o, key, 0, INT64_MAX, &found, where, err);

	if (rc == OD_OK && found != expected)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected %" PRIu64 ", found %" PRIu64, where, key,
			       expected, found);
	return rc;
}

static int json_is_str(const json_t *o, const char *key, const char *expected, const char *where, struct od_err *err)
{
	const char *found;
	int rc = od_json_str(o, key, &found, where, err);

	if (rc == OD_OK && strcmp(found, expected) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected \"%s\", found \"%.64s\"", where, key,
			       expected, found);
	return rc;
}

/* An array of a known length. */
static int json_table(const json_t *o, const char *key, size_t n, json_t **out, const char *where, struct od_err *err)
{
	int rc = od_json_arr(o, key, out, where, err);

	if (rc == OD_OK && json_array_size(*out) != n)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected %zu entries, found %zu", where, key, n,
			       json_array_size(*out));
	return rc;
}

static int read_scales(struct od_mat_type *t, const json_t *o, const char *where, struct od_err *err)
{
	json_t *scales;
	const char *s;
	int rc = od_json_obj(o, "scales", &scales, where, err);

	if (rc == OD_OK)
		rc = od_json_str(scales, "dtype", &s, where, err);
	if (rc != OD_OK)
		return rc;
	t->scale = od_dtype_parse(s);
	if (t->scale == 0)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"scales\": unknown dtype \"%.16s\": " OD_MAKE_AGAIN,
			       where, s);
	rc = od_json_u32(scales, "block_rows", 0, UINT32_MAX, &t->block_rows, where, err);
	return rc == OD_OK ? od_json_u32(scales, "block_cols", 0, UINT32_MAX, &t->block_cols, where, err) : rc;
}

/* Index enum od_dense_form; in `source` all, as a tensor's "form" one. */
static const char *const form_names[] = { "as_is", "pairs", "negative_exp", "first_runs", "second_runs" };

/* Only packs made from GGUF files have the field. */
static int read_form(const struct od_manifest *m, struct od_dense_tensor *t, const json_t *o, const char *where,
		     struct od_err *err)
{
	const char *s;
	int rc = od_json_str(o, "form", &s, where, err);

	if (rc != OD_OK)
		return rc;
	if (m->schema != OD_PACK_SCHEMA_GGUF || t->role != OD_ROLE_DELTA_A_LOG ||
	    strcmp(s, form_names[OD_DENSE_NEGATIVE_EXP]) != 0)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: field \"form\": \"%.32s\" is not known for a %s with schema version %u: " OD_MAKE_AGAIN,
			where, s, od_role_name(t->role), m->schema);
	t->form = OD_DENSE_NEGATIVE_EXP;
	return OD_OK;
}

static int read_dense_head(struct od_dense_tensor *t, const json_t *o, const char *where, struct od_err *err)
{
	const char *s;
	int rc = json_is_str(o, "role", od_role_name(t->role), where, err);

	if (rc == OD_OK && od_role_per_layer(t->role))
		rc = json_is(o, "layer", t->layer, where, err);
	if (rc == OD_OK)
		rc = od_json_str(o, "dtype", &s, where, err);
	if (rc != OD_OK)
		return rc;
	t->type = (struct od_mat_type){ .dtype = od_dtype_parse(s) };
	rc = od_json_has(o, "scales") ? read_scales(&t->type, o, where, err) : OD_OK;
	if (rc == OD_OK && !od_dense_type_ok(t->role, &t->type, t->n_in))
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: field \"dtype\": \"%.16s\" %s is not allowed for a %s: " OD_MAKE_AGAIN, where, s,
			     t->type.scale != 0 ? "with such scales" : "without scales", od_role_name(t->role));
	if (rc != OD_OK)
		return rc;
	rc = od_json_str(o, "sha256", &s, where, err);
	if (rc == OD_OK && !od_unhex(s, t->sha256, sizeof(t->sha256)))
		rc = od_fail(err, OD_ERR_FORMAT, "%s: field \"sha256\": expected 64 hexadecimal digits", where);
	return rc == OD_OK ? json_hex64(o, "xxh3", &t->xxh3, where, err) : rc;
}

static int read_dense_shape(const struct od_dense_tensor *t, const json_t *o, const char *where, struct od_err *err)
{
	json_t *shape;
	int rc = json_table(o, "shape", t->n_in > 0 ? 2 : 1, &shape, where, err);

	for (size_t i = 0; rc == OD_OK && i < json_array_size(shape); i++) {
		const json_t *v = json_array_get(shape, i);
		uint64_t expected = i == 0 ? t->n_out : t->n_in;

		if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) != expected)
			rc = od_fail(err, OD_ERR_SHAPE, "%s: field \"shape\": dimension %zu: config.json says %" PRIu64,
				     where, i, expected);
	}
	if (rc == OD_OK)
		rc = json_is(o, "offset", t->offset, where, err);
	return rc == OD_OK ? json_is(o, "bytes", t->bytes, where, err) : rc;
}

static int read_dense(struct od_manifest *m, const json_t *root, const char *path, struct od_err *err)
{
	json_t *dense, *table;
	char where[PATH_MAX + 64];
	int rc = od_json_obj(root, "dense", &dense, path, err);

	if (rc == OD_OK)
		rc = json_table(dense, "tensors", m->n_dense, &table, path, err);
	for (size_t i = 0; rc == OD_OK && i < m->n_dense; i++) {
		snprintf(where, sizeof(where), "%s: dense tensor %zu", path, i);
		rc = read_dense_head(&m->dense[i], json_array_get(table, i), where, err);
		if (rc == OD_OK && od_json_has(json_array_get(table, i), "form"))
			rc = read_form(m, &m->dense[i], json_array_get(table, i), where, err);
	}
	if (rc != OD_OK)
		return rc;
	od_manifest_lay_out_dense(m);
	for (size_t i = 0; rc == OD_OK && i < m->n_dense; i++) {
		snprintf(where, sizeof(where), "%s: dense tensor %zu", path, i);
		rc = read_dense_shape(&m->dense[i], json_array_get(table, i), where, err);
	}
	return rc == OD_OK ? json_is(dense, "bytes", m->dense_bytes, path, err) : rc;
}

static int read_experts(struct od_manifest *m, const struct od_config *cfg, const json_t *root, const char *path,
			struct od_err *err)
{
	json_t *experts, *table;
	char where[PATH_MAX + 64];
	uint64_t at = 0;
	int rc = od_json_obj(root, "experts", &experts, path, err);

	if (rc == OD_OK)
		rc = json_table(experts, "table", m->n_experts, &table, path, err);
	for (size_t i = 0; rc == OD_OK && i < m->n_experts; i++) {
		struct od_expert_extent *e = &m->expert[i];
		const json_t *o = json_array_get(table, i);

		snprintf(where, sizeof(where), "%s: expert %zu", path, i);
		rc = json_is(o, "m", i / cfg->n_experts, where, err);
		if (rc == OD_OK)
			rc = json_is(o, "expert", i % cfg->n_experts, where, err);
		if (rc == OD_OK)
			rc = json_is(o, "offset", at, where, err);
		if (rc == OD_OK)
			rc = od_json_u64(o, "bytes", OD_PAGE_BYTES, INT64_MAX, &e->bytes, where, err);
		if (rc == OD_OK)
			rc = json_hex64(o, "header_xxh3", &e->header_xxh3, where, err);
		e->offset = at;
		if (rc == OD_OK && !od_add(at, e->bytes, &at))
			rc = od_fail(err, OD_ERR_RANGE, "%s: field \"bytes\": too large", where);
	}
	m->experts_bytes = at;
	return rc == OD_OK ? json_is(experts, "bytes", at, path, err) : rc;
}

static int read_codec(struct od_manifest *m, const json_t *root, const char *path, struct od_err *err)
{
	const char *s;
	int rc = od_json_str(root, "codec", &s, path, err);

	if (rc == OD_OK)
		for (int i = 0; i < OD_N_CODECS; i++)
			if (strcmp(s, od_codec_names[i]) == 0) {
				m->codec = (enum od_codec)i;
				return OD_OK;
			}
	return rc == OD_OK ? od_fail(err, OD_ERR_FORMAT,
				     "%s: field \"codec\": expected raw, zstd, lz4 or planes, found "
				     "\"%.64s\"",
				     path, s) :
			     rc;
}

static int read_top(struct od_manifest *m, const struct od_config *cfg, const json_t *root, const char *path,
		    struct od_err *err)
{
	uint8_t sum[OD_SHA256_BYTES];
	const char *s;
	uint64_t schema;
	int rc = od_json_u64(root, "schema_version", 0, INT64_MAX, &schema, path, err);

	if (rc != OD_OK)
		return rc;
	if (schema != OD_PACK_SCHEMA && schema != OD_PACK_SCHEMA_GGUF)
		return od_fail(err, OD_ERR_MISMATCH,
			       "%s: field \"schema_version\": expected %d or %d, found %" PRIu64 ": " OD_MAKE_AGAIN,
			       path, OD_PACK_SCHEMA, OD_PACK_SCHEMA_GGUF, schema);
	m->schema = (uint32_t)schema;
	rc = json_is_str(root, "family", cfg->family->name, path, err);
	if (rc == OD_OK)
		rc = od_json_str(root, "fingerprint", &s, path, err);
	if (rc != OD_OK)
		return rc;
	if (!od_unhex(s, sum, sizeof(sum)))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"fingerprint\": expected %d hexadecimal digits", path,
			       OD_FINGERPRINT_CHARS);
	memcpy(m->fingerprint, s, sizeof(m->fingerprint));
	return OD_OK;
}

static int read_tables(struct od_manifest *m, const struct od_config *cfg, const json_t *root, const char *path,
		       struct od_err *err)
{
	int rc = read_codec(m, root, path, err);

	if (rc == OD_OK)
		rc = read_dense(m, root, path, err);
	return rc == OD_OK ? read_experts(m, cfg, root, path, err) : rc;
}

/* ---- a share of a GGUF file ---- */

static int read_layer_type(struct od_mat_type *t, const struct od_config *cfg, enum od_expert_mat mat, const json_t *o,
			   const char *where, struct od_err *err)
{
	uint64_t n_out, n_in;
	const char *s;
	bool ok;
	int rc = od_json_str(o, od_expert_mat_name(mat), &s, where, err);

	if (rc != OD_OK)
		return rc;
	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	*t = (struct od_mat_type){ .dtype = od_dtype_parse(s) };
	ok = od_expert_is_bias(mat) ? od_bias_type_ok(t) : od_mat_type_ok(t, n_in);
	return ok ? OD_OK :
		    od_fail(err, OD_ERR_UNSUPPORTED,
			    "%s: field \"%s\": type \"%.16s\" is unknown here or does not fit rows of %" PRIu64
			    ": use the same version of od-moe on all hosts",
			    where, od_expert_mat_name(mat), s, n_in);
}

static int read_share(struct od_manifest *m, const struct od_config *cfg, const json_t *root, const char *path,
		      struct od_err *err)
{
	char where[PATH_MAX + 64];
	uint64_t at = 0;
	json_t *table;
	int rc = json_table(root, "gguf", cfg->n_moe, &table, path, err);

	if (rc == OD_OK && m->n_experts > OD_SHARE_MAX_EXPERTS)
		rc = od_fail(err, OD_ERR_RANGE, "%s: %zu experts, %u can be listed", path, m->n_experts,
			     OD_SHARE_MAX_EXPERTS);
	m->codec = OD_CODEC_RAW;
	m->layer = calloc(cfg->n_moe, sizeof(*m->layer));
	if (rc == OD_OK && m->layer == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	for (uint32_t l = 0; rc == OD_OK && l < cfg->n_moe; l++) {
		struct od_layer_types *types = &m->layer[l];
		uint64_t each = 0;

		snprintf(where, sizeof(where), "%s: MoE layer %u", path, l);
		for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(cfg); mat++)
			rc = read_layer_type(&types->type[mat], cfg, (enum od_expert_mat)mat, json_array_get(table, l),
					     where, err);
		if (rc == OD_OK)
			rc = od_share_expert_bytes(cfg, types->type, &each, err);
		for (uint32_t e = 0; rc == OD_OK && e < cfg->n_experts; e++) {
			m->expert[(size_t)l * cfg->n_experts + e] =
				(struct od_expert_extent){ .offset = at, .bytes = each };
			if (!od_add(at, each, &at) || at > INT64_MAX)
				rc = od_fail(err, OD_ERR_RANGE, "%s: too large", where);
		}
	}
	m->experts_bytes = at;
	return rc;
}

int od_manifest_read(struct od_manifest *m, const struct od_config *cfg, const char *path, struct od_err *err)
{
	json_t *root;
	int rc;

	memset(m, 0, sizeof(*m));
	rc = od_json_load(path, OD_MODEL_MAX_BYTES, &root, err);
	if (rc != OD_OK)
		return rc;
	rc = od_manifest_init(m, cfg, err);
	if (rc == OD_OK)
		rc = read_top(m, cfg, root, path, err);
	if (rc == OD_OK && od_json_has(root, "gguf"))
		rc = read_share(m, cfg, root, path, err);
	else if (rc == OD_OK)
		rc = read_tables(m, cfg, root, path, err);
	json_decref(root);
	if (rc != OD_OK)
		od_manifest_fini(m);
	return rc;
}

/* ---- writing ---- */

static json_t *hex64(uint64_t v)
{
	return json_sprintf("%016" PRIx64, v);
}

/* row_step: where rows of several matrices alternate. */
static json_t *source(const struct od_source *s)
{
	json_t *o = json_pack("{s:s, s:I, s:b}", "tensor", s->weights->name, "first_element",
			      (json_int_t)s->first_element, "transposed", s->column_step != 1);

	if (o != NULL && s->scales_step != 1)
		json_object_set_new(o, "row_step", json_integer((json_int_t)s->scales_step));
	if (o != NULL && s->run > 0) {
		json_object_set_new(o, "rows", json_string(form_names[s->form]));
		json_object_set_new(o, "run", json_integer((json_int_t)s->run));
	}
	return o;
}

static json_t *scales_json(const struct od_mat_type *t)
{
	return json_pack("{s:s, s:I, s:I}", "dtype", od_dtype_name(t->scale), "block_rows", (json_int_t)t->block_rows,
			 "block_cols", (json_int_t)t->block_cols);
}

static json_t *dense_json(const struct od_manifest *m, const struct od_config *cfg, const struct od_checkpoint *from)
{
	json_t *table = json_array();

	for (size_t i = 0; i < m->n_dense; i++) {
		const struct od_dense_tensor *t = &m->dense[i];
		const struct od_source src = od_source_dense(from, cfg, t->role, t->layer);
		char sha[OD_HEX_CHARS(OD_SHA256_BYTES) + 1];
		json_t *o = json_object(), *shape = json_array();

		od_hex(t->sha256, sizeof(t->sha256), sha);
		json_array_append_new(shape, json_integer((json_int_t)t->n_out));
		if (t->n_in > 0)
			json_array_append_new(shape, json_integer((json_int_t)t->n_in));
		json_object_set_new(o, "role", json_string(od_role_name(t->role)));
		if (od_role_per_layer(t->role))
			json_object_set_new(o, "layer", json_integer(t->layer));
		json_object_set_new(o, "source", source(&src));
		json_object_set_new(o, "dtype", json_string(od_dtype_name(t->type.dtype)));
		if (t->form != OD_DENSE_AS_IS)
			json_object_set_new(o, "form", json_string(form_names[t->form]));
		if (t->type.scale != 0)
			json_object_set_new(o, "scales", scales_json(&t->type));
		json_object_set_new(o, "shape", shape);
		json_object_set_new(o, "offset", json_integer((json_int_t)t->offset));
		json_object_set_new(o, "bytes", json_integer((json_int_t)t->bytes));
		json_object_set_new(o, "xxh3", hex64(t->xxh3));
		json_object_set_new(o, "sha256", json_string(sha));
		json_array_append_new(table, o);
	}
	return json_pack("{s:s, s:I, s:o}", "file", OD_DENSE_NAME, "bytes", (json_int_t)m->dense_bytes, "tensors",
			 table);
}

static json_t *experts_json(const struct od_manifest *m, const struct od_config *cfg, const struct od_checkpoint *from)
{
	json_t *table = json_array();

	for (size_t i = 0; i < m->n_experts; i++) {
		const struct od_expert_extent *e = &m->expert[i];
		const uint32_t moe = (uint32_t)(i / cfg->n_experts), expert = (uint32_t)(i % cfg->n_experts);
		json_t *sources = json_object();

		for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
			const struct od_source src = od_source_expert(from, cfg, moe, expert, (enum od_expert_mat)mat);

			json_object_set_new(sources, od_expert_mat_name((enum od_expert_mat)mat), source(&src));
		}
		json_array_append_new(table, json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "m", (json_int_t)moe, "expert",
						       (json_int_t)expert, "offset", (json_int_t)e->offset, "bytes",
						       (json_int_t)e->bytes, "header_xxh3", hex64(e->header_xxh3),
						       "source", sources));
	}
	return json_pack("{s:s, s:I, s:o}", "file", OD_EXPERTS_NAME, "bytes", (json_int_t)m->experts_bytes, "table",
			 table);
}

int od_manifest_write(const struct od_manifest *m, const struct od_config *cfg, const struct od_checkpoint *from,
		      const char *path, struct od_err *err)
{
	json_t *root = json_object();
	char *text;
	int rc;

	json_object_set_new(root, "schema_version", json_integer((json_int_t)m->schema));
	json_object_set_new(root, "producer",
			    json_sprintf("od-pack, zstd %s, lz4 %s", ZSTD_versionString(), LZ4_versionString()));
	json_object_set_new(root, "codec", json_string(od_codec_names[m->codec]));
	json_object_set_new(root, "family", json_string(cfg->family->name));
	json_object_set_new(root, "fingerprint", json_string(m->fingerprint));
	json_object_set_new(root, "dense", dense_json(m, cfg, from));
	json_object_set_new(root, "experts", experts_json(m, cfg, from));
	text = json_dumps(root, JSON_INDENT(1));
	/* A failed allocation deeper down leaves a gap; od-pack reads the file back before it publishes the pack. */
	if (text == NULL || json_object_size(root) != 7)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to write %s", path);
	else
		rc = od_file_write_atomic(path, text, strlen(text), err);
	free(text);
	json_decref(root);
	return rc;
}

int od_manifest_write_share(const char *fingerprint, const struct od_layer_types *layer, const struct od_config *cfg,
			    const char *path, struct od_err *err)
{
	json_t *table = json_array(), *root;
	char *text;
	int rc;

	for (uint32_t m = 0; m < cfg->n_moe; m++) {
		json_t *o = json_object();

		for (int mat = 0; mat < od_expert_tensors(cfg); mat++)
			json_object_set_new(o, od_expert_mat_name((enum od_expert_mat)mat),
					    json_string(od_dtype_name(layer[m].type[mat].dtype)));
		json_array_append_new(table, o);
	}
	root = json_pack("{s:i, s:s, s:s, s:o}", "schema_version", OD_PACK_SCHEMA_GGUF, "family", cfg->family->name,
			 "fingerprint", fingerprint, "gguf", table);
	text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
	if (text == NULL || json_array_size(table) != cfg->n_moe)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to write %s", path);
	else
		rc = od_file_write_atomic(path, text, strlen(text), err);
	free(text);
	json_decref(root);
	return rc;
}
