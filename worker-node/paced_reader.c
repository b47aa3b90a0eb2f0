#include "worker-node/paced_reader.h"

#include "common/base/clock.h"
#include "common/pack/load/expert_form.h"

#define PIECE_NS (OD_NS_PER_S / 2) /* main hears of progress about this often (stuck: 3 s without) */

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* How long the path takes for a slice; rounded up, so that the slices of an expert make up load_ns. */
static uint64_t path_ns(const struct odw_paced_reader *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n)
{
	const struct od_pack_expert *x = od_pack_expert(p->pack, m, expert);
	uint64_t bytes = 0, all = 0;

	for (uint32_t i = 0; i < x->n_shards; i++) {
		const struct od_shard *s = &x->shard[i];
		const bool in_slice = i >= first && i < first + n;

		all += (uint64_t)s->sm.stored_bytes + s->e.stored_bytes;
		bytes += in_slice ? (uint64_t)s->sm.stored_bytes + s->e.stored_bytes : 0;
	}
	if (p->load_ns == 0)
		return (uint64_t)((double)bytes / p->bytes_per_ns);
	return (uint64_t)((double)p->load_ns * (double)bytes / (double)all) + (bytes > 0);
}

/* When the path begins with this read, and when it has served it. */
static void queue_up(struct odw_paced_reader *p, bool begins_now, uint64_t ns, uint64_t *begin_ns, uint64_t *due_ns)
{
	const uint64_t now_ns = od_now_ns();

	pthread_mutex_lock(&p->lock);
	*begin_ns = begins_now ? later(p->free_ns, now_ns) : p->free_ns;
	*due_ns = p->free_ns = *begin_ns + ns;
	pthread_mutex_unlock(&p->lock);
}

/* Unless others have queued up behind it. */
static void give_back(struct odw_paced_reader *p, uint64_t begin_ns, uint64_t due_ns)
{
	const uint64_t now_ns = od_now_ns();

	pthread_mutex_lock(&p->lock);
	if (p->free_ns == due_ns && now_ns < due_ns)
		p->free_ns = later(begin_ns, now_ns);
	pthread_mutex_unlock(&p->lock);
}

int odw_paced_read(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, const struct od_expert_mem *mem,
		   struct od_ref staging, struct od_shard_bytes *b, struct od_err *err)
{
	struct odw_paced_reader *p = arg;
	uint64_t begin_ns, due_ns, now_ns;
	int rc;

	queue_up(p, p->load_ns == 0 || first == 0, path_ns(p, m, expert, first, n), &begin_ns, &due_ns);
	if (p->read != NULL)
		rc = p->read(p->read_arg, m, expert, first, n, mem, staging, b, err);
	else
		rc = od_shards_read(p->pack, m, expert, first, n, mem, staging, b, err);
	if (p->schedule == NULL && rc == OD_OK)
		od_sleep_until(due_ns);
	while (p->schedule != NULL && rc == OD_OK && (now_ns = od_now_ns()) < due_ns) {
		if (od_schedule_wait_cancelled(p->schedule, m, expert,
					       due_ns - now_ns < PIECE_NS ? due_ns : now_ns + PIECE_NS))
			break;
		od_schedule_tick(p->schedule);
	}
	give_back(p, begin_ns, due_ns);
	return rc;
}
