#include "main-node/cluster/row_source.h"

#include "main-node/cluster/members_look.h"
#include "main-node/cluster/result_check.h"

#include <stdio.h>
#include <string.h>

void odm_row_source_begin(struct odm_row_source *s)
{
	memset(s, 0, sizeof(*s));
}

void odm_row_source_add(struct odm_row_source *s, uint32_t member)
{
	s->from[member] = true;
}

/* "worker 10.0.0.2:5701, worker 10.0.0.3:5701", as many as fit. */
static void name_workers(const struct odm_row_source *s, struct odm_members *ms, char *buf, size_t size)
{
	size_t used = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < OD_MAX_HOSTS; i++) {
		struct odm_member_stats st;
		char name[300];
		int n;

		if (!s->from[i] || !odm_members_stats(ms, i, &st, name, sizeof(name)))
			continue;
		n = snprintf(buf + used, size - used, "%s%s", used > 0 ? ", " : "", name);
		if (n < 0 || (size_t)n >= size - used) {
			snprintf(buf + used, size - used, " ...");
			return;
		}
		used += (size_t)n;
	}
}

int odm_row_source_check(const struct odm_row_source *s, struct odm_members *ms, uint32_t m, const float *rows,
			 size_t n_rows, size_t hidden, struct od_err *err)
{
	char names[400];

	if (odm_all_plausible(rows, n_rows * hidden * sizeof(*rows), false))
		return OD_OK;
	name_workers(s, ms, names, sizeof(names));
	return od_fail(err, OD_ERR_CORRUPT,
		       "the rows for MoE layer %u are not all finite numbers, before any worker computed with them: "
		       "main's memory or the checkpoint may be damaged%s%s",
		       m, names[0] != '\0' ? ", or one of these, whose outputs the step has used so far: " : "", names);
}
