#include "tests/bench/live/decode_common.h"

#include "common/base/pool.h"

#include <string.h>

#define GPU_BUFFER_BYTES (256u << 20)

static unsigned threads_of(const struct decode_options *o)
{
	return o->engine.opts.engine.threads > 0 ? (unsigned)o->engine.opts.engine.threads : od_cpu_count();
}

uint64_t decode_expert_bytes(const struct od_pack *p, enum od_form form)
{
	return form == OD_FORM_PLANES ? od_pack_expert_stored_bytes(p) : od_pack_expert_raw_bytes(p);
}

int decode_open_membw(struct od_membw **out, const struct decode_options *o, const struct odm_engine *e,
		      struct od_err *err)
{
	if (strncmp(od_device_name(odm_engine_device(e)), "cuda", 4) == 0)
		return od_membw_open_gpu(out, GPU_BUFFER_BYTES, o->engine.opts.engine.device, err);
	return od_membw_open(out, od_membw_bytes(), threads_of(o), NULL, err);
}

int decode_load_prompts(struct od_prompts *p, const struct decode_options *o, size_t n, size_t at_once,
			struct od_err *err)
{
	int rc = OD_OK;

	if (o->prompts == NULL)
		return OD_OK;
	rc = od_prompts_load(p, o->prompts, n, err);
	if (rc == OD_OK && p->n < at_once) /* texts that are alike choose the same experts, and share state */
		rc = od_fail(err, OD_ERR_ARG, "%s: expected a prompt for each of %zu texts at once, found %zu",
			     o->prompts, at_once, p->n);
	return rc;
}

int decode_make_prompts(struct od_prompts *p, const struct decode_options *o, size_t n, const struct odm_engine *e,
			struct od_err *err)
{
	const struct od_config *c = od_pack_config(odm_engine_pack(e));
	int rc;

	if (o->prompts == NULL)
		rc = od_prompts_random(p, n, o->prompt_tokens, c->vocab, c->bos, o->seed, err);
	else
		rc = od_prompts_encode(p, odm_engine_tokenizer(e), err);
	for (size_t i = 0; rc == OD_OK && i < p->n; i++) {
		const struct od_prompt *q = &p->prompt[i];

		if (q->n_ids + o->tokens - 1 > odm_engine_ctx(e))
			rc = od_fail(err, OD_ERR_ARG,
				     "%s has %zu tokens and --tokens is %llu: the sum must be at most the "
				     "context of %u plus one; change --tokens or --ctx-size",
				     q->name, q->n_ids, (unsigned long long)o->tokens, odm_engine_ctx(e));
	}
	return rc;
}

void decode_report_engine(struct od_report *r, const struct decode_options *o, const struct odm_engine *e,
			  const char *tokens)
{
	const struct odm_main_opts *eo = &o->engine.opts;
	char routing[OD_ROUTING_CHARS];

	od_report_fact(r, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(odm_engine_pack(e))), 0, NULL);
	od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[eo->engine.profile - 1]), 0, NULL);
	od_report_fact(r, "kernels", "kernels", OD_TEXT(od_device_kernels(odm_engine_device(e), eo->engine.profile)), 0,
		       NULL);
	od_report_fact(r, "routing", "routing", OD_TEXT(od_config_routing(od_pack_config(odm_engine_pack(e)), routing)),
		       0, NULL);
	od_report_fact(r, "threads", "threads", OD_INT(threads_of(o)), 0, NULL);
	od_report_fact(r, "runs", "runs", OD_INT(o->runs), 0, NULL);
	od_report_fact(r, "tokens", tokens, OD_INT(o->tokens), 0, NULL);
	if (o->layer_time_ms > 0)
		od_report_fact(r, "layer_time_ms", "attention and router of a layer, at least",
			       OD_REAL(o->layer_time_ms), 3, "ms");
	od_report_fact(r, "temperature", "temperature", OD_REAL(o->temperature), 1, NULL);
}

void decode_report_cluster(struct od_report *r, const struct decode_options *o, const struct odm_figures *f)
{
	int predictor = o->engine.opts.cluster.predictor;

	/* The figures show the choice of "auto": it is the shadow or nothing. */
	if (predictor == ODM_PREDICTOR_AUTO)
		predictor = f->has_predictor ? ODM_PREDICT_SHADOW : ODM_PREDICT_NONE;
	od_report_fact(r, "predictor", "predictor", OD_TEXT(odm_predictor_names[predictor]), 0, NULL);
	od_report_fact(r, "workers", "workers", OD_INT(f->c[OD_C_WORKERS]), 0, NULL);
	od_report_fact(r, "groups", "groups", OD_INT(f->c[OD_C_GROUPS]), 0, NULL);
	od_report_fact(r, "slots", "slots of a worker", OD_INT(f->c[OD_C_SLOTS]), 0, NULL);
}
