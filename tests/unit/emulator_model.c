#include "tests/unit/emulator_model.h"

#include <string.h>

#include "common/compute/scratch.h"
#include "common/model/resident.h"
#include "tests/unit/config_util.h"

/* ---- Weights ---- */

uint64_t seed;

uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

bool chance(uint32_t percent)
{
	return draw(100) < percent;
}

struct od_config config;
bool delta_layer;

enum {
	DELTA_HEADS = 2,
	DELTA_K = 4,
	DELTA_V = 8,
	DELTA_TAPS = 3,
	DELTA_CHANNELS = 2 * DELTA_K + DELTA_HEADS * DELTA_V
};

static struct od_ref keep(struct model *m, const void *from, size_t bytes)
{
	struct od_buf *b = buf_of(m->device, from, bytes);

	assert_true(m->n_bufs < sizeof(m->buf) / sizeof(m->buf[0]));
	m->buf[m->n_bufs++] = b;
	return od_buf_ref(b, 0);
}

static struct od_weight random_mat(struct model *m, size_t n_out, size_t n_in, float amplitude)
{
	struct od_weight w = { .dtype = OD_BF16, .n_out = n_out, .n_in = n_in };
	uint16_t data[VOCAB * 32];

	assert_true(n_out * n_in <= sizeof(data) / sizeof(data[0]));
	for (size_t i = 0; i < n_out * n_in; i++)
		data[i] = od_f32_bf16(amplitude * ((float)draw(2001) / 1000.0f - 1.0f));
	w.data = keep(m, data, n_out * n_in * sizeof(*data));
	return w;
}

static struct od_weight random_norm(struct model *m)
{
	float w[32];

	assert_int_equal(config.hidden, 32);
	for (uint32_t i = 0; i < config.hidden; i++)
		w[i] = 0.5f + (float)draw(1000) / 1000.0f;
	return (struct od_weight){ .dtype = OD_F32, .n_out = config.hidden, .data = keep(m, w, sizeof(w)) };
}

static struct od_weight random_vector(struct model *m, size_t n, float from, float to)
{
	float w[DELTA_CHANNELS * DELTA_TAPS];

	assert_true(n <= sizeof(w) / sizeof(w[0]));
	for (size_t i = 0; i < n; i++)
		w[i] = from + (to - from) * (float)draw(1000) / 1000.0f;
	return (struct od_weight){ .dtype = OD_F32, .n_out = n, .data = keep(m, w, n * sizeof(*w)) };
}

static void make_delta(struct model *m, struct od_weight w[OD_N_ROLES])
{
	w[OD_ROLE_DELTA_QKV] = random_mat(m, DELTA_CHANNELS, 32, 0.5f);
	w[OD_ROLE_DELTA_Z] = random_mat(m, DELTA_HEADS * DELTA_V, 32, 0.5f);
	w[OD_ROLE_DELTA_B] = random_mat(m, DELTA_HEADS, 32, 0.5f);
	w[OD_ROLE_DELTA_A] = random_mat(m, DELTA_HEADS, 32, 0.5f);
	w[OD_ROLE_DELTA_CONV] = random_vector(m, DELTA_CHANNELS * DELTA_TAPS, -1, 1);
	w[OD_ROLE_DELTA_A_LOG] = random_vector(m, DELTA_HEADS, -4, -1); /* forgets little */
	w[OD_ROLE_DELTA_DT_BIAS] = random_vector(m, DELTA_HEADS, -1, 1);
	w[OD_ROLE_DELTA_NORM] = random_vector(m, DELTA_V, 1, 2);
	w[OD_ROLE_DELTA_OUT] = random_mat(m, 32, DELTA_HEADS * DELTA_V, 1);
}

static void make_attention(struct model *m, struct od_weight w[OD_N_ROLES])
{
	w[OD_ROLE_Q] = random_mat(m, 32, 32, 0.5f);
	w[OD_ROLE_K] = random_mat(m, 16, 32, 0.5f);
	w[OD_ROLE_V] = random_mat(m, 16, 32, 0.5f);
	w[OD_ROLE_O] = random_mat(m, 32, 32, 0.5f);
}

static struct od_config make_config(void)
{
	struct uniform u = { .n_layers = LAYERS,
			     .hidden = 32,
			     .heads = 4,
			     .kv_heads = 2,
			     .head_dim = 8,
			     .n_experts = EXPERTS,
			     .top_k = TOP_K,
			     .intermediate = 16,
			     .vocab = VOCAB,
			     .ctx = 4096 };
	struct od_config c = uniform_config(u);
	struct od_layer_spec l = *od_config_layer(&c, 0);
	struct od_err err;

	if (!delta_layer)
		return c;
	u.n_layers = 0;
	c = uniform_config(u);
	for (uint32_t i = 0; i < LAYERS; i++) {
		struct od_layer_spec own = l;

		if (i == 1) {
			own.mixer = &od_mixer_delta;
			own.mix = (struct od_mixer){ .n_heads = DELTA_HEADS,
						     .n_kv_heads = 1,
						     .k_dim = DELTA_K,
						     .v_dim = DELTA_V,
						     .conv = DELTA_TAPS,
						     .norm_eps = 1e-6f };
		}
		must(od_config_add_layer(&c, &own, &err), &err);
	}
	return c;
}

void make_model(struct model *m, uint64_t from_seed)
{
	config = make_config();
	memset(m, 0, sizeof(*m));
	m->device = device_new(OD_CPU_AUTO, 1);
	seed = from_seed;
	m->dense.embed = random_mat(m, VOCAB, config.hidden, 1);
	m->dense.head = random_mat(m, VOCAB, config.hidden, 1);
	m->dense.final_norm = random_norm(m).data;
	m->dense.layer = m->layer;
	for (uint32_t l = 0; l < LAYERS; l++) {
		struct od_weight *w = m->layer[l].w;

		w[OD_ROLE_ATTN_NORM] = random_norm(m);
		w[OD_ROLE_FFN_NORM] = random_norm(m);
		if (od_config_layer(&config, l)->mixer == &od_mixer_delta)
			make_delta(m, w);
		else
			make_attention(m, w);
		w[OD_ROLE_ROUTER] = random_mat(m, EXPERTS, 32, 1);
		for (uint32_t e = 0; e < EXPERTS; e++)
			for (int i = 0; i < OD_N_EXPERT_MATS; i++)
				m->expert[l * EXPERTS + e].mat[i] =
					i == OD_MAT_DOWN ? random_mat(m, 32, 16, 0.5f) : random_mat(m, 16, 32, 0.5f);
	}
}

/* Makes the same model with experts a little off, as quantisation does. */
void make_rough_copy(struct model *m, uint64_t from_seed)
{
	make_model(m, from_seed);
	seed = from_seed + 1;
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
		m->expert[i].mat[draw(OD_N_EXPERT_MATS - 1)] = random_mat(m, 16, 32, 0.5f);
}

void free_model(struct model *m)
{
	for (size_t i = 0; i < m->n_bufs; i++)
		od_buf_free(m->buf[i]);
	od_device_free(m->device);
}

/* ---- Failures ---- */

/* A row has chosen an expert that there is not. */
void open_failure(struct failure *f, const struct model *m)
{
	const uint16_t none = UINT16_MAX - 1;

	f->device = m->device;
	f->choice = buf_of(f->device, &none, sizeof(none));
	f->scratch = buf_new(f->device, od_experts_scratch_bytes(config.hidden, config.intermediate, EXPERTS, 1, 1));
	f->op = (struct od_op){ .kind = OD_OP_EXPERTS, .profile = OD_PROFILE_F32, .n_rows = 1 };
	f->op.experts = (struct od_op_experts){ .expert = m->expert,
						.choice = od_buf_ref(f->choice, 0),
						.scratch = od_buf_ref(f->scratch, 0),
						.n_experts = EXPERTS,
						.top_k = 1,
						.hidden = config.hidden };
}

void fail_device(const struct failure *f)
{
	od_device_run(f->device, OD_QUEUE_COMPUTE, &f->op);
}

void close_failure(struct failure *f)
{
	(void)!od_device_sync(f->device, NULL);
	od_buf_free(f->choice);
	od_buf_free(f->scratch);
}

/* ---- Forward passes outside the emulator ---- */

struct od_forward_opts pass_opts(const struct model *m, enum od_profile profile)
{
	return (struct od_forward_opts){
		.config = &config, .dense = &m->dense, .device = m->device, .profile = profile, .max_rows = MAX_ROWS
	};
}

void open_pass(struct pass *p, const struct model *m, enum od_profile profile, uint32_t ctx, uint32_t n)
{
	struct od_forward_opts o = pass_opts(m, profile);
	struct od_err err;

	o.max_rows = STEP_ROWS;
	p->device = m->device;
	must(od_state_pool_new(&p->state, m->device, &config, profile, ctx, n, (uint64_t)n * od_state_pages(ctx), &err),
	     &err);
	o.state = p->state;
	must(od_forward_new(&p->forward, &o, &err), &err);
	must(od_resident_new(&p->experts, &o, m->expert, &err), &err);
}

void close_pass(struct pass *p)
{
	od_forward_free(p->forward);
	od_resident_free(p->experts);
	od_state_pool_free(p->state);
}

void run_pass(struct pass *p, const struct od_row *rows, size_t n_rows, uint16_t *route)
{
	struct od_err err;

	must(od_forward_begin(p->forward, 1, rows, n_rows, &err), &err);
	for (uint32_t l = 0; l < LAYERS; l++) {
		od_forward_attention(p->forward);
		if (route != NULL)
			must(od_forward_fetch(p->forward, OD_FETCH_ROUTES, &err), &err);
		for (size_t r = 0; r < n_rows && route != NULL; r++)
			memcpy(route + (l * n_rows + r) * TOP_K, od_forward_experts_of(p->forward, r),
			       TOP_K * sizeof(*route));
		must(od_forward_experts(p->forward, p->experts, &err), &err);
	}
}

void end_pass(struct pass *p)
{
	struct od_err err;

	must(od_forward_end(p->forward, NULL, &err), &err);
}

struct od_seq_state *make_state(const struct pass *p)
{
	return open_seq(p->state);
}

float *logits_of(struct pass *p, size_t row)
{
	const uint32_t one = (uint32_t)row;
	struct od_err err;
	float *logits;

	must(od_forward_logits(p->forward, &one, 1, &logits, &err), &err);
	return logits;
}
