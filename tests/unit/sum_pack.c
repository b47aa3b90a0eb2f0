#include "tests/unit/sum_pack.h"

#include "common/pack/load/dense_load.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/sum_mixer.h"

#define SUM_DIM 24u

bool sum_pack_on;

static struct od_config sum_config;
static struct od_dense sum_dense;
static struct od_layer_weights sum_layer[16];
static struct od_buf *sum_weights;
static uint64_t seed;

/* The linker puts these in the place of the pack's (main-node/rules.mk). */
const struct od_config *__real_od_pack_config(const struct od_pack *p);
const struct od_config *__wrap_od_pack_config(const struct od_pack *p);
const struct od_dense *__real_od_dense_get(const struct od_dense_store *s);
const struct od_dense *__wrap_od_dense_get(const struct od_dense_store *s);
void __real_od_dense_free(struct od_dense_store *s);
void __wrap_od_dense_free(struct od_dense_store *s);

const struct od_config *__wrap_od_pack_config(const struct od_pack *p)
{
	const struct od_config *c = __real_od_pack_config(p);

	if (!sum_pack_on)
		return c;
	sum_config = *c;
	sum_config.n_layers = sum_config.n_moe = sum_config.n_kinds = 0;
	for (uint32_t l = 0; l < c->n_layers; l++) {
		struct od_layer_spec spec = *od_config_layer(c, l);

		if (l % 2 == 0) {
			spec.mixer = &sum_mixer;
			spec.mix = (struct od_mixer){ .k_dim = SUM_DIM, .norm_eps = 1e-5f };
		}
		assert_int_equal(od_config_add_layer(&sum_config, &spec, NULL), OD_OK);
	}
	return &sum_config;
}

static struct od_weight sum_weight(struct od_ref *at, uint64_t n_out, uint64_t n_in, float amplitude)
{
	struct od_weight w = { .dtype = OD_F32, .n_out = n_out, .n_in = n_in, .data = *at };
	const size_t n = n_out * (n_in > 0 ? n_in : 1);
	float *x = malloc(n * sizeof(*x));

	assert_non_null(x);
	for (size_t i = 0; i < n; i++)
		x[i] = amplitude * ((float)random_below(&seed, 2001) / 1000.0f - (n_in > 0 ? 1.0f : 0.0f));
	put_at(od_buf_device(at->buf), *at, x, n * sizeof(*x));
	free(x);
	*at = od_ref_at(*at, (n * sizeof(float) + 127) / 64 * 64);
	return w;
}

const struct od_dense *__wrap_od_dense_get(const struct od_dense_store *s)
{
	const struct od_dense *d = __real_od_dense_get(s);
	const uint64_t hidden = sum_config.hidden;
	struct od_ref at;

	if (!sum_pack_on)
		return d;
	if (sum_weights != NULL)
		return &sum_dense;
	sum_weights = buf_new(od_buf_device(d->head.data.buf), 1u << 20);
	at = od_buf_ref(sum_weights, 0);
	sum_dense = *d;
	sum_dense.layer = sum_layer;
	seed = 5;
	assert_true(sum_config.n_layers <= sizeof(sum_layer) / sizeof(sum_layer[0]));
	for (uint32_t l = 0; l < sum_config.n_layers; l++) {
		struct od_weight *w = sum_layer[l].w;

		sum_layer[l] = d->layer[l];
		if (l % 2 != 0)
			continue;
		for (int role = 0; role < OD_N_ROLES; role++)
			if (role != OD_ROLE_ATTN_NORM && role != OD_ROLE_FFN_NORM && role != OD_ROLE_ROUTER)
				w[role] = (struct od_weight){ 0 };
		w[OD_ROLE_V] = sum_weight(&at, SUM_DIM, hidden, 0.5f);
		w[OD_ROLE_KV_B] = sum_weight(&at, SUM_DIM, SUM_DIM, 0.2f);
		w[OD_ROLE_Q_NORM] = sum_weight(&at, SUM_DIM, 0, 1.0f);
		w[OD_ROLE_O] = sum_weight(&at, hidden, SUM_DIM, 0.5f);
	}
	return &sum_dense;
}

void __wrap_od_dense_free(struct od_dense_store *s)
{
	od_buf_free(sum_weights);
	sum_weights = NULL;
	__real_od_dense_free(s);
}
