#include "common/pack/import/source.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/pack_layout.h"
#include "common/text/tokenizer.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool ends_with(const char *name, const char *end)
{
	const size_t len = strlen(name), n = strlen(end);

	return len > n && strcmp(name + len - n, end) == 0;
}

static void shape_text(const uint64_t *shape, uint32_t n, char *buf, size_t size)
{
	size_t len = (size_t)snprintf(buf, size, "[");

	for (uint32_t i = 0; i < n && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
	if (len < size)
		snprintf(buf + len, size - len, "]");
}

/* A matrix, or a vector, with all that is published beside it. */
struct parts {
	struct od_source s;
	const struct od_tensor *shape; /* what packed weights would be unpacked to; NULL: none */
};

static const struct od_tensor *beside(const struct od_checkpoint *c, const char *name, const char *end)
{
	char buf[OD_NAME_BYTES];

	snprintf(buf, sizeof(buf), "%s%s", name, end);
	return od_checkpoint_find(c, buf);
}

static const char *file_of(const struct od_checkpoint *c, const struct od_tensor *t)
{
	return od_checkpoint_file(c, t->file)->name;
}

static bool is_type(const struct od_tensor *t, const char *name)
{
	return strcmp(t->dtype_name, name) == 0;
}

static int bad_shape(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		     struct od_err *err)
{
	const uint64_t want[2] = { n_out, n_in };
	char expected[64], found[256];

	shape_text(want, n_in > 0 ? 2 : 1, expected, sizeof(expected));
	shape_text(t->shape, t->n_dims, found, sizeof(found));
	return od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: expected shape %s (config.json), found %s", file_of(c, t), t->name,
		       expected, found);
}

/* n_in 0: a vector. */
static int check_shape(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       struct od_err *err)
{
	const bool same = t->n_dims == (n_in > 0 ? 2u : 1u) && t->shape[0] == n_out && (n_in == 0 || t->shape[1] == n_in);

	return same ? OD_OK : bad_shape(c, t, n_out, n_in, err);
}

/* Several weights in each element: words of offset integers, or bytes of two E2M1. */
static int look_packed(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       enum od_dtype *dtype, struct od_err *err)
{
	const bool words = is_type(t, "I32"), wide = words && t->n_dims == 2 && t->shape[1] == n_in / 4;
	const uint64_t whole = words ? 8 : 2; /* others would leave a part of an element unused */

	*dtype = wide ? OD_U8B128 : words ? OD_U4B8 : OD_F4_E2M1;
	if (!words && !is_type(t, "U8"))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected dtype I32 (4 or 8 bits) or U8 (FP4), found %s",
			       file_of(c, t), t->name, t->dtype_name);
	if (n_in % whole != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: rows of %" PRIu64 " packed weights: expected a multiple "
			       "of %" PRIu64, file_of(c, t), t->name, n_in, whole);
	return check_shape(c, t, n_out, wide ? n_in / 4 : n_in / whole, err);
}

/* The power of two from least on of which n have n_blocks; 0: one for all. */
static bool block_of(uint64_t n, uint64_t n_blocks, uint32_t least, uint32_t *block)
{
	*block = 0;
	if (n_blocks == 1)
		return true;
	for (uint32_t b = least; b != 0 && b < n; b <<= 1)
		if ((n + b - 1) / b == n_blocks) {
			*block = b;
			return true;
		}
	return false;
}

/* One for all as [], [1] or [1, 1]; one a row as [n_out] or [n_out, 1]; else in blocks. */
static int look_blocks(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       struct od_mat_type *type, struct od_err *err)
{
	const uint64_t rows = t->n_dims > 0 ? t->shape[0] : 1, cols = t->n_dims > 1 ? t->shape[1] : 1;
	const bool list_ok = t->n_dims != 1 || rows == 1 || rows == n_out;
	char found[256];

	if (t->n_dims <= 2 && list_ok && block_of(n_out, rows, 1, &type->block_rows) &&
	    block_of(n_in, cols, OD_SCALE_BLOCK_MIN, &type->block_cols))
		return OD_OK;
	shape_text(t->shape, t->n_dims, found, sizeof(found));
	return od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: found shape %s: scales of a %" PRIu64 " x %" PRIu64 " matrix are expected to "
		       "be one, one a row, or one for blocks whose sides are powers of two, at least %u weights of a row",
		       file_of(c, t), t->name, found, n_out, n_in, OD_SCALE_BLOCK_MIN);
}

/* Are such scales ever beside such weights? A byte beside integers might mean anything. */
static bool is_published(const struct od_mat_type *t)
{
	const bool fp8 = t->dtype == OD_F8_E4M3 || t->dtype == OD_F8_E5M2, fp4 = t->dtype == OD_F4_E2M1;

	if (t->scale == OD_F8_E8M0)
		return fp8 || fp4;
	return t->scale == OD_F8_E4M3 ? fp4 : t->scale != 0;
}

static int look_divisor(const struct od_checkpoint *c, const struct parts *p, const char *name, struct od_err *err)
{
	const struct od_tensor *t = p->s.divisor;

	if ((t != NULL) != (p->s.type.scale == OD_F8_E4M3))
		return od_fail(err, OD_ERR_UNSUPPORTED, "checkpoint %s: tensor %s: expected a %s_global_scale beside F8_E4M3 scales, "
			       "and only there", od_checkpoint_dir(c), p->s.scales->name, name);
	if (t != NULL && (!is_type(t, "F32") || t->bytes != sizeof(float)))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected one F32", file_of(c, t), t->name);
	return OD_OK;
}

static int look_scales(const struct od_checkpoint *c, struct parts *p, const char *name, uint64_t n_out, uint64_t n_in,
		       struct od_err *err)
{
	const struct od_tensor *inverse = beside(c, name, "_scale_inv"), *t = beside(c, name, "_scale");
	struct od_mat_type *type = &p->s.type;
	int rc;

	if (t != NULL && inverse != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: there is a %s too; expected one of them", file_of(c, t),
			       t->name, inverse->name);
	t = t != NULL ? t : inverse; /* both multiply: the name says what the writer had divided by */
	p->s.scales = t;
	p->s.divisor = beside(c, name, "_global_scale");
	if (t == NULL) {
		if (p->s.divisor == NULL && od_mat_type_ok(type, n_in))
			return OD_OK;
		if (type->dtype == 0)
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected dtype BF16, F16, F32, F8_E4M3, F8_E5M2 or I8, "
				       "found %s", file_of(c, p->s.weights), p->s.weights->name, p->s.weights->dtype_name);
		return od_fail(err, OD_ERR_MISSING, "%s: tensor %s: %s weights need scales: expected a %s_scale or %s_scale_inv",
			       file_of(c, p->s.weights), p->s.weights->name, p->s.weights->dtype_name, name, name);
	}
	type->scale = is_type(t, "U8") ? OD_F8_E8M0 : t->dtype;
	rc = look_blocks(c, t, n_out, n_in, type, err);
	if (rc == OD_OK && !(is_published(type) && od_mat_type_ok(type, n_in)))
		rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: %s scales of %s weights are not known here: expected F32, BF16 "
			     "or F16 beside weights of 8 or 4 bits, F8_E8M0 or U8 beside FP8 and FP4, F8_E4M3 beside FP4",
			     file_of(c, t), t->name, t->dtype_name, p->s.weights->dtype_name);
	return rc == OD_OK ? look_divisor(c, p, name, err) : rc;
}

/* name: of the plain matrix; what belongs to it, or is it in another form, has a longer one. */
static int look(const struct od_checkpoint *c, const char *name, uint64_t n_out, uint64_t n_in, struct parts *p,
		struct od_err *err)
{
	const struct od_tensor *plain = od_checkpoint_find(c, name), *packed = beside(c, name, "_packed");
	int rc;

	*p = (struct parts){ .s.weights = plain != NULL ? plain : packed, .shape = beside(c, name, "_shape") };
	if (p->s.weights == NULL)
		return od_fail(err, OD_ERR_MISSING, "checkpoint %s: tensor %s is missing", od_checkpoint_dir(c), name);
	if (plain != NULL && packed != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: there is a %s too; expected one of them", file_of(c, plain),
			       plain->name, packed->name);
	if (plain != NULL) {
		p->s.type.dtype = plain->dtype;
		rc = check_shape(c, plain, n_out, n_in, err);
	} else {
		rc = look_packed(c, packed, n_out, n_in, &p->s.type.dtype, err);
	}
	return rc == OD_OK ? look_scales(c, p, name, n_out, n_in, err) : rc;
}

static struct od_source look_again(const struct od_checkpoint *c, const char *name, uint64_t n_out, uint64_t n_in)
{
	struct parts p;

	(void)!look(c, name, n_out, n_in, &p, NULL); /* it was there when it was checked */
	return p.s;
}

struct od_source od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
				 uint32_t layer)
{
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;

	od_dense_source_name(cfg, role, layer, name);
	od_role_shape(cfg, role, layer, &n_out, &n_in);
	return look_again(c, name, n_out, n_in);
}

struct od_source od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m, uint32_t expert,
				  enum od_expert_mat mat)
{
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;

	od_expert_source_name(cfg, m, expert, mat, name);
	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	return look_again(c, name, n_out, n_in);
}

/* What unpacked weights would be is known already; a packer that thinks otherwise padded them. */
static int check_unpacked(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
			  struct od_err *err)
{
	const bool wide = is_type(t, "I64");
	int64_t v64[2] = { 0, 0 };
	int32_t v32[2] = { 0, 0 };
	int rc;

	if (t->n_dims != 1 || t->shape[0] != 2 || !(wide || is_type(t, "I32")))
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: expected two I64 or I32", file_of(c, t), t->name);
	rc = od_checkpoint_read(c, t, 0, wide ? (void *)v64 : (void *)v32, t->bytes, err);
	for (int i = 0; !wide && i < 2; i++)
		v64[i] = v32[i];
	if (rc == OD_OK && (v64[0] != (int64_t)n_out || v64[1] != (int64_t)n_in))
		rc = od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: expected [%" PRIu64 ", %" PRIu64 "] (config.json), found [%" PRId64
			     ", %" PRId64 "]", file_of(c, t), t->name, n_out, n_in, v64[0], v64[1]);
	return rc;
}

/* FP8 may come without scales, but not from who says that there are some, or scales the rows that it meets. */
static int check_unscaled(const struct od_checkpoint *c, const struct od_config *cfg, const struct od_tensor *t,
			  const char *name, struct od_err *err)
{
	char module[OD_NAME_BYTES];
	size_t len = strlen(name);

	snprintf(module, sizeof(module), "%.*s", (int)(ends_with(name, ".weight") ? len - strlen(".weight") : len), name);
	if ((t->dtype != OD_F8_E4M3 && t->dtype != OD_F8_E5M2) ||
	    (!cfg->scaled && beside(c, module, ".input_scale") == NULL && beside(c, module, ".input_global_scale") == NULL))
		return OD_OK;
	return od_fail(err, OD_ERR_MISSING, "%s: tensor %s: %s weights of a model with scales: expected a %s_scale or %s_scale_inv",
		       file_of(c, t), t->name, t->dtype_name, name, name);
}

static void mark(const struct od_checkpoint *c, bool *used, const struct od_tensor *t)
{
	if (t != NULL)
		used[t - od_checkpoint_tensor(c, 0)] = true;
}

/* Marks what belongs to the tensor as used. role: OD_N_ROLES for an expert's matrix. */
static int check_tensor(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, const char *name,
			uint64_t n_out, uint64_t n_in, enum od_role role, struct od_err *err)
{
	char text[OD_MAT_TYPE_CHARS];
	struct parts p;
	int rc = look(c, name, n_out, n_in, &p, err);

	if (rc == OD_OK && role != OD_N_ROLES && !od_dense_type_ok(role, &p.s.type, n_in))
		rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected dtype BF16, F16 or F32 in a norm, a bias or an embedding, found %s",
			     file_of(c, p.s.weights), p.s.weights->name, od_mat_type_text(&p.s.type, text));
	if (rc == OD_OK && p.s.scales == NULL)
		rc = check_unscaled(c, cfg, p.s.weights, name, err);
	if (rc != OD_OK)
		return rc;
	mark(c, used, p.s.weights);
	mark(c, used, p.s.scales);
	mark(c, used, p.s.divisor);
	mark(c, used, p.shape);
	return p.shape != NULL ? check_unpacked(c, p.shape, n_out, n_in, err) : OD_OK;
}

static int check_dense(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t layer,
		       struct od_err *err)
{
	int rc = OD_OK;

	for (int i = 0; rc == OD_OK && i < OD_N_ROLES; i++) {
		enum od_role role = (enum od_role)i;
		char name[OD_NAME_BYTES];
		uint64_t n_out, n_in;

		od_role_shape(cfg, role, layer, &n_out, &n_in);
		if (n_out == 0 || (layer > 0 && !od_role_per_layer(role)))
			continue;
		od_dense_source_name(cfg, role, layer, name);
		rc = check_tensor(c, cfg, used, name, n_out, n_in, role, err);
	}
	return rc;
}

static int check_experts(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t m,
			 struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t e = 0; e < cfg->n_experts; e++)
		for (int i = 0; rc == OD_OK && i < OD_N_EXPERT_MATS; i++) {
			char name[OD_NAME_BYTES];
			uint64_t n_out, n_in;

			od_expert_source_name(cfg, m, e, (enum od_expert_mat)i, name);
			od_expert_mat_shape(cfg, (enum od_expert_mat)i, &n_out, &n_in);
			rc = check_tensor(c, cfg, used, name, n_out, n_in, OD_N_ROLES, err);
		}
	return rc;
}

/* A copy of the embedding that some publish beside it; whoever ties the head does not read it. */
static bool is_tied_head(const struct od_config *cfg, const char *name)
{
	char head[OD_NAME_BYTES];

	od_dense_source_name(cfg, OD_ROLE_HEAD, 0, head);
	return cfg->tied_head && strcmp(name, head) == 0;
}

/* Names of what other ways of publishing few bits have and the ones above have not. */
static const char *unknown_way(const char *name)
{
	static const struct {
		const char *end, *what;
	} way[] = {
		{ ".qweight", "weights as GPTQ and AWQ pack them" },
		{ ".qzeros", "zero points of GPTQ or AWQ" },
		{ ".scales", "scales of GPTQ or AWQ" },
		{ ".weight_zero_point", "zero points, so asymmetric weights" },
		{ ".weight_g_idx", "groups that are not neighbours (activation order)" },
		{ ".g_idx", "groups of GPTQ" },
		{ ".weight.absmax", "weights as bitsandbytes packs them" },
		{ ".SCB", "weights as bitsandbytes packs them" },
	};

	for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++)
		if (ends_with(name, way[i].end))
			return way[i].what;
	return NULL;
}

/* Before anything else is found wrong: it would be called a missing weight. */
static int refuse_unknown_ways(const struct od_checkpoint *c, struct od_err *err)
{
	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);
		const char *what = unknown_way(t->name);

		if (what != NULL)
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %.256s: %s are not supported: expected symmetric weights as "
				       "compressed-tensors writes them, or FP8; use such a publication of the model, or the BF16 one",
				       file_of(c, t), t->name, what);
	}
	return OD_OK;
}

/* Scales of activations and of KV caches of 8 bits: here neither has so few. */
static bool of_activations(const char *name)
{
	static const char *const end[] = { ".input_scale", ".input_global_scale", ".output_scale", ".q_scale", ".k_scale",
					   ".v_scale" };

	for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++)
		if (ends_with(name, end[i]))
			return true;
	return false;
}

/* A tensor that we would not use may well be one that changes the results. */
static int check_unknown(const struct od_checkpoint *c, const struct od_config *cfg, const bool *used,
			 struct od_err *err)
{
	const struct od_tensor *first = NULL;
	size_t n = 0;

	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);

		if (used[i] || od_source_ignorable(cfg, t->name) || of_activations(t->name) || is_tied_head(cfg, t->name))
			continue;
		first = first != NULL ? first : t;
		n++;
	}
	if (n == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_FORMAT, "%s: tensor %.256s is not one of a %s model with this config.json (%zu such "
		       "tensors)", od_checkpoint_file(c, first->file)->name, first->name, cfg->family->name, n);
}

int od_source_check(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err)
{
	bool *used = calloc(od_checkpoint_n_tensors(c), sizeof(*used));
	int rc;

	if (used == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to check %zu tensors", od_checkpoint_n_tensors(c));
	rc = refuse_unknown_ways(c, err);
	for (uint32_t layer = 0; rc == OD_OK && layer < cfg->n_layers; layer++)
		rc = check_dense(c, cfg, used, layer, err);
	for (uint32_t m = 0; rc == OD_OK && m < cfg->n_moe; m++)
		rc = check_experts(c, cfg, used, m, err);
	if (rc == OD_OK)
		rc = check_unknown(c, cfg, used, err);
	free(used);
	return rc;
}

/* Types only, of the fields that od-main reads: what values it can sample with is its own affair, and without
 * do_sample it looks at none but the penalty. */
static int check_generation(const struct od_config *cfg, const char *path, struct od_err *err)
{
	static const char *const number[] = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" };
	struct od_config with_eos = *cfg;
	json_t *root;
	bool sample;
	double v;
	int rc = od_json_load(path, OD_GENERATION_MAX_BYTES, &root, err);

	if (rc == OD_OK)
		rc = od_json_bool_or(root, "do_sample", false, &sample, path, err);
	for (size_t i = 0; rc == OD_OK && i < sizeof(number) / sizeof(number[0]); i++)
		rc = od_json_f64_or(root, number[i], -HUGE_VAL, HUGE_VAL, 0, &v, path, err);
	if (rc == OD_OK)
		rc = od_config_add_eos(&with_eos, root, path, err);
	json_decref(root);
	return rc;
}

int od_source_check_extras(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err)
{
	struct od_tokenizer *tokenizer = NULL;
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), od_checkpoint_dir(c), "generation_config.json", err);

	if (rc == OD_OK && od_file_there(path))
		rc = check_generation(cfg, path, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), od_checkpoint_dir(c), "tokenizer.json", err);
	if (rc == OD_OK && od_file_there(path))
		rc = od_tokenizer_load(&tokenizer, path, err);
	od_tokenizer_free(tokenizer);
	return rc;
}
