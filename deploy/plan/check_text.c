#include "deploy/plan/check_text.h"

#include "common/base/clock.h"
#include "main-node/cluster/cluster_service.h"

#define PROMPT_TOKENS 4
#define MIN_TOKENS 8
#define MOST_DRAFT 1

int odp_text_open(struct odp_text *t, const struct odp_text_hosts *o, struct od_err *err)
{
	const struct od_forward_opts fo = odm_model_forward_opts(o->model);
	struct odm_cluster_opts co = *o->cluster;
	struct odm_expert_service *service;
	struct odm_cluster *c;
	int rc;

	*t = (struct odp_text){ .hosts = { .host = o->host, .n = o->n } };
	co.hosts = &t->hosts;
	co.cancel = &t->cancel;
	co.shadow = true; /* if there is one */
	co.align = (struct odm_align){ 1, 1 };
	co.max_draft = MOST_DRAFT;
	rc = odm_cluster_open(&c, &co, err);
	if (rc != OD_OK)
		return rc;
	t->members = odm_cluster_members(c);
	rc = odm_cluster_service_new(&service, c, &fo, err);
	return rc == OD_OK ? odm_engine_open(&t->engine, o->model, service, err) : rc;
}

void odp_text_close(struct odp_text *t)
{
	odm_engine_close(t->engine);
	t->engine = NULL;
}

int odp_text_write(struct odp_text *t, const struct odp_text_wish *wish, struct odm_figures *figures,
		   struct od_err *err)
{
	const uint64_t ctx = odm_engine_ctx(t->engine);
	int32_t prompt[PROMPT_TOKENS];
	struct odm_request req = { .prompt = prompt,
				   .n_prompt = PROMPT_TOKENS,
				   .max_tokens =
					   ctx > wish->tokens + PROMPT_TOKENS ? wish->tokens : ctx - PROMPT_TOKENS,
				   .ignore_eos = true,
				   .logprobs = -1,
				   .observer = wish->observer };
	struct odm_sequence *q;
	struct odm_result r = { 0 };
	int rc;

	if (ctx < PROMPT_TOKENS + MIN_TOKENS)
		return od_fail(err, OD_ERR_RANGE, "a context of %llu tokens is too short to measure steps",
			       (unsigned long long)ctx);
	for (int32_t i = 0; i < PROMPT_TOKENS; i++)
		prompt[i] = wish->first + i;
	od_sampler_defaults(&req.sampling);
	rc = odm_engine_submit(t->engine, &req, &q, err);
	if (rc != OD_OK)
		return rc;
	while (odm_engine_work(t->engine)) {
		if (wish->step != NULL)
			wish->step(wish->arg);
		if (od_now_ns() > wish->until_ns)
			odm_sequence_cancel(q);
	}
	rc = odm_sequence_take(q, &r, err);
	if (figures != NULL)
		*figures = r.figures;
	odm_result_fini(&r);
	return rc;
}
