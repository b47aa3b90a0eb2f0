#include "main-node/predict/predict_check.h"

/* Fills expert [OD_MAX_CANDIDATES], which *to borrows, as it does the message's probabilities. */
static void read_row(uint32_t m, const Od__PredictRow *r, uint16_t *expert, struct od_prediction *to)
{
	*to = (struct od_prediction){
		.sequence = r->sequence,
		.position = r->position,
		.token = r->token,
		.margin = r->margin > 0 ? r->margin : 0, /* NaN too */
		.m = m,
		.expert = expert,
		.probability = r->probabilities,
		.n = r->n_experts,
	};
	for (size_t i = 0; i < r->n_experts && i < OD_MAX_CANDIDATES; i++) /* no model has UINT16_MAX */
		expert[i] = r->experts[i] < UINT16_MAX ? (uint16_t)r->experts[i] : UINT16_MAX;
}

static int check_row(uint32_t m, const Od__PredictRow *r, const struct od_config *config, struct od_err *err)
{
	uint16_t expert[OD_MAX_CANDIDATES];
	struct od_prediction row;

	if (r->n_probabilities != r->n_experts)
		return od_fail(err, OD_ERR_SHAPE, "probabilities: expected one for each of %zu experts, found %zu",
			       r->n_experts, r->n_probabilities);
	if (r->token < 0 || (uint32_t)r->token >= config->vocab)
		return od_fail(err, OD_ERR_RANGE, "token %d; expected 0 to %u", r->token, config->vocab - 1);
	read_row(m, r, expert, &row);
	return od_prediction_check(&row, config, err);
}

int odm_check_predict(const Od__Predict *p, const struct od_config *config, uint32_t max_rows, struct od_err *err)
{
	int rc = OD_OK;

	if (p->n_rows == 0 || p->n_rows > max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows: expected 1 to %u, found %zu", max_rows, p->n_rows);
	for (size_t i = 0; rc == OD_OK && i < p->n_rows; i++)
		rc = check_row(p->m, p->rows[i], config, err);
	return rc;
}

bool odm_add_predict(struct odm_predictions *table, const Od__Predict *p)
{
	uint16_t expert[OD_MAX_CANDIDATES];
	struct od_prediction row;
	bool wants = false;

	for (size_t i = 0; i < p->n_rows; i++) {
		read_row(p->m, p->rows[i], expert, &row);
		if (odm_predictions_add(table, &row))
			wants = true;
	}
	return wants;
}
