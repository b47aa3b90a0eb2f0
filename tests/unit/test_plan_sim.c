/* The cluster in virtual time, against timelines worked out by hand (OD-MoE Fig. 4 and 5) and against what must hold of
 * any. */
#include "tests/bench/sim/served_cluster.h"
#include "tests/bench/sim/served_trace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 4
#define EXPERTS 4
#define MAX_STEPS 2

/* One expert a layer, two workers that take turns, one slot each: a layer is 10 on main and 10 on its worker. */
struct sim_small {
	int32_t token[MAX_STEPS], guess[MAX_STEPS];
	uint16_t used[MAX_STEPS * LAYERS];
	struct odp_view shadow[MAX_STEPS * LAYERS], ahead[MAX_STEPS * LAYERS];
	struct served_trace trace;
	struct served_params params;
};

static void small(struct sim_small *s, uint32_t n_steps)
{
	*s = (struct sim_small){
		.params = { .n_moe = LAYERS,
			    .n_experts = EXPERTS,
			    .top_k = 1,
			    .n_workers = 2,
			    .slots = 1,
			    .main_ns = 10,
			    .worker_ns = 10,
			    .shadow_ns = 4,
			    .head_ns = 5,
			    .load_ns = 25,
			    .align_kv = 1 },
		.trace = { .n_moe = LAYERS,
			   .n_experts = EXPERTS,
			   .top_k = 1,
			   .n_steps = n_steps,
			   .token = s->token,
			   .used = s->used,
			   .shadow = s->shadow,
			   .guess = s->guess,
			   .ahead = s->ahead },
	};
	for (uint32_t i = 0; i < n_steps * LAYERS; i++) {
		s->used[i] = (uint16_t)(i % 3);
		s->shadow[i] = (struct odp_view){ .n = 1, .expert = { s->used[i] }, .probability = { 1 } };
		s->ahead[i] = (struct odp_view){ .n = 1, .expert = { 3 }, .probability = { 1 } };
	}
	for (uint32_t i = 0; i < n_steps; i++)
		s->token[i] = s->guess[i] = (int32_t)(7 + i);
}

/* Twice: another prompt follows. */
static struct odp_sim_figures run_trace(struct served_trace *t, const struct served_params *p, int times)
{
	const struct odp_routes routes = served_trace_routes(t);
	const struct odp_work work = { .n_texts = 1, .tokens = t->n_steps, .routes = &routes };
	struct odp_sim_figures f = { 0 };
	struct served_cluster c;
	struct odp_sim *sim;
	struct od_err err;

	assert_int_equal(served_cluster_init(&c, p, &err), OD_OK);
	assert_int_equal(odp_sim_new(&sim, &c.cluster, &c.model, &c.opts, &err), OD_OK);
	while (times-- > 0)
		assert_int_equal(odp_sim_run(sim, &work, &f, &err), OD_OK);
	odp_sim_free(sim);
	served_cluster_fini(&c);
	return f;
}

static struct odp_sim_figures run(struct sim_small *s)
{
	struct odp_sim_figures r = run_trace(&s->trace, &s->params, 1);

	assert_int_equal(r.steps, s->trace.n_steps);
	assert_int_equal(r.uses, s->trace.n_steps * LAYERS);
	return r;
}

/* Fig. 4: the shadow begins with main. PREDICT at 4, 8, 12, 16; loads 4-29 and 8-33; main's word on layer 0 at 10, done
 * at 39; layer 1: 49, 59; the slots are free at 39 and 59, so loads 39-64 and 59-84; layer 2: 69, 79; layer 3: 89,
 * 99. */
static void only_the_first_layer_waits(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 1);
	r = run(&s);
	assert_int_equal(r.ordered, 4);
	assert_int_equal(r.served, 3);
	assert_int_equal(r.recalled, 4);
	assert_int_equal(r.stalls, 1);
	assert_int_equal(r.stall_ns, 19);
	assert_int_equal(r.total_ns, 104);
	assert_int_equal(r.used_loads, 4);
	assert_int_equal(r.extra_loads, 0);
}

/* Fig. 5: a shadow that is late. Main's word at 10 comes before PREDICT at 18, the RUN loads 10-39; layer 1 is
 * predicted at 36 and loaded 36-65, main's word is at 59; layer 2: 54-83, word at 85; layer 3: the slot is free at 75,
 * 75-104, 105. */
static void a_late_shadow_makes_two_layers_wait(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 1);
	s.params.shadow_ns = 18;
	s.params.load_ns = 29;
	r = run(&s);
	assert_int_equal(r.ordered, 3);
	assert_int_equal(r.served, 2);
	assert_int_equal(r.stalls, 2);
	assert_int_equal(r.stall_ns, 29 + 6);
	assert_int_equal(r.total_ns, 120);
}

static void without_a_shadow_everything_waits(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 1);
	s.trace.shadow = NULL;
	s.params.no_shadow = true;
	r = run(&s);
	assert_int_equal(r.ordered, 0);
	assert_int_equal(r.served, 0);
	assert_int_equal(r.stall_ns, 4 * 25);
	assert_int_equal(r.total_ns, 4 * (10 + 25 + 10) + 5);
}

/* Early departure: the shadow goes on at 21 with its own token, PREDICT of layer 0 at 25, of layer 1 when main's router
 * has spoken there (49) at 53, ... The load for layer 0 takes the slot that is free at 79, and is there at 104. */
static void running_ahead_the_next_step_waits_for_nothing(void **state)
{
	struct odp_sim_figures r, late;
	struct sim_small s;

	(void)state;
	small(&s, 2);
	late = run(&s);
	assert_int_equal(late.served, 6);
	assert_int_equal(late.total_ns, 2 * 104);
	s.params.early = true;
	r = run(&s);
	assert_int_equal(r.served, 7);
	assert_int_equal(r.stall_ns, 19);
	assert_int_equal(r.total_ns, 104 + 85);
	assert_int_equal(r.extra_loads, 0);
}

/* It guesses wrong: loads 79-104 and 99-124 were for another token. It begins again with the STEP at 104: PREDICT at
 * 108 (load 108-133, main's word at 114) and 112, where it ends the load under way (112-137, word at 153). */
static void a_wrong_guess_costs_two_loads_and_a_wait(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 2);
	s.params.early = true;
	s.guess[1] = 1;
	r = run(&s);
	assert_int_equal(r.served, 6);
	assert_int_equal(r.stall_ns, 19 + 19);
	assert_int_equal(r.total_ns, 208);
	assert_int_equal(r.used_loads, 8);
	assert_int_equal(r.extra_loads, 2);
	/* Without loads for the wrong token there is nothing in vain. */
	s.trace.ahead = NULL;
	r = run(&s);
	assert_int_equal(r.extra_loads, 0);
	assert_int_equal(r.served, 6);
}

/* A layer of the next step waits for main's keys and values of this one. Main's routers speak at 20, 42, 64 and 86, so
 * the guess has PREDICTs at 24, 46, 68 and 90; but main's own token is there at 89, and is another one. */
static void a_guess_waits_for_keys_and_values(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 2);
	s.params.early = true;
	s.params.slots = 4;
	s.params.main_ns = 20;
	s.params.worker_ns = 2;
	s.params.head_ns = 1;
	s.params.load_ns = 1;
	s.guess[1] = 1;
	r = run(&s);
	assert_int_equal(r.extra_loads, 3);
	assert_int_equal(r.served, 8);
	assert_int_equal(r.total_ns, 2 * 89);
	/* Where none are sent after the first step it does not wait: PREDICTs at 21, 25, 29 and 33. */
	for (s.params.align_kv = 0; s.params.align_kv <= 2; s.params.align_kv += 2) {
		r = run(&s);
		assert_int_equal(r.extra_loads, 4);
		assert_int_equal(r.served, 8);
		assert_int_equal(r.total_ns, 2 * 89);
	}
}

/* Wrong at layer 2: its load 39-64 is in vain, the RUN at 69 loads 69-94. */
static void a_wrong_expert_waits_for_its_load(void **state)
{
	struct odp_sim_figures r;
	struct sim_small s;

	(void)state;
	small(&s, 1);
	s.shadow[2].expert[0] = 3;
	r = run(&s);
	assert_int_equal(r.ordered, 3);
	assert_int_equal(r.recalled, 3);
	assert_int_equal(r.served, 2);
	assert_int_equal(r.stall_ns, 19 + 25);
	assert_int_equal(r.extra_loads, 1);
	assert_int_equal(r.used_loads, 4);
}

static void the_window_of_eq_1(void **state)
{
	const struct served_params p = {
		.n_moe = 12, .n_experts = 8, .top_k = 2, .n_workers = 8, .main_ns = 3, .worker_ns = 5
	};

	(void)state;
	assert_int_equal(served_window_ns(&p, 1), 4 * 3 + 3 * 5);
	assert_int_equal(served_window_ns(&p, 2), 4 * 3 + 4 * 5);
}

/* ---- Random traces ---- */

#define STEPS 400
#define R_LAYERS 6
#define R_EXPERTS 8
#define R_K 2

static uint64_t seed;

static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double gauss(void)
{
	return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

struct random_trace {
	int32_t token[STEPS], guess[STEPS];
	uint16_t used[STEPS * R_LAYERS * R_K];
	float probability[STEPS * R_LAYERS * R_EXPERTS];
	struct odp_view shadow[STEPS * R_LAYERS], ahead[STEPS * R_LAYERS];
};

static void view_of(const double *logit, struct odp_view *v)
{
	double sum = 0;

	v->n = R_EXPERTS;
	for (int i = 0; i < R_EXPERTS; i++)
		sum += exp(logit[i]);
	for (uint16_t i = 0; i < R_EXPERTS; i++) {
		int at = i;

		for (; at > 0 && logit[v->expert[at - 1]] < logit[i]; at--)
			v->expert[at] = v->expert[at - 1];
		v->expert[at] = i;
	}
	for (int i = 0; i < R_EXPERTS; i++)
		v->probability[i] = (float)(exp(logit[v->expert[i]]) / sum);
}

static struct random_trace *random_trace(double noise, double wrong_tokens)
{
	struct random_trace *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	for (size_t i = 0; i < STEPS * R_LAYERS; i++) {
		double truth[R_EXPERTS], said[R_EXPERTS], other[R_EXPERTS];
		struct odp_view v;

		for (int e = 0; e < R_EXPERTS; e++) {
			truth[e] = gauss();
			said[e] = truth[e] + noise * gauss();
			other[e] = gauss();
		}
		view_of(truth, &v);
		memcpy(t->used + i * R_K, v.expert, R_K * sizeof(uint16_t));
		for (int e = 0; e < R_EXPERTS; e++)
			t->probability[i * R_EXPERTS + v.expert[e]] = v.probability[e];
		view_of(said, &t->shadow[i]);
		view_of(other, &t->ahead[i]);
	}
	for (int i = 0; i < STEPS; i++) {
		t->token[i] = i;
		t->guess[i] = uniform() < wrong_tokens ? -2 : i;
	}
	return t;
}

static struct odp_sim_figures run_random(const struct random_trace *t, const struct served_params *p)
{
	struct served_trace trace = { .n_moe = R_LAYERS,
				      .n_experts = R_EXPERTS,
				      .top_k = R_K,
				      .n_steps = STEPS,
				      .token = t->token,
				      .used = t->used,
				      .probability = t->probability,
				      .shadow = t->shadow,
				      .guess = t->guess,
				      .ahead = t->ahead };
	const struct odp_sim_figures r = run_trace(&trace, p, 2);

	assert_int_equal(r.uses, 2 * STEPS * R_LAYERS * R_K);
	assert_true(r.served <= r.ordered && r.ordered <= r.uses && r.recalled <= r.uses);
	assert_int_equal(r.used_loads, r.uses); /* no expert is used twice in a row here */
	assert_int_equal(r.stalls > 0, r.stall_ns > 0);
	assert_true(r.total_ns >= r.steps * (R_LAYERS * (p->main_ns + p->worker_ns) + p->head_ns) + r.stall_ns);
	return r;
}

static struct served_params random_params(double hedge)
{
	struct served_params p = { .n_moe = R_LAYERS,
				   .n_experts = R_EXPERTS,
				   .top_k = R_K,
				   .n_workers = 4,
				   .slots = 2,
				   .main_ns = 1000,
				   .worker_ns = 1000,
				   .shadow_ns = 900,
				   .head_ns = 500,
				   .align_kv = 1,
				   .early = true,
				   .hedge = hedge };

	p.load_ns = served_window_ns(&p, 1) / 2;
	return p;
}

static void hedges_serve_more_and_keep_to_the_budget(void **state)
{
	static const double budget[] = { 0, 0.03, 0.1, 0.3, 1 };
	struct random_trace *t;
	uint64_t served = 0;

	(void)state;
	seed = 11;
	t = random_trace(0.02, 0.01);
	for (size_t i = 0; i < 5; i++) {
		const struct served_params p = random_params(budget[i]);
		const struct odp_sim_figures r = run_random(t, &p);

		assert_true(r.served >= served);
		served = r.served;
		assert_int_equal(r.hedged > 0, budget[i] > 0);
		if (budget[i] > 0)
			assert_true((double)r.extra_loads <= 1.02 * budget[i] * (double)r.uses + 64);
	}
	assert_true((double)served > 0.995 * 2 * STEPS * R_LAYERS * R_K);
	free(t);
}

/* One slot is taken by the prediction: nothing changes but for the counting. */
static void without_a_free_slot_nothing_is_hedged(void **state)
{
	struct served_params p = random_params(0);
	struct odp_sim_figures off, on;
	struct random_trace *t;

	(void)state;
	seed = 12;
	t = random_trace(0.1, 0.02);
	p.slots = 1;
	off = run_random(t, &p);
	p.hedge = 1;
	on = run_random(t, &p);
	assert_memory_equal(&on, &off, sizeof(on));
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_the_first_layer_waits),
		cmocka_unit_test(a_late_shadow_makes_two_layers_wait),
		cmocka_unit_test(without_a_shadow_everything_waits),
		cmocka_unit_test(running_ahead_the_next_step_waits_for_nothing),
		cmocka_unit_test(a_wrong_guess_costs_two_loads_and_a_wait),
		cmocka_unit_test(a_guess_waits_for_keys_and_values),
		cmocka_unit_test(a_wrong_expert_waits_for_its_load),
		cmocka_unit_test(the_window_of_eq_1),
		cmocka_unit_test(hedges_serve_more_and_keep_to_the_budget),
		cmocka_unit_test(without_a_free_slot_nothing_is_hedged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
