#include "main-node/cluster/copy_check.h"

#include "common/base/log.h"
#include "common/net/hosts.h"
#include "common/pack/expert_sums.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define NICE 10

/* Main's own copy of an expert: the thread takes URGENT and WANTED to READ. */
enum { IDLE, WANTED, URGENT, READ };

struct odm_copy_check {
	const struct od_pack *pack;
	uint32_t n, per_layer;
	size_t n_tensors;
	struct od_expert_sums *reported[OD_MAX_HOSTS]; /* [n]; first tensor 0: no report; NULL: none at all */
	_Atomic uint8_t *state; /* [n] */
	_Atomic uint32_t n_read; /* grows with experts that the thread has read */
	uint32_t n_seen; /* n_read, when the last look at all experts began */
	bool looks; /* the look has not ended */
	uint32_t at, at_member; /* the expert and the member that it compares next */
	pthread_t thread;
	bool started;
	sem_t work; /* posted for each expert that became WANTED, and for stop */
	atomic_bool stop;
};

/* ---- the thread: reads main's copy ---- */

static void read_expert(struct odm_copy_check *c, uint32_t i)
{
	const uint32_t m = i / c->per_layer, expert = i % c->per_layer,
		       n = od_pack_expert(c->pack, m, expert)->n_shards;
	struct od_err err;
	uint64_t ignored;
	int rc = OD_OK;

	for (uint32_t shard = 0; rc == OD_OK && shard < n && !atomic_load(&c->stop); shard++)
		rc = od_expert_sums_chunk(c->pack, m, expert, shard, &ignored, &err);
	if (rc != OD_OK)
		od_log_limited(OD_LOG_ERROR, "workers' copies of an expert cannot be compared with the one here: %s",
			       err.msg);
	atomic_store(&c->state[i], READ);
	atomic_fetch_add(&c->n_read, 1);
}

/* The next expert to read; c->n: none. */
static uint32_t choose(const struct odm_copy_check *c)
{
	uint32_t wanted = c->n;

	for (uint32_t i = c->n; i-- > 0;) {
		const uint8_t state = atomic_load(&c->state[i]);

		if (state == URGENT)
			return i;
		wanted = state == WANTED ? i : wanted;
	}
	return wanted;
}

static void *check_main(void *arg)
{
	struct odm_copy_check *c = arg;

	/* On Linux this is the thread's own priority. */
	if (setpriority(PRIO_PROCESS, 0, NICE) != 0)
		od_log(OD_LOG_DEBUG, "comparing copies: cannot lower the priority: %s", strerror(errno));
	while (!atomic_load(&c->stop)) {
		uint32_t i;

		while (sem_wait(&c->work) != 0 && errno == EINTR)
			;
		i = choose(c);
		if (i < c->n && !atomic_load(&c->stop))
			read_expert(c, i);
	}
	return NULL;
}

/* ---- comparing ---- */

/* False: they differ. */
static bool same(const struct odm_copy_check *c, uint32_t i, const struct od_expert_sums *ours,
		 const struct od_expert_sums *theirs, char *why, size_t size)
{
	const uint32_t m = i / c->per_layer, expert = i % c->per_layer;

	for (size_t t = 0; t < c->n_tensors; t++) {
		if (ours->xxh3[t] == theirs->xxh3[t])
			continue;
		snprintf(
			why, size,
			"its copy of the GGUF file is another one, with the same fingerprint: tensor %s, expert %u: checksum "
			"%016" PRIx64 " there, %016" PRIx64 " of main's; compare the files with sha256sum, copy the "
			"right one (or empty its spool), and restart it",
			od_expert_sums_tensor(c->pack, m, (enum od_expert_mat)t), expert, theirs->xxh3[t],
			ours->xxh3[t]);
		return false;
	}
	return true;
}

static bool others_differ(const struct odm_copy_check *c, uint32_t i, const struct od_expert_sums *sums)
{
	for (uint32_t h = 0; h < OD_MAX_HOSTS; h++) {
		const struct od_expert_sums *r = c->reported[h];

		if (r != NULL && r[i].xxh3[0] != 0 && memcmp(&r[i], sums, sizeof(*sums)) != 0)
			return true;
	}
	return false;
}

/* Main's own copy is to be read. */
static void want(struct odm_copy_check *c, uint32_t i, bool urgent)
{
	uint8_t before = atomic_load(&c->state[i]);

	do {
		if (before == READ || before == URGENT || (before == WANTED && !urgent))
			return;
	} while (!atomic_compare_exchange_weak(&c->state[i], &before, urgent ? URGENT : WANTED));
	if (before == IDLE)
		sem_post(&c->work);
}

static bool take(struct odm_copy_check *c, uint32_t member, uint32_t i, const struct od_expert_sums *theirs, char *why,
		 size_t size)
{
	struct od_expert_sums ours;

	if (od_expert_sums_get(c->pack, i / c->per_layer, i % c->per_layer, &ours))
		return same(c, i, &ours, theirs, why, size);
	if (c->reported[member] == NULL)
		c->reported[member] = calloc(c->n, sizeof(*c->reported[member]));
	if (c->reported[member] == NULL) {
		od_log_limited(OD_LOG_WARN, "no memory to compare copies of experts");
		return true;
	}
	c->reported[member][i] = *theirs;
	want(c, i, others_differ(c, i, theirs));
	return true;
}

bool odm_copy_check_take(struct odm_copy_check *c, uint32_t member, const Od__Pong *p, char *why, size_t size)
{
	const uint32_t n_moe = c->n / c->per_layer;

	for (size_t k = 0; k < p->n_sums; k++) {
		const Od__ExpertSums *r = p->sums[k];
		struct od_expert_sums sums = { 0 };

		if (r->m >= n_moe || r->expert >= c->per_layer || r->n_xxh3 != c->n_tensors) {
			od_log_limited(OD_LOG_WARN, "dropped checksums in a PONG: expert (%u, %u), %zu numbers", r->m,
				       r->expert, r->n_xxh3);
			continue;
		}
		memcpy(sums.xxh3, r->xxh3, r->n_xxh3 * sizeof(*r->xxh3));
		if (!take(c, member, r->m * c->per_layer + r->expert, &sums, why, size))
			return false;
	}
	return true;
}

/* Compares what members have reported of an expert that main has read by now; from c->at_member on. */
static bool next_of_expert(struct odm_copy_check *c, uint32_t i, uint32_t *member, char *why, size_t size)
{
	struct od_expert_sums ours;
	/* False after an error, which was logged. */
	const bool known = od_expert_sums_get(c->pack, i / c->per_layer, i % c->per_layer, &ours);

	while (c->at_member < OD_MAX_HOSTS) {
		const uint32_t h = c->at_member++;
		struct od_expert_sums *r = c->reported[h], theirs;

		if (r == NULL || r[i].xxh3[0] == 0)
			continue;
		theirs = r[i];
		r[i] = (struct od_expert_sums){ 0 };
		if (!known || same(c, i, &ours, &theirs, why, size))
			continue;
		*member = h;
		return true;
	}
	return false;
}

bool odm_copy_check_next(struct odm_copy_check *c, uint32_t *member, char *why, size_t size)
{
	const uint32_t n_read = atomic_load(&c->n_read);

	*member = 0;
	if (!c->looks && n_read == c->n_seen)
		return false;
	if (!c->looks)
		c->n_seen = n_read;
	c->looks = true;
	for (; c->at < c->n; c->at++, c->at_member = 0) {
		if (atomic_load(&c->state[c->at]) != READ)
			continue;
		if (next_of_expert(c, c->at, member, why, size))
			return true;
		atomic_store(&c->state[c->at], IDLE);
	}
	c->at = c->at_member = 0;
	c->looks = false;
	return false;
}

void odm_copy_check_forget(struct odm_copy_check *c, uint32_t member)
{
	free(c->reported[member]);
	c->reported[member] = NULL;
}

/* ---- life ---- */

int odm_copy_check_new(struct odm_copy_check **out, const struct od_pack *pack, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(pack);
	struct odm_copy_check *c;

	*out = NULL;
	if (!od_expert_sums_apply(pack))
		return OD_OK;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to compare copies of experts");
	sem_init(&c->work, 0, 0);
	c->pack = pack;
	c->per_layer = cfg->n_experts;
	c->n = cfg->n_moe * cfg->n_experts;
	c->n_tensors = (size_t)od_expert_tensors(cfg);
	c->state = calloc(c->n, sizeof(*c->state));
	if (c->state == NULL || pthread_create(&c->thread, NULL, check_main, c) != 0) {
		odm_copy_check_free(c);
		return od_fail(err, OD_ERR_NOMEM, "cannot start the thread that compares copies of experts");
	}
	pthread_setname_np(c->thread, "od-copies");
	c->started = true;
	*out = c;
	return OD_OK;
}

void odm_copy_check_free(struct odm_copy_check *c)
{
	if (c == NULL)
		return;
	if (c->started) {
		atomic_store(&c->stop, true);
		sem_post(&c->work);
		pthread_join(c->thread, NULL);
	}
	for (uint32_t h = 0; h < OD_MAX_HOSTS; h++)
		free(c->reported[h]);
	sem_destroy(&c->work);
	free((void *)c->state);
	free(c);
}
