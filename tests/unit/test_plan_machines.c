/* The simulator with machines of any speed, links, several texts, prompts, drafts and caches: against times worked out
 * by hand, and against a second computation that knows neither events nor the daemons' code. */
#include "deploy/plan/sim.h"
#include "deploy/plan/synthetic_routes.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_LAYERS 8
#define MAX_WORKERS 8
#define MANY_WORKERS 1000
#define MS 1e6
#define GIGA 1e9
#define ROW 1e6 /* bytes of a row: heads of messages are nothing beside it */

/* A cluster that each test changes: main 1 ms a layer, loads 5 ms, an expert 2 ms with one row; links take no time. */
struct setting {
	struct odp_sim_block block[MAX_LAYERS];
	struct odp_machine worker[MAX_WORKERS];
	struct odp_busy busy[MAX_WORKERS];
	struct odp_sim_model model;
	struct odp_cluster cluster;
	struct odp_sim_opts opts;
	struct odp_synthetic_opts routes;
};

static void set_up(struct setting *s, uint32_t n_layers, uint32_t n_experts, uint32_t top_k, uint32_t n_workers)
{
	*s = (struct setting){
		.model = { .n_layers = n_layers,
			   .n_moe = n_layers,
			   .n_experts = n_experts,
			   .top_k = top_k,
			   .block = s->block,
			   .expert_weights = 2 * MS,
			   .load_bytes = 5 * (uint64_t)MS,
			   .slot_bytes = 1000,
			   .row_bytes = ROW },
		.cluster = { .main = { .name = "main", .speed = GIGA, .many = 4 * GIGA },
			     .worker = s->worker,
			     .n_workers = n_workers },
		.opts = { .max_texts = 16, .prefill_rows = 64, .align_token = 1, .align_kv = 1 },
		.routes = { .n_moe = n_layers,
			    .n_experts = n_experts,
			    .top_k = top_k,
			    .seed = 1,
			    .recall = 1,
			    .gate_recall = 1 },
	};
	for (uint32_t i = 0; i < n_layers; i++)
		s->block[i] = (struct odp_sim_block){ .dense_weights = MS, .state_bytes = 1, .moe = true };
	for (uint32_t i = 0; i < n_workers; i++)
		s->worker[i] = (struct odp_machine){
			.name = "w", .read_rate = GIGA, .speed = GIGA, .many = 4 * GIGA, .slots = 2
		};
}

/* The figures of the last of so many runs. */
static struct odp_sim_figures run_work(struct setting *s, const struct odp_work *shape, int times,
				       struct odp_busy *busy)
{
	struct odp_sim_figures f = { 0 };
	struct odp_synthetic *synthetic;
	struct odp_work work = *shape;
	struct odp_routes routes;
	struct odp_sim *sim;
	struct od_err err;

	assert_int_equal(odp_synthetic_new(&synthetic, &s->routes, &err), OD_OK);
	routes = odp_synthetic_routes(synthetic);
	work.routes = &routes;
	assert_int_equal(odp_sim_new(&sim, &s->cluster, &s->model, &s->opts, &err), OD_OK);
	while (times-- > 0) {
		f = (struct odp_sim_figures){ .worker = busy };
		memset(busy, 0, s->cluster.n_workers * sizeof(*busy));
		assert_int_equal(odp_sim_run(sim, &work, &f, &err), OD_OK);
	}
	odp_sim_free(sim);
	odp_synthetic_free(synthetic);
	return f;
}

static struct odp_sim_figures run(struct setting *s, uint32_t texts, uint32_t prompt, uint32_t tokens)
{
	const struct odp_work work = { .n_texts = texts, .prompt_tokens = prompt, .tokens = tokens };

	return run_work(s, &work, 1, s->busy);
}

static void assert_ms(uint64_t ns, double ms)
{
	if (fabs((double)ns / MS - ms) > 0.002 * ms)
		fail_msg("%.4f ms; expected %.4f", (double)ns / MS, ms);
}

/* ---- By hand ---- */

/* 10^6 bytes at 10^8 a second are 10 ms each way, and half a round trip of 3 ms is added to each: a layer is
 * 1 + 10 + 1.5 + 5 + 2 + 10 + 1.5. A message is received while it is sent, so it takes its port's time once. */
static void a_link_is_the_limit(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 2, 1, 1, 1);
	s.cluster.main.link_rate = 1e8;
	s.worker[0].link_rate = 1e8;
	s.worker[0].latency_ns = 3 * MS;
	f = run(&s, 1, 0, 3);
	assert_ms(f.total_ns, 3 * 2 * 31.0);
	assert_ms(f.main.up_ns, 3 * 2 * 10.0);
	assert_ms(s.busy[0].down_ns, 3 * 2 * 10.0);
	assert_ms(s.busy[0].down_bytes, 6.0);
	assert_int_equal(s.busy[0].down_bytes, f.main.up_bytes);
	assert_int_equal(s.busy[0].up_bytes, f.main.down_bytes);
	assert_int_equal(f.run_bytes, 6 * 1000000);
	assert_int_equal(f.result_bytes, 6 * 1000000);
	/* The slower of two ports counts. */
	s.worker[0].link_rate = 1e9;
	assert_ms(run(&s, 1, 0, 3).total_ns, 3 * 2 * 31.0);
	s.worker[0].link_rate = 5e7;
	assert_ms(run(&s, 1, 0, 3).total_ns, 3 * 2 * 51.0);
}

/* Two workers share main's port: RUNs arrive 10 ms and 20 ms after the router, RESULTs leave at 17 and 27 ms, and the
 * port takes each in 10 ms: 27, 37. */
static void main_s_port_is_shared(void **state)
{
	struct setting s;

	(void)state;
	set_up(&s, 1, 2, 2, 2);
	s.cluster.main.link_rate = 1e8;
	s.worker[0].link_rate = s.worker[1].link_rate = 1e9;
	assert_ms(run(&s, 1, 0, 4).total_ns, 4 * (1 + 37.0));
	/* When both RESULTs leave at once, one waits: with loads of 1 ms and runs of 30 at one, 20 at the other, both
	 * leave at 41 ms. */
	s.model.load_bytes = (uint64_t)MS;
	s.model.expert_weights = MS;
	s.worker[0].speed = 1e9 / 30;
	s.worker[1].speed = 1e9 / 20;
	assert_ms(run(&s, 1, 0, 4).total_ns, 4 * (1 + 61.0));
}

/* A layer waits for the slower worker. */
static void the_slowest_worker_ends_the_layer(void **state)
{
	struct setting s;

	(void)state;
	set_up(&s, 1, 2, 2, 2);
	s.worker[1].speed = GIGA / 2;
	s.worker[0].run_ns = s.worker[1].run_ns = MS / 2;
	assert_ms(run(&s, 1, 0, 5).total_ns, 5 * (1 + 5 + 0.5 + 4.0));
	s.worker[0].read_rate = GIGA / 2;
	assert_ms(run(&s, 1, 0, 5).total_ns, 5 * (1 + 10 + 0.5 + 2.0));
}

/* A worker that would make layers end later gets nothing: one that computes, loads or sends slowly. */
static void a_slow_worker_is_left_out(void **state)
{
	struct setting s;

	(void)state;
	for (int what = 0; what < 3; what++) {
		set_up(&s, 4, 4, 2, 3);
		s.cluster.main.link_rate = s.worker[0].link_rate = s.worker[1].link_rate = s.worker[2].link_rate = 1e10;
		*(what == 0 ? &s.worker[1].speed :
		  what == 1 ? &s.worker[1].read_rate :
			      &s.worker[1].link_rate) /= what < 2 ? 50 : 1000;
		assert_ms(run(&s, 1, 0, 20).total_ns, 20 * 4 * (1 + 0.1 + 0.1 + 5 + 2 + 0.1));
		assert_int_equal(s.busy[1].compute_ns, 0);
		assert_true(s.busy[0].compute_ns > 0 && s.busy[2].compute_ns > 0);
	}
}

/* Workers of speed 1 : 2 : 4 whose loads are known long before: loads take 8, 4 and 2 ms, so the four of a layer take
 * at least 4 / (1/8 + 1/4 + 1/2) = 4.57 ms, and 4 / (1/4 + 1/2) = 5.33 ms without the slow worker. With it layers may
 * not take longer. */
static void a_slow_worker_helps_with_loads(void **state)
{
	struct setting s;

	(void)state;
	for (unsigned slots = 3; slots <= 16; slots++) {
		double layer_ms;

		set_up(&s, 4, 16, 4, 3);
		s.routes.draft_right = 1;
		s.model.expert_weights = MS;
		s.model.load_bytes = 2 * (uint64_t)MS;
		s.cluster.has_shadow = s.opts.early = true;
		s.cluster.shadow_route_ns = MS / 2;
		for (uint32_t w = 0; w < 3; w++) {
			s.worker[w].read_rate = s.worker[w].speed = GIGA / (double)(4u >> w);
			s.worker[w].many = 8 * s.worker[w].speed;
			s.worker[w].slots = slots;
		}
		layer_ms = (double)run(&s, 1, 0, 50).total_ns / (200.0 * MS);
		if (layer_ms < 4.57 || layer_ms > 5.0)
			fail_msg("%u slots: %.2f ms a layer; expected 4.57 to 5", slots, layer_ms);
	}
}

/* Rows share a product's weights: up to 4 rows take as long as one, 8 rows twice as long. The only expert is loaded
 * once for all. */
static void texts_share_weights(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 1, 1, 1, 1);
	s.model.head_weights = 3 * MS;
	assert_ms(run(&s, 1, 0, 6).total_ns, 6 * (1 + 5 + 2 + 3.0));
	f = run(&s, 4, 0, 6);
	assert_ms(f.total_ns, 6 * (1 + 5 + 2 + 3.0));
	assert_int_equal(f.tokens, 24);
	assert_int_equal(f.used_loads, 6);
	f = run(&s, 8, 0, 6);
	assert_ms(f.total_ns, 6 * (2 + 5 + 4 + 6.0));
	/* Four at a time: the others wait. */
	s.opts.max_texts = 4;
	f = run(&s, 8, 0, 6);
	assert_ms(f.total_ns, 12 * (1 + 5 + 2 + 3.0));
	assert_int_equal(f.steps, 12);
}

/* A prompt of 16 rows: each product takes four times a row's, the head has one row. WANTs are out before the RUN. */
static void a_prompt_is_a_step_of_many_rows(void **state)
{
	const uint64_t later[] = { 0, 500 * (uint64_t)MS };
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 2, 1, 1, 1);
	s.model.head_weights = 3 * MS;
	s.block[0].shared_weights = s.block[1].shared_weights = MS;
	f = run(&s, 1, 16, 0);
	assert_int_equal(f.prompts, 1);
	/* The second layer's experts are wanted once the first is routed: loads end at 9 and 14, runs at 17 and 29. */
	assert_ms(f.ttft_ns, 4 + 5 + 8 + 4 + 8 + 3.0);
	assert_int_equal(f.total_ns, f.ttft_ns);
	/* In chunks of 8 rows: twice as many loads, and half the time of each product. */
	s.opts.prefill_rows = 8;
	assert_ms(run(&s, 1, 16, 0).ttft_ns, 2 * (2 + 5 + 4 + 2 + 4.0) + 3);
	/* Two texts, of which the second comes later, are each alone. */
	s.opts.prefill_rows = 64;
	f = run_work(&s, &(struct odp_work){ .n_texts = 2, .prompt_tokens = 16, .arrival_ns = later }, 1, s.busy);
	assert_int_equal(f.prompts, 2);
	assert_ms(f.ttft_ns, 2 * 32.0);
	assert_ms(f.most_ttft_ns, 32.0);
	assert_ms(f.total_ns, 532);
}

/* A prompt pauses between layers for decode steps. A decode step takes 4 (1 + 5 + 2) = 32 ms. A layer of 64 rows takes
 * 16 + 32 ms, and the first one waits 5 ms for its load: 197 ms for a prompt alone. The second prompt comes at 200 ms,
 * in a step that ends at 229. Further layers would not end within 64 ms, so a step follows each. It takes 27 ms,
 * because the only expert of the prompt's next layer is loaded for both. So layers end at 282, 357, 432 and 507. */
static void prompts_take_turns_with_decode(void **state)
{
	const uint64_t arrival[] = { 0, 200 * (uint64_t)MS };
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 1);
	f = run_work(&s, &(struct odp_work){ .n_texts = 2, .prompt_tokens = 64, .tokens = 20, .arrival_ns = arrival },
		     1, s.busy);
	assert_int_equal(f.prompts, 2);
	assert_ms(f.most_ttft_ns, 307);
	assert_ms(f.ttft_ns, 197 + 307);
	assert_int_equal(f.tokens, 40);
	/* One step before the prompt, and one after each of its layers but the last; then both write. */
	assert_int_equal(f.steps, 4 + 20);
}

/* The first run loads each expert once, or once on each worker, as long as main has not heard where it is kept; the
 * second none. */
static void a_cache_holds_everything(void **state)
{
	const struct odp_work work = { .n_texts = 1, .tokens = 50 };
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 3, 4, 2, 2);
	s.worker[0].cache_bytes = s.worker[1].cache_bytes = 3 * 4 * 1000;
	f = run_work(&s, &work, 1, s.busy);
	assert_true(f.used_loads >= 3 * 4 && f.used_loads <= 2 * 3 * 4);
	assert_int_equal(f.cache_uses, 50 * 3 * 2);
	assert_int_equal(f.cache_hits, f.cache_uses - f.used_loads);
	f = run_work(&s, &work, 2, s.busy);
	assert_int_equal(f.used_loads, 0);
	assert_int_equal(f.cache_hits, f.cache_uses);
	assert_int_equal(f.stall_ns, 0);
	/* One expert on each worker, or both on one. */
	assert_true(f.total_ns >= 50 * 3 * 3 * (uint64_t)MS && f.total_ns <= 50 * 3 * 5 * (uint64_t)MS);
	assert_int_equal(s.busy[0].read_ns + s.busy[1].read_ns, 0);
}

/* A shadow that departs with main: PREDICTs 0.25 ms apart are in time for all layers of 10 ms. */
static void a_shadow_behind_a_slow_link_is_late(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 2);
	s.cluster.has_shadow = true;
	s.cluster.shadow_route_ns = MS / 4;
	s.cluster.main.speed = 1e8;
	f = run(&s, 1, 0, 3);
	assert_int_equal(f.served, 3 * 4);
	assert_ms(f.total_ns, 3 * 4 * 12.0);
	/* STEP takes 20 ms, and PREDICT as long: PREDICTs come at 40.25, 40.5, 40.75 and 41. Main's word on layers 0
	 * and 1 is at 10 and 27, which end at 17 and 34. Layer 2: word at 44, its load is there at 45.75, it ends at
	 * 47.75. Layer 3: word at 57.75. */
	s.cluster.shadow.latency_ns = 40 * MS;
	f = run(&s, 1, 0, 1);
	assert_int_equal(f.ordered, 2);
	assert_int_equal(f.served, 1);
	assert_int_equal(f.stalls, 3);
	assert_ms(f.stall_ns, 5 + 5 + 1.75);
	assert_ms(f.total_ns, 59.75);
}

/* Each row of keys and values goes to the shadow once: the prompt's on request, the others when main has them. Without
 * the prompt's the shadow predicts nothing: 20 rows of 4 layers in its port take 80 ms, two steps of four. */
static void the_shadow_needs_the_prompt(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 2);
	s.cluster.has_shadow = true;
	s.cluster.shadow_route_ns = MS / 100;
	s.cluster.shadow.link_rate = 1e6;
	for (int i = 0; i < 4; i++)
		s.block[i].state_bytes = 1000;
	f = run(&s, 1, 20, 30);
	assert_int_equal(f.state_bytes, (20 + 30) * 4 * 1000);
	assert_true(f.recalled >= (30 - 5) * 4 && f.recalled <= (30 - 2) * 4);
	s.cluster.shadow.link_rate = 0;
	assert_int_equal(run(&s, 1, 20, 30).recalled, 30 * 4);
}

/* ---- Main's own predictor ---- */

static void gate_setting(struct setting *s, double load_ms)
{
	set_up(s, 4, 8, 1, 2);
	s->model.load_bytes = (uint64_t)(load_ms * MS);
	s->opts.next_gate = true;
}

/* Layer 0 is routed at 1 ms and loads until 4, it ends at 6. Layer 1 is predicted at 1, routed at 7 and ends at 9.
 * Layer 2 is predicted at 7; its load of 3 ms ends when it is routed, at 10, and so does layer 3's at 13. */
static void a_load_that_a_layer_just_hides(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	gate_setting(&s, 3);
	f = run(&s, 1, 0, 1);
	assert_int_equal(f.ordered, 3);
	assert_int_equal(f.served, 3);
	assert_int_equal(f.recalled, 3);
	assert_ms(f.stall_ns, 3);
	assert_ms(f.total_ns, 15);
	s.opts.next_gate = false;
	f = run(&s, 1, 0, 1);
	assert_int_equal(f.ordered, 0);
	assert_ms(f.total_ns, 4 * (1 + 3 + 2));
}

/* Loads take 4 ms. Layer 1 is loaded from 1 to 5, routed at 8 and ends at 10. Layer 2 is loaded from 8 to 12, routed at
 * 11, and ends at 14; layer 3 from 11 to 15, when it is routed; 17. */
static void a_load_that_is_longer_than_a_layer(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	gate_setting(&s, 4);
	f = run(&s, 1, 0, 1);
	assert_int_equal(f.ordered, 3);
	assert_int_equal(f.served, 2);
	assert_ms(f.stall_ns, 4 + 1);
	assert_ms(f.total_ns, 17);
}

/* The router's product takes 1 ms of main: layer 1 is predicted at 2; layer 2 at 8, and loaded until 11, while it is
 * routed at 10; layer 3 at 11, and loaded until 14, when it is routed; 16. */
static void asking_a_router_takes_time(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	gate_setting(&s, 3);
	s.model.router_weights = MS;
	f = run(&s, 1, 0, 1);
	assert_int_equal(f.served, 2);
	assert_ms(f.stall_ns, 3 + 1);
	assert_ms(f.total_ns, 16);
	assert_ms(f.main.compute_ns, 4 * 1 + 3 * 1);
}

/* No layer before it predicts the first one. */
static void next_gate_errs_as_often_as_told(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	gate_setting(&s, 1);
	s.routes.gate_recall = 0.7;
	f = run(&s, 1, 0, 2000);
	if (fabs((double)f.recalled / (double)f.uses - 0.7 * 3 / 4) > 0.02)
		fail_msg("%.3f of all uses", (double)f.recalled / (double)f.uses);
}

/* A shadow that says nothing: main's own predictor speaks from a text's third step on, and of three layers. With a
 * shadow that speaks, it says nothing. */
static void main_stands_in_for_a_silent_shadow(void **state)
{
	struct odp_sim_figures f, with;
	struct setting s;

	(void)state;
	gate_setting(&s, 1);
	s.cluster.has_shadow = true;
	s.cluster.shadow_route_ns = 1e4 * MS;
	f = run(&s, 1, 0, 10);
	assert_int_equal(f.ordered, (10 - 2) * 3);
	assert_int_equal(f.recalled, 0);
	s.cluster.shadow_route_ns = MS / 4;
	s.routes.gate_recall = 0.1;
	f = run(&s, 1, 0, 10);
	s.opts.next_gate = false;
	with = run(&s, 1, 0, 10);
	assert_int_equal(f.total_ns, with.total_ns);
	assert_int_equal(f.extra_loads, 0);
}

/* ---- Dense weights that are read in steps ---- */

/* Main computes 1 ms a layer, loads take nothing, an expert 2 ms: a layer takes 3 ms when its weights are there. They
 * take 2 ms to read: all but the first are read meanwhile. */
static void reads_that_a_layer_hides(void **state)
{
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 2);
	s.model.load_bytes = 1;
	s.cluster.main.read_rate = GIGA;
	for (int i = 0; i < 4; i++)
		s.block[i].stream_bytes = 2 * MS;
	assert_ms(run(&s, 1, 0, 1).total_ns, 2 + 4 * 3);
	/* With a head of 1 ms, which is not read, the next step's first layer was read behind the third. */
	s.model.head_weights = MS;
	assert_ms(run(&s, 1, 0, 2).total_ns, 2 + 2 * (4 * 3 + 1));
}

/* Reads of 4 ms: they follow each other, and the last layer of each step ends 3 ms behind its read. Of the next step a
 * layer is read while the last one is computed, and two are never ahead. */
static void reads_that_are_longer_than_a_layer(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 2);
	s.model.load_bytes = 1;
	s.cluster.main.read_rate = GIGA;
	for (int i = 0; i < 4; i++)
		s.block[i].stream_bytes = 4 * MS;
	assert_ms(run(&s, 1, 0, 1).total_ns, 4 * 4 + 3);
	f = run(&s, 1, 0, 5);
	assert_ms(f.total_ns, 5 * 4 * 4 + 3);
	assert_ms(f.main.read_ns, 5 * 4 * 4);
	assert_ms(f.main.compute_ns, 5 * 4 * 1);
	/* A prompt's chunk reads all once, too: 64 rows take main 16 ms and the expert 32 ms a layer. */
	assert_ms(run(&s, 1, 64, 1).ttft_ns, 4 + 4 * (16 + 32));
}

/* Four layers of 1 ms and a head of 8 ms: two pieces of layers' size. */
static void a_head_is_read_in_pieces(void **state)
{
	struct setting s;

	(void)state;
	set_up(&s, 4, 1, 1, 2);
	s.model.load_bytes = 1;
	s.model.head_weights = 6 * MS;
	s.model.head_stream_bytes = 8 * MS;
	s.cluster.main.read_rate = GIGA;
	for (int i = 0; i < 4; i++)
		s.block[i].stream_bytes = 4 * MS;
	/* Layers are read until 16, the first piece until 20, when the ring has room again; the last layer ends at 19.
	 * The second is read until 24 and multiplied with for 3 ms. */
	assert_ms(run(&s, 1, 0, 1).total_ns, 27);
}

/* ---- Drafts ---- */

static void draft_setting(struct setting *s, double right)
{
	set_up(s, 4, 4, 1, 4);
	s->cluster.has_shadow = true;
	s->cluster.shadow_route_ns = MS / 10;
	s->opts.early = true;
	s->opts.drafts = ODP_DRAFTS_ON;
	s->routes.draft_right = right;
}

/* The shadow is so fast that it is always three tokens ahead: steps of four tokens, but the first. */
static void right_drafts_give_a_token_a_row(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	draft_setting(&s, 1);
	s.opts.draft_tokens = 3;
	f = run(&s, 1, 0, 41);
	assert_int_equal(f.tokens, 41);
	assert_int_equal(f.steps, 11);
	assert_int_equal(f.accepted, f.drafted);
	assert_int_equal(f.drafted, 30);
	assert_int_equal(f.uses, 41 * 4);
	assert_int_equal(f.recalled, f.uses);
}

static void wrong_drafts_are_undone(void **state)
{
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	draft_setting(&s, 0.5);
	s.opts.draft_tokens = 3;
	f = run(&s, 2, 0, 40);
	assert_int_equal(f.tokens, 80);
	assert_true(f.accepted > 0 && f.drafted > f.accepted);
	assert_true(f.steps < 40 && f.steps > 15);
	assert_int_equal(f.uses, 80 * 4);
	assert_int_equal(f.recalled, f.uses);
	/* A draft begins behind a token that the shadow was right about. */
	s.routes.draft_right = 0;
	f = run(&s, 2, 0, 40);
	assert_int_equal(f.steps, 40);
	assert_int_equal(f.drafted, 0);
}

/* The policy learns what drafts are worth: it drafts when they are mostly right, and stops when they are not. */
static void the_policy_learns(void **state)
{
	struct odp_sim_figures plain, good, bad;
	struct setting s;

	(void)state;
	draft_setting(&s, 0.95);
	good = run(&s, 1, 0, 400);
	s.routes.draft_right = 0.02;
	bad = run(&s, 1, 0, 400);
	s.opts.drafts = ODP_DRAFTS_OFF;
	plain = run(&s, 1, 0, 400);
	assert_true((double)good.total_ns < 0.7 * (double)plain.total_ns);
	assert_true((double)bad.total_ns < 1.15 * (double)plain.total_ns);
	assert_true(bad.drafted < good.drafted);
}

/* ---- A second computation ---- */

static uint64_t seed;

static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* A layer in which each worker has one expert. RUNs leave main one after the other; RESULTs come in the order in which
 * their first bytes do. */
static double layer_ms(const struct setting *s, uint32_t n, uint32_t rows)
{
	const double run_ms = rows * ROW / s->cluster.main.link_rate * 1e3;
	double leaves[MAX_WORKERS][3], at = 0,
				       last = 0; /* when RESULTs begin, how long their worker's port takes, latency */

	for (uint32_t w = 0; w < n; w++) {
		const struct odp_machine *m = &s->worker[w];
		const double way = m->latency_ns / 2 / MS, port = rows * ROW / m->link_rate * 1e3;

		leaves[w][0] =
			larger(at + port, at + run_ms) + way + (double)s->model.load_bytes / m->read_rate * 1e3 +
			m->run_ns / MS +
			larger(s->model.expert_weights / m->speed, s->model.expert_weights * rows / m->many) * 1e3;
		leaves[w][1] = port;
		leaves[w][2] = way;
		at += run_ms;
	}
	qsort(leaves, n, sizeof(leaves[0]), by_size);
	at = 0;
	for (uint32_t w = 0; w < n; w++) {
		at = larger(at, leaves[w][0]) + run_ms;
		last = larger(last, larger(at, leaves[w][0] + leaves[w][1]) + leaves[w][2]);
	}
	return larger(s->block[0].dense_weights / s->cluster.main.speed,
		      s->block[0].dense_weights * rows / s->cluster.main.many) *
		       1e3 +
	       last;
}

/* All experts are used by all rows; loads take so long that no worker is given two. */
static void random_clusters_without_a_shadow(void **state)
{
	(void)state;
	seed = 5;
	for (int i = 0; i < 60; i++) {
		const uint32_t n = 1 + (uint32_t)(uniform() * MAX_WORKERS), layers = 1 + (uint32_t)(uniform() * 4),
			       texts = 1 + (uint32_t)(uniform() * 8); /* a RUN has 8 of these rows at most */
		struct setting s;

		set_up(&s, layers, n, n, n);
		s.cluster.main.link_rate = 1e8 + 1e9 * uniform();
		s.model.load_bytes = 100 * (uint64_t)MS;
		for (uint32_t w = 0; w < n; w++) {
			s.worker[w].speed = (0.5 + uniform()) * GIGA;
			s.worker[w].many = s.worker[w].speed * (1 + 7 * uniform());
			s.worker[w].read_rate = (0.9 + 0.2 * uniform()) * GIGA;
			s.worker[w].link_rate = 2e8 + 1e9 * uniform();
			s.worker[w].latency_ns = 5 * MS * uniform();
			s.worker[w].run_ns = MS * uniform();
		}
		assert_ms(run(&s, texts, 0, 3).total_ns, 3 * layers * layer_ms(&s, n, texts));
	}
}

/* ---- Any cluster ---- */

static void equal_inputs_give_equal_figures(void **state)
{
	struct odp_sim_figures a, b;
	struct setting s;

	(void)state;
	set_up(&s, 4, 8, 2, 4);
	s.cluster.has_shadow = s.opts.early = true;
	s.cluster.shadow_route_ns = MS / 2;
	s.opts.drafts = ODP_DRAFTS_ON;
	s.opts.hedge = 0.1;
	s.routes.recall = 0.9;
	s.routes.draft_right = 0.7;
	for (uint32_t w = 0; w < 4; w++) {
		s.worker[w].link_rate = 1e9;
		s.worker[w].cache_bytes = 8000;
	}
	a = run(&s, 3, 20, 60);
	b = run(&s, 3, 20, 60);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_true(a.served <= a.ordered && a.ordered <= a.uses && a.recalled <= a.uses);
	assert_true((double)a.recalled > 0.85 * (double)a.uses && (double)a.recalled < 0.95 * (double)a.uses);
	assert_true(a.hedged > 0);
	assert_int_equal(a.tokens, 3 * 60);
	assert_int_equal(a.prompts, 3);
	s.routes.seed++;
	b = run(&s, 3, 20, 60);
	assert_int_not_equal(a.total_ns, b.total_ns);
}

static uint32_t up_to(uint32_t n)
{
	return (uint32_t)(uniform() * (n + 1));
}

static void random_setting(struct setting *s)
{
	const uint32_t n_experts = 2 + up_to(14), workers = 1 + up_to(MAX_WORKERS - 1);

	set_up(s, 1 + up_to(5), n_experts, 1 + up_to(n_experts < 5 ? n_experts - 1 : 3), workers);
	s->model.row_bytes = 100 + 1e5 * uniform();
	s->model.head_weights = MS * uniform();
	s->cluster.main.link_rate = up_to(1) * 1e9;
	s->cluster.has_shadow = up_to(3) > 0;
	s->cluster.shadow = (struct odp_machine){ .speed = GIGA * (0.3 + 4 * uniform()),
						  .link_rate = up_to(1) * 1e8,
						  .latency_ns = 2 * MS * uniform() };
	s->opts.early = up_to(2) > 0;
	s->opts.drafts = s->cluster.has_shadow && s->opts.early && up_to(1) > 0 ? ODP_DRAFTS_ON : ODP_DRAFTS_OFF;
	s->opts.draft_tokens = up_to(1) * up_to(8);
	s->opts.align_kv = up_to(3);
	s->opts.align_token = 1 + up_to(2);
	s->opts.hedge = up_to(1) * 0.2;
	s->opts.max_texts = 1 + up_to(4);
	s->opts.prefill_rows = 1 + up_to(40);
	s->routes.recall = 0.5 + uniform() / 2;
	s->routes.draft_right = uniform();
	s->routes.locality = 0.9 * uniform();
	for (uint32_t w = 0; w < workers; w++) {
		s->worker[w].slots = 1 + up_to(3);
		s->worker[w].cache_bytes = up_to(1) * up_to(20) * s->model.slot_bytes;
		s->worker[w].speed *= 0.5 + uniform();
		s->worker[w].link_rate = up_to(2) > 0 ? 1e8 + 1e9 * uniform() : 0;
		s->worker[w].latency_ns = up_to(1) * MS * uniform();
	}
}

/* All texts get their tokens, whatever the cluster is and however it is told to work. */
static void random_clusters_end(void **state)
{
	(void)state;
	seed = 9;
	for (int i = 0; i < 200; i++) {
		struct odp_sim_figures f;
		struct setting s;
		const uint32_t texts = 1 + up_to(6), prompt = up_to(1) * up_to(50), tokens = 1 + up_to(20);

		random_setting(&s);
		f = run(&s, texts, prompt, tokens);
		assert_int_equal(f.tokens, texts * tokens);
		assert_int_equal(f.prompts, prompt > 0 ? texts : 0);
		assert_int_equal(f.uses, (uint64_t)texts * tokens * s.model.n_moe * s.model.top_k);
		assert_true(f.served <= f.ordered && f.ordered <= f.uses && f.recalled <= f.uses);
		assert_true(f.accepted <= f.drafted && f.main.compute_ns <= f.total_ns);
		assert_true(s.opts.drafts == ODP_DRAFTS_ON || f.drafted == 0);
		for (uint32_t w = 0; w < s.cluster.n_workers; w++)
			assert_true(s.busy[w].compute_ns <= f.total_ns);
	}
}

/* ---- Unequal workers ---- */

static double between(double least, double most)
{
	return least * exp(uniform() * log(most / least));
}

/* kind 0: links take no time; 1: slow and quick links; 2: some caches, too. */
static void unequal_setting(struct setting *s, int kind)
{
	set_up(s, 4 + up_to(4), 16, 1 + up_to(3), 2 + up_to(1));
	s->model.expert_weights = MS;
	s->model.load_bytes = s->model.slot_bytes = 2 * (uint64_t)MS;
	s->model.row_bytes = 4000;
	s->cluster.main.speed = between(0.5, 4) * GIGA;
	s->cluster.main.link_rate = kind > 0 ? GIGA / 8 : 0;
	s->cluster.has_shadow = up_to(1) > 0;
	s->cluster.shadow_route_ns = MS / 2;
	s->routes.recall = 0.97;
	s->opts.early = true;
	for (uint32_t i = 0; i < s->cluster.n_workers; i++) {
		struct odp_machine *w = &s->worker[i];

		w->read_rate = between(0.2, 1.6) * GIGA;
		w->speed = between(0.25, 2) * GIGA;
		w->many = 8 * w->speed;
		w->slots = 1 + up_to(7);
		w->run_ns = MS / 10;
		w->latency_ns = MS / 5;
		w->link_rate = kind > 0 ? between(0.0125, 0.3) * GIGA : 0;
		if (kind == 2 && up_to(1) > 0)
			w->cache_bytes =
				(uint64_t)(between(0.05, 0.8) * s->model.n_moe * 16 * (double)s->model.slot_bytes);
	}
}

/* Some of the workers, by their bits: when caches are warm. */
static struct odp_sim_figures run_subset(const struct setting *all, unsigned subset)
{
	const struct odp_work work = { .n_texts = 1, .prompt_tokens = 64, .tokens = 40 };
	struct setting s = *all;
	uint32_t n = 0;

	s.model.block = s.block;
	s.cluster.worker = s.worker;
	for (uint32_t i = 0; i < all->cluster.n_workers; i++)
		if (subset >> i & 1)
			s.worker[n++] = all->worker[i];
	s.cluster.n_workers = n;
	return run_work(&s, &work, 2, s.busy);
}

/* A cluster is about as quick as the best part of it, in decode and in prompts. */
static void unequal_workers_are_no_slower_than_some_of_them(void **state)
{
	(void)state;
	seed = 4;
	for (int i = 0; i < 24; i++) {
		double decode = INFINITY, prompt = INFINITY;
		struct odp_sim_figures f;
		struct setting s;
		unsigned all;

		unequal_setting(&s, i % 3);
		all = (1u << s.cluster.n_workers) - 1;
		for (unsigned subset = 1; subset < all; subset++) {
			f = run_subset(&s, subset);
			decode = fmin(decode, (double)f.decode_ns);
			prompt = fmin(prompt, (double)f.ttft_ns);
		}
		f = run_subset(&s, all);
		if (0.9 * (double)f.decode_ns > decode || 0.9 * (double)f.ttft_ns > prompt)
			fail_msg("cluster %d: decode %.3f, prompt %.3f of some workers' speed", i,
				 decode / (double)f.decode_ns, prompt / (double)f.ttft_ns);
	}
}

/* No machine is busy for longer than the run. */
static void a_thousand_workers(void **state)
{
	struct odp_machine *worker = calloc(MANY_WORKERS, sizeof(*worker));
	struct odp_busy *busy = calloc(MANY_WORKERS, sizeof(*busy));
	struct odp_sim_figures f;
	struct setting s;

	(void)state;
	assert_non_null(worker);
	assert_non_null(busy);
	set_up(&s, 6, 16, 4, 1);
	for (int i = 0; i < MANY_WORKERS; i++) {
		worker[i] = s.worker[0];
		worker[i].link_rate = 1.25e8;
		worker[i].latency_ns = MS / 5;
	}
	s.cluster.worker = worker;
	s.cluster.n_workers = MANY_WORKERS;
	s.cluster.main.link_rate = 1.25e9;
	s.cluster.has_shadow = true;
	s.cluster.shadow_route_ns = MS / 2;
	s.model.row_bytes = 4096;
	f = run_work(&s, &(struct odp_work){ .n_texts = 16, .tokens = 10 }, 1, busy);
	assert_int_equal(f.tokens, 160);
	assert_int_equal(f.uses, 160 * 6 * 4);
	for (int i = 0; i < MANY_WORKERS; i++)
		assert_true(busy[i].compute_ns <= f.total_ns && busy[i].read_ns <= f.total_ns &&
			    busy[i].up_ns <= f.total_ns && busy[i].down_ns <= f.total_ns);
	free(busy);
	free(worker);
}

static size_t count_named(const json_t *events, const char *name)
{
	size_t n = 0, i;
	const json_t *e;

	json_array_foreach((json_t *)events, i, e) n +=
		strcmp(json_string_value(json_object_get(e, "name")), name) == 0;
	return n;
}

/* The names are those of live daemons' traces. */
static void a_trace_has_what_was_done(void **state)
{
	char path[] = "/tmp/plan_trace_XXXXXX";
	const int fd = mkstemp(path);
	struct odp_sim_figures f;
	struct setting s;
	json_error_t why;
	json_t *events;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	set_up(&s, 3, 4, 2, 2);
	s.cluster.has_shadow = true;
	s.cluster.shadow_route_ns = MS / 2;
	s.cluster.main.link_rate = s.worker[0].link_rate = s.worker[1].link_rate = 1e9;
	s.opts.trace_path = path;
	f = run(&s, 1, 0, 5);
	events = json_load_file(path, 0, &why);
	assert_non_null(events);
	assert_int_equal(count_named(events, "compute"), f.uses);
	assert_int_equal(count_named(events, "wait for experts"), 5 * 3);
	assert_int_equal(count_named(events, "head"), 5);
	assert_true(count_named(events, "attention, router") >= 2 * 5 * 3 - 3);
	assert_true(count_named(events, "read") >= 16 * f.used_loads);
	assert_true(count_named(events, "send RUNs") >= 5 * 3 && count_named(events, "send") >= 5 * 3);
	assert_int_equal(count_named(events, "process_name"), 1 + 2 + 2 + 3 + 3);
	json_decref(events);
	unlink(path);
}

static void bad_input_is_refused(void **state)
{
	struct odp_sim *sim;
	struct od_err err;
	struct setting s;

	(void)state;
	set_up(&s, 2, 4, 2, 2);
	s.worker[1].slots = 0;
	assert_int_equal(odp_sim_new(&sim, &s.cluster, &s.model, &s.opts, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "worker 1 has 0 slots"));
	assert_null(sim);
	set_up(&s, 2, 4, 2, 2);
	s.block[1].moe = false;
	assert_int_equal(odp_sim_new(&sim, &s.cluster, &s.model, &s.opts, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "expected 2 blocks with experts, found 1"));
	set_up(&s, 2, 4, 2, 2);
	s.opts.drafts = ODP_DRAFTS_ON;
	assert_int_equal(odp_sim_new(&sim, &s.cluster, &s.model, &s.opts, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "drafts need a shadow"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_link_is_the_limit),
		cmocka_unit_test(main_s_port_is_shared),
		cmocka_unit_test(the_slowest_worker_ends_the_layer),
		cmocka_unit_test(a_slow_worker_is_left_out),
		cmocka_unit_test(a_slow_worker_helps_with_loads),
		cmocka_unit_test(texts_share_weights),
		cmocka_unit_test(a_prompt_is_a_step_of_many_rows),
		cmocka_unit_test(prompts_take_turns_with_decode),
		cmocka_unit_test(a_cache_holds_everything),
		cmocka_unit_test(a_shadow_behind_a_slow_link_is_late),
		cmocka_unit_test(the_shadow_needs_the_prompt),
		cmocka_unit_test(a_load_that_a_layer_just_hides),
		cmocka_unit_test(a_load_that_is_longer_than_a_layer),
		cmocka_unit_test(asking_a_router_takes_time),
		cmocka_unit_test(next_gate_errs_as_often_as_told),
		cmocka_unit_test(main_stands_in_for_a_silent_shadow),
		cmocka_unit_test(reads_that_a_layer_hides),
		cmocka_unit_test(reads_that_are_longer_than_a_layer),
		cmocka_unit_test(a_head_is_read_in_pieces),
		cmocka_unit_test(right_drafts_give_a_token_a_row),
		cmocka_unit_test(wrong_drafts_are_undone),
		cmocka_unit_test(the_policy_learns),
		cmocka_unit_test(random_clusters_without_a_shadow),
		cmocka_unit_test(equal_inputs_give_equal_figures),
		cmocka_unit_test(random_clusters_end),
		cmocka_unit_test(unequal_workers_are_no_slower_than_some_of_them),
		cmocka_unit_test(a_thousand_workers),
		cmocka_unit_test(a_trace_has_what_was_done),
		cmocka_unit_test(bad_input_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
