#include "tests/bench/synth/synth_model.h"

#include "common/base/mem.h"
#include "common/model/config.h"
#include "tests/bench/synth/synth_family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* safetensors headers are read whole by everybody, and 100 MB is the format's limit; this is a third. */
#define MAX_TENSORS 200000u
#define MAX_BYTES (1ull << 46)

#define TENSORS_BEFORE 1u /* the embedding */
#define TENSORS_OF_LAYER 7u /* two norms, q, k, v, o, the router; then the experts */
#define TENSORS_OF_EXPERT 3u

/* Standard deviations such that a forward pass behaves like a trained model's: norms make every row of unit
 * size, projections into a head or an expert keep it, and all that the blocks add makes the residual stream
 * about twice as large as the embedding. A stream that grew much more would amplify a quantised copy's small
 * errors from layer to layer, and no shadow could predict such a model's experts. */
#define EMBED_STD 0.5
#define CONV_STD 0.5f /* four taps keep the size of a channel */
#define LOGIT_STD 2.5 /* margins of a fraction of one between the best tokens */
#define ROUTER_STD 1.5 /* deviation of router logits: the chosen experts differ by token, weights are not all alike */
#define RESIDUAL_GROWTH 2.0 /* growth by all blocks together, in units of the embedding */
#define ATTENTION_SIZE 0.5 /* size of attention's output before o_proj: a weighted mean of unit rows is smaller */
#define EXPERTS_SIZE 0.45 /* size of silu(g) * u, summed with the router's weights */

static int out_of_range(struct od_err *err, const char *option, uint64_t found, uint64_t min, uint64_t max)
{
	return od_fail(err, OD_ERR_ARG, "--%s: expected %llu to %llu, found %llu", option, (unsigned long long)min,
		       (unsigned long long)max, (unsigned long long)found);
}

static int check_ranges(const struct synth_model *m, struct od_err *err)
{
	const struct {
		const char *option;
		uint64_t value, min, max;
	} range[] = {
		{ "layers", m->layers, 1, OD_MAX_LAYERS },
		{ "hidden", m->hidden, 1, 1u << 17 },
		{ "intermediate", m->intermediate, 1, 1u << 20 },
		{ "experts", m->experts, 1, OD_MAX_EXPERTS },
		{ "top-k", m->top_k, 1, OD_MAX_TOP_K },
		{ "heads", m->heads, 1, 1024 },
		{ "kv-heads", m->kv_heads, 1, 1024 },
		{ "head-dim", m->head_dim, 2, 1024 },
		/* 256 byte symbols, three special tokens; above, tokenizer.json would not fit our memory. */
		{ "vocab", m->vocab, 260, 1u << 18 },
		{ "ctx", m->ctx, 1, 1u << 24 },
		{ "sliding-window", m->sliding_window, 0, 1u << 24 },
	};

	for (size_t i = 0; i < sizeof(range) / sizeof(range[0]); i++) {
		if (range[i].value < range[i].min || range[i].value > range[i].max)
			return out_of_range(err, range[i].option, range[i].value, range[i].min, range[i].max);
	}
	return OD_OK;
}

static int check_size(const struct synth_model *m, struct od_err *err)
{
	uint64_t tensors = synth_n_tensors(m); /* small factors: cannot overflow */
	uint64_t expert, all;
	bool ok;

	if (tensors > MAX_TENSORS)
		return od_fail(err, OD_ERR_ARG,
			       "--layers %llu with --experts %llu makes %llu tensors; at most %u fit "
			       "a safetensors header",
			       (unsigned long long)m->layers, (unsigned long long)m->experts,
			       (unsigned long long)tensors, MAX_TENSORS);
	/* Dense tensors cannot overflow within the ranges above: less than 2^12 * 2^38 * 4 bytes. */
	ok = od_mul(m->hidden * m->intermediate, TENSORS_OF_EXPERT * od_dtype_bytes(m->dtype), &expert) &&
	     od_mul(expert, m->layers * m->experts, &all);
	if (!ok || all > MAX_BYTES || synth_total_bytes(m) > MAX_BYTES)
		return od_fail(err, OD_ERR_ARG,
			       "--layers, --experts, --hidden and --intermediate together make a "
			       "model of more than %llu TiB",
			       MAX_BYTES >> 40);
	return OD_OK;
}

int synth_check(const struct synth_model *m, struct od_err *err)
{
	int rc = m->family != NULL ? check_size(m, err) : check_ranges(m, err);

	if (rc != OD_OK || m->family != NULL)
		return rc;
	if (m->heads % m->kv_heads != 0)
		return od_fail(err, OD_ERR_ARG,
			       "--heads %llu is not a multiple of --kv-heads %llu: query heads share "
			       "a key head in equal numbers",
			       (unsigned long long)m->heads, (unsigned long long)m->kv_heads);
	if (m->head_dim % 2 != 0)
		return od_fail(err, OD_ERR_ARG, "--head-dim: expected an even number (RoPE turns pairs), found %llu",
			       (unsigned long long)m->head_dim);
	if (m->top_k > m->experts)
		return od_fail(err, OD_ERR_ARG, "--top-k %llu is more than --experts %llu",
			       (unsigned long long)m->top_k, (unsigned long long)m->experts);
	return check_size(m, err);
}

uint64_t synth_n_tensors(const struct synth_model *m)
{
	if (m->family != NULL)
		return synth_family_n_tensors(m->family);
	return TENSORS_BEFORE + m->layers * (TENSORS_OF_LAYER + TENSORS_OF_EXPERT * m->experts) + (m->tied ? 1 : 2);
}

static void matrix(struct synth_tensor *t, uint64_t rows, uint64_t cols, double std)
{
	t->rows = rows;
	t->cols = cols;
	t->is_norm = t->is_bias = false;
	t->mixed_signs = false;
	t->std = (float)std;
}

static void norm(struct synth_tensor *t, uint64_t n)
{
	t->rows = 1;
	t->cols = n;
	t->is_norm = true;
	t->is_bias = false;
	t->mixed_signs = false;
	t->std = 0.1f;
}

/* 1/sqrt(n): keeps the size of a row of n inputs. sqrt is correctly rounded everywhere, unlike exp or log. */
static double fan_in(uint64_t n)
{
	return 1.0 / sqrt((double)n);
}

static double embed_std(const struct synth_model *m)
{
	return m->tied ? LOGIT_STD * fan_in(m->hidden) : EMBED_STD;
}

/* Deviation of one block's addend to the stream: 2 * layers blocks, whose variances add up. */
static double block_std(const struct synth_model *m)
{
	return embed_std(m) * RESIDUAL_GROWTH * fan_in(2 * m->layers);
}

/* Small beside what it is added to. */
static void bias(struct synth_tensor *t, uint64_t n)
{
	norm(t, n);
	t->is_norm = false;
	t->is_bias = true;
}

static bool is_around_zero(const struct synth_model *m, enum od_role role)
{
	return od_role_is_bias(role) || role == OD_ROLE_DELTA_CONV || role == OD_ROLE_DELTA_A_LOG ||
	       (m->family != NULL && synth_family_config(m->family)->norms_around_one && od_role_around_one(role));
}

void synth_role(const struct synth_model *m, enum od_role role, uint64_t n_out, uint64_t n_in, struct synth_tensor *t)
{
	double std = fan_in(n_in);

	if (n_in == 0) {
		(is_around_zero(m, role) ? bias : norm)(t, n_out);
		t->std = role == OD_ROLE_DELTA_CONV ? CONV_STD : t->std;
		t->mixed_signs = role == OD_ROLE_FINAL_NORM && m->tied;
		t->dtype = role == OD_ROLE_ROUTER_BIAS ? OD_F32 : t->dtype; /* as published */
		return;
	}
	if (role == OD_ROLE_EMBED)
		std = embed_std(m);
	else if (role == OD_ROLE_HEAD)
		std *= LOGIT_STD;
	else if (role == OD_ROLE_ROUTER)
		std *= ROUTER_STD;
	else if (role == OD_ROLE_O || role == OD_ROLE_DELTA_OUT)
		std *= block_std(m) / ATTENTION_SIZE;
	else if (role == OD_ROLE_FFN_DOWN || role == OD_ROLE_SHARED_DOWN)
		std *= block_std(m) / EXPERTS_SIZE;
	matrix(t, n_out, n_in, std);
}

static void dense_of_layer(const struct synth_model *m, uint64_t layer, uint64_t which, struct synth_tensor *t)
{
	static const char *const names[TENSORS_OF_LAYER] = {
		"input_layernorm",  "post_attention_layernorm", "self_attn.q_proj",	 "self_attn.k_proj",
		"self_attn.v_proj", "self_attn.o_proj",		"block_sparse_moe.gate",
	};
	uint64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

	snprintf(t->name, sizeof(t->name), "model.layers.%llu.%s.weight", (unsigned long long)layer, names[which]);
	switch (which) {
	case 0:
	case 1: norm(t, m->hidden); break;
	case 2: matrix(t, q, m->hidden, fan_in(m->hidden)); break;
	case 3:
	case 4: matrix(t, kv, m->hidden, fan_in(m->hidden)); break;
	case 5: matrix(t, m->hidden, q, block_std(m) / ATTENTION_SIZE * fan_in(q)); break;
	default: matrix(t, m->experts, m->hidden, ROUTER_STD * fan_in(m->hidden)); break;
	}
}

static void expert_of_layer(const struct synth_model *m, uint64_t layer, uint64_t which, struct synth_tensor *t)
{
	uint64_t w = which % TENSORS_OF_EXPERT + 1;

	snprintf(t->name, sizeof(t->name), "model.layers.%llu.block_sparse_moe.experts.%llu.w%llu.weight",
		 (unsigned long long)layer, (unsigned long long)(which / TENSORS_OF_EXPERT), (unsigned long long)w);
	if (w == 2) /* down; 1 and 3 are gate and up */
		matrix(t, m->hidden, m->intermediate, block_std(m) / EXPERTS_SIZE * fan_in(m->intermediate));
	else
		matrix(t, m->intermediate, m->hidden, fan_in(m->hidden));
	t->dtype = m->dtype;
}

/* Type of all but an expert's matrices. */
static enum od_dtype synth_plain_dtype(enum od_dtype dtype)
{
	return od_dtype_bytes(dtype) <= 1 ? OD_BF16 : dtype;
}

void synth_tensor_at(const struct synth_model *m, uint64_t index, struct synth_tensor *t)
{
	uint64_t per_layer = TENSORS_OF_LAYER + TENSORS_OF_EXPERT * m->experts, i = index - TENSORS_BEFORE;

	t->dtype = synth_plain_dtype(m->dtype);
	t->seed_chars = 0;
	memset(t->dims, 0, sizeof(t->dims));
	if (m->family != NULL) {
		synth_family_tensor_at(m, index, t);
	} else if (index < TENSORS_BEFORE) {
		snprintf(t->name, sizeof(t->name), "model.embed_tokens.weight");
		matrix(t, m->vocab, m->hidden, embed_std(m));
	} else if (i < m->layers * per_layer) {
		if (i % per_layer < TENSORS_OF_LAYER)
			dense_of_layer(m, i / per_layer, i % per_layer, t);
		else
			expert_of_layer(m, i / per_layer, i % per_layer - TENSORS_OF_LAYER, t);
	} else if (i == m->layers * per_layer) {
		snprintf(t->name, sizeof(t->name), "model.norm.weight");
		norm(t, m->hidden);
		/* The stream still holds the token's embedding, and a tied head would answer every token with
		 * itself. Training teaches the last layers to prevent that; here signs cancel it. */
		t->mixed_signs = m->tied;
	} else {
		snprintf(t->name, sizeof(t->name), "lm_head.weight");
		matrix(t, m->vocab, m->hidden, LOGIT_STD * fan_in(m->hidden));
	}
}

uint64_t synth_values_bytes(enum od_dtype dtype, uint64_t n)
{
	return dtype == OD_F4_E2M1 ? n / 2 : n * od_dtype_bytes(dtype);
}

uint64_t synth_tensor_bytes(const struct synth_tensor *t)
{
	return synth_values_bytes(t->dtype, t->rows * t->cols);
}

/* Weights with their scales. */
uint64_t synth_expert_bytes(const struct synth_model *m)
{
	const uint64_t weights = TENSORS_OF_EXPERT * m->hidden * m->intermediate;
	const bool bias = m->family != NULL && synth_family_config(m->family)->expert_bias;
	const uint64_t n_bias = bias ? 2 * m->intermediate + m->hidden : 0;

	return synth_values_bytes(m->dtype, weights) + (m->dtype == OD_F4_E2M1 ? weights / SYNTH_MX_BLOCK : 0) +
	       n_bias * od_dtype_bytes(synth_plain_dtype(m->dtype));
}

uint64_t synth_total_bytes(const struct synth_model *m)
{
	struct synth_tensor t;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < synth_n_tensors(m); i++) {
		synth_tensor_at(m, i, &t);
		sum += synth_tensor_bytes(&t);
	}
	return sum;
}
