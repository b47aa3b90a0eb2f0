#include "common/pack/gguf/gguf_map.h"

#include "common/pack/pack_layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names ---- */

/* Behind "blk.N." where the role is a layer's; NULL where llama.cpp has no such tensor. Where there are two names, the
 * second is tried when the first is missing. */
static const char *const names[OD_N_ROLES][2] = {
	[OD_ROLE_EMBED] = { "token_embd.weight" },
	[OD_ROLE_HEAD] = { "output.weight" },
	[OD_ROLE_FINAL_NORM] = { "output_norm.weight" },
	[OD_ROLE_ATTN_NORM] = { "attn_norm.weight" },
	[OD_ROLE_Q] = { "attn_q.weight" },
	[OD_ROLE_K] = { "attn_k.weight" },
	[OD_ROLE_V] = { "attn_v.weight" },
	[OD_ROLE_O] = { "attn_output.weight" },
	[OD_ROLE_FFN_NORM] = { "ffn_norm.weight", "post_attention_norm.weight" },
	[OD_ROLE_ROUTER] = { "ffn_gate_inp.weight" },
	[OD_ROLE_Q_BIAS] = { "attn_q.bias" },
	[OD_ROLE_K_BIAS] = { "attn_k.bias" },
	[OD_ROLE_V_BIAS] = { "attn_v.bias" },
	[OD_ROLE_O_BIAS] = { "attn_output.bias" },
	[OD_ROLE_Q_NORM] = { "attn_q_norm.weight" },
	[OD_ROLE_K_NORM] = { "attn_k_norm.weight" },
	[OD_ROLE_Q_A] = { "attn_q_a.weight" },
	[OD_ROLE_Q_A_NORM] = { "attn_q_a_norm.weight" },
	[OD_ROLE_Q_B] = { "attn_q_b.weight" },
	[OD_ROLE_KV_A] = { "attn_kv_a_mqa.weight" },
	[OD_ROLE_KV_A_NORM] = { "attn_kv_a_norm.weight" },
	[OD_ROLE_KV_B] = { "attn_kv_b.weight" },
	[OD_ROLE_FFN_GATE] = { "ffn_gate.weight" },
	[OD_ROLE_FFN_UP] = { "ffn_up.weight" },
	[OD_ROLE_FFN_DOWN] = { "ffn_down.weight" },
	[OD_ROLE_SHARED_GATE] = { "ffn_gate_shexp.weight" },
	[OD_ROLE_SHARED_UP] = { "ffn_up_shexp.weight" },
	[OD_ROLE_SHARED_DOWN] = { "ffn_down_shexp.weight" },
	[OD_ROLE_SHARED_SCORE] = { "ffn_gate_inp_shexp.weight" },
	[OD_ROLE_ROUTER_BIAS] = { "exp_probs_b.bias", "exp_probs_b" },
	[OD_ROLE_SINKS] = { "attn_sinks.weight" },
	[OD_ROLE_LOGIT_BIAS] = { "ffn_gate_inp.bias" },
	[OD_ROLE_ATTN_NORM_BIAS] = { "attn_norm.bias" },
	[OD_ROLE_FFN_NORM_BIAS] = { "ffn_norm.bias" },
	[OD_ROLE_FINAL_NORM_BIAS] = { "output_norm.bias" },
	[OD_ROLE_HEAD_BIAS] = { "output.bias" },
	[OD_ROLE_DELTA_QKVZ] = { "ssm_in.weight" },
	[OD_ROLE_DELTA_BA] = { "ssm_ba.weight" },
	[OD_ROLE_DELTA_QKV] = { "attn_qkv.weight" },
	[OD_ROLE_DELTA_Z] = { "attn_gate.weight" },
	[OD_ROLE_DELTA_B] = { "ssm_beta.weight", "ssm_ba.weight" },
	[OD_ROLE_DELTA_A] = { "ssm_alpha.weight", "ssm_ba.weight" },
	[OD_ROLE_DELTA_CONV] = { "ssm_conv1d.weight" },
	[OD_ROLE_DELTA_A_LOG] = { "ssm_a" },
	[OD_ROLE_DELTA_DT_BIAS] = { "ssm_dt.bias" },
	[OD_ROLE_DELTA_NORM] = { "ssm_norm.weight" },
	[OD_ROLE_DELTA_OUT] = { "ssm_out.weight" },
	[OD_ROLE_ROUTER_NORM] = { "ffn_gate_inp.scale" },
	[OD_ROLE_ROUTER_FACTORS] = { "ffn_down_exps.scale" },
	[OD_ROLE_ATTN_POST_NORM] = { "post_attention_norm.weight" },
	[OD_ROLE_SHARED_NORM] = { "ffn_norm.weight" },
	[OD_ROLE_SHARED_POST_NORM] = { "post_ffw_norm_1.weight" },
	[OD_ROLE_EXPERTS_POST_NORM] = { "post_ffw_norm_2.weight" },
	[OD_ROLE_FFN_POST_NORM] = { "post_ffw_norm.weight" },
	[OD_ROLE_LAYER_SCALE] = { "layer_output_scale.weight" },
	[OD_ROLE_LAYER_EMBED] = { "per_layer_token_embd.weight" },
	[OD_ROLE_LAYER_PROJECT] = { "per_layer_model_proj.weight" },
	[OD_ROLE_LAYER_PROJECT_NORM] = { "per_layer_proj_norm.weight" },
	[OD_ROLE_INPUT_GATE] = { "inp_gate.weight" },
	[OD_ROLE_INPUT_PROJECT] = { "proj.weight" },
	[OD_ROLE_INPUT_POST_NORM] = { "post_norm.weight" },
	[OD_ROLE_K_B] = { "attn_k_b.weight" },
	[OD_ROLE_V_B] = { "attn_v_b.weight" },
};

/* A family's own names. */
static const struct {
	const struct od_family *family;
	enum od_role role;
	const char *name;
} own_names[] = {
	{ &od_family_gemma4, OD_ROLE_FFN_NORM, "pre_ffw_norm_2.weight" },
	{ &od_family_gemma4, OD_ROLE_SHARED_GATE, "ffn_gate.weight" },
	{ &od_family_gemma4, OD_ROLE_SHARED_UP, "ffn_up.weight" },
	{ &od_family_gemma4, OD_ROLE_SHARED_DOWN, "ffn_down.weight" },
};

/* Rows of heads that rotate stand as llama.cpp rotates them. */
static bool is_permuted(const struct od_config *cfg, enum od_role role)
{
	return cfg->family == &od_family_mixtral &&
	       (role == OD_ROLE_Q || role == OD_ROLE_K || role == OD_ROLE_Q_BIAS || role == OD_ROLE_K_BIAS);
}

static enum od_dense_form form_of(const struct od_config *cfg, enum od_role role)
{
	if (is_permuted(cfg, role))
		return OD_DENSE_PAIRS;
	if (cfg->family == &od_family_qwen3_next && (role == OD_ROLE_DELTA_B || role == OD_ROLE_DELTA_A))
		return role == OD_ROLE_DELTA_B ? OD_DENSE_FIRST_RUNS : OD_DENSE_SECOND_RUNS;
	return role == OD_ROLE_DELTA_A_LOG ? OD_DENSE_NEGATIVE_EXP : OD_DENSE_AS_IS;
}

static uint32_t run_of(const struct od_mixer *m, enum od_dense_form form)
{
	switch (form) {
	case OD_DENSE_PAIRS: return m->k_dim;
	case OD_DENSE_FIRST_RUNS:
	case OD_DENSE_SECOND_RUNS: return m->n_heads / m->n_kv_heads; /* heads of a key head */
	case OD_DENSE_AS_IS:
	case OD_DENSE_NEGATIVE_EXP: break;
	}
	return 0;
}

static const struct od_gguf_tensor *find_at(const struct od_gguf *g, bool in_layer, uint32_t layer, const char *name)
{
	char buf[OD_NAME_BYTES];

	if (!in_layer)
		return od_gguf_find(g, name);
	snprintf(buf, sizeof(buf), "blk.%u.%s", layer, name);
	return od_gguf_find(g, buf);
}

/* *name: what is missing if NULL is returned. */
static const struct od_gguf_tensor *find_role(const struct od_gguf *g, const struct od_config *cfg, enum od_role role,
					      uint32_t layer, const char **name)
{
	const bool in_layer = od_role_per_layer(role);
	const struct od_gguf_tensor *t = NULL;

	for (size_t i = 0; i < sizeof(own_names) / sizeof(own_names[0]); i++) {
		*name = own_names[i].name;
		if (own_names[i].family == cfg->family && own_names[i].role == role)
			return find_at(g, in_layer, layer, *name);
	}
	for (int i = 0; i < 2 && t == NULL && names[role][i] != NULL; i++)
		t = find_at(g, in_layer, layer, names[role][i]);
	*name = names[role][0] != NULL ? names[role][0] : od_role_name(role);
	return t;
}

/* q, k and v of a layer may be one tensor, rows of q first. *before: its rows before those of the role. */
static const struct od_gguf_tensor *find_fused(const struct od_gguf *g, const struct od_config *cfg, enum od_role role,
					       uint32_t layer, uint64_t *before, uint64_t *n_all)
{
	static const struct {
		const char *name;
		enum od_role role[3];
	} fused[] = { { "attn_qkv.weight", { OD_ROLE_Q, OD_ROLE_K, OD_ROLE_V } },
		      { "attn_qkv.bias", { OD_ROLE_Q_BIAS, OD_ROLE_K_BIAS, OD_ROLE_V_BIAS } } };

	for (size_t i = 0; i < sizeof(fused) / sizeof(fused[0]); i++) {
		bool found = false;

		*n_all = 0;
		for (int k = 0; k < 3; k++) {
			uint64_t n_out, n_in;

			od_role_shape(cfg, fused[i].role[k], layer, &n_out, &n_in);
			if (fused[i].role[k] == role) {
				*before = *n_all;
				found = true;
			}
			*n_all += n_out;
		}
		if (found)
			return find_at(g, true, layer, fused[i].name);
	}
	return NULL;
}

/* ---- Shapes and types ---- */

static void shape_text(const struct od_gguf_tensor *t, char *buf, size_t size)
{
	size_t len = (size_t)snprintf(buf, size, "[");

	for (uint32_t i = 0; i < t->n_dims && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%" PRIu64, i > 0 ? ", " : "", t->dim[i]);
	if (len < size)
		snprintf(buf + len, size - len, "]");
}

static int wrong_shape(const struct od_gguf *g, const struct od_gguf_tensor *t, const char *expected,
		       struct od_err *err)
{
	char found[128];

	shape_text(t, found, sizeof(found));
	return od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: expected shape %s by the metadata, found %s" OD_GGUF_OTHER,
		       od_gguf_file(g, t->file)->path, t->name, expected, found);
}

static uint64_t rows_of(const struct od_gguf_tensor *t)
{
	return t->dim[1] * t->dim[2] * t->dim[3]; /* it fits: opening has multiplied them */
}

static int check_type(const struct od_gguf *g, const struct od_gguf_tensor *t, bool ok, const char *expected,
		      struct od_err *err)
{
	if (ok)
		return OD_OK;
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected type %s, found %s" OD_GGUF_OTHER,
		       od_gguf_file(g, t->file)->path, t->name, expected, t->type_name);
}

static int missing(const struct od_gguf *g, enum od_role role, uint32_t layer, const char *name, struct od_err *err)
{
	if (od_role_per_layer(role))
		return od_fail(err, OD_ERR_MISSING, "%s: tensor blk.%u.%s is missing" OD_GGUF_OTHER, od_gguf_path(g),
			       layer, name);
	return od_fail(err, OD_ERR_MISSING, "%s: tensor %s is missing" OD_GGUF_OTHER, od_gguf_path(g), name);
}

int od_gguf_dense(const struct od_gguf *g, const struct od_config *cfg, enum od_role role, uint32_t layer,
		  struct od_gguf_place *out, struct od_err *err)
{
	const struct od_gguf_tensor *t;
	char expected[64];
	const char *name;
	uint64_t n_out, n_in, n_all, before = 0, row_bytes;
	bool fits;
	int rc;

	*out = (struct od_gguf_place){ 0 };
	od_role_shape(cfg, role, layer, &n_out, &n_in);
	out->form = form_of(cfg, role);
	out->run = run_of(&od_config_layer(cfg, layer)->mix, out->form);
	n_all = n_out;
	if (out->form == OD_DENSE_FIRST_RUNS || out->form == OD_DENSE_SECOND_RUNS)
		n_all *= 2; /* both roles are in the tensor */
	t = find_role(g, cfg, role, layer, &name);
	if (t == NULL)
		t = find_fused(g, cfg, role, layer, &before, &n_all);
	if (t == NULL)
		return missing(g, role, layer, name, err);
	fits = n_in > 0 ? t->dim[0] == n_in && rows_of(t) == n_all : t->dim[0] * rows_of(t) == n_all;
	if (n_in > 0)
		snprintf(expected, sizeof(expected), "[%" PRIu64 ", %" PRIu64 "]", n_in, n_all);
	else
		snprintf(expected, sizeof(expected), "[%" PRIu64 "]", n_all);
	if (!fits)
		return wrong_shape(g, t, expected, err);
	out->tensor = t;
	out->type.dtype = t->dtype;
	rc = check_type(g, t, od_dense_type_ok(role, &out->type, n_in),
			n_in > 0 ? "F32, F16, BF16 or a quantised one" : "F32, F16 or BF16", err);
	if (rc != OD_OK)
		return rc;
	row_bytes = od_mat_row_bytes(&out->type, n_in > 0 ? n_in : 1);
	out->offset = before * row_bytes;
	out->bytes = n_out * row_bytes;
	return OD_OK;
}

static const char *const parts[] = { "gate", "up", "down" };

/* Files of before April 2024 have a tensor for each expert. */
static const struct od_gguf_tensor *find_apart(const struct od_gguf *g, uint32_t layer, int of, uint32_t expert)
{
	char name[64];

	snprintf(name, sizeof(name), "ffn_%s.%u.weight", parts[of], expert);
	return find_at(g, true, layer, name);
}

/* out: first_row and step are those of the tensor that it names. */
static int check_experts(const struct od_gguf *g, const struct od_config *cfg, enum od_expert_mat mat,
			 struct od_gguf_place *out, struct od_err *err)
{
	const struct od_gguf_tensor *t = out->tensor;
	const uint32_t n = out->apart ? 1 : cfg->n_experts;
	const bool bias = od_expert_is_bias(mat);
	uint64_t n_out, n_in, rows;
	char expected[96];
	bool fits;

	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	rows = out->apart ? n_out : out->step;
	fits = bias ? t->dim[0] == rows && rows_of(t) == n :
		      t->dim[0] == n_in && t->dim[1] == rows && t->dim[2] * t->dim[3] == n;
	if (bias)
		snprintf(expected, sizeof(expected), "[%" PRIu64 ", %u]", rows, n);
	else if (out->apart)
		snprintf(expected, sizeof(expected), "[%" PRIu64 ", %" PRIu64 "]", n_in, rows);
	else
		snprintf(expected, sizeof(expected), "[%" PRIu64 ", %" PRIu64 ", %u]", n_in, rows, n);
	if (!fits)
		return wrong_shape(g, t, expected, err);
	out->type.dtype = t->dtype;
	return bias ? check_type(g, t, od_bias_type_ok(&out->type), "F32, F16 or BF16", err) :
		      check_type(g, t, od_mat_type_ok(&out->type, n_in), "F32, F16, BF16 or a quantised one", err);
}

int od_gguf_experts(const struct od_gguf *g, const struct od_config *cfg, uint32_t m, enum od_expert_mat mat,
		    struct od_gguf_place *out, struct od_err *err)
{
	const int of = mat % OD_N_EXPERT_MATS;
	const bool bias = od_expert_is_bias(mat);
	const uint32_t layer = cfg->layer_of[m];
	uint64_t n_out, n_in;
	bool both = false;
	char name[64];

	*out = (struct od_gguf_place){ 0 };
	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	snprintf(name, sizeof(name), "ffn_%s_exps.%s", parts[of], bias ? "bias" : "weight");
	out->tensor = find_at(g, true, layer, name);
	if (out->tensor == NULL && of != OD_MAT_DOWN) {
		out->tensor = find_at(g, true, layer, bias ? "ffn_gate_up_exps.bias" : "ffn_gate_up_exps.weight");
		both = out->tensor != NULL;
	}
	if (out->tensor == NULL && !bias) {
		out->tensor = find_apart(g, layer, of, 0);
		out->apart = out->tensor != NULL;
	}
	if (out->tensor == NULL)
		return od_fail(err, OD_ERR_MISSING, "%s: tensor blk.%u.%s is missing" OD_GGUF_OTHER, od_gguf_path(g),
			       layer, name);
	out->step = out->apart ? 0 : both ? 2 * n_out : n_out;
	out->first_row = both && of == OD_MAT_UP ? n_out : 0;
	return check_experts(g, cfg, mat, out, err);
}

int od_gguf_expert_apart(const struct od_gguf *g, const struct od_config *cfg, uint32_t m, enum od_expert_mat mat,
			 uint32_t expert, struct od_gguf_place *at, struct od_err *err)
{
	const struct od_gguf_tensor *first = find_apart(g, cfg->layer_of[m], mat, 0),
				    *t = find_apart(g, cfg->layer_of[m], mat, expert);

	if (t == NULL)
		return od_fail(err, OD_ERR_MISSING, "%s: tensor blk.%u.ffn_%s.%u.weight is missing" OD_GGUF_OTHER,
			       od_gguf_path(g), cfg->layer_of[m], parts[mat], expert);
	if (first != NULL && first->dtype != t->dtype)
		return check_type(g, t, false, first->type_name, err);
	at->tensor = t;
	return check_experts(g, cfg, mat, at, err);
}

/* ---- The whole list ---- */

static bool has_prefix(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Tensors that need not be used: those of layers that predict further tokens, of pictures and sound, numbers that the
 * configuration has, and latents that are there in both forms. */
static bool is_ignorable(const struct od_config *cfg, const char *name)
{
	static const char *const other[] = { "v.", "mm.", "a." };
	unsigned layer;
	int len = 0;

	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
		if (has_prefix(name, other[i]))
			return true;
	if (strcmp(name, "rope_freqs.weight") == 0)
		return true;
	if (has_prefix(name, "rope_factors_"))
		return cfg->family == &od_family_phimoe;
	if (sscanf(name, "blk.%u.%n", &layer, &len) != 1 || len == 0)
		return false;
	if (layer >= cfg->n_layers)
		return layer - cfg->n_layers < cfg->n_mtp;
	return strcmp(name + len, "attn_kv_b.weight") == 0 && od_config_layer(cfg, layer)->mix.kv_apart;
}

static void mark(const struct od_gguf *g, bool *used, const struct od_gguf_place *p)
{
	used[p->tensor - od_gguf_tensor(g, 0)] = true;
}

static int check_layer(const struct od_gguf *g, const struct od_config *cfg, uint32_t layer, bool *used,
		       struct od_err *err)
{
	int rc = OD_OK;

	for (int role = 0; rc == OD_OK && role < OD_N_ROLES; role++) {
		struct od_gguf_place p;
		uint64_t n_out, n_in;

		od_role_shape(cfg, (enum od_role)role, layer, &n_out, &n_in);
		if (n_out == 0 || (layer > 0 && !od_role_per_layer((enum od_role)role)))
			continue;
		rc = od_gguf_dense(g, cfg, (enum od_role)role, layer, &p, err);
		if (rc == OD_OK)
			mark(g, used, &p);
	}
	return rc;
}

static int check_matrix(const struct od_gguf *g, const struct od_config *cfg, uint32_t m, enum od_expert_mat mat,
			bool *used, struct od_err *err)
{
	struct od_gguf_place p;
	int rc = od_gguf_experts(g, cfg, m, mat, &p, err);
	const uint32_t n = rc == OD_OK && p.apart ? cfg->n_experts : 1;

	for (uint32_t e = 0; rc == OD_OK && e < n; e++) {
		if (p.apart)
			rc = od_gguf_expert_apart(g, cfg, m, mat, e, &p, err);
		if (rc == OD_OK)
			mark(g, used, &p);
	}
	return rc;
}

int od_gguf_check(const struct od_gguf *g, const struct od_config *cfg, struct od_err *err)
{
	bool *used = calloc(od_gguf_n_tensors(g), sizeof(*used));
	int rc = OD_OK;

	if (used == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to check %zu tensors", od_gguf_n_tensors(g));
	for (uint32_t layer = 0; rc == OD_OK && layer < cfg->n_layers; layer++)
		rc = check_layer(g, cfg, layer, used, err);
	for (uint32_t m = 0; rc == OD_OK && m < cfg->n_moe; m++)
		for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(cfg); mat++)
			rc = check_matrix(g, cfg, m, (enum od_expert_mat)mat, used, err);
	for (size_t i = 0; rc == OD_OK && i < od_gguf_n_tensors(g); i++) {
		const struct od_gguf_tensor *t = od_gguf_tensor(g, i);

		if (!used[i] && !is_ignorable(cfg, t->name))
			rc = od_fail(
				err, OD_ERR_FORMAT,
				"%s: tensor %s is not one of a %s model with this metadata: it might change results, so "
				"the model is not run without it" OD_GGUF_OTHER,
				od_gguf_file(g, t->file)->path, t->name, cfg->family->name);
	}
	free(used);
	return rc;
}
