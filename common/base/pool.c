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

struct od_pool {
	unsigned n_threads;
	pthread_t *thread; /* [n_threads - 1] */
	unsigned started;
	char name[16];
	pthread_mutex_t lock;
	pthread_cond_t wake, idle;
	struct job job; /* written before round changes */
	atomic_uint round;
	atomic_uint busy;   /* helpers that have not finished this round */
	atomic_size_t next; /* first item nobody has taken */
	bool stop;
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
		size_t begin = atomic_fetch_add_explicit(&p->next, j->piece, memory_order_relaxed), end;

		if (begin >= j->n)
			return;
		end = j->n - begin < j->piece ? j->n : begin + j->piece;
		j->fn(j->arg, begin, end, index);
	}
}

/* Wait until round differs from seen; false when the pool stops. */
static bool next_round(struct od_pool *p, unsigned seen)
{
	bool stop;

	for (int i = 0; i < SPIN_ROUNDS; i++) {
		if (atomic_load_explicit(&p->round, memory_order_acquire) != seen)
			break;
		cpu_relax();
	}
	if (atomic_load_explicit(&p->round, memory_order_acquire) != seen)
		return !p->stop;
	pthread_mutex_lock(&p->lock);
	while (atomic_load_explicit(&p->round, memory_order_relaxed) == seen)
		pthread_cond_wait(&p->wake, &p->lock);
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return !stop;
}

static void *helper(void *arg)
{
	struct start s = *(struct start *)arg;
	struct od_pool *p = s.pool;
	unsigned seen = 0;

	free(arg);
	while (next_round(p, seen)) {
		seen++;
		take_pieces(p, s.index);
		if (atomic_fetch_sub_explicit(&p->busy, 1, memory_order_acq_rel) == 1) {
			pthread_mutex_lock(&p->lock);
			pthread_cond_signal(&p->idle);
			pthread_mutex_unlock(&p->lock);
		}
	}
	return NULL;
}

static void start_round(struct od_pool *p)
{
	pthread_mutex_lock(&p->lock);
	atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

static void wait_idle(struct od_pool *p)
{
	for (int i = 0; i < SPIN_ROUNDS; i++) {
		if (atomic_load_explicit(&p->busy, memory_order_acquire) == 0)
			return;
		cpu_relax();
	}
	pthread_mutex_lock(&p->lock);
	while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0)
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
	atomic_store_explicit(&p->next, 0, memory_order_relaxed);
	atomic_store_explicit(&p->busy, p->n_threads - 1, memory_order_relaxed);
	start_round(p);
	take_pieces(p, 0);
	wait_idle(p);
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
	p->stop = true; /* seen by helpers through the round that start_round publishes */
	start_round(p);
	for (unsigned i = 0; i < p->started; i++)
		pthread_join(p->thread[i], NULL);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->idle);
	free(p->thread);
	free(p);
}
