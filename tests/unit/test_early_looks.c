/* What the routers ahead make of the rows: against plain arithmetic in double precision. */
#include "shadow-node/early_looks.h"
#include "tests/unit/emulator_world.h"

#include "common/model/resident.h"

#include <math.h>
#include <string.h>

#define ROWS 3u
#define DEEP 9u /* layers: more than are kept, the world's over and over */

/* norm, product, softmax of a row by the router of a layer. */
static void expected(const struct model *m, uint32_t layer, const float *residual, double *p)
{
	const struct od_layer_weights *w = &m->layer[layer % LAYERS];
	const uint16_t *router = w->router.data;
	double square = 0, sum = 0;

	for (uint32_t i = 0; i < config.hidden; i++)
		square += (double)residual[i] * (double)residual[i];
	for (uint32_t e = 0; e < EXPERTS; e++) {
		double dot = 0;

		for (uint32_t i = 0; i < config.hidden; i++) {
			uint32_t bits = (uint32_t)router[e * config.hidden + i] << 16;
			float weight;

			memcpy(&weight, &bits, sizeof(weight));
			dot += (double)weight * (double)w->ffn_norm[i] * (double)residual[i];
		}
		p[e] = exp(dot / sqrt(square / config.hidden + (double)config.rms_eps));
		sum += p[e];
	}
	for (uint32_t e = 0; e < EXPERTS; e++)
		p[e] /= sum;
}

struct deep {
	struct od_config config;
	struct od_layer_weights layer[DEEP];
	struct od_dense dense;
	struct od_expert expert[DEEP * EXPERTS];
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct od_seq_state *seq;
	struct ods_early early;
};

static void open_deep(struct deep *d, const struct model *m)
{
	struct od_forward_opts o = pass_opts(m, OD_PROFILE_F32);
	struct od_err err;

	d->config = config;
	d->config.n_layers = DEEP;
	d->dense = m->dense;
	d->dense.layer = d->layer;
	for (uint32_t l = 0; l < DEEP; l++) {
		d->layer[l] = m->layer[l % LAYERS];
		memcpy(d->expert + l * EXPERTS, m->expert + l % LAYERS * EXPERTS, EXPERTS * sizeof(*d->expert));
	}
	o.config = &d->config;
	o.dense = &d->dense;
	assert_int_equal(od_forward_new(&d->forward, &o, &err), OD_OK);
	assert_int_equal(od_resident_new(&d->experts, &o, d->expert, &err), OD_OK);
	assert_int_equal(od_seq_state_new(&d->seq, &d->config, OD_PROFILE_F32, CTX, &err), OD_OK);
	assert_int_equal(ods_early_init(&d->early, &o, &err), OD_OK);
}

static void close_deep(struct deep *d)
{
	ods_early_fini(&d->early);
	ods_early_fini(&d->early);
	od_seq_state_free(d->seq);
	od_resident_free(d->experts);
	od_forward_free(d->forward);
}

static void looks_are_what_the_routers_would_say(void **state)
{
	static const uint16_t order[EXPERTS] = { 4, 0, 5, 2, 1, 3 };
	float residual[DEEP][ROWS][32], out[OD_MAX_EARLY * EXPERTS];
	struct od_row rows[ROWS];
	struct model m;
	struct deep d;
	struct od_err err;

	(void)state;
	make_model(&m, 21);
	open_deep(&d, &m);
	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct od_row){ .seq = d.seq, .position = i, .token = (int32_t)(3 * i + 1) };
	assert_int_equal(od_forward_begin(d.forward, 1, rows, ROWS, &err), OD_OK);
	for (uint32_t l = 0; l < DEEP; l++) {
		const uint32_t leads = l < OD_MAX_EARLY ? l : OD_MAX_EARLY;

		od_forward_attention(d.forward);
		for (uint32_t r = 0; r < ROWS; r++) {
			memcpy(residual[l][r], od_forward_residual_of(d.forward, r), sizeof(residual[l][r]));
			assert_int_equal(ods_early_of(&d.early, l, r, ROWS, order, EXPERTS, out), leads);
			for (uint32_t lead = 1; lead <= leads; lead++) {
				double want[EXPERTS];

				expected(&m, l, residual[l - lead][r], want);
				for (uint32_t e = 0; e < EXPERTS; e++)
					assert_true(fabs((double)out[(lead - 1) * EXPERTS + e] - want[order[e]]) < 1e-5);
			}
		}
		ods_early_note(&d.early, d.forward, l, ROWS);
		assert_int_equal(od_forward_experts(d.forward, d.experts, &err), OD_OK);
	}
	/* A prompt's rows are too many to look for. */
	assert_int_equal(ods_early_of(&d.early, 2, 0, ODS_EARLY_ROWS + 1, order, EXPERTS, out), 0);
	close_deep(&d);
	free_model(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(looks_are_what_the_routers_would_say) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
