#include "tests/unit/tiny_model.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"

#define GOLDEN "tests/golden/model/forward.json"

static json_t *file;

int tiny_draw(uint64_t seed, uint64_t tensor, uint64_t i, int limit)
{
	uint64_t z = seed * 0x9E3779B97F4A7C15ull + tensor * 0xD1B54A32D192ED03ull;

	z += (i + 1) * 0x9E3779B97F4A7C15ull;
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ z >> 27) * 0x94D049BB133111EBull;
	z ^= z >> 31;
	return (int)((z >> 33) % (2u * (unsigned)limit + 1)) - limit;
}

/* Exact for the values drawn here: normal numbers of at most 11 bits, and zero. */
static uint16_t f32_f16(float f)
{
	uint32_t u = od_f32_bits(f), exp = u >> 23 & 0xff;
	uint16_t h = f == 0 ? 0 : (uint16_t)((u >> 16 & 0x8000u) | (exp - 112) << 10 | (u >> 13 & 0x3ffu));

	assert_true(od_f16_f32(h) == f);
	return h;
}

/* A new buffer, to be filled through *f until end_tensor. */
static struct od_ref begin_tensor(struct tiny_weights *w, size_t bytes, struct od_fill *f)
{
	struct od_err err = { 0 };
	struct od_buf *b;

	if (od_buf_new(&b, w->device, bytes, "a tiny model", &err) != OD_OK)
		fail_msg("%s", err.msg);
	w->buf = realloc(w->buf, (w->n_bufs + 1) * sizeof(*w->buf));
	assert_non_null(w->buf);
	w->buf[w->n_bufs++] = b;
	if (od_fill_begin(f, od_buf_ref(b, 0), bytes, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return od_buf_ref(b, 0);
}

static void end_tensor(struct od_fill *f)
{
	struct od_err err = { 0 };

	if (od_fill_end(f, OD_OK, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static int limit_of(enum od_dtype dtype)
{
	if (dtype == OD_BF16)
		return 255;
	if (dtype == OD_F16)
		return 2047;
	if (dtype == OD_F32)
		return 65535;
	assert(dtype == OD_INT8); /* no others are made here */
	return 127;
}

static struct od_ref make_scales(struct tiny_weights *w, uint64_t n_out, float unit)
{
	struct od_fill f;
	struct od_ref at = begin_tensor(w, n_out * sizeof(float), &f);

	for (size_t o = 0; o < n_out; o++)
		((float *)f.host)[o] = unit * (1 + 0.25f * (float)(o % 4));
	end_tensor(&f);
	return at;
}

static struct od_weight make_weight(struct tiny_weights *w, uint64_t seed, uint64_t tensor, uint64_t n_out,
				    uint64_t n_in, float amplitude, enum od_dtype dtype)
{
	struct od_weight made = { .dtype = dtype, .n_out = n_out, .n_in = n_in };
	int limit = limit_of(dtype);
	float unit = amplitude / (float)(limit + 1);
	size_t n = n_out * n_in;
	struct od_fill f;

	made.data = begin_tensor(w, n * od_dtype_bytes(dtype), &f);
	for (size_t i = 0; i < n; i++) {
		int v = tiny_draw(seed, tensor, i, limit);

		if (dtype == OD_BF16)
			((uint16_t *)f.host)[i] = od_f32_bf16((float)v * unit);
		else if (dtype == OD_F16)
			((uint16_t *)f.host)[i] = f32_f16((float)v * unit);
		else if (dtype == OD_F32)
			((float *)f.host)[i] = (float)v * unit;
		else
			((int8_t *)f.host)[i] = (int8_t)v;
	}
	end_tensor(&f);
	if (dtype == OD_INT8)
		made.scale = make_scales(w, n_out, unit);
	return made;
}

static enum od_dtype dtype_of(const json_t *c, const char *key)
{
	enum od_dtype d = od_dtype_parse(json_string_value(json_object_get(c, key)));

	assert_int_not_equal(d, 0);
	return d;
}

static bool is_norm(enum od_role role)
{
	return role == OD_ROLE_FINAL_NORM || role == OD_ROLE_ATTN_NORM || role == OD_ROLE_FFN_NORM ||
	       role == OD_ROLE_Q_NORM || role == OD_ROLE_K_NORM || role == OD_ROLE_Q_A_NORM ||
	       role == OD_ROLE_KV_A_NORM || role == OD_ROLE_DELTA_NORM ||
	       (role >= OD_ROLE_ROUTER_NORM && role <= OD_ROLE_LAYER_SCALE) || role == OD_ROLE_LAYER_PROJECT_NORM ||
	       role == OD_ROLE_INPUT_POST_NORM;
}

/* Norms are about 1, biases about 0. */
static struct od_ref make_vector(struct tiny_weights *w, const struct tiny_model *t, enum od_role role, uint32_t layer,
				 uint64_t n)
{
	struct od_fill f;
	struct od_ref at = begin_tensor(w, n * sizeof(float), &f);

	for (uint32_t i = 0; i < n; i++)
		((float *)f.host)[i] =
			(float)is_norm(role) +
			0.5f * (float)tiny_draw(t->seed, (uint64_t)role * 4096 + layer, i, 65535) / 65536.0f;
	end_tensor(&f);
	return at;
}

/* Nothing where the layer has none. */
static struct od_weight dense_weight(struct tiny_weights *w, const struct tiny_model *t, enum od_role role,
				     uint32_t layer)
{
	bool attention = role == OD_ROLE_Q || role == OD_ROLE_K || role == OD_ROLE_V || role == OD_ROLE_O;
	float amplitude = role == OD_ROLE_EMBED || role == OD_ROLE_ROUTER || role == OD_ROLE_LAYER_EMBED ? 1.0f :
			  role == OD_ROLE_Q || role == OD_ROLE_K					 ? 0.5f :
													   0.25f;
	uint64_t n_out, n_in;

	od_role_shape(&t->cfg, role, layer, &n_out, &n_in);
	if (n_out == 0)
		return (struct od_weight){ 0 };
	if (n_in == 0)
		return (struct od_weight){ .dtype = OD_F32,
					   .n_out = n_out,
					   .data = make_vector(w, t, role, layer, n_out) };
	return make_weight(w, t->seed, (uint64_t)role * 4096 + layer, n_out, n_in, amplitude,
			   attention ? t->attention_dtype : t->dense_dtype);
}

static void make_experts(struct tiny_weights *w, const struct tiny_model *t, uint32_t m)
{
	for (uint32_t e = 0; e < t->cfg.n_experts; e++) {
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			uint64_t n_out, n_in, tensor = 1000000 + ((uint64_t)m * 4096 + e) * 3 + (uint64_t)mat;

			od_expert_mat_shape(&t->cfg, (enum od_expert_mat)mat, &n_out, &n_in);
			w->experts[m * t->cfg.n_experts + e].mat[mat] =
				make_weight(w, t->seed, tensor, n_out, n_in, 0.25f, t->expert_dtype);
		}
	}
}

void tiny_put(struct tiny_weights *w, const struct tiny_model *t, struct od_device *d)
{
	*w = (struct tiny_weights){ .device = d };
	w->dense.layer = calloc(t->cfg.n_layers, sizeof(*w->dense.layer));
	w->experts = calloc((size_t)t->cfg.n_moe * t->cfg.n_experts, sizeof(*w->experts));
	assert_true(w->dense.layer != NULL && w->experts != NULL);
	w->dense.embed = dense_weight(w, t, OD_ROLE_EMBED, 0);
	w->dense.head = t->cfg.tied_head ? w->dense.embed : dense_weight(w, t, OD_ROLE_HEAD, 0);
	w->dense.final_norm = dense_weight(w, t, OD_ROLE_FINAL_NORM, 0).data;
	w->dense.final_norm_bias = dense_weight(w, t, OD_ROLE_FINAL_NORM_BIAS, 0).data;
	w->dense.head_bias = dense_weight(w, t, OD_ROLE_HEAD_BIAS, 0).data;
	w->dense.layer_embed = dense_weight(w, t, OD_ROLE_LAYER_EMBED, 0);
	w->dense.layer_project = dense_weight(w, t, OD_ROLE_LAYER_PROJECT, 0);
	w->dense.layer_project_norm = dense_weight(w, t, OD_ROLE_LAYER_PROJECT_NORM, 0).data;
	for (uint32_t layer = 0; layer < t->cfg.n_layers; layer++)
		for (int role = 0; role < OD_N_ROLES; role++)
			if (od_role_per_layer((enum od_role)role))
				w->dense.layer[layer].w[role] = dense_weight(w, t, (enum od_role)role, layer);
	for (uint32_t m = 0; m < t->cfg.n_moe; m++)
		make_experts(w, t, m);
}

void tiny_weights_free(struct tiny_weights *w)
{
	for (size_t i = 0; i < w->n_bufs; i++)
		od_buf_free(w->buf[i]);
	free(w->buf);
	free(w->dense.layer);
	free(w->experts);
	*w = (struct tiny_weights){ 0 };
}

static const json_t *cases(void)
{
	if (file == NULL)
		file = json_load_file(GOLDEN, 0, NULL);
	assert_true(json_is_array(file));
	return file;
}

size_t tiny_count(void)
{
	return json_array_size(cases());
}

void tiny_load(struct tiny_model *t, size_t i)
{
	const json_t *c = json_array_get(cases(), i), *prompt = json_object_get(c, "prompt");
	struct od_err err = { 0 };

	memset(t, 0, sizeof(*t));
	t->expected = c;
	snprintf(t->name, sizeof(t->name), "%s", json_string_value(json_object_get(c, "name")));
	t->profile = strcmp(json_string_value(json_object_get(c, "profile")), "bf16") == 0 ? OD_PROFILE_BF16 :
											     OD_PROFILE_F32;
	if (od_config_parse(&t->cfg, json_object_get(c, "config"), t->name, &err) != OD_OK)
		fail_msg("%s", err.msg);
	t->seed = (uint64_t)json_integer_value(json_object_get(c, "seed"));
	t->dense_dtype = dtype_of(c, "dense_dtype");
	t->attention_dtype = dtype_of(c, "attention_dtype");
	t->expert_dtype = dtype_of(c, "expert_dtype");
	t->n_prompt = json_array_size(prompt);
	t->prompt = calloc(t->n_prompt, sizeof(*t->prompt));
	assert_non_null(t->prompt);
	for (size_t p = 0; p < t->n_prompt; p++)
		t->prompt[p] = (int32_t)json_integer_value(json_array_get(prompt, p));
}

void tiny_load_named(struct tiny_model *t, const char *name)
{
	for (size_t i = 0; i < tiny_count(); i++) {
		if (strcmp(json_string_value(json_object_get(json_array_get(cases(), i), "name")), name) == 0) {
			tiny_load(t, i);
			return;
		}
	}
	fail_msg("%s has no case %s", GOLDEN, name);
}

void tiny_make(struct tiny_model *t, const char *name, const struct od_config *cfg, uint64_t seed, size_t n_prompt)
{
	*t = (struct tiny_model){ .cfg = *cfg,
				  .profile = OD_PROFILE_F32,
				  .seed = seed,
				  .dense_dtype = OD_F32,
				  .attention_dtype = OD_F32,
				  .expert_dtype = OD_F32,
				  .n_prompt = n_prompt };
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->prompt = calloc(n_prompt, sizeof(*t->prompt));
	assert_non_null(t->prompt);
	for (size_t p = 0; p < n_prompt; p++)
		t->prompt[p] = (int32_t)((uint32_t)(tiny_draw(seed, 999, p, 1 << 20) + (1 << 20)) % cfg->vocab);
}

void tiny_unload(struct tiny_model *t)
{
	free(t->prompt);
	memset(t, 0, sizeof(*t));
}

void tiny_close(void)
{
	json_decref(file);
	file = NULL;
}
