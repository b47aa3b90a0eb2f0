#include "main-node/engine/sampling_config.h"

#include "common/base/json.h"
#include "common/text/breakers.h"

/* Hugging Face's defaults for do_sample without further fields. */
#define HF_TEMPERATURE 1.0
#define HF_TOP_K 50

/* -1, as vLLM has it, means the same as 0: all. */
static int read_top_k(const json_t *g, uint32_t *top_k, const char *where, struct od_err *err)
{
	const json_t *v = json_object_get(g, "top_k");

	*top_k = 0;
	if (json_is_number(v) && json_number_value(v) == -1)
		return OD_OK;
	return od_json_u32_or(g, "top_k", 0, UINT32_MAX, HF_TOP_K, top_k, where, err);
}

int odm_sampling_defaults(struct od_sampler_opts *o, const struct od_pack *pack, struct od_err *err)
{
	const json_t *g = od_pack_generation_config(pack);
	const char *where = "generation_config.json";
	bool sample;
	int rc;

	od_sampler_defaults(o);
	if (g == NULL)
		return OD_OK;
	rc = od_json_f64_or(g, "repetition_penalty", 0.01, 100, 1.0, &o->repetition_penalty, where, err);
	if (rc != OD_OK)
		return rc;
	rc = od_json_bool_or(g, "do_sample", false, &sample, where, err);
	if (rc != OD_OK || !sample)
		return rc;
	rc = od_json_f64_or(g, "temperature", 0, 1e3, HF_TEMPERATURE, &o->temperature, where, err);
	if (rc == OD_OK)
		rc = read_top_k(g, &o->top_k, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(g, "top_p", 0, 1, 1.0, &o->top_p, where, err);
	if (rc == OD_OK)
		rc = od_json_f64_or(g, "min_p", 0, 1, 0.0, &o->min_p, where, err);
	return rc;
}

const char *const odm_usual_breakers[ODM_N_USUAL_BREAKERS] = { "\n", ":", "\"", "*" };

int odm_sampling_dry(struct od_dry_opts *d, const struct od_tokenizer *t, uint32_t vocab, uint32_t ctx,
		     const char *const *text, size_t n_text, int32_t **breakers, struct od_err *err)
{
	int rc = OD_OK;

	*breakers = NULL;
	d->window = d->window < ctx ? d->window : ctx;
	if (od_dry_is_on(d) && t != NULL)
		rc = od_breakers_find(breakers, &d->n_breakers, t, vocab, text, n_text, err);
	d->breakers = *breakers;
	return rc;
}
