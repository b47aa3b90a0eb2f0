/* The layers of a run: those of this process, then those of the chain. */
#include "shadow-node/emulator_internal.h"

/* This process's layers are done, and the chain's are next. */
static bool leaves_here(const struct ods_emulator *e)
{
	return e->o.chain != NULL && !e->chained && od_forward_done(e->forward);
}

uint32_t ods_layer(const struct ods_emulator *e)
{
	return e->chained ? ods_chain_layer(e->o.chain) : od_forward_layer(e->forward);
}

bool ods_layers_done(const struct ods_emulator *e)
{
	return ods_layer(e) == e->o.forward.config->n_layers;
}

bool ods_layer_routed(const struct ods_emulator *e)
{
	return e->chained ? ods_chain_routed(e->o.chain) : od_forward_routed(e->forward);
}

uint32_t ods_layer_m(const struct ods_emulator *e)
{
	return e->o.forward.config->m_of[ods_layer(e)];
}

const float *ods_layer_probabilities(const struct ods_emulator *e, size_t row)
{
	return e->chained ? ods_chain_probabilities_of(e->o.chain, row) : od_forward_probabilities_of(e->forward, row);
}

int ods_layers_begin(struct ods_emulator *e, struct od_err *err)
{
	e->chained = false;
	return od_forward_begin(e->forward, ++e->n_runs, e->od_rows, e->n_rows, err);
}

/* Hands the rows to the chain, when this process's layers are done. */
static int enter_chain(struct ods_emulator *e, struct od_err *err)
{
	const float *x;
	uint32_t n = 0;
	int rc = od_forward_output(e->forward, &x, err);

	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < e->n_rows; i += e->rows[i].seq->run_n)
		e->chain_rows[n++] = (struct ods_chain_rows){ e->rows[i].seq->state, (uint32_t)e->rows[i].seq->run_n };
	for (size_t i = 0; i < e->n_rows; i++)
		e->token[i] = e->rows[i].token;
	e->chained = true;
	return ods_chain_begin(e->o.chain, e->n_runs, e->chain_rows, n, e->token, x, err);
}

/* When main is ahead in its step, true rows may be there already: the shadow's attention would overwrite them. */
static size_t find_true_rows(struct ods_emulator *e, uint32_t layer)
{
	size_t n = 0;

	for (size_t i = 0; i < e->n_rows; i++) {
		struct row *r = &e->rows[i];

		r->was_true = ods_align_is_true(r->seq->align, layer, r->position);
		if (r->was_true)
			e->pick[n++] = (uint32_t)i;
	}
	return n;
}

static void copy_true_rows(struct ods_emulator *e, uint32_t layer, size_t n, bool save)
{
	for (size_t i = 0; i < n; i++) {
		const struct row *r = &e->rows[e->pick[i]];

		ods_saved_copy(&e->saved, e->pick[i], r->seq->state, layer, r->position, save);
	}
}

int ods_layer_attention(struct ods_emulator *e, bool published, struct od_err *err)
{
	const uint32_t layer = ods_layer(e);
	const size_t n = find_true_rows(e, layer);
	int rc = OD_OK;

	if (e->chained) {
		rc = ods_chain_attention(e->o.chain, published, e->pick, n, err);
	} else {
		copy_true_rows(e, layer, n, true);
		od_forward_attention(e->forward);
		copy_true_rows(e, layer, n, false);
	}
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < e->n_rows; i++)
		if (!e->rows[i].is_void)
			ods_align_own(e->rows[i].seq->align, layer, e->rows[i].position);
	if (!e->chained && published && od_forward_routed(e->forward))
		rc = od_forward_fetch(e->forward, OD_FETCH_PROBABILITIES, err);
	return rc == OD_OK && leaves_here(e) ? enter_chain(e, err) : rc;
}

int ods_layer_experts(struct ods_emulator *e, struct od_err *err)
{
	int rc = OD_OK;

	if (e->chained)
		ods_chain_experts(e->o.chain);
	else
		rc = od_forward_experts(e->forward, e->experts, err);
	return rc == OD_OK && leaves_here(e) ? enter_chain(e, err) : rc;
}

int ods_layers_end(struct ods_emulator *e, const uint32_t *kept, size_t n, struct od_err *err)
{
	const float *x = NULL;
	int rc = e->chained ? ods_chain_output(e->o.chain, &x, err) : OD_OK;

	if (rc == OD_OK && kept != NULL)
		rc = od_forward_end(e->forward, kept, err);
	if (rc == OD_OK && kept != NULL && e->chained)
		rc = ods_chain_commit(e->o.chain, kept, n, err);
	if (rc == OD_OK && e->chained)
		rc = od_forward_input(e->forward, x, err);
	return rc;
}

int ods_layer_put(struct ods_emulator *e, const struct od_seq_state *seq, uint32_t layer, uint32_t begin, uint32_t n,
		  const struct od_out_frame *frames, size_t n_frames, struct od_err *err)
{
	if (!od_config_holds(e->o.forward.config, layer))
		return ods_chain_put(e->o.chain, seq, layer, begin, n, frames, n_frames, err);
	for (uint32_t j = 0; j < n_frames; j++) {
		const size_t row_bytes = od_seq_state_row_bytes(seq, layer, j);
		const char *from = frames[j].bytes;

		for (uint32_t at = begin, count; at < begin + n; at += count, from += count * row_bytes) {
			count = OD_KV_PAGE - at % OD_KV_PAGE;
			count = count < begin + n - at ? count : begin + n - at;
			od_device_put(e->o.forward.device, OD_QUEUE_COMPUTE, od_seq_state_row(seq, layer, j, at), from,
				      count * row_bytes);
		}
	}
	return OD_OK;
}
