#include "common/base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* How long a thread looks for the next job before it sleeps. A forward pass posts jobs a few microseconds
 * apart, and a futex wake-up costs more than most of them; but cores are shared with other daemons, so short. */
#define SPIN_ROUNDS 2000

struct job {
	od_pool_fn *fn;
	void *arg;
	size_t n, piece;
};

/* One word says which round it is, whether it may still be joined, and how many helpers are in it. The owner closes a
 * round when no piece is left: a helper that the kernel has not run yet is not waited for, it just misses the round. */
#define ROUND_ONE (1ull << 32)
#define ROUND_OPEN (1ull << 31)
#define ROUND_HELPERS (ROUND_OPEN - 1)

struct od_pool {
	unsigned n_threads;
	pthread_t *thread; /* [n_threads - 1] */
	unsigned started;
	char name[16];
	pthread_mutex_t lock;
	pthread_cond_t wake, idle;
	struct job job; /* written while the round is closed and empty, read by those that joined */
	_Atomic uint64_t round;
	atomic_size_t next; /* first item not yet taken */
	atomic_uint asleep; /* helpers in wake; a round needs the lock only for them */
	atomic_bool stop;
};

struct start {
	struct od_pool *pool;
	unsigned index;
};

unsigned od_cpu_count(void)
{
	cpu_set_t set;
	int n;

	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	n = CPU_COUNT(&set);
	return n > 0 ? (unsigned)n : 1;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void take_pieces(struct od_pool *p, unsigned index)
{
	const struct job *j = &p->job;

	for (;;) {
		/* Relaxed is enough: this only deals out numbers. Joining and leaving the round order the job and
		 * its results. */
		size_t begin = atomic_fetch_add_explicit(&p->next, j->piece, memory_order_relaxed), end;

		if (begin >= j->n)
			return;
		end = j->n - begin < j->piece ? j->n : begin + j->piece;
		j->fn(j->arg, begin, end, index);
	}
}

static uint64_t number_of(uint64_t round)
{
	return round / ROUND_ONE;
}

/* Wait until the round's number differs from seen; returns the new one. */
static uint64_t next_round(struct od_pool *p, uint64_t seen)
{
	uint64_t now;

	for (int i = 0; i < SPIN_ROUNDS; i++) {
		now = number_of(atomic_load(&p->round));
		if (now != seen)
			return now;
		cpu_relax();
	}
	pthread_mutex_lock(&p->lock);
	atomic_fetch_add(&p->asleep, 1); /* before looking again: the owner looks the other way round */
	while ((now = number_of(atomic_load(&p->round))) == seen)
		pthread_cond_wait(&p->wake, &p->lock);
	atomic_fetch_sub(&p->asleep, 1);
	pthread_mutex_unlock(&p->lock);
	return now;
}

static bool join(struct od_pool *p)
{
	uint64_t r = atomic_load(&p->round);

	while (r & ROUND_OPEN) {
		if (atomic_compare_exchange_weak(&p->round, &r, r + 1))
			return true;
	}
	return false;
}

static void leave(struct od_pool *p)
{
	uint64_t before = atomic_fetch_sub(&p->round, 1);

	if ((before & ROUND_OPEN) || (before & ROUND_HELPERS) != 1)
		return;
	pthread_mutex_lock(&p->lock); /* the owner may be asleep */
	pthread_cond_signal(&p->idle);
	pthread_mutex_unlock(&p->lock);
}

static void *helper(void *arg)
{
	struct start s = *(struct start *)arg;
	struct od_pool *p = s.pool;
	uint64_t seen = 0;

	free(arg);
	for (;;) {
		seen = next_round(p, seen);
		if (atomic_load(&p->stop))
			return NULL;
		if (!join(p))
			continue;
		take_pieces(p, s.index);
		leave(p);
	}
}

static void open_round(struct od_pool *p)
{
	uint64_t r = atomic_load(&p->round);

	atomic_store(&p->round, (number_of(r) + 1) * ROUND_ONE | ROUND_OPEN);
	if (atomic_load(&p->asleep) == 0)
		return;
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

/* No more helpers, and wait for those that are at work on their last piece. */
static void close_round(struct od_pool *p)
{
	uint64_t r = atomic_fetch_and(&p->round, ~ROUND_OPEN);

	for (int i = 0; i < SPIN_ROUNDS && (r & ROUND_HELPERS) != 0; i++) {
		cpu_relax();
		r = atomic_load(&p->round);
	}
	if ((r & ROUND_HELPERS) == 0)
		return;
	pthread_mutex_lock(&p->lock);
	while ((atomic_load(&p->round) & ROUND_HELPERS) != 0)
		pthread_cond_wait(&p->idle, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

void od_pool_for(struct od_pool *p, size_t n, size_t grain, od_pool_fn *fn, void *arg)
{
	size_t piece;

	if (n == 0)
		return;
	if (grain == 0)
		grain = 1;
	if (p == NULL || p->n_threads == 1 || n <= grain) {
		fn(arg, 0, n, 0);
		return;
	}
	/* Four pieces a thread even out cores of unequal speed. */
	piece = n / (p->n_threads * 4u) + 1;
	piece = piece < grain ? grain : (piece + grain - 1) / grain * grain;
	p->job = (struct job){ .fn = fn, .arg = arg, .n = n, .piece = piece };
	/* It is set before the round opens: helpers take pieces as soon as they have joined. */
	atomic_store(&p->next, 0);
	open_round(p);
	take_pieces(p, 0);
	close_round(p);
}

unsigned od_pool_threads(const struct od_pool *p)
{
	return p == NULL ? 1 : p->n_threads;
}

static int start_helpers(struct od_pool *p, struct od_err *err)
{
	for (unsigned i = 1; i < p->n_threads; i++) {
		struct start *s = malloc(sizeof(*s));

		if (s == NULL)
			return od_fail(err, OD_ERR_NOMEM, "thread pool %s", p->name);
		*s = (struct start){ .pool = p, .index = i };
		if (pthread_create(&p->thread[i - 1], NULL, helper, s) != 0) {
			free(s);
			return od_fail(err, OD_ERR_NOMEM, "thread pool %s: cannot start thread %u of %u", p->name, i,
				       p->n_threads);
		}
		pthread_setname_np(p->thread[i - 1], p->name);
		p->started++;
	}
	return OD_OK;
}

int od_pool_new(struct od_pool **out, unsigned n_threads, const char *name, struct od_err *err)
{
	struct od_pool *p;
	int rc;

	*out = NULL;
	if (n_threads == 0 || n_threads > 1024)
		return od_fail(err, OD_ERR_ARG, "threads: expected 1 to 1024, found %u", n_threads);
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "thread pool %s", name);
	p->n_threads = n_threads;
	snprintf(p->name, sizeof(p->name), "%s", name);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	pthread_cond_init(&p->idle, NULL);
	p->thread = calloc(n_threads, sizeof(*p->thread));
	rc = p->thread == NULL ? od_fail(err, OD_ERR_NOMEM, "thread pool %s", name) : start_helpers(p, err);
	if (rc != OD_OK) {
		od_pool_free(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

void od_pool_free(struct od_pool *p)
{
	if (p == NULL)
		return;
	atomic_store(&p->stop, true);
	open_round(p); /* so that they look */
	for (unsigned i = 0; i < p->started; i++)
		pthread_join(p->thread[i], NULL);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->idle);
	free(p->thread);
	free(p);
}
