#include "main-node/engine/resident_service.h"

#include "common/model/resident.h"

#include <stdlib.h>

static void free_service(struct odm_expert_service *s)
{
	od_resident_free(s->runner);
	free(s);
}

int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
			     const struct od_expert *experts, struct od_err *err)
{
	struct odm_expert_service *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "resident experts");
	s->free = free_service;
	rc = od_resident_new(&s->runner, opts, experts, err);
	if (rc != OD_OK) {
		free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}
