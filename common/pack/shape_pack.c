#include "common/pack/shape_pack.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/gguf/gguf.h"
#include "common/pack/given.h"
#include "common/pack/import/source.h"
#include "common/pack/models_folder.h"
#include "common/pack/pack_internal.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX_BYTES (16u << 20)

/* ---- types by config.json alone ---- */

struct shaping {
	struct od_pack *pack;
	struct od_checkpoint *checkpoint; /* NULL: only config.json is there */
	/* By config.json: of vectors and matrices that stay whole, of experts, of other matrices of layers. */
	struct od_mat_type plain, expert, layer;
};

static uint64_t find_bits(const json_t *q)
{
	const json_t *group;
	const char *name;
	json_int_t bits = 8;

	json_object_foreach(json_object_get(q, "config_groups"), name, group) bits =
		json_integer_value(json_object_get(json_object_get(group, "weights"), "num_bits"));
	return bits == 4 ? 4 : 8;
}

static uint32_t find_group(const json_t *q)
{
	const json_t *group;
	const char *name;
	json_int_t n = 0;

	json_object_foreach(json_object_get(q, "config_groups"), name, group) n =
		json_integer_value(json_object_get(json_object_get(group, "weights"), "group_size"));
	return n > 0 && n <= INT32_MAX ? (uint32_t)n : 0;
}

/* As torch_dtype says; experts and matrices of layers as quantization_config says. gpt-oss quantises experts alone. */
static void guess_types(struct shaping *s, const json_t *root)
{
	const struct od_config *cfg = &s->pack->config;
	const json_t *text = json_object_get(root, "text_config"), *q;
	const json_t *from = json_is_object(text) ? text : root;
	const char *dtype = json_string_value(json_object_get(from, "torch_dtype")), *method;

	dtype = dtype != NULL ? dtype : json_string_value(json_object_get(from, "dtype"));
	s->plain.dtype = dtype == NULL		       ? OD_BF16 :
			 strcmp(dtype, "float16") == 0 ? OD_F16 :
			 strcmp(dtype, "float32") == 0 ? OD_F32 :
							 OD_BF16;
	s->expert = s->layer = s->plain;
	q = json_object_get(root, "quantization_config");
	q = q != NULL ? q : json_object_get(root, "compression_config");
	method = json_string_value(json_object_get(q, "quant_method"));
	if (!cfg->scaled || method == NULL)
		return;
	if (strcmp(method, "mxfp4") == 0)
		s->expert = (struct od_mat_type){ OD_F4_E2M1, OD_F8_E8M0, 1, 32 };
	else if (find_bits(q) == 4)
		s->expert = s->layer = (struct od_mat_type){ OD_U4B8, OD_BF16, 1, find_group(q) };
	else if (cfg->scale_block[0] > 0 || cfg->scale_block[1] > 0)
		s->expert = s->layer =
			(struct od_mat_type){ OD_F8_E4M3, OD_F32, cfg->scale_block[0], cfg->scale_block[1] };
	else
		s->expert = s->layer = (struct od_mat_type){ OD_F8_E4M3, OD_BF16, 1, 0 };
}

static struct od_mat_type dense_type(const struct shaping *s, const struct od_dense_tensor *t)
{
	struct od_mat_type type = s->plain;

	if (s->checkpoint != NULL)
		return od_source_dense(s->checkpoint, &s->pack->config, t->role, t->layer).type;
	if (t->n_in > 0 && od_role_quantised(t->role) && od_mat_type_ok(&s->layer, t->n_in))
		type = s->layer;
	return type;
}

static struct od_mat_type expert_type(const struct shaping *s, uint32_t m, int mat)
{
	uint64_t n_out, n_in;

	if (s->checkpoint != NULL)
		return od_source_expert(s->checkpoint, &s->pack->config, m, 0, (enum od_expert_mat)mat).type;
	od_expert_mat_shape(&s->pack->config, (enum od_expert_mat)mat, &n_out, &n_in);
	return od_expert_is_bias(mat) || !od_mat_type_ok(&s->expert, n_in) ? s->plain : s->expert;
}

/* ---- experts as stored ---- */

/* Bits of a weight in an E-chunk, with its scales, of usual weights: docs/BENCHMARKS.md, "Bits of a weight" and "Other
 * types"; trained and Gaussian weights agree to 1 percent. 0: it is stored as it is. */
static double coded_bits(const struct od_mat_type *t)
{
	switch ((int)t->dtype) {
	case OD_BF16: return 2.68;
	case OD_F16: return 5.49;
	case OD_F32: return 2.69;
	case OD_F8_E4M3: return t->scale == OD_F8_E8M0 ? 6.64 : 6.56;
	case OD_F8_E5M2: return 5.57;
	case OD_INT8:
	case OD_U8B128: return 7.34;
	case OD_U4B8: return t->block_cols == 0 || t->block_cols >= 64 ? 3.58 : 4.04;
	case OD_F4_E2M1: return t->scale == OD_F8_E4M3 ? 4.22 : 3.88;
	default: return 0;
	}
}

static void shape_shard(struct od_shard *s, const struct od_mat_type *t, uint64_t n_in, bool bias)
{
	const uint64_t weights = s->n_rows * n_in;
	const double bits = bias ? 0 : coded_bits(t);
	uint64_t raw, coded;

	s->sm.raw_bytes = s->sm.stored_bytes = bias ? 0 : (uint32_t)(weights * od_codec_sm_bytes(t->dtype));
	raw = od_mat_bytes(t, n_in, s->row_begin, s->n_rows) - s->sm.raw_bytes;
	coded = bits > 0 ? (uint64_t)((double)weights * bits / 8) : raw;
	s->e.codec = (uint8_t)(coded < raw ? od_codec_for(OD_CODEC_PLANES, t->dtype) : OD_CODEC_RAW);
	s->e.raw_bytes = (uint32_t)raw;
	s->e.stored_bytes = (uint32_t)(coded < raw ? coded : raw);
}

/* Fills the entry of the layer's first expert, as od_expert_write would at `offset`. */
static int shape_expert(const struct shaping *s, uint32_t m, uint64_t offset, struct od_expert_entry *e,
			struct od_err *err)
{
	const struct od_config *cfg = &s->pack->config;
	struct od_shard *shard = calloc(od_expert_shards(cfg), sizeof(*shard));
	uint64_t e_at;
	uint32_t n = 0;

	if (shard == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for expert tables");
	*e = (struct od_expert_entry){ .x = { .offset = offset, .n_shards = od_expert_shards(cfg), .shard = shard } };
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++)
		e->type[mat] = expert_type(s, m, mat);
	e->sm_offset = offset + od_expert_header_bytes(cfg);
	e_at = e->e_offset = offset + od_expert_e_offset(cfg, e->type);
	for (int mat = 0; mat < od_expert_tensors(cfg); mat++) {
		uint64_t n_out, n_in, rows;

		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		rows = od_shard_rows(n_out, n_in);
		for (uint64_t row = 0; row < n_out; row += rows) {
			shard[n] = (struct od_shard){ .mat = (uint8_t)mat,
						      .row_begin = (uint32_t)row,
						      .n_rows = (uint32_t)(rows < n_out - row ? rows : n_out - row) };
			shape_shard(&shard[n], &e->type[mat], n_in, od_expert_is_bias(mat));
			e_at += shard[n++].e.stored_bytes;
		}
	}
	e->x.bytes = od_region_end(e_at) - offset;
	return OD_OK;
}

/* A layer's experts are alike: only the first has a table of shards. */
static int shape_layer(const struct shaping *s, uint32_t m, struct od_err *err)
{
	struct od_pack *p = s->pack;
	struct od_expert_entry *first = &p->expert[(size_t)m * p->config.n_experts];
	int rc = shape_expert(s, m, p->manifest.experts_bytes, first, err);

	if (rc != OD_OK)
		return rc;
	for (uint32_t i = 1; i < p->config.n_experts; i++) {
		const uint64_t by = i * first->x.bytes;

		first[i] = *first;
		first[i].x.shard = NULL;
		first[i].x.n_shards = 0;
		first[i].x.offset += by;
		first[i].sm_offset += by;
		first[i].e_offset += by;
	}
	p->manifest.experts_bytes += p->config.n_experts * first->x.bytes;
	return OD_OK;
}

static int shape_tables(struct shaping *s, struct od_err *err)
{
	struct od_pack *p = s->pack;
	int rc = od_manifest_init(&p->manifest, &p->config, err);

	if (rc != OD_OK)
		return rc;
	p->manifest.codec = OD_CODEC_PLANES;
	for (size_t i = 0; i < p->manifest.n_dense; i++)
		p->manifest.dense[i].type = dense_type(s, &p->manifest.dense[i]);
	od_manifest_lay_out_dense(&p->manifest);
	p->expert = calloc(p->manifest.n_experts, sizeof(*p->expert));
	if (p->expert == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for expert tables", p->dir);
	for (uint32_t m = 0; rc == OD_OK && m < p->config.n_moe; m++)
		rc = shape_layer(s, m, err);
	return rc == OD_OK ? od_pack_measure(p, err) : rc;
}

/* ---- opening ---- */

static bool has(const char *dir, const char *name)
{
	char path[PATH_MAX];

	return od_path(path, sizeof(path), dir, name, NULL) == OD_OK && od_file_there(path);
}

static bool has_weights(const char *dir)
{
	DIR *d = opendir(dir);
	const struct dirent *e;
	bool found = false;

	while (d != NULL && !found && (e = readdir(d)) != NULL)
		found = strstr(e->d_name, ".safetensors") != NULL;
	if (d != NULL)
		closedir(d);
	return found;
}

/* A folder without weights, also in forms that od-pack does not read: od_given_checkpoint speaks of those. */
static bool is_config_alone(const char *dir)
{
	struct od_err ignored;

	return od_is_dir(dir) && has(dir, "config.json") && !has(dir, OD_MODEL_NAME) && !has_weights(dir) &&
	       od_given_checkpoint(dir, NULL, &ignored) == OD_ERR_MISSING;
}

static bool is_json_file(const char *path)
{
	const size_t n = strlen(path);

	return n > 5 && strcasecmp(path + n - 5, ".json") == 0 && od_file_there(path) && !od_is_dir(path);
}

static int new_pack(struct od_pack **out, const char *dir, struct od_err *err)
{
	struct od_pack *p = calloc(1, sizeof(*p));

	*out = p;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", dir);
	p->dir = strdup(dir);
	p->folder = strdup(dir);
	memset(p->manifest.fingerprint, '0', OD_FINGERPRINT_CHARS);
	return p->dir != NULL && p->folder != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s", dir);
}

static int open_config(struct shaping *s, const char *path, struct od_err *err)
{
	json_t *root = NULL;
	int rc = od_config_load(&s->pack->config, path, err);

	if (rc == OD_OK)
		rc = od_json_load(path, CONFIG_MAX_BYTES, &root, err);
	if (rc == OD_OK)
		guess_types(s, root);
	json_decref(root);
	return rc == OD_OK ? shape_tables(s, err) : rc;
}

static int open_checkpoint(struct shaping *s, const char *dir, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, "config.json", err);

	if (rc == OD_OK)
		rc = od_config_load(&s->pack->config, path, err);
	if (rc == OD_OK)
		rc = od_checkpoint_open(&s->checkpoint, dir, err);
	if (rc == OD_OK)
		rc = od_source_check(s->checkpoint, &s->pack->config, err);
	if (rc == OD_OK)
		rc = shape_tables(s, err);
	od_checkpoint_close(s->checkpoint);
	return rc;
}

int od_pack_open_shape(struct od_pack **out, const char *given, enum od_shape_source *source, struct od_err *err)
{
	char dir[PATH_MAX], config[PATH_MAX];
	struct shaping s = { 0 };
	int rc = od_models_find(dir, given, err);

	*out = NULL;
	*source = OD_SHAPE_PACK;
	if (rc != OD_OK)
		return rc;
	if (is_json_file(dir) || is_config_alone(dir))
		*source = OD_SHAPE_CONFIG;
	else if (od_is_dir(dir) && has(dir, "config.json") && !has(dir, OD_MODEL_NAME))
		*source = OD_SHAPE_CHECKPOINT;
	else
		return od_pack_open(out, given, err);
	rc = new_pack(&s.pack, dir, err);
	if (rc == OD_OK && *source == OD_SHAPE_CHECKPOINT) {
		rc = od_given_checkpoint(dir, NULL, err);
		if (rc == OD_OK)
			rc = open_checkpoint(&s, dir, err);
	} else if (rc == OD_OK) {
		rc = od_path(config, sizeof(config), dir, "config.json", err);
		if (rc == OD_OK)
			rc = open_config(&s, od_is_dir(dir) ? config : dir, err);
	}
	if (rc != OD_OK) {
		od_pack_close(s.pack);
		return rc;
	}
	*out = s.pack;
	return OD_OK;
}

/* ---- sizes ---- */

uint64_t od_pack_disk_bytes(const struct od_pack *p)
{
	return od_pack_is_gguf(p) ? od_pack_bytes(p) : p->manifest.dense_bytes + p->manifest.experts_bytes;
}

void od_pack_each_dense(const struct od_pack *p, void (*each)(void *arg, const struct od_dense_size *t), void *arg)
{
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];
		const struct od_dense_size size = { t->role, t->layer, t->n_out, t->n_in, t->bytes };

		each(arg, &size);
	}
}
