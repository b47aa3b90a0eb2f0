/* od-testbed-sim NAME=VALUE...: the simulator's figures of a cluster of OD-MoE's ten machines, as JSON, for
 * od_moe_testbed.py, which says what the names are (`simulated`). Times are milliseconds. Routes are drawn
 * (synthetic_routes.h) with the recall that is given, and all drafts are right, as the testbed's are. */
#include "common/base/args.h"
#include "deploy/plan/sim.h"
#include "deploy/plan/synthetic_routes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_LAYERS 32u
#define N_EXPERTS 8u
#define N_WORKERS 8u
#define TOP_K 2u
#define MS 1e6 /* ns; also the weights that a machine of speed 10^9 multiplies with in a millisecond */
#define WARM_TOKENS 100
#define MAX_VALUE 1e9
#define MAX_TEXTS 16
#define N_PROMPTS 2

struct words {
	double main, run, load, shadow, /* milliseconds */
		slots, recall, hedge, early, drafts, align_token, align_kv, row_bytes, state_bytes, link,
		/* milliseconds that the daemons take themselves: a round trip, a RUN, a layer of main's */
		latency, run_overhead, main_overhead, prompt, tokens, texts,
		live, /* 1: the testbed's texts (run_as_live), with so many tokens each */
		cache; /* share of all experts that the workers' caches together hold */
};

static int parse(struct words *w, const char *word, struct od_err *err)
{
	const struct {
		const char *name;
		double *value;
	} known[] = { { "main", &w->main },
		      { "run", &w->run },
		      { "load", &w->load },
		      { "shadow", &w->shadow },
		      { "slots", &w->slots },
		      { "recall", &w->recall },
		      { "hedge", &w->hedge },
		      { "early", &w->early },
		      { "drafts", &w->drafts },
		      { "align_token", &w->align_token },
		      { "align_kv", &w->align_kv },
		      { "row_bytes", &w->row_bytes },
		      { "state_bytes", &w->state_bytes },
		      { "link", &w->link },
		      { "latency", &w->latency },
		      { "run_overhead", &w->run_overhead },
		      { "main_overhead", &w->main_overhead },
		      { "prompt", &w->prompt },
		      { "tokens", &w->tokens },
		      { "texts", &w->texts },
		      { "live", &w->live },
		      { "cache", &w->cache } };
	const char *value = strchr(word, '=');

	for (size_t i = 0; value != NULL && i < sizeof(known) / sizeof(known[0]); i++)
		if (strncmp(word, known[i].name, (size_t)(value - word)) == 0 && known[i].name[value - word] == '\0')
			return od_parse_real(value + 1, 0, MAX_VALUE, known[i].value, err);
	return od_fail(err, OD_ERR_ARG, "expected NAME=VALUE with a known name, found \"%s\"", word);
}

struct measured {
	struct odp_sim_figures prompt[N_PROMPTS], texts;
};

/* The texts that the testbed writes: with drafts one to warm up, then one for each prompt, which go on to their end
 * before the next one begins. The first token comes with the prompt. */
static int run_as_live(struct odp_sim *sim, const struct words *w, struct odp_routes *routes, struct measured *to,
		       struct od_err *err)
{
	static const uint32_t prompts[N_PROMPTS] = { 16, 128 };
	struct odp_work text = {
		.n_texts = 1, .prompt_tokens = prompts[0], .tokens = (uint32_t)fmax(w->tokens - 1, 1), .routes = routes
	};
	struct odp_sim_figures ignored = { 0 };
	int rc = w->drafts > 0 ? odp_sim_run(sim, &text, &ignored, err) : OD_OK;

	for (size_t i = 0; rc == OD_OK && i < N_PROMPTS; i++) {
		struct odp_sim_figures f = { 0 };

		text.prompt_tokens = prompts[i];
		rc = odp_sim_run(sim, &text, &f, err);
		to->prompt[i].ttft_ns = f.ttft_ns;
		to->texts.tokens += f.tokens;
		to->texts.decode_ns += f.decode_ns;
		to->texts.recalled += f.recalled;
		to->texts.uses += f.uses;
		to->texts.stall_ns += f.stall_ns;
		to->texts.steps += f.steps;
	}
	return rc;
}

static int run_apart(struct odp_sim *sim, const struct words *w, struct odp_routes *routes, struct measured *to,
		     struct od_err *err)
{
	const uint32_t n = (uint32_t)fmin(fmax(w->texts, 1), MAX_TEXTS);
	const struct odp_work warm = { .n_texts = n, .tokens = WARM_TOKENS, .routes = routes };
	const struct odp_work first = {
		.n_texts = 1, .prompt_tokens = (uint32_t)w->prompt, .tokens = 1, .routes = routes
	};
	const struct odp_work decode = { .n_texts = n, .tokens = (uint32_t)w->tokens, .routes = routes };
	struct odp_sim_figures ignored = { 0 };
	int rc = odp_sim_run(sim, &warm, &ignored, err);

	if (rc == OD_OK)
		rc = odp_sim_run(sim, &first, &to->prompt[0], err);
	return rc == OD_OK ? odp_sim_run(sim, &decode, &to->texts, err) : rc;
}

static int simulate(const struct words *w, struct od_err *err)
{
	const struct odp_machine machine = {
		.speed = 1e9,
		.many = 1e15, /* rows take no time of their own */
		.read_rate = 1e9,
		.link_rate = w->link,
		.latency_ns = w->latency * MS,
		.run_ns = w->run_overhead * MS,
		.slots = (unsigned)w->slots,
		.cache_bytes = (uint64_t)(w->cache * N_LAYERS * N_EXPERTS / N_WORKERS), /* an expert has one byte */
	};
	struct odp_sim_block block[N_LAYERS];
	struct odp_machine worker[N_WORKERS];
	const struct odp_sim_model model = {
		.n_layers = N_LAYERS,
		.n_moe = N_LAYERS,
		.n_experts = N_EXPERTS,
		.top_k = TOP_K,
		.block = block,
		.head_weights = 1,
		.expert_weights = w->run * MS,
		.load_bytes = (uint64_t)(w->load * MS),
		.slot_bytes = 1,
		.row_bytes = w->row_bytes,
	};
	struct odp_cluster cluster = { .main = machine,
				       .shadow = machine,
				       .has_shadow = true,
				       .shadow_route_ns = w->shadow * MS,
				       .worker = worker,
				       .n_workers = N_WORKERS };
	const struct odp_sim_opts opts = { .max_texts = MAX_TEXTS,
					   .prefill_rows = 256,
					   .align_token = (uint32_t)w->align_token,
					   .align_kv = (uint32_t)w->align_kv,
					   .early = w->early > 0,
					   .hedge = w->hedge / 100,
					   .drafts = w->drafts > 0 ? ODP_DRAFTS_ON : ODP_DRAFTS_OFF };
	const struct odp_synthetic_opts so = { .n_moe = N_LAYERS,
					       .n_experts = N_EXPERTS,
					       .top_k = TOP_K,
					       .seed = 1,
					       .recall = w->recall,
					       .draft_right = 1 };
	struct measured m = { 0 };
	struct odp_synthetic *drawn;
	struct odp_sim *sim = NULL;
	struct odp_routes routes;
	int rc = odp_synthetic_new(&drawn, &so, err);

	if (rc != OD_OK)
		return rc;
	routes = odp_synthetic_routes(drawn);
	for (size_t i = 0; i < N_LAYERS; i++)
		block[i] = (struct odp_sim_block){ .dense_weights = w->main * MS,
						   .state_bytes = w->state_bytes,
						   .moe = true };
	for (size_t i = 0; i < N_WORKERS; i++)
		worker[i] = machine;
	cluster.main.run_ns = w->main_overhead * MS;
	rc = odp_sim_new(&sim, &cluster, &model, &opts, err);
	if (rc == OD_OK)
		rc = (w->live > 0 ? run_as_live : run_apart)(sim, w, &routes, &m, err);
	odp_sim_free(sim);
	odp_synthetic_free(drawn);
	if (rc == OD_OK)
		printf("{\"tok_per_s\": %.3f, \"ttft_ms\": %.1f, \"ttft_128_ms\": %.1f, \"recall\": %.4f, \"stall_ms\": %.3f}\n",
		       (double)m.texts.tokens * 1e9 / (double)m.texts.decode_ns, (double)m.prompt[0].ttft_ns / MS,
		       (double)m.prompt[1].ttft_ns / MS, (double)m.texts.recalled / (double)m.texts.uses,
		       (double)m.texts.stall_ns / MS / (double)m.texts.steps / N_LAYERS);
	return rc;
}

int main(int argc, char **argv)
{
	struct words w = {
		.slots = 1, .recall = 1, .align_token = 1, .align_kv = 1, .prompt = 16, .tokens = 400, .texts = 1
	};
	struct od_err err = { 0 };
	int rc = OD_OK;

	for (int i = 1; i < argc && rc == OD_OK; i++)
		rc = parse(&w, argv[i], &err);
	if (rc == OD_OK)
		rc = simulate(&w, &err);
	if (rc != OD_OK)
		fprintf(stderr, "od-testbed-sim: %s\n", err.msg);
	return rc == OD_OK ? 0 : 1;
}
