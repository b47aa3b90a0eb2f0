#include "tests/bench/live/parallel_texts.h"

#include "common/base/clock.h"

#include <stdlib.h>

int parallel_texts_init(struct parallel_texts *t, struct odm_engine *e, size_t most, bool count_experts,
			struct od_err *err)
{
	const struct od_config *c = od_pack_config(odm_engine_pack(e));

	*t = (struct parallel_texts){ .engine = e, .most = most };
	t->text = calloc(most, sizeof(*t->text));
	if (count_experts)
		t->used = calloc((size_t)c->n_moe * c->n_experts, sizeof(*t->used));
	return t->text != NULL && (t->used != NULL || !count_experts) ?
		       OD_OK :
		       od_fail(err, OD_ERR_NOMEM, "%zu texts at once", most);
}

void parallel_texts_fini(struct parallel_texts *t)
{
	parallel_texts_clear(t);
	free(t->text);
	free(t->used);
	*t = (struct parallel_texts){ 0 };
}

static void begin_step(struct parallel_texts *t, const struct odm_step *step)
{
	t->step = step->step;
	t->joint = step->n_parts == t->n;
	t->steps += t->joint;
}

/* Called for each text that has rows in the step; the first one is of the last token that the text has. */
static void on_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	struct parallel_text *text = arg;
	struct parallel_texts *t = text->all;
	uint64_t tokens;

	if (step->phase != ODM_DECODE)
		return;
	if (step->step != t->step)
		begin_step(t, step);
	tokens = step->rows[part->first].position + 1 - part->prompt_tokens;
	if (t->joint && text->before == 0)
		text->before = tokens;
	if (!t->joint && text->before > 0 && text->after == 0)
		text->after = tokens;
}

static void on_route(void *arg, enum odm_phase phase, uint32_t position, uint32_t m, const uint16_t *experts,
		     const float *weights, float margin)
{
	struct parallel_texts *t = ((struct parallel_text *)arg)->all;
	const struct od_config *c = od_pack_config(odm_engine_pack(t->engine));

	(void)position, (void)weights, (void)margin;
	if (phase != ODM_DECODE || !t->joint)
		return;
	for (uint32_t k = 0; k < c->top_k; k++) {
		uint64_t *used = &t->used[(size_t)m * c->n_experts + experts[k]];

		t->experts += *used != t->step;
		*used = t->step;
	}
}

int parallel_texts_add(struct parallel_texts *t, const struct od_prompt *p, uint64_t max_tokens,
		       const struct od_sampler_opts *sampling, struct od_err *err)
{
	struct parallel_text *text = &t->text[t->n];
	const struct odm_request req = {
		.prompt = p->ids,
		.n_prompt = p->n_ids,
		.max_tokens = max_tokens,
		.ignore_eos = true, /* every text is of the same length */
		.sampling = *sampling,
		.observer = { .arg = text, .step = on_step, .route = t->used != NULL ? on_route : NULL },
	};
	int rc;

	if (t->n == 0)
		t->steps = t->experts = 0;
	*text = (struct parallel_text){ .all = t, .prompt = p, .submitted_ns = od_now_ns() };
	rc = odm_engine_submit(t->engine, &req, &text->sequence, err);
	if (rc != OD_OK)
		return od_fail_within(err, "%s", p->name);
	t->n++;
	return OD_OK;
}

bool parallel_texts_work(struct parallel_texts *t)
{
	t->joint = false;
	odm_engine_work(t->engine);
	return t->joint;
}

size_t parallel_texts_done(const struct parallel_texts *t)
{
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		n += t->text[i].sequence == NULL || odm_sequence_done(t->text[i].sequence);
	return n;
}

int parallel_texts_take(struct parallel_texts *t, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; i < t->n; i++) {
		struct parallel_text *text = &t->text[i];
		struct od_err why;
		int failed;

		if (text->sequence == NULL || !odm_sequence_done(text->sequence))
			continue;
		failed = odm_sequence_take(text->sequence, &text->r, &why);
		text->sequence = NULL;
		if (failed == OD_OK || rc != OD_OK)
			continue;
		rc = failed;
		*err = why;
		(void)od_fail_within(err, "%s", text->prompt->name);
	}
	return rc;
}

uint64_t parallel_texts_joint_tokens(const struct parallel_texts *t)
{
	uint64_t n = 0;

	for (size_t i = 0; i < t->n; i++) {
		const struct parallel_text *text = &t->text[i];

		if (text->before > 0) /* one without `after` ended in the last of these steps */
			n += (text->after > 0 ? text->after : text->r.n_tokens) - text->before;
	}
	return n;
}

void parallel_texts_clear(struct parallel_texts *t)
{
	struct od_err ignored;
	int rc;

	for (size_t i = 0; i < t->n; i++)
		if (t->text[i].sequence != NULL)
			odm_sequence_cancel(t->text[i].sequence);
	while (parallel_texts_done(t) < t->n)
		odm_engine_work(t->engine);
	rc = parallel_texts_take(t, &ignored);
	(void)rc; /* they were cancelled, or failed as the caller knows */
	for (size_t i = 0; i < t->n; i++)
		odm_result_fini(&t->text[i].r);
	t->n = 0;
}
