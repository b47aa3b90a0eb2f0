#include "common/base/counters.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define R OD_OF_REQUEST
#define W OD_OF_WORKER
#define S OD_OF_SHADOW
#define C OD_COUNTER
#define G OD_GAUGE
#define P OD_PEAK

/* "Use": one row of a decode step uses one expert of one layer. */
const struct od_counter_info od_counter_info[OD_N_COUNTERS] = {
	[OD_C_PROMPT_TOKENS] = { "prompt_tokens", "tokens", C, R, "tokens of the prompt, BOS included" },
	[OD_C_SHARED_TOKENS] = { "shared_tokens", "tokens", C, R,
				 "of these, at the prompt's begin: another text had them, so their state was there" },
	[OD_C_RESTORED_TOKENS] = { "restored_tokens", "tokens", C, R, "of `shared_tokens`, read from files" },
	[OD_C_TOKENS] = { "tokens", "tokens", C, R, "tokens generated, EOS included" },
	[OD_C_PREFILL_NS] = { "prefill_s", "ns", C, R, "from the request until the prompt is through the model" },
	[OD_C_TTFT_NS] = { "ttft_s", "ns", C, R, "from the request to the first token" },
	[OD_C_DECODE_NS] = { "decode_s", "ns", C, R, "from the first token to the last" },
	[OD_C_DRAFTED] = { "drafted_tokens", "tokens", C, R, "draft tokens that decode steps verified" },
	[OD_C_ACCEPTED] = { "accepted_tokens", "tokens", C, R, "of these, right" },
	[OD_C_DEVICE_WAITS] = { "device_waits", "waits", C, R | W,
				"waits for the device: by main, prefill included; by a worker, for loads too" },
	[OD_C_SIDE_WAITS] = { "side_waits", "waits", C, R,
			      "of these, for main's own predictor and for what the shadow asked for" },
	[OD_C_EXPERT_USES] = { "expert_uses", "uses", C, R,
			       "experts that kept rows of decode steps used: rows x MoE layers x top-k" },
	[OD_C_PREDICTED_USES] = { "predicted_uses", "uses", C, R, "uses with a prediction, in time or late" },
	[OD_C_RECALLED_USES] = { "recalled_uses", "uses", C, R, "predicted uses whose expert was in the prediction" },
	[OD_C_STOOD_IN_USES] = { "stood_in_uses", "uses", C, R,
				 "predicted by main for a silent shadow; not in `predicted_uses`" },
	[OD_C_STOOD_IN_RECALLED] = { "stood_in_recalled", "uses", C, R,
				     "of these, uses whose expert was in the prediction" },
	[OD_C_UNDONE_USES] = { "undone_uses", "uses", C, R,
			       "uses of draft rows that were undone; not in `expert_uses`" },
	[OD_C_UNDONE_RECALLED] = { "undone_recalled", "uses", C, R,
				   "of these, uses whose expert was in the prediction" },
	[OD_C_LATE_PREDICTIONS] = { "late_predictions", "predictions", C, R,
				    "rows of a layer with a prediction after its router" },
	[OD_C_MISSING_PREDICTIONS] = { "missing_predictions", "predictions", C, R,
				       "rows of a layer that never had a prediction" },
	[OD_C_VOIDED_PREDICTIONS] = { "voided_predictions", "predictions", C, R,
				      "kept until main chose another token, or the text ended" },
	[OD_C_UNKNOWN_PREDICTIONS] = { "unknown_predictions", "predictions", C, R,
				       "of the shadow, for no row that main has or may have next" },
	[OD_C_DROPPED_PREDICTS] = { "dropped_predicts", "messages", C, R, "PREDICTs with numbers out of range" },
	[OD_C_FIRST_PREDICTIONS] = { "first_predictions", "steps", C, R, "decode steps that had a prediction" },
	[OD_C_LEAD_SUM] = { "lead_sum", "layers", C, R,
			    "from a router predicted in time to the newest prediction, summed" },
	[OD_C_LEAD_ROUTERS] = { "lead_routers", "routers", C, R, "routers predicted in time" },
	[OD_C_HEDGED] = { "hedged", "experts", C, R, "experts wanted besides the prediction" },
	[OD_C_HEDGE_USES] = { "hedge_uses", "experts", C, R, "hedged experts that were needed" },
	[OD_C_WASTED_WANTS] = { "wasted_wants", "experts", C, R, "experts that were wanted of a worker and not used" },
	[OD_C_SERVED_IN_TIME] = { "served_in_time", "uses", C, R,
				  "uses ordered before the router and loaded when the rows came" },
	[OD_C_UNDONE_SERVED] = { "undone_served", "uses", C, R,
				 "the same of draft rows that were undone; not in `served_in_time`" },
	[OD_C_UNDONE_LOADS] = { "undone_loads", "loads", C, R, "of `decode_loads`, for undone rows only" },
	[OD_C_STALLS] = { "stalls", "experts", C, R,
			  "experts that were not resident when their rows arrived, decode steps only" },
	[OD_C_STALL_NS] = { "stall_s", "ns", C, R,
			    "time main waited for loads: the longest wait of each decode layer" },
	[OD_C_DECODE_LAYERS] = { "decode_layers", "layers", C, R, "MoE layers of decode steps" },
	[OD_C_EXPERTS_NS] = { "experts_s", "ns", C, R,
			      "in these, from the router to the last output, stalls included" },
	[OD_C_CACHE_USES] = { "cache_uses", "experts", C, R, "experts that workers with a cache ran in decode steps" },
	[OD_C_CACHE_HITS] = { "cache_hits", "experts", C, R, "of these, kept in its memory" },
	[OD_C_LOADS] = { "loads", "loads", C, R | W,
			 "expert loads that ended; of a request: that a RUN used, prefill included" },
	[OD_C_LOADED_BYTES] = { "loaded_bytes", "bytes", C, R | W,
				"bytes read from storage; of a request: by its `loads`" },
	[OD_C_HOST_BYTES] = { "host_bytes", "bytes", C, R,
			      "bytes that a GPU's loads took from pinned host memory, not from storage" },
	[OD_C_HOST_EXPERTS] = { "host_experts", "experts", C, R,
				"experts in pinned host memory that CPUs beside a GPU computed, prefill included" },
	[OD_C_DENSE_BYTES] = { "dense_bytes", "bytes", C, R,
			       "dense weights read from storage again, because they do not fit into memory" },
	[OD_C_DENSE_WAIT_NS] = { "dense_wait_s", "ns", C, R, "time main waited for these" },
	[OD_C_LOAD_NS] = { "load_s", "ns", C, R | W, "sum over `loads`, each from begin to ready" },
	[OD_C_DECODE_LOADS] = { "decode_loads", "loads", C, R, "`loads` of decode steps" },
	[OD_C_BEGUN_LOADS] = { "begun_loads", "loads", C, R,
			       "loads begun, by the workers' counters, without `prompt_extra_loads`" },
	[OD_C_EXTRA_LOADS] = { "extra_loads", "loads", C, R, "of these, used by no RUN" },
	[OD_C_WORKER_RUNS] = { "worker_runs", "runs", C, R, "RUNs sent to workers" },
	[OD_C_WORKER_ROWS] = { "worker_rows", "rows", C, R, "rows sent to workers in RUNs" },
	[OD_C_WORKER_COMPUTE_NS] = { "worker_compute_s", "ns", C, R | W, "sum over experts, computing on workers" },
	[OD_C_RECOVERED_RUNS] = { "recovered_runs", "runs", C, R,
				  "experts of RUNs that were sent again after a worker was lost" },
	[OD_C_RUN_BYTES] = { "run_bytes", "bytes", C, R, "rows of these RUNs, without headers" },
	[OD_C_RESULT_BYTES] = { "result_bytes", "bytes", C, R, "rows of RESULTs, without headers" },
	[OD_C_STATE_BYTES] = { "state_bytes", "bytes", C, R, "keys and values sent to the shadow" },
	[OD_C_ALIGN_BYTES] = { "align_bytes", "bytes", C, R,
			       "sent to align the shadow, with headers, without `asked_bytes`" },
	[OD_C_ASKED_BYTES] = { "asked_bytes", "bytes", C, R,
			       "answers to the shadow: prompts, and all after its restart" },
	[OD_C_ALIGN_NS] = { "align_s", "ns", C, R, "time main spent to align the shadow and to answer it" },
	[OD_C_WORKERS] = { "workers", "workers", G, R, "workers in the cluster" },
	[OD_C_GROUPS] = { "groups", "groups", G, R, "groups of workers" },
	[OD_C_SLOTS] = { "slots", "slots", G, R, "slots of the worker with the fewest" },
	[OD_C_RSS_BYTES] = { "rss_bytes", "bytes", G, W | S, "resident memory of the process" },
	[OD_C_PEAK_RSS_BYTES] = { "peak_rss_bytes", "bytes", P, W | S, "peak resident memory of the process" },
	[OD_C_REFUSED_CONNECTIONS] = { "refused_connections", "connections", C, W | S,
				       "refused before a message: no key, or an unknown one" },
	[OD_C_CANCELLED_LOADS] = { "cancelled_loads", "loads", C, W, "loads that were given up before their end" },
	[OD_C_UNUSED_LOADS] = { "unused_loads", "loads", C, W, "`loads` that no RUN used" },
	[OD_C_PROMPT_EXTRA_LOADS] = { "prompt_extra_loads", "loads", C, W,
				      "of the cancelled and the unused, those for prompts" },
	[OD_C_READS] = { "reads", "parts", C, W, "parts of experts read from storage" },
	[OD_C_READ_NS] = { "read_s", "ns", C, W, "sum over `reads`" },
	[OD_C_FINISHES] = { "finishes", "parts", C, W, "parts checked and inflated" },
	[OD_C_FINISH_NS] = { "finish_s", "ns", C, W, "sum over `finishes`" },
	[OD_C_PULLED_BYTES] = { "pulled_bytes", "bytes", C, W, "bytes pulled from the store" },
	[OD_C_SPOOL_BYTES] = { "spool_bytes", "bytes", G, W, "bytes of whole experts in the spool" },
	[OD_C_SPOOL_GOAL_BYTES] = { "spool_goal_bytes", "bytes", G, W, "bytes of experts that the spool shall hold" },
	[OD_C_SHADOW_STEPS] = { "shadow_steps", "steps", C, S, "STEPs taken" },
	[OD_C_SHADOW_CONFIRMED] = { "shadow_confirmed", "rows", C, S,
				    "run ahead with the right token: a sequence's next STEP said so" },
	[OD_C_SHADOW_MISTAKEN] = { "shadow_mistaken", "rows", C, S,
				   "run ahead with a wrong token, or where no STEP followed" },
	[OD_C_SHADOW_OVERTAKEN] = { "shadow_overtaken", "steps", C, S,
				    "of a sequence, which were not through when its next STEP came" },
	[OD_C_SHADOW_PREDICTIONS] = { "shadow_predictions", "predictions", C, S, "predictions made" },
	[OD_C_SHADOW_LOST] = { "shadow_lost", "predictions", C, S,
			       "predictions dropped because the queue to main was full" },
	[OD_C_SHADOW_STATE_ROWS] = { "shadow_state_rows", "rows", C, S,
				     "true rows taken from main, of one layer each" },
	[OD_C_SHADOW_ASKED] = { "shadow_asked", "ranges", C, S, "ranges of rows or tokens asked for" },
	[OD_C_SHADOW_CHOSEN] = { "shadow_chosen", "rows", C, S, "rows of STEPs whose token was left to the shadow" },
	[OD_C_SHADOW_FILLED] = { "shadow_filled", "positions", C, S, "positions whose rows were computed from tokens" },
	[OD_C_SHADOW_DROPPED] = { "shadow_dropped", "messages", C, S, "messages of main that made no sense" },
};

int od_counter_find(const char *name)
{
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		if (strcmp(od_counter_info[i].name, name) == 0)
			return i;
	}
	return -1;
}

void od_counters_add(uint64_t *to, const uint64_t *c)
{
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		switch (od_counter_info[i].kind) {
		case OD_COUNTER: to[i] += c[i]; break;
		case OD_GAUGE: to[i] = c[i]; break;
		case OD_PEAK: to[i] = c[i] > to[i] ? c[i] : to[i]; break;
		}
	}
}

void od_counters_since(uint64_t *to, const uint64_t *now, const uint64_t *before)
{
	for (int i = 0; i < OD_N_COUNTERS; i++)
		to[i] = od_counter_info[i].kind == OD_COUNTER && now[i] >= before[i] ? now[i] - before[i] : now[i];
}

void od_counters_json(const uint64_t *c, unsigned of, json_t *into)
{
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		const struct od_counter_info *t = &od_counter_info[i];

		if (t->of & of)
			json_object_set_new(into, t->name,
					    strcmp(t->unit, "ns") == 0 ? json_real(od_seconds(c[i])) :
									 json_integer((json_int_t)c[i]));
	}
}

const char *od_counters_text(const uint64_t *c, unsigned of, char *buf, size_t size)
{
	size_t used = 0;

	buf[0] = '\0';
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		const struct od_counter_info *t = &od_counter_info[i];
		const char *between = used > 0 ? ", " : "";

		if (!(t->of & of) || c[i] == 0 || used >= size)
			continue;
		used += (size_t)(strcmp(t->unit, "ns") == 0 ?
					 snprintf(buf + used, size - used, "%s%s %.3f", between, t->name,
						  od_seconds(c[i])) :
					 snprintf(buf + used, size - used, "%s%s %" PRIu64, between, t->name, c[i]));
	}
	return buf;
}
