#include "main-node/serve/ops/step_json.h"

#include "common/base/strbuf.h"

#include <inttypes.h>

#define NS_PER_US 1000

static int64_t us(uint64_t ns)
{
	return (int64_t)(ns / NS_PER_US);
}

/* From the step's begin; negative: before it. */
static int64_t at_us(const struct odm_timeline_step *r, uint64_t ns)
{
	return ((int64_t)ns - (int64_t)r->begin_ns) / NS_PER_US;
}

static void write_spans(struct od_strbuf *out, const struct odm_timeline_step *r)
{
	static const char *const names[ODM_N_SPANS] = {
		[ODM_SPAN_ATTENTION] = "attention", [ODM_SPAN_SEND] = "send",	    [ODM_SPAN_WAIT] = "wait",
		[ODM_SPAN_HEAD] = "head",	    [ODM_SPAN_EXPERTS] = "experts",
	};

	for (size_t i = 0; i < r->n_spans; i++) {
		const struct odm_timeline_span *s = &r->span[i];

		od_strbuf_printf(out, "%s[\"%s\",%" PRId64 ",%" PRId64 ",%" PRId64 "]", i > 0 ? "," : "",
				 names[s->what], s->m, at_us(r, s->begin_ns), us(s->end_ns - s->begin_ns));
	}
}

static void write_predictions(struct od_strbuf *out, const struct odm_timeline_step *r)
{
	for (size_t i = 0; i < r->n_predictions; i++) {
		const struct odm_timeline_prediction *p = &r->prediction[i];

		od_strbuf_printf(out, "%s[%u,%" PRId64 ",%u,%u]", i > 0 ? "," : "", p->m, at_us(r, p->came_ns),
				 p->right, p->wrong);
	}
}

static void write_answers(struct od_strbuf *out, const struct odm_timeline_step *r)
{
	for (size_t i = 0; i < r->n_answers; i++) {
		const struct odm_timeline_answer *a = &r->answer[i];

		od_strbuf_printf(out, "%s[%u,%u,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%u,%u]",
				 i > 0 ? "," : "", a->member, a->m, at_us(r, a->sent_ns), at_us(r, a->answered_ns),
				 us(a->load_ns), us(a->wait_ns), us(a->compute_ns), a->experts, a->ready);
	}
}

static void write_step(struct od_strbuf *out, const struct odm_timeline_step *r)
{
	od_strbuf_printf(out,
			 "{\"step\":%" PRIu64 ",\"kind\":\"%s\",\"at_us\":%" PRId64 ",\"us\":%" PRId64
			 ",\"rows\":%zu,\"texts\":%zu,\"drafted\":%zu,\"accepted\":%zu,\"main\":[",
			 r->step, r->phase == ODM_DECODE ? "decode" : "prompt", us(r->begin_ns),
			 us(r->end_ns - r->begin_ns), r->n_rows, r->n_texts, r->drafted, r->accepted);
	write_spans(out, r);
	od_strbuf_printf(out, "],\"shadow\":[");
	write_predictions(out, r);
	od_strbuf_printf(out, "],\"workers\":[");
	write_answers(out, r);
	od_strbuf_printf(out, "]}");
}

char *odm_steps_json(struct odm_timeline *t, size_t *len)
{
	struct odm_timeline_step *r = odm_timeline_take(t);
	struct od_strbuf out = { 0 };

	*len = 0;
	if (r == NULL)
		return NULL;
	for (size_t n = 0; r != NULL; n++) { /* further ones may come meanwhile */
		od_strbuf_printf(&out, n == 0 ? "{\"steps\":[" : ",");
		write_step(&out, r);
		odm_timeline_give(t, r);
		r = n + 1 < ODM_TIMELINE_STEPS ? odm_timeline_take(t) : NULL;
	}
	od_strbuf_printf(&out, "]}");
	return od_strbuf_take(&out, len);
}
