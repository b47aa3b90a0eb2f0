#include "main-node/engine/resident_service.h"

#include "common/base/args.h"
#include "common/model/resident.h"
#include "common/pack/load/expert_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct resident_service {
	struct odm_expert_service base; /* first */
	struct od_expert_store *experts;
	uint64_t n_experts; /* all of them */
};

static void free_service(struct odm_expert_service *base)
{
	struct resident_service *s = (struct resident_service *)base;

	od_resident_free(s->base.runner);
	od_experts_free(s->experts);
	free(s);
}

static uint64_t kept_experts(struct odm_expert_service *base)
{
	return ((struct resident_service *)base)->n_experts;
}

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	const char *what = arg;
	char a[32], b[32];

	fprintf(stderr, "\r%s: %s of %s%s", what, od_format_bytes(done, a, sizeof(a)),
		od_format_bytes(all, b, sizeof(b)), done == all ? "\n" : "   ");
}

int odm_resident_service_new(struct odm_expert_service **out, const struct odm_model *model, struct od_err *err)
{
	const struct od_forward_opts fo = odm_model_forward_opts(model);
	const bool progress = !model->opts.quiet && isatty(STDERR_FILENO);
	static char what[] = "loading experts";
	struct resident_service *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "resident experts");
	s->base.free = free_service;
	s->base.kept_experts = kept_experts;
	s->n_experts = (uint64_t)model->config->n_moe * model->config->n_experts;
	rc = od_experts_load_all(&s->experts, model->pack, model->device, model->form, (unsigned)model->opts.threads,
				 progress ? show_progress : NULL, what, err);
	if (rc == OD_OK)
		rc = od_resident_new(&s->base.runner, &fo, od_experts_get(s->experts), err);
	if (rc != OD_OK) {
		free_service(&s->base);
		return rc;
	}
	*out = &s->base;
	return OD_OK;
}
