#include "common/pack/share.h"

#include "common/base/args.h"

#include <stdio.h>
#include <string.h>

#define MAX_WORKERS 1024u /* limit of a hosts file */

uint32_t od_share_groups(uint32_t n_workers, uint32_t asked, uint32_t top_k)
{
	uint32_t size = asked > 0 ? asked : top_k;

	if (n_workers == 0)
		return 0;
	return size < n_workers ? n_workers / size : 1;
}

bool od_share_good(const struct od_share *s)
{
	return s->n_workers > 0 && s->worker < s->n_workers && s->n_groups > 0 && s->n_groups <= s->n_workers;
}

enum od_share_class od_share_of(const struct od_share *s, uint32_t m, uint32_t expert)
{
	if (m % s->n_groups == s->worker % s->n_groups)
		return OD_SHARE_LAYER;
	return expert % s->n_workers == s->worker ? OD_SHARE_PREFILL : OD_SHARE_NONE;
}

int od_share_parse(struct od_share *s, const char *text, uint32_t asked, uint32_t top_k, struct od_err *err)
{
	const char *slash = strchr(text, '/');
	uint64_t worker, n;
	char first[16];

	*s = (struct od_share){ 0 };
	if (slash == NULL || (size_t)(slash - text) >= sizeof(first))
		return od_fail(err, OD_ERR_ARG,
			       "expected W/N, such as 2/4 for the second of four workers, found \"%s\"", text);
	snprintf(first, sizeof(first), "%.*s", (int)(slash - text), text);
	if (od_parse_u64(slash + 1, 1, MAX_WORKERS, &n, err) != OD_OK ||
	    od_parse_u64(first, 1, n, &worker, err) != OD_OK)
		return od_fail_within(err, "\"%s\" (W/N: worker W, from 1, of N)", text);
	*s = (struct od_share){ (uint32_t)n, (uint32_t)worker - 1, od_share_groups((uint32_t)n, asked, top_k) };
	return OD_OK;
}
