#include "main-node/engine/pass_size.h"

#include "main-node/step/step.h"

#define FULL_DRAFTS 4 /* texts that have room for a draft of full length in one step */
#define SEEN_ROWS 16 /* rows of a prompt whose logits are wanted: with fewer, the head's weights are read more often */

bool odm_pass_size_fixed(const struct od_config *c)
{
	for (uint32_t i = 0; i < c->n_kinds; i++) {
		struct od_state_spec s = { 0 };

		c->kind[i].mixer->state(&c->kind[i].mix, &s);
		if (s.fixed_bytes > 0)
			return true;
	}
	return false;
}

/* The shadow is told of no more rows, and rows of fixed state can be undone in small steps only. */
uint32_t odm_pass_size_drafted(const struct od_config *c)
{
	return odm_pass_size_fixed(c) ? OD_KEEP_ROWS : ODM_MAX_STEP_ROWS;
}

uint32_t odm_pass_size_rows(const struct od_config *c, uint32_t max_sequences)
{
	const uint32_t full = max_sequences < FULL_DRAFTS ? max_sequences : FULL_DRAFTS,
		       most = odm_pass_size_drafted(c);
	const uint32_t rows = max_sequences + full * ODM_MAX_DRAFT;

	return rows < most ? rows : max_sequences < most ? most : max_sequences;
}

struct od_forward_opts odm_pass_size_decode(const struct od_forward_opts *o, uint32_t max_sequences)
{
	struct od_forward_opts d = *o;

	d.max_rows = odm_pass_size_rows(o->config, max_sequences);
	d.max_logits = max_sequences > ODM_MAX_DRAFT ? max_sequences : ODM_MAX_DRAFT + 1;
	return d;
}

struct od_forward_opts odm_pass_size_prefill(const struct od_forward_opts *o, uint32_t max_sequences)
{
	struct od_forward_opts p = *o;

	p.max_logits = max_sequences > SEEN_ROWS ? max_sequences : SEEN_ROWS;
	if (p.max_logits > o->max_rows)
		p.max_logits = o->max_rows;
	return p;
}

void odm_pass_size_split(const struct od_forward_opts *o, uint32_t max_sequences, struct od_split *s)
{
	const struct od_forward_opts d = odm_pass_size_decode(o, max_sequences),
				     p = odm_pass_size_prefill(o, max_sequences);

	od_forward_split(&p, s);
	od_forward_split(&d, s);
}
