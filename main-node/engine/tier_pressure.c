#include "main-node/engine/tier_pressure.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/timed_cond.h"

#include <pthread.h>
#include <stdlib.h>

#define LOOK_NS (100 * OD_NS_PER_MS) /* another process may take tens of megabytes in this time */
#define CALM_NS (2 * OD_NS_PER_S) /* between the last shrinking and growing, and between two steps of growing */
#define GROW_DIVISOR \
	8 /* grows by at most one in so many of most_bytes, and by half of what is free beyond the reserve */

struct odm_tier_pressure {
	struct odm_tier_pressure_opts o;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ends;
	bool stop;
};

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t odm_pressure_decide(const struct odm_pressure_look *l)
{
	/* The unused part of the budget will be used, so it counts as taken. */
	const uint64_t unused = less(l->now_bytes, l->kept_bytes), left = less(l->free_bytes, l->reserve_bytes);

	if (l->free_bytes < l->reserve_bytes)
		return less(l->kept_bytes < l->now_bytes ? l->kept_bytes : l->now_bytes,
			    l->reserve_bytes - l->free_bytes);
	if (!l->may_grow || left <= unused)
		return l->now_bytes;
	return min_u64(l->most_bytes, l->now_bytes + min_u64((left - unused) / 2, l->most_bytes / GROW_DIVISOR + 1));
}

/* False: the thread is to end. */
static bool sleep_until_look(struct odm_tier_pressure *p)
{
	const uint64_t until_ns = od_now_ns() + LOOK_NS;
	bool stop, early = true;

	pthread_mutex_lock(&p->lock);
	while (!(stop = p->stop) && early)
		early = od_timed_cond_wait(&p->ends, &p->lock, until_ns);
	pthread_mutex_unlock(&p->lock);
	return !stop;
}

static void say(uint64_t from, uint64_t to, uint64_t most)
{
	char a[32], b[32];

	if (to < from && from == most)
		od_log(OD_LOG_WARN, "little memory is free: experts and texts have %s instead of %s while that is so",
		       od_format_bytes(to, a, sizeof(a)), od_format_bytes(most, b, sizeof(b)));
	else if (to == most)
		od_log(OD_LOG_INFO, "memory is free again: experts and texts have %s",
		       od_format_bytes(to, a, sizeof(a)));
	else
		od_log(OD_LOG_DEBUG, "experts and texts have %s", od_format_bytes(to, a, sizeof(a)));
}

static void *follow(void *arg)
{
	struct odm_tier_pressure *p = arg;
	struct odm_pressure_look l = { .most_bytes = p->o.most_bytes,
				       .now_bytes = p->o.most_bytes,
				       .reserve_bytes = p->o.reserve_bytes };
	uint64_t calm_ns = od_now_ns();
	bool known = false; /* else 0 bytes free say nothing */

	while (sleep_until_look(p)) {
		uint64_t to;

		l.kept_bytes = p->o.kept(p->o.arg);
		l.free_bytes = od_available_ram_bytes();
		l.may_grow = od_now_ns() - calm_ns >= CALM_NS;
		known = known || l.free_bytes > 0;
		to = known ? odm_pressure_decide(&l) : l.now_bytes;
		if (to == l.now_bytes)
			continue;
		p->o.resize(p->o.arg, to);
		say(l.now_bytes, to, l.most_bytes);
		l.now_bytes = to;
		calm_ns = od_now_ns();
	}
	return NULL;
}

int odm_tier_pressure_start(struct odm_tier_pressure **out, const struct odm_tier_pressure_opts *o, struct od_err *err)
{
	struct odm_tier_pressure *p = calloc(1, sizeof(*p));

	*out = NULL;
	if (p != NULL) {
		p->o = *o;
		pthread_mutex_init(&p->lock, NULL);
		od_timed_cond_init(&p->ends);
	}
	if (p == NULL || pthread_create(&p->thread, NULL, follow, p) != 0) {
		free(p);
		return od_fail(err, OD_ERR_NOMEM, "cannot start the thread that follows free memory");
	}
	pthread_setname_np(p->thread, "od-pressure");
	*out = p;
	return OD_OK;
}

void odm_tier_pressure_stop(struct odm_tier_pressure *p)
{
	if (p == NULL)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_signal(&p->ends);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->ends);
	free(p);
}
