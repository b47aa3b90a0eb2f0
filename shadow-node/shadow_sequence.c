#include "shadow-node/shadow_sequence.h"

#include "common/base/mem.h"
#include "common/net/wire.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLER_TOKEN_BYTES 32 /* per token of the vocabulary; the window of penalties is counted with the tokens */
/* lists of a SEQ_OPEN: every third number of the breakers may have a pointer */
#define SAMPLER_LIST_BYTES \
	(OD_MAX_LOGIT_BIAS * sizeof(struct od_logit_bias) + OD_MAX_LATE * sizeof(int32_t) + \
	 OD_MAX_DRY_BREAKERS * (sizeof(int32_t) + sizeof(int32_t *) / 3 + 1))

/* ---- Memory ---- */

/* Positions of one answer with KV rows. */
static uint32_t max_ask(const struct od_forward_opts *f)
{
	uint64_t most = 1;

	for (uint32_t i = 0; i < f->config->n_layers; i++) {
		uint64_t row_bytes[OD_MAX_STREAMS], sum = 0;

		for (uint32_t n = od_state_row_bytes(f->config, f->profile, i, row_bytes); n > 0; n--)
			sum += row_bytes[n - 1];
		most = sum > most ? sum : most;
	}
	return (uint32_t)(ODS_MAX_ASK_BYTES / most);
}

void ods_sequence_split(const struct od_forward_opts *f, uint32_t ctx, struct od_split *s)
{
	const struct od_config *c = f->config;
	/* Tokens, the sampler's copy of them, margins; DRY's three tables. */
	const uint64_t tokens = 6 * (uint64_t)ctx * sizeof(int32_t);
	/* Page numbers of this sequence, and of one that has ended while the run still has its rows; the forward pass's
	 * tables for both. */
	const uint64_t pages = 6 * (uint64_t)od_state_pages(ctx) * sizeof(uint32_t);

	od_state_split(c, f->profile, s);
	/* copies of both sequences, and the zeros that a text begins with */
	for (uint32_t i = s->begin; i < s->end; i++)
		if (!od_mul(s->layer[i].copy, 2 * ODS_FIXED_COPIES + 1, &s->layer[i].copy))
			s->layer[i].copy = UINT64_MAX;
	od_split_add(&s->beside.page, ods_align_page_bytes(c->n_layers) + 2 * sizeof(uint32_t)); /* the pool's lists */
	od_split_add(&s->beside.copy, (uint64_t)c->vocab * SAMPLER_TOKEN_BYTES + ods_align_bytes(c->n_layers, ctx) +
					      SAMPLER_LIST_BYTES + sizeof(struct ods_sequence) + tokens + pages);
}

void ods_sequence_free(struct ods_sequence *s)
{
	if (s == NULL)
		return;
	od_seq_state_free(s->state);
	ods_align_free(s->align);
	od_sampler_free(s->sampler);
	od_free(s->token);
	od_free(s->margin);
	free(s);
}

bool ods_sequence_reserve(struct ods_sequence *s, uint32_t end)
{
	if (s->state == NULL || od_seq_state_promise(s->state, end) != OD_OK || !ods_align_reserve(s->align, end))
		return false;
	return od_seq_state_reserve(s->state, end, NULL) == OD_OK;
}

void ods_sequence_share(struct ods_sequence *s, struct ods_sequence *from, uint32_t n)
{
	/* Where main left the token to the shadow, the shadow's text may differ from main's. */
	const uint32_t sure = from->main_end < n ? from->main_end / OD_KV_PAGE * OD_KV_PAGE : n;

	if (od_seq_state_n_pages(s->state) > 0 || od_seq_state_is_long(s->state) != od_seq_state_is_long(from->state) ||
	    sure == 0 || !ods_sequence_reserve(from, sure))
		return;
	if (!s->fixed) {
		od_seq_state_share(s->state, from->state, sure / OD_KV_PAGE);
		ods_align_share(s->align, from->align, sure / OD_KV_PAGE);
	}
	/* later tokens are the shadow's guesses */
	for (uint32_t p = 0; p < sure && (p < from->stepped || p < from->told); p++)
		if (from->token[p] >= 0)
			ods_sequence_set_token(s, p, from->token[p]);
}

/* ---- Fixed state ---- */

static void find_fixed(struct ods_sequence *s, const struct od_config *c)
{
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct od_layer_spec *l = od_config_layer(c, i);
		struct od_state_spec spec = { 0 };
		uint64_t row_bytes[OD_MAX_STREAMS];

		l->mixer->state(&l->mix, &spec);
		if (spec.fixed_bytes == 0 && od_state_row_bytes(c, OD_PROFILE_F32, i, row_bytes) == 0)
			ods_align_set_empty(s->align, i);
		if (spec.fixed_bytes == 0)
			continue;
		ods_align_set_fixed(s->align, i);
		s->fixed = s->own_state = true;
	}
}

void ods_sequence_note_run(struct ods_sequence *s, uint32_t sure)
{
	if (!s->fixed || s->state == NULL)
		return;
	od_seq_state_settle(s->state, sure);
	ods_align_run(s->align, od_seq_state_length(s->state));
}

void ods_sequence_rewind(struct ods_sequence *s, uint32_t position)
{
	if (s->fixed && s->state != NULL && od_seq_state_length(s->state) > position)
		ods_align_run(s->align, od_seq_state_rewind(s->state, position));
}

void ods_sequence_clear(struct ods_sequence *s)
{
	ods_align_clear(s->align);
	ods_sequence_rewind(s, 0);
}

/* Keeps the old sampler when the options are bad. */
static int take_sampler(struct ods_sequence *s, struct od_sampler_opts *o, struct od_err *err)
{
	struct od_sampler *made;
	int rc;

	if (o->repetition_window >= s->ctx)
		o->repetition_window = 0; /* a window of the whole text needs no memory */
	if (o->dry.window > s->ctx)
		o->dry.window = s->ctx;
	rc = od_sampler_new(&made, o, s->vocab, err);
	if (rc != OD_OK)
		return rc;
	od_sampler_free(s->sampler);
	s->sampler = made;
	s->penalised = od_sampler_looks_back(o);
	return OD_OK;
}

int ods_sequence_new(struct ods_sequence **out, uint64_t id, const struct od_forward_opts *f, struct od_err *err)
{
	const uint32_t ctx = od_state_pool_ctx(f->state);
	struct ods_sequence *s = calloc(1, sizeof(*s));
	struct od_sampler_opts o;
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sequence");
	*s = (struct ods_sequence){ .id = id, .vocab = f->config->vocab, .main_end = UINT32_MAX };
	od_sampler_defaults(&o);
	rc = od_seq_state_new(&s->state, f->state, err);
	if (rc == OD_OK)
		s->ctx = od_seq_state_ctx(s->state);
	if (rc == OD_OK)
		rc = ods_align_new(&s->align, f->config->n_layers, ctx, max_ask(f), err);
	if (rc == OD_OK)
		find_fixed(s, f->config);
	if (rc == OD_OK)
		rc = take_sampler(s, &o, err);
	if (rc != OD_OK)
		goto fail;
	s->token = od_alloc_array(ctx, sizeof(*s->token));
	s->margin = od_alloc_array(ctx, sizeof(*s->margin));
	if (s->token == NULL || s->margin == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "tokens of %u positions", ctx);
		goto fail;
	}
	memset(s->token, 0xff, ctx * sizeof(*s->token)); /* -1 */
	*out = s;
	return OD_OK;
fail:
	ods_sequence_free(s);
	return rc;
}

/* The sampler checks the tokens and biases themselves. */
static int read_biases(struct od_logit_bias bias[OD_MAX_LOGIT_BIAS], const Od__SeqOpen *m, struct od_err *err)
{
	if (m->n_bias_tokens != m->n_biases || m->n_biases > OD_MAX_LOGIT_BIAS)
		return od_fail(err, OD_ERR_RANGE,
			       "biases: expected as many as tokens, %u at most, found %zu for %zu tokens",
			       OD_MAX_LOGIT_BIAS, m->n_biases, m->n_bias_tokens);
	for (size_t i = 0; i < m->n_biases; i++)
		bias[i] = (struct od_logit_bias){
			.token = m->bias_tokens[i] <= INT32_MAX ? (int32_t)m->bias_tokens[i] : -1,
			.bias = m->biases[i],
		};
	return OD_OK;
}

/* The sampler checks the rest. A token id above INT32_MAX becomes a negative one. */
static int read_rare(struct od_sampler_opts *o, const Od__RareSampling *m, struct od_err *err)
{
	if (m == NULL)
		return OD_OK;
	if (m->n_dry_breakers > OD_MAX_DRY_BREAKERS)
		return od_fail(err, OD_ERR_RANGE, "dry_breakers: expected at most %u numbers, found %zu",
			       OD_MAX_DRY_BREAKERS, m->n_dry_breakers);
	o->typical_p = m->typical_p;
	o->top_n_sigma = m->top_n_sigma;
	o->xtc_probability = m->xtc_probability;
	o->xtc_threshold = m->xtc_threshold;
	o->dynatemp_range = m->dynatemp_range;
	o->dynatemp_exponent = m->dynatemp_exponent;
	o->dry = (struct od_dry_opts){ .multiplier = m->dry_multiplier,
				       .base = m->dry_base,
				       .allowed_length = m->dry_allowed_length,
				       .window = m->dry_window,
				       .breakers = (const int32_t *)m->dry_breakers,
				       .n_breakers = m->n_dry_breakers };
	o->min_draws = m->min_draws;
	o->late = (const int32_t *)m->late;
	o->n_late = m->n_late;
	return OD_OK;
}

static int set_long(struct ods_sequence *s, bool is_long, struct od_err *err)
{
	if (s->state == NULL || od_seq_state_is_long(s->state) == is_long)
		return OD_OK;
	if (od_seq_state_n_pages(s->state) > 0)
		return od_fail(err, OD_ERR_PROTOCOL, "sequence %llu: is_long: expected %d, as before, found %d",
			       (unsigned long long)s->id, !is_long, is_long);
	od_seq_state_set_long(s->state, is_long);
	s->ctx = od_seq_state_ctx(s->state);
	return OD_OK;
}

int ods_sequence_open(struct ods_sequence *s, const Od__SeqOpen *m, struct od_err *err)
{
	struct od_logit_bias bias[OD_MAX_LOGIT_BIAS];
	struct od_sampler_opts o;
	int rc = read_biases(bias, m, err);

	od_sampler_defaults(&o);
	o.temperature = m->temperature;
	o.top_k = m->top_k;
	o.top_p = m->top_p;
	o.min_p = m->min_p;
	o.repetition_penalty = m->repetition_penalty;
	o.repetition_window = m->repetition_window;
	o.frequency_penalty = m->frequency_penalty;
	o.presence_penalty = m->presence_penalty;
	o.logit_bias = bias;
	o.n_logit_bias = m->n_biases;
	o.seed = m->seed;
	if (rc == OD_OK)
		rc = read_rare(&o, m->rare, err);
	if (rc == OD_OK)
		rc = set_long(s, m->is_long, err);
	if (rc == OD_OK)
		rc = take_sampler(s, &o, err);
	if (rc != OD_OK)
		return rc;
	od_peer_text(m->request, s->request, sizeof(s->request));
	s->own_state = m->own_state || s->fixed;
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
	if (s->main_end >= length)
		s->main_end = UINT32_MAX;
	if (s->asked_begin >= length)
		s->asked = false;
}

/* Leaves pages n and later to the sequences that share them; later rows go to pages of its own. Without memory for
 * these the sequence loses all its pages and is not predicted. */
static void unshare(struct ods_sequence *s, uint32_t n)
{
	struct od_seq_state *old = s->state;

	if (od_seq_state_new(&s->state, od_seq_state_pool(old), NULL) != OD_OK)
		n = 0;
	else
		od_seq_state_set_long(s->state, od_seq_state_is_long(old));
	if (n > 0)
		od_seq_state_share(s->state, old, n);
	ods_align_unshare(s->align, n);
	od_seq_state_free(old);
}

void ods_sequence_drop_rows(struct ods_sequence *s, uint32_t position)
{
	if (ods_align_shared(s->align, position))
		unshare(s, position / OD_KV_PAGE);
	ods_align_truncate(s->align, position);
	ods_sequence_rewind(s, position);
}

void ods_sequence_set_token(struct ods_sequence *s, uint32_t position, int32_t token)
{
	if (s->token[position] != token)
		s->margin[position] = 0;
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
	float margin;

	if (od_sampler_replay(s->sampler, s->token, position, draws) != OD_OK)
		return;
	ods_sequence_set_token(s, position, od_sampler_sample(s->sampler, logits, &margin));
	s->margin[position] = margin;
}
