#include "common/pack/source.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/tokenizer.h"
#include "common/pack/pack_layout.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 256

const struct od_tensor *od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
					uint32_t layer)
{
	char name[NAME_BYTES];

	cfg->family->dense_name(name, sizeof(name), role, layer);
	return od_checkpoint_find(c, name);
}

const struct od_tensor *od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m,
					 uint32_t expert, enum od_expert_mat mat)
{
	char name[NAME_BYTES];

	cfg->family->expert_name(name, sizeof(name), m, expert, mat);
	return od_checkpoint_find(c, name);
}

static void shape_text(const uint64_t *shape, uint32_t n, char *buf, size_t size)
{
	size_t len = (size_t)snprintf(buf, size, "[");

	for (uint32_t i = 0; i < n && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
	if (len < size)
		snprintf(buf + len, size - len, "]");
}

/* Marks the tensor as used. n_in 0: a vector. */
static int check_tensor(const struct od_checkpoint *c, bool *used, const char *name, uint64_t n_out, uint64_t n_in,
			bool expert, struct od_err *err)
{
	const struct od_tensor *t = od_checkpoint_find(c, name);
	const uint64_t want[2] = { n_out, n_in };
	const uint32_t n_dims = n_in > 0 ? 2 : 1;
	char expected[64], found[256];
	bool same;

	if (t == NULL)
		return od_fail(err, OD_ERR_MISSING, "checkpoint %s: tensor %s is missing", od_checkpoint_dir(c), name);
	used[t - od_checkpoint_tensor(c, 0)] = true;
	same = t->n_dims == n_dims && t->shape[0] == n_out && (n_dims == 1 || t->shape[1] == n_in);
	if (!same) {
		shape_text(want, n_dims, expected, sizeof(expected));
		shape_text(t->shape, t->n_dims, found, sizeof(found));
		return od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: expected shape %s (config.json), found %s",
			       od_checkpoint_file(c, t->file)->name, name, expected, found);
	}
	if (!(expert ? od_expert_dtype_ok(t->dtype) : od_dense_dtype_ok(t->dtype)))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected dtype BF16, F16 or F32%s, found %s%s",
			       od_checkpoint_file(c, t->file)->name, name, expert ? ", F8_E4M3 or F8_E5M2" : "", t->dtype_name,
			       od_expert_dtype_ok(t->dtype) ? ": only experts may have 8 bits; use the BF16 publication" : "");
	return OD_OK;
}

static int check_dense(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t layer,
		       struct od_err *err)
{
	int rc = OD_OK;

	for (int i = 0; rc == OD_OK && i < OD_N_ROLES; i++) {
		enum od_role role = (enum od_role)i;
		char name[NAME_BYTES];
		uint64_t n_out, n_in;

		if (!od_role_present(cfg, role) || (layer > 0 && !od_role_per_layer(role)))
			continue;
		cfg->family->dense_name(name, sizeof(name), role, layer);
		od_role_shape(cfg, role, &n_out, &n_in);
		rc = check_tensor(c, used, name, n_out, n_in, false, err);
	}
	return rc;
}

static int check_layer_experts(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t layer,
			       struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t e = 0; e < cfg->n_experts; e++)
		for (int i = 0; rc == OD_OK && i < OD_N_EXPERT_MATS; i++) {
			char name[NAME_BYTES];
			uint64_t n_out, n_in;

			cfg->family->expert_name(name, sizeof(name), layer, e, (enum od_expert_mat)i);
			od_expert_mat_shape(cfg, (enum od_expert_mat)i, &n_out, &n_in);
			rc = check_tensor(c, used, name, n_out, n_in, true, err);
		}
	return rc;
}

/* A copy of the embedding that some publish beside it; whoever ties the head does not read it. */
static bool is_tied_head(const struct od_config *cfg, const char *name)
{
	char head[256];

	cfg->family->dense_name(head, sizeof(head), OD_ROLE_HEAD, 0);
	return cfg->tied_head && strcmp(name, head) == 0;
}

/* Names that weights of few bits have for what their numbers are to be multiplied with, or for themselves. */
static bool belongs_to_scaled(const char *name)
{
	static const char *const end[] = { "_scale", "_scale_inv", "_scales", ".scales", ".qweight", ".weight_packed" };
	const size_t len = strlen(name);

	for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++)
		if (len > strlen(end[i]) && strcmp(name + len - strlen(end[i]), end[i]) == 0)
			return true;
	return false;
}

/* Before anything else is found wrong: without their scales such weights would be other numbers. */
static int refuse_scaled(const struct od_checkpoint *c, struct od_err *err)
{
	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);

		if (belongs_to_scaled(t->name))
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %.256s: weights that have scales beside them: scaled 8-bit "
				       "and 4-bit weights are not supported yet; use the BF16 publication of the model",
				       od_checkpoint_file(c, t->file)->name, t->name);
	}
	return OD_OK;
}

/* A tensor that we would not use may well be one that changes the results. */
static int check_unknown(const struct od_checkpoint *c, const struct od_config *cfg, const bool *used,
			 struct od_err *err)
{
	const struct od_tensor *first = NULL;
	size_t n = 0;

	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);

		if (used[i] || cfg->family->ignorable(t->name) || is_tied_head(cfg, t->name))
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
	rc = refuse_scaled(c, err);
	for (uint32_t layer = 0; rc == OD_OK && layer < cfg->n_layers; layer++) {
		rc = check_dense(c, cfg, used, layer, err);
		if (rc == OD_OK)
			rc = check_layer_experts(c, cfg, used, layer, err);
	}
	if (rc == OD_OK)
		rc = check_unknown(c, cfg, used, err);
	free(used);
	return rc;
}

/* Types only, of the fields that od-main reads: what values it can sample with is its own affair, and without
 * do_sample it looks at none but the penalty. */
static int check_generation(const char *path, struct od_err *err)
{
	static const char *const number[] = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" };
	json_t *root;
	bool sample;
	double v;
	int rc = od_json_load(path, OD_GENERATION_MAX_BYTES, &root, err);

	if (rc == OD_OK)
		rc = od_json_bool_or(root, "do_sample", false, &sample, path, err);
	for (size_t i = 0; rc == OD_OK && i < sizeof(number) / sizeof(number[0]); i++)
		rc = od_json_f64_or(root, number[i], -HUGE_VAL, HUGE_VAL, 0, &v, path, err);
	json_decref(root);
	return rc;
}

int od_source_check_extras(const struct od_checkpoint *c, struct od_err *err)
{
	struct od_tokenizer *tokenizer = NULL;
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), od_checkpoint_dir(c), "generation_config.json", err);

	if (rc == OD_OK && access(path, F_OK) == 0)
		rc = check_generation(path, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), od_checkpoint_dir(c), "tokenizer.json", err);
	if (rc == OD_OK && access(path, F_OK) == 0)
		rc = od_tokenizer_load(&tokenizer, path, err);
	od_tokenizer_free(tokenizer);
	return rc;
}
