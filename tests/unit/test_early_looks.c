/* What the routers ahead make of the rows: against plain arithmetic in double precision. */
#include "shadow-node/early_looks.h"
#include "tests/unit/emulator_world.h"

#include <math.h>
#include <string.h>

#define ROWS 3u

/* norm, product, softmax of a row by the router of a layer. */
static void expected(const struct model *m, uint32_t layer, const float *residual, double *p)
{
	const struct od_layer_weights *w = &m->layer[layer];
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

static void looks_are_what_the_routers_would_say(void **state)
{
	static const uint16_t order[EXPERTS] = { 4, 0, 5, 2, 1, 3 };
	float residual[LAYERS][ROWS][32], out[OD_MAX_EARLY * EXPERTS];
	struct od_seq_state *seq = make_state(OD_PROFILE_F32);
	struct od_forward_opts o;
	struct od_row rows[ROWS];
	struct ods_early early;
	struct model m;
	struct pass p;
	struct od_err err;

	(void)state;
	make_model(&m, 21);
	open_pass(&p, &m, OD_PROFILE_F32);
	o = pass_opts(&m, OD_PROFILE_F32);
	assert_int_equal(ods_early_init(&early, &o, &err), OD_OK);
	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct od_row){ .seq = seq, .position = i, .token = (int32_t)(3 * i + 1) };
	assert_int_equal(od_forward_begin(p.forward, 1, rows, ROWS, &err), OD_OK);
	for (uint32_t l = 0; l < LAYERS; l++) {
		od_forward_attention(p.forward);
		for (uint32_t r = 0; r < ROWS; r++) {
			memcpy(residual[l][r], od_forward_residual_of(p.forward, r), sizeof(residual[l][r]));
			assert_int_equal(ods_early_of(&early, l, r, ROWS, order, EXPERTS, out), l);
			for (uint32_t lead = 1; lead <= l; lead++) {
				double want[EXPERTS];

				expected(&m, l, residual[l - lead][r], want);
				for (uint32_t e = 0; e < EXPERTS; e++)
					assert_true(fabs((double)out[(lead - 1) * EXPERTS + e] - want[order[e]]) < 1e-5);
			}
		}
		ods_early_note(&early, p.forward, l, ROWS);
		assert_int_equal(od_forward_experts(p.forward, p.experts, &err), OD_OK);
	}
	/* A prompt's rows are too many to look for. */
	assert_int_equal(ods_early_of(&early, 2, 0, ODS_EARLY_ROWS + 1, order, EXPERTS, out), 0);
	ods_early_fini(&early);
	ods_early_fini(&early);
	od_seq_state_free(seq);
	close_pass(&p);
	free_model(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(looks_are_what_the_routers_would_say) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
