#include "tests/unit/opened_engine.h"

#include <stdlib.h>

#define MOST 8 /* open at a time */

static struct odm_main_node *opened[MOST];

int opened_engine_open(struct odm_engine **out, const struct odm_main_opts *opts, struct od_err *err)
{
	size_t i = 0;
	int rc;

	while (opened[i] != NULL)
		if (++i == MOST)
			abort();
	rc = odm_main_node_open(&opened[i], opts, err);
	*out = odm_main_node_engine(opened[i]);
	return rc;
}

int opened_engine_close(struct odm_engine *e)
{
	struct odm_main_node *n;

	for (size_t i = 0; i < MOST; i++) {
		if (opened[i] == NULL || odm_main_node_engine(opened[i]) != e)
			continue;
		n = opened[i];
		opened[i] = NULL;
		return odm_main_node_close(n);
	}
	abort();
}
