/* Launches that come again are given as a graph (gpu_graphs.c), on a stream that only notes what it is given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/compute/cuda/gpu_graphs.h"

#define MOST 100000u

struct gpu_graphs_args {
	uint64_t value;
	unsigned char more[20];
};

static const struct gpu_kernel kernels[2] = { { NULL, "a", 128, sizeof(struct gpu_graphs_args) },
					      { NULL, "b", 64, sizeof(uint64_t) } };

/* A launch as it arrived. */
struct arrival {
	const struct gpu_kernel *kernel;
	struct gpu_grid grid;
	size_t shared;
	struct gpu_graphs_args args;
};

struct gpu_stream {
	struct arrival arrived[MOST];
	/* n_first: of those alone, the ones that follow none */
	unsigned n, n_alone, n_first, n_graphs, n_made, n_freed;
	int start_error, new_error;
};

struct gpu_graph {
	struct gpu_stream *s;
	unsigned n;
	struct arrival launch[GPU_GRAPH_MOST];
};

static struct arrival arrival_of(const struct gpu_launch *l)
{
	struct arrival a = { .kernel = l->kernel, .grid = l->grid, .shared = l->shared };

	memcpy(&a.args, l->args, l->kernel->args_bytes);
	return a;
}

static void arrive(struct gpu_stream *s, const struct arrival *a)
{
	assert_true(s->n < MOST);
	s->arrived[s->n++] = *a;
}

int gpu_start(struct gpu_stream *s, const struct gpu_launch *l, bool follows)
{
	const struct arrival a = arrival_of(l);

	arrive(s, &a);
	s->n_alone++;
	s->n_first += !follows;
	return s->start_error;
}

int gpu_graph_new(struct gpu_graph **out, struct gpu_stream *s, const struct gpu_launch *l, unsigned n)
{
	*out = NULL;
	if (s->new_error != 0)
		return s->new_error;
	*out = calloc(1, sizeof(**out));
	assert_non_null(*out);
	(*out)->s = s;
	(*out)->n = n;
	for (unsigned i = 0; i < n; i++)
		(*out)->launch[i] = arrival_of(&l[i]);
	s->n_made++;
	return 0;
}

int gpu_graph_start(struct gpu_stream *s, struct gpu_graph *g)
{
	for (unsigned i = 0; i < g->n; i++)
		arrive(s, &g->launch[i]);
	s->n_graphs++;
	return s->start_error;
}

void gpu_graph_free(struct gpu_graph *g)
{
	if (g != NULL)
		g->s->n_freed++;
	free(g);
}

/* ---- tests ---- */

struct gpu_graphs_world {
	struct gpu_stream s;
	struct gpu_graphs *graphs;
	struct arrival given[MOST];
	unsigned n;
};

static int set_up(void **state)
{
	struct gpu_graphs_world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->graphs = gpu_graphs_new(&w->s);
	assert_non_null(w->graphs);
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct gpu_graphs_world *w = *state;

	gpu_graphs_free(w->graphs);
	assert_int_equal(w->s.n_made, w->s.n_freed);
	free(w);
	return 0;
}

static void give(struct gpu_graphs_world *w, unsigned kernel, uint64_t value, unsigned x, size_t shared)
{
	struct gpu_graphs_args args = { .value = value };
	const struct gpu_launch l = { &kernels[kernel], { x, 1, 1 }, shared, &args };

	memset(args.more, (int)value + 1, sizeof(args.more));
	assert_int_equal(gpu_graphs_add(w->graphs, &l), 0);
	w->given[w->n++] = arrival_of(&l);
	memset(&args, 0xa5, sizeof(args)); /* they were copied */
}

/* n launches that tell one from another, and other ones with another value. */
static void give_run(struct gpu_graphs_world *w, unsigned n, uint64_t value)
{
	for (unsigned i = 0; i < n; i++)
		give(w, i % 2, value + i, 1 + i, 16 * i);
}

static void flush(struct gpu_graphs_world *w)
{
	assert_int_equal(gpu_graphs_flush(w->graphs), 0);
}

/* All that was given has arrived, in order. */
static void check(struct gpu_graphs_world *w)
{
	assert_int_equal(w->s.n, w->n);
	for (unsigned i = 0; i < w->n; i++) {
		const struct arrival *a = &w->s.arrived[i], *b = &w->given[i];

		assert_ptr_equal(a->kernel, b->kernel);
		assert_memory_equal(&a->grid, &b->grid, sizeof(a->grid));
		assert_int_equal(a->shared, b->shared);
		assert_memory_equal(&a->args, &b->args, sizeof(a->args));
	}
	w->s.n = w->n = 0;
}

static void repeated_runs_are_graphs(void **state)
{
	struct gpu_graphs_world *w = *state;

	for (unsigned i = 0; i < 5; i++) {
		give_run(w, 10, 7);
		assert_int_equal(w->s.n, 0); /* nothing before the flush */
		flush(w);
		check(w);
		assert_int_equal(w->s.n_graphs, i);
		assert_int_equal(w->s.n_alone, 10);
	}
	assert_int_equal(w->s.n_made, 1);
	flush(w);
	flush(w);
	check(w);
	assert_int_equal(gpu_graphs_flush(NULL), 0);
}

static void short_runs_are_not(void **state)
{
	struct gpu_graphs_world *w = *state;

	for (unsigned i = 0; i < 5; i++) {
		give_run(w, GPU_GRAPH_LEAST - 1, 7);
		flush(w);
		check(w);
		assert_int_equal(w->s.n_first, i + 1);
	}
	assert_int_equal(w->s.n_made, 0);
}

/* Runs that differ in one thing each: kernel, grid, shared memory, arguments, length. */
static void other_runs_are_other_graphs(void **state)
{
	struct gpu_graphs_world *w = *state;

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned way = 0; way < 6; way++) {
			give_run(w, 9, 100);
			give(w, way == 1, 5 + (way == 2), 1 + (way == 3), way == 4 ? 32 : 0);
			if (way == 5)
				give(w, 0, 5, 1, 0);
			flush(w);
			check(w);
		}
		assert_int_equal(w->s.n_made, round > 0 ? 6 : 0);
		assert_int_equal(w->s.n_graphs, 6 * round);
	}
}

/* A long run is cut at the same places each time. */
static void long_runs_are_cut(void **state)
{
	struct gpu_graphs_world *w = *state;

	for (unsigned round = 0; round < 3; round++) {
		give_run(w, 3 * GPU_GRAPH_MOST + 2, 9);
		assert_int_equal(w->s.n, 3 * GPU_GRAPH_MOST);
		flush(w);
		check(w);
		assert_int_equal(w->s.n_graphs, 3 * round);
	}
}

/* More than are kept: the one that was used last longest ago goes. */
static void old_graphs_go(void **state)
{
	struct gpu_graphs_world *w = *state;
	unsigned made;

	for (unsigned i = 0; i < GPU_GRAPHS_LAUNCHES / 8; i++) {
		for (unsigned round = 0; round < 2; round++) {
			give_run(w, 8, 1000 * (uint64_t)i);
			flush(w);
		}
	}
	check(w);
	made = w->s.n_made;
	assert_int_equal(made, GPU_GRAPHS_LAUNCHES / 8);
	give_run(w, 8, 0); /* the oldest is used once more, so the second one will go */
	flush(w);
	for (unsigned round = 0; round < 2; round++) {
		give_run(w, 8, 77);
		flush(w);
	}
	assert_int_equal(w->s.n_made, made + 1);
	assert_int_equal(w->s.n_freed, 1);
	give_run(w, 8, 0);
	flush(w);
	assert_int_equal(w->s.n_made, made + 1);
	for (unsigned round = 0; round < 2; round++) {
		give_run(w, 8, 1000);
		flush(w);
	}
	assert_int_equal(w->s.n_made, made + 2);
	for (unsigned round = 0; round < 2; round++) { /* two of eight launches make room for one of sixteen */
		give_run(w, 16, 5);
		flush(w);
	}
	assert_int_equal(w->s.n_made, made + 3);
	assert_int_equal(w->s.n_freed, 4);
	check(w);
}

/* Without memory for a graph its launches are given one by one, and no other graph is tried for a while. */
static void no_memory_is_no_error(void **state)
{
	struct gpu_graphs_world *w = *state;

	give_run(w, 8, 1);
	flush(w);
	give_run(w, 8, 1);
	flush(w);
	w->s.new_error = 2;
	for (unsigned i = 0; i < 3; i++) {
		give_run(w, 8, 50);
		flush(w);
	}
	w->s.new_error = 0;
	for (unsigned i = 0; i < GPU_GRAPHS_PAUSE - 2; i++) { /* two of the runs after the failure have been */
		assert_int_equal(w->s.n_made, 1);
		give_run(w, 8, 50);
		flush(w);
		check(w);
	}
	assert_int_equal(w->s.n_made, 1);
	assert_int_equal(w->s.n_graphs, 1);
	give_run(w, 8, 50);
	flush(w);
	assert_int_equal(w->s.n_made, 2);
	give_run(w, 8, 1);
	flush(w);
	assert_int_equal(w->s.n_graphs, 3);
	check(w);
}

/* The last launch can be looked at and taken back, unless it was given already. */
static void the_last_launch_can_be_taken_back(void **state)
{
	struct gpu_graphs_world *w = *state;
	struct gpu_launch l;

	assert_false(gpu_graphs_last(NULL, "a", &l));
	assert_false(gpu_graphs_last(w->graphs, "a", &l));
	for (unsigned round = 0; round < 3; round++) { /* alone, and as a graph */
		give_run(w, 9, 4);
		assert_false(gpu_graphs_last(w->graphs, "b", &l));
		assert_true(gpu_graphs_last(w->graphs, "a", &l));
		assert_ptr_equal(l.kernel, &kernels[0]);
		assert_int_equal(l.grid.x, 9);
		assert_int_equal(l.shared, 16 * 8);
		assert_int_equal(((const struct gpu_graphs_args *)l.args)->value, 4 + 8);
		gpu_graphs_take_back(w->graphs);
		w->n--;
		assert_false(gpu_graphs_last(w->graphs, "a", &l)); /* nor the one before */
		assert_false(gpu_graphs_last(w->graphs, "b", &l));
		give(w, 1, 77, 3, 0);
		assert_true(gpu_graphs_last(w->graphs, "b", &l));
		flush(w);
		assert_false(gpu_graphs_last(w->graphs, "b", &l));
		check(w);
	}
	assert_int_equal(w->s.n_graphs, 2);
	give_run(w, GPU_GRAPH_MOST, 1); /* as many as are gathered: the last one is still there */
	assert_true(gpu_graphs_last(w->graphs, "b", &l));
	gpu_graphs_take_back(w->graphs);
	w->n--;
	give(w, 0, 5, 1, 0);
	assert_int_equal(w->s.n, 0);
	give(w, 0, 6, 1, 0);
	assert_int_equal(w->s.n, GPU_GRAPH_MOST);
	flush(w);
	check(w);
	give(w, 0, 5, 1, 0); /* none is left */
	assert_true(gpu_graphs_last(w->graphs, "a", &l));
	gpu_graphs_take_back(w->graphs);
	w->n--;
	flush(w);
	check(w);
}

static void errors_are_told(void **state)
{
	struct gpu_graphs_world *w = *state;

	for (unsigned i = 0; i < 3; i++) {
		give_run(w, 8, 1);
		w->s.start_error = 42;
		assert_null(gpu_graphs_failed(w->graphs));
		assert_int_equal(gpu_graphs_flush(w->graphs), 42);
		assert_string_equal(gpu_graphs_failed(w->graphs), i == 0 ? "a" : "a graph of launches");
		assert_null(gpu_graphs_failed(w->graphs));
		w->s.start_error = 0;
		flush(w); /* it is not given again */
		gpu_graphs_resume(w->graphs);
	}
	assert_int_equal(w->s.n, 1 + 8 + 8); /* the first one stopped at its first launch */
	w->s.start_error = 43;
	for (unsigned i = 0; i < GPU_GRAPH_MOST; i++)
		give(w, 0, i, 1, 0);
	assert_int_equal(
		gpu_graphs_add(w->graphs,
			       &(struct gpu_launch){ &kernels[0], { 1, 1, 1 }, 0, &(struct gpu_graphs_args){ 0 } }),
		43);
}

/* Launches behind one that failed are dropped, whether they are gathered in the same run or later. */
static void nothing_follows_an_error(void **state)
{
	struct gpu_graphs_world *w = *state;

	w->s.start_error = 42;
	for (unsigned i = 0; i < GPU_GRAPH_MOST; i++)
		give(w, 0, i, 1, 0);
	assert_int_equal(w->s.n, 0);
	assert_int_equal(
		gpu_graphs_add(w->graphs,
			       &(struct gpu_launch){ &kernels[0], { 1, 1, 1 }, 0, &(struct gpu_graphs_args){ 0 } }),
		42);
	w->s.start_error = 0;
	give_run(w, 3 * GPU_GRAPH_MOST, 5);
	flush(w);
	assert_int_equal(w->s.n, 1);
	gpu_graphs_resume(w->graphs);
	w->s.n = w->n = 0;
	give_run(w, 10, 7);
	flush(w);
	check(w);
	gpu_graphs_resume(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(repeated_runs_are_graphs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(short_runs_are_not, set_up, tear_down),
		cmocka_unit_test_setup_teardown(other_runs_are_other_graphs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(long_runs_are_cut, set_up, tear_down),
		cmocka_unit_test_setup_teardown(old_graphs_go, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_memory_is_no_error, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_last_launch_can_be_taken_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(errors_are_told, set_up, tear_down),
		cmocka_unit_test_setup_teardown(nothing_follows_an_error, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
