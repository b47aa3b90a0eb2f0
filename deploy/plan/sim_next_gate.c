/* Main's own predictor: rows of a decode step are shown to the next layer's router, after the RUNs of this one; as
 * predictor_link.c does it. */
#include "deploy/plan/sim_internal.h"

#include <string.h>

/* Rows that are predicted: all, or beside a shadow those of texts on which it is silent. */
static size_t choose_rows(struct odp_sim *s)
{
	const struct od_moe_call *call = odp_call(s);

	if (s->cluster.has_shadow)
		return odm_predictions_shadow_silent(s->predictions, call->step, s->asked, call->n_rows);
	memset(s->asked, true, call->n_rows * sizeof(*s->asked));
	return call->n_rows;
}

bool odp_next_gate_asks(struct odp_sim *s, double *ns)
{
	size_t n = 0;

	*ns = 0;
	if (s->o.next_gate && s->engine.now->phase == ODM_DECODE && odp_call(s)->m + 1 < s->model.n_moe)
		n = choose_rows(s);
	if (n > 0)
		*ns = odp_product_ns(&s->cluster.main, s->model.router_weights, (double)n);
	return n > 0;
}

static bool say(struct odp_sim *s, const struct sim_row *row, uint32_t m)
{
	const struct odp_routes *r = s->work->routes;
	struct odp_view view = { 0 };
	struct od_prediction pred = { .sequence = s->text[row->text].sequence,
				      .position = row->position,
				      .token = row->token,
				      .m = m,
				      .stand_in = s->cluster.has_shadow };

	r->next_gate(r->arg, row->text, row->position, row->token, m, &view);
	pred.n = view.n;
	pred.expert = view.expert;
	pred.probability = view.probability;
	return view.n > 0 && odm_predictions_add(s->predictions, &pred);
}

void odp_next_gate_says(struct odp_sim *s)
{
	const struct sim_pass *p = s->engine.now;
	bool wants = false;

	for (size_t i = 0; i < p->n_rows; i++)
		if (s->asked[i] && say(s, &p->row[i], odp_call(s)->m + 1))
			wants = true;
	if (wants)
		odp_send_wants(s);
}
