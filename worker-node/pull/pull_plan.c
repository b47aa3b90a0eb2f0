#include "worker-node/pull/pull_plan.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bytes_of(const struct odw_pull_plan *p, uint32_t expert)
{
	return od_pack_expert(p->pack, expert / p->per_layer, expert % p->per_layer)->bytes;
}

static bool is_whole(const struct odw_pull_plan *p, uint32_t expert)
{
	return od_pack_has_expert(p->pack, expert / p->per_layer, expert % p->per_layer);
}

int odw_pull_plan_init(struct odw_pull_plan *p, const struct od_pack *pack, uint64_t limit_bytes, uint64_t header_bytes,
		       struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(pack);

	*p = (struct odw_pull_plan){ .pack = pack,
				     .n = cfg->n_moe * cfg->n_experts,
				     .per_layer = cfg->n_experts,
				     .limit_bytes = limit_bytes,
				     .header_bytes = header_bytes,
				     .next_rest_ns = UINT64_MAX };
	p->disk_bytes = p->n * header_bytes;
	p->goal = calloc(p->n, sizeof(*p->goal));
	p->on_disk = calloc(p->n, sizeof(*p->on_disk));
	p->active = calloc(p->n, sizeof(*p->active));
	p->rest_ns = calloc(p->n, sizeof(*p->rest_ns));
	p->order = calloc(p->n, sizeof(*p->order));
	p->urgent = calloc(p->n, sizeof(*p->urgent));
	if (p->goal != NULL && p->on_disk != NULL && p->active != NULL && p->rest_ns != NULL && p->order != NULL &&
	    p->urgent != NULL)
		return OD_OK;
	odw_pull_plan_fini(p);
	return od_fail(err, OD_ERR_NOMEM, "no memory to plan for %u experts", cfg->n_moe * cfg->n_experts);
}

void odw_pull_plan_fini(struct odw_pull_plan *p)
{
	free(p->goal);
	free(p->on_disk);
	free(p->active);
	free(p->rest_ns);
	free(p->order);
	free(p->urgent);
	*p = (struct odw_pull_plan){ 0 };
}

void odw_pull_plan_keep(struct odw_pull_plan *p, uint32_t expert)
{
	if (!p->on_disk[expert])
		p->disk_bytes += bytes_of(p, expert) - p->header_bytes;
	p->on_disk[expert] = true;
}

/* True if all headers, the goal and this expert fit on the disk. */
static bool fits(const struct odw_pull_plan *p, uint32_t expert)
{
	const uint64_t headers = (p->n - p->n_goal - 1) * p->header_bytes;

	return p->goal_bytes + bytes_of(p, expert) + headers <= p->limit_bytes;
}

static bool put(struct odw_pull_plan *p, uint32_t expert)
{
	if (!fits(p, expert))
		return false;
	p->goal[expert] = true;
	p->order[p->n_goal++] = expert;
	p->goal_bytes += bytes_of(p, expert);
	return true;
}

void odw_pull_plan_share(struct odw_pull_plan *p, const struct od_share *share)
{
	p->share = *share;
	memset(p->goal, 0, p->n * sizeof(*p->goal));
	p->n_goal = p->n_too_many = p->cursor = p->n_urgent = 0;
	p->goal_bytes = 0;
	for (int class = OD_SHARE_LAYER; class < OD_SHARE_NONE; class ++) {
		for (uint32_t i = 0; i < p->n; i++) {
			if ((int)od_share_of(share, i / p->per_layer, i % p->per_layer) == class)
				p->n_too_many += !put(p, i);
		}
	}
}

bool odw_pull_plan_add(struct odw_pull_plan *p, uint32_t expert)
{
	return p->goal[expert] || put(p, expert);
}

void odw_pull_plan_urge(struct odw_pull_plan *p, uint32_t expert)
{
	for (uint32_t i = 0; i < p->n_urgent; i++) {
		if (p->urgent[i] == expert)
			return;
	}
	if (!p->active[expert] && !is_whole(p, expert))
		p->urgent[p->n_urgent++] = expert;
}

bool odw_pull_plan_urgent_waits(const struct odw_pull_plan *p)
{
	return p->n_urgent > 0;
}

static uint32_t take_urgent(struct odw_pull_plan *p, uint64_t now_ns)
{
	while (p->n_urgent > 0) {
		const uint32_t expert = p->urgent[0];

		memmove(p->urgent, p->urgent + 1, --p->n_urgent * sizeof(*p->urgent));
		if (!p->active[expert] && !is_whole(p, expert) && p->rest_ns[expert] <= now_ns)
			return expert;
	}
	return ODW_NO_EXPERT;
}

static uint32_t take_in_order(struct odw_pull_plan *p, uint64_t now_ns)
{
	if (now_ns >= p->next_rest_ns)
		p->cursor = 0;
	if (p->cursor == 0)
		p->next_rest_ns = UINT64_MAX;
	for (; p->cursor < p->n_goal; p->cursor++) {
		const uint32_t expert = p->order[p->cursor];

		if (p->active[expert] || is_whole(p, expert))
			continue;
		if (p->rest_ns[expert] <= now_ns)
			return expert;
		if (p->rest_ns[expert] < p->next_rest_ns)
			p->next_rest_ns = p->rest_ns[expert];
	}
	return ODW_NO_EXPERT;
}

uint32_t odw_pull_plan_next(struct odw_pull_plan *p, uint64_t now_ns)
{
	uint32_t expert = take_urgent(p, now_ns);

	if (expert == ODW_NO_EXPERT)
		expert = take_in_order(p, now_ns);
	if (expert == ODW_NO_EXPERT)
		return expert;
	p->active[expert] = true;
	odw_pull_plan_keep(p, expert);
	return expert;
}

uint32_t odw_pull_plan_victim(struct odw_pull_plan *p, uint32_t for_expert)
{
	if (p->disk_bytes <= p->limit_bytes)
		return ODW_NO_EXPERT;
	for (uint32_t i = p->n; i-- > 0;) {
		if (!p->on_disk[i] || p->goal[i] || p->active[i] || i == for_expert)
			continue;
		p->on_disk[i] = false;
		p->disk_bytes -= bytes_of(p, i) - p->header_bytes;
		return i;
	}
	return ODW_NO_EXPERT;
}

void odw_pull_plan_end(struct odw_pull_plan *p, uint32_t expert, uint64_t rest_ns)
{
	p->active[expert] = false;
	p->rest_ns[expert] = rest_ns;
	if (rest_ns > 0 && rest_ns < p->next_rest_ns)
		p->next_rest_ns = rest_ns;
}

void odw_pull_plan_lost(struct odw_pull_plan *p, uint32_t expert)
{
	p->cursor = 0;
	p->rest_ns[expert] = 0;
	if (p->goal[expert])
		odw_pull_plan_urge(p, expert);
}
