#include "shadow-node/shadow_sequence.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLER_TOKEN_BYTES 32 /* per token of the vocabulary; the window of penalties is counted with the tokens */

uint64_t ods_sequence_bytes(const struct od_forward_opts *f, uint32_t ctx)
{
	const struct od_config *c = f->config;
	uint64_t sum = od_state_pool_bytes(c, f->profile, od_state_pages(ctx), 1), tokens = 2 * (uint64_t)ctx * sizeof(int32_t);
	/* Numbers of pages: the sequence's, the pool's spare ones and users, the forward pass's tables. */
	uint64_t pages = 5 * (uint64_t)od_state_pages(ctx) * sizeof(uint32_t);

	if (!od_add(sum, ods_align_bytes(c->n_layers, ctx), &sum) || !od_add(sum, tokens + pages, &sum) ||
	    !od_add(sum, (uint64_t)c->vocab * SAMPLER_TOKEN_BYTES, &sum))
		return UINT64_MAX;
	return sum;
}

int ods_sequence_init(struct ods_sequence *s, const struct od_forward_opts *f, struct od_err *err)
{
	uint32_t ctx = od_state_pool_ctx(f->state);
	int rc = od_seq_state_new(&s->state, f->state, err);

	if (rc == OD_OK)
		rc = od_seq_state_promise(s->state, ctx);
	if (rc != OD_OK)
		return rc;
	rc = ods_align_new(&s->align, f->config->n_layers, ctx,
			   (uint32_t)(ODS_MAX_ASK_BYTES / od_state_pool_most_bytes(f->state)), err);
	if (rc != OD_OK)
		return rc;
	s->ctx = ctx;
	s->vocab = f->config->vocab;
	s->token = od_alloc_array(ctx, sizeof(*s->token));
	s->end = ctx;
	return s->token != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "tokens of %u positions", ctx);
}

void ods_sequence_fini(struct ods_sequence *s)
{
	od_seq_state_free(s->state);
	ods_align_free(s->align);
	od_sampler_free(s->sampler);
	od_free(s->token);
}

/* The old one stays when the options are bad. */
static int take_sampler(struct ods_sequence *s, struct od_sampler_opts *o, struct od_err *err)
{
	struct od_sampler *made;
	int rc;

	if (o->repetition_window >= s->ctx)
		o->repetition_window = 0; /* the same, without memory for it */
	rc = od_sampler_new(&made, o, s->vocab, err);
	if (rc != OD_OK)
		return rc;
	od_sampler_free(s->sampler);
	s->sampler = made;
	s->penalised = o->repetition_penalty != 1;
	return OD_OK;
}

int ods_sequence_begin(struct ods_sequence *s, uint64_t id, struct od_err *err)
{
	struct od_sampler_opts o;
	int rc;

	od_sampler_defaults(&o);
	rc = take_sampler(s, &o, err);
	if (rc != OD_OK)
		return rc;
	ods_sequence_truncate(s, 0);
	s->used = true;
	s->id = id;
	s->own_state = false;
	s->prompt_tokens = 0;
	return OD_OK;
}

int ods_sequence_open(struct ods_sequence *s, const Od__SeqOpen *m, struct od_err *err)
{
	struct od_sampler_opts o = {
		.temperature = m->temperature,
		.top_k = m->top_k,
		.top_p = m->top_p,
		.min_p = m->min_p,
		.repetition_penalty = m->repetition_penalty,
		.repetition_window = m->repetition_window,
		.seed = m->seed,
	};
	int rc = take_sampler(s, &o, err);

	if (rc != OD_OK)
		return rc;
	s->own_state = m->own_state;
	s->prompt_tokens = m->prompt_tokens;
	return OD_OK;
}

void ods_sequence_forget_tokens(struct ods_sequence *s, uint32_t length)
{
	if (length < s->end) {
		memset(s->token + length, 0xff, (s->end - length) * sizeof(*s->token)); /* -1 */
		s->end = length;
	}
	if (s->known > length)
		s->known = length;
	if (s->told > length)
		s->told = length;
	if (s->asked_begin >= length)
		s->asked = false;
}

void ods_sequence_truncate(struct ods_sequence *s, uint32_t length)
{
	ods_align_truncate(s->align, length);
	ods_sequence_forget_tokens(s, length);
}

void ods_sequence_set_token(struct ods_sequence *s, uint32_t position, int32_t token)
{
	s->token[position] = token;
	if (position >= s->end)
		s->end = position + 1;
}

uint32_t ods_sequence_unknown(struct ods_sequence *s, uint32_t limit)
{
	while (s->known < limit && s->token[s->known] >= 0)
		s->known++;
	return s->known < limit ? s->known : limit;
}

void ods_sequence_choose(struct ods_sequence *s, uint32_t position, float *logits)
{
	uint64_t draws = position > s->prompt_tokens ? position - s->prompt_tokens : 0;

	if (od_sampler_replay(s->sampler, s->token, position, draws) == OD_OK)
		ods_sequence_set_token(s, position, od_sampler_sample(s->sampler, logits));
}
