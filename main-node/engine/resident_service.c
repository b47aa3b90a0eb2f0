/* The expert service of --resident: every expert in this process, nothing to schedule. */
#include "main-node/engine/expert_service.h"

#include "common/model/resident.h"

#include <stdlib.h>

struct resident_service {
	struct odm_expert_service base;
	struct od_expert_runner *experts;
};

static int run(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct resident_service *s = (struct resident_service *)r; /* runner is the first member of the first */

	return s->experts->run(s->experts, call, err);
}

static int begin_step(struct odm_expert_service *s, const struct odm_step *step, struct od_err *err)
{
	(void)s;
	(void)step;
	(void)err;
	return OD_OK;
}

static void end_step(struct odm_expert_service *s)
{
	(void)s;
}

static void close_sequence(struct odm_expert_service *s, uint64_t sequence)
{
	(void)s;
	(void)sequence;
}

static void figures(struct odm_expert_service *s, struct odm_figures *f, struct od_recall *recall)
{
	(void)recall;
	(void)s;
	(void)f; /* the engine adds this process itself */
}

static void free_service(struct odm_expert_service *base)
{
	struct resident_service *s = (struct resident_service *)base;

	od_resident_free(s->experts);
	free(s);
}

int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
			     const struct od_expert *experts, struct od_err *err)
{
	struct resident_service *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "resident experts");
	s->base = (struct odm_expert_service){
		.runner = { .on_device = true, .run = run },
		.begin_step = begin_step,
		.end_step = end_step,
		.close_sequence = close_sequence,
		.figures = figures,
		.free = free_service,
	};
	rc = od_resident_new(&s->experts, opts, experts, err);
	if (rc != OD_OK) {
		free(s);
		return rc;
	}
	*out = &s->base;
	return OD_OK;
}
