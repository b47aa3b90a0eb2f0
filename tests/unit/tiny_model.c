#include "tests/unit/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/base/mem.h"

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

static void *keep(struct tiny_model *t, size_t bytes)
{
	void *p = od_alloc(bytes);

	assert_non_null(p);
	t->mem = realloc(t->mem, (t->n_mem + 1) * sizeof(*t->mem));
	assert_non_null(t->mem);
	t->mem[t->n_mem++] = p;
	return p;
}

static int limit_of(enum od_dtype dtype)
{
	switch (dtype) {
	case OD_BF16: return 255;
	case OD_F16: return 2047;
	case OD_F32: return 65535;
	case OD_INT8: return 127;
	case OD_NF4:
	case OD_F8_E4M3:
	case OD_F8_E5M2:
	case OD_U4B8:
	case OD_U8B128:
	case OD_F4_E2M1:
	case OD_F8_E8M0: break; /* not made here */
	}
	return 0;
}

static struct od_mat make_mat(struct tiny_model *t, uint64_t seed, uint64_t tensor, uint64_t n_out, uint64_t n_in,
			      float amplitude, enum od_dtype dtype)
{
	int limit = limit_of(dtype);
	float unit = amplitude / (float)(limit + 1);
	size_t n = n_out * n_in;
	void *data = keep(t, n * od_dtype_bytes(dtype));
	float *scale = NULL;

	for (size_t i = 0; i < n; i++) {
		int v = tiny_draw(seed, tensor, i, limit);

		switch (dtype) {
		case OD_BF16: ((uint16_t *)data)[i] = od_f32_bf16((float)v * unit); break;
		case OD_F16: ((uint16_t *)data)[i] = f32_f16((float)v * unit); break;
		case OD_F32: ((float *)data)[i] = (float)v * unit; break;
		case OD_INT8: ((int8_t *)data)[i] = (int8_t)v; break;
		case OD_NF4:
		case OD_F8_E4M3:
		case OD_F8_E5M2:
		case OD_U4B8:
		case OD_U8B128:
		case OD_F4_E2M1:
		case OD_F8_E8M0: break;
		}
	}
	if (dtype == OD_INT8) {
		scale = keep(t, n_out * sizeof(*scale));
		for (size_t o = 0; o < n_out; o++)
			scale[o] = unit * (1 + 0.25f * (float)(o % 4));
	}
	return (struct od_mat){ .dtype = dtype, .n_out = n_out, .n_in = n_in, .data = data, .scale = scale };
}

static enum od_dtype dtype_of(const json_t *c, const char *key)
{
	enum od_dtype d = od_dtype_parse(json_string_value(json_object_get(c, key)));

	assert_int_not_equal(d, 0);
	return d;
}

static struct od_mat dense_mat(struct tiny_model *t, enum od_role role, uint32_t layer)
{
	const json_t *c = t->expected;
	bool attention = role == OD_ROLE_Q || role == OD_ROLE_K || role == OD_ROLE_V || role == OD_ROLE_O;
	float amplitude = role == OD_ROLE_EMBED || role == OD_ROLE_ROUTER ? 1.0f :
			  role == OD_ROLE_Q || role == OD_ROLE_K	  ? 0.5f :
									    0.25f;
	uint64_t n_out, n_in, seed = (uint64_t)json_integer_value(json_object_get(c, "seed"));

	od_role_shape(&t->cfg, role, &n_out, &n_in);
	return make_mat(t, seed, (uint64_t)role * 4096 + layer, n_out, n_in, amplitude,
			dtype_of(c, attention ? "attention_dtype" : "dense_dtype"));
}

static float *norm_weight(struct tiny_model *t, enum od_role role, uint32_t layer)
{
	float *w = keep(t, t->cfg.hidden * sizeof(*w));
	uint64_t seed = (uint64_t)json_integer_value(json_object_get(t->expected, "seed"));

	for (uint32_t i = 0; i < t->cfg.hidden; i++)
		w[i] = 1 + 0.5f * (float)tiny_draw(seed, (uint64_t)role * 4096 + layer, i, 65535) / 65536.0f;
	return w;
}

static void fill_layer(struct tiny_model *t, uint32_t layer)
{
	struct od_layer_weights *w = &t->dense.layer[layer];
	uint64_t seed = (uint64_t)json_integer_value(json_object_get(t->expected, "seed"));
	enum od_dtype dtype = dtype_of(t->expected, "expert_dtype");

	w->attn_norm = norm_weight(t, OD_ROLE_ATTN_NORM, layer);
	w->ffn_norm = norm_weight(t, OD_ROLE_FFN_NORM, layer);
	w->q = dense_mat(t, OD_ROLE_Q, layer);
	w->k = dense_mat(t, OD_ROLE_K, layer);
	w->v = dense_mat(t, OD_ROLE_V, layer);
	w->o = dense_mat(t, OD_ROLE_O, layer);
	w->router = dense_mat(t, OD_ROLE_ROUTER, layer);
	for (uint32_t e = 0; e < t->cfg.n_experts; e++) {
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			uint64_t n_out, n_in, tensor = 1000000 + ((uint64_t)layer * 4096 + e) * 3 + (uint64_t)mat;

			od_expert_mat_shape(&t->cfg, (enum od_expert_mat)mat, &n_out, &n_in);
			t->experts[layer * t->cfg.n_experts + e].mat[mat] =
				make_mat(t, seed, tensor, n_out, n_in, 0.25f, dtype);
		}
	}
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
	t->n_prompt = json_array_size(prompt);
	t->prompt = keep(t, t->n_prompt * sizeof(*t->prompt));
	for (size_t p = 0; p < t->n_prompt; p++)
		t->prompt[p] = (int32_t)json_integer_value(json_array_get(prompt, p));
	t->dense.layer = keep(t, t->cfg.n_layers * sizeof(*t->dense.layer));
	t->experts = keep(t, t->cfg.n_layers * t->cfg.n_experts * sizeof(*t->experts));
	t->dense.embed = dense_mat(t, OD_ROLE_EMBED, 0);
	t->dense.head = t->cfg.tied_head ? t->dense.embed : dense_mat(t, OD_ROLE_HEAD, 0);
	t->dense.final_norm = norm_weight(t, OD_ROLE_FINAL_NORM, 0);
	for (uint32_t layer = 0; layer < t->cfg.n_layers; layer++)
		fill_layer(t, layer);
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

void tiny_unload(struct tiny_model *t)
{
	for (size_t i = 0; i < t->n_mem; i++)
		od_free(t->mem[i]);
	free(t->mem);
	memset(t, 0, sizeof(*t));
}

void tiny_close(void)
{
	json_decref(file);
	file = NULL;
}
