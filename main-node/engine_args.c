#include "main-node/engine_args.h"

#include "common/base/clock.h"
#include "common/cache/pool_policy.h"

#include <string.h>

#define OWN_MAX 32
#define CONNECT_TIMEOUT_S 10
#define MAX_PACE_MS 60000
#define MAX_CACHE_MIB (1u << 30)
#define MAX_HEDGE_PERCENT 400 /* every hedge there can be of a top-1 model */

const char *const odm_departure_names[] = { "late", "early", NULL };
static const char *const second_names[] = { OD_PREDICTOR_KINDS, "none", NULL };

void odm_engine_args_defaults(struct odm_engine_args *a)
{
	*a = (struct odm_engine_args){ .connect_timeout_s = CONNECT_TIMEOUT_S, .align_token = 1, .align_kv = 1, .align_rows = -1 };
	odm_engine_defaults(&a->opts);
}

size_t odm_engine_args_table(struct odm_engine_args *a, struct od_arg *table)
{
	struct odm_engine_opts *o = &a->opts;
	const struct od_arg args[] = {
		{ .kind = OD_ARG_TITLE, .help = "The model, and who runs its experts" },
		{ "pack", OD_ARG_STRING, &o->pack, "DIR", "model pack made by od-pack (default: $OD_PACK, else /var/lib/od-moe/pack)", 0, 0, NULL },
		{ "workers", OD_ARG_STRING, &o->hosts_path, "FILE", "the cluster: one host a line, [worker|shadow] host[:port]; read again on SIGHUP", 0, 0, NULL },
		{ "local", OD_ARG_UINT, &a->local, "N", "a shadow and N workers as child processes on this machine", 1, 64, NULL },
		{ "resident", OD_ARG_FLAG, &a->resident, NULL, "all experts in the memory of this process, no cluster", 0, 0, NULL },
		{ "resident-form", OD_ARG_CHOICE, &o->form, "bf16|planes", "with --resident or --local: experts in memory as published, or coded as they are stored, in two thirds of it (default: planes if the pack has them, they are more than the cache holds, and this CPU computes on them faster)", 0, 0, od_form_names },
		{ .kind = OD_ARG_TITLE, .help = "The cluster" },
		{ "predictor", OD_ARG_CHOICE, &o->predictor, "NAME", "who says which experts come next: shadow, main itself by next-gate, multi-gate, popularity, history, trajectory or random, or none (default: shadow if there is one)", 0, 0, odm_predictor_names },
		{ "second-opinion", OD_ARG_CHOICE, &o->second_opinion, "NAME", "next-gate, multi-gate, popularity, history, trajectory or random: main's own beside the first predictor, heard where that has said nothing; next-gate and multi-gate correct a shadow (default: none)", 0, 0, second_names },
		{ "hedge", OD_ARG_REAL, &o->hedge_percent, "PERCENT", "also load experts that the prediction nearly named, and those of the first layers of a token that the shadow nearly chose, where a slot is free, until loads in vain are PERCENT of expert uses; 0: never (default: 5)", 0, MAX_HEDGE_PERCENT, NULL },
		{ "group-size", OD_ARG_UINT, &o->group_size, "G", "workers that serve one layer together (default: the model's top-k)", 1, 1024, NULL },
		{ "connect-timeout", OD_ARG_UINT, &a->connect_timeout_s, "S", "seconds to wait for the hosts at the start (default: 10)", 1, 86400, NULL },
		{ "mixed", OD_ARG_FLAG, &o->mixed, NULL, "allow CPUs of different kernel classes: then results depend on which worker runs an expert", 0, 0, NULL },
		{ "align-token", OD_ARG_UINT, &a->align_token, "I", "give the shadow the true token every I tokens; 0: only the first (default: 1)", 0, 1e9, NULL },
		{ "align-kv", OD_ARG_UINT, &a->align_kv, "J", "send it the true keys and values after every J tokens; 0: never, the prompt's neither (default: 1)", 0, 1e9, NULL },
		{ "align-rows", OD_ARG_CHOICE, &a->align_rows, "f32|bf16", "how keys and values travel to the shadow (default: as the profile stores them)", 0, 0, od_profile_names },
		{ "slots", OD_ARG_UINT, &o->slots, "N", "with --local: experts that a worker can hold (default: from its memory limit)", 1, 64, NULL },
		{ "memory-limit", OD_ARG_SIZE, &o->memory_limit_bytes, "SIZE", "with --local: memory of a worker", 0, 0, NULL },
		{ "cache-mib", OD_ARG_UINT, &o->cache_mib, "N", "with --local: of a worker's memory, keep experts in N MiB beyond their use (default: none)", 1, MAX_CACHE_MIB, NULL },
		{ "cache-policy", OD_ARG_CHOICE, &o->cache_policy, "P", "with --cache-mib: rank, lru or lfu (default: rank)", 0, 0, od_cache_policy_names },
		{ "load-time", OD_ARG_REAL, &o->load_time_ms, "MS", "with --local: a worker's load is complete no earlier than MS milliseconds after it began, one load at a time, as on a slower machine", 0, MAX_PACE_MS, NULL },
		{ "run-time", OD_ARG_REAL, &o->run_time_ms, "MS", "with --local: an expert's outputs are sent no earlier than MS milliseconds after its computation began", 0, MAX_PACE_MS, NULL },
		{ "precision", OD_ARG_CHOICE, &o->precision, "P", "with --local: the shadow's experts, bf16, int8, fp16, int8-g64, nf4 or nf4-dq (default: int8)", 0, 0, od_precision_names },
		{ "dense-precision", OD_ARG_CHOICE, &o->dense_precision, "P", "with --local: the shadow's attention, from the same list (default: as --precision)", 0, 0, od_precision_names },
		{ "activations", OD_ARG_CHOICE, &o->activations, "A", "with --local: what the shadow's rows are before they meet int8 and nf4 weights, f32 or int8 (default: f32)", 0, 0, od_activation_names },
		{ "departure", OD_ARG_CHOICE, &o->departure, "D", "with --local: early lets the shadow run ahead on its own token, late waits (default: early)", 0, 0, odm_departure_names },
		{ .kind = OD_ARG_TITLE, .help = "How to compute" },
		{ "ctx-size", OD_ARG_UINT, &o->ctx_tokens, "N", "tokens of context (default: the model's, at most 4096)", 1, 4294967295.0, NULL },
		{ "profile", OD_ARG_CHOICE, &a->profile, "f32|bf16", "f32: bit-identical on every CPU (default); bf16: rows and KV cache in BF16, faster", 0, 0, od_profile_names },
		{ "threads", OD_ARG_UINT, &o->threads, "N", "compute threads (default: the CPUs there are)", 1, 1024, NULL },
		{ "cpu", OD_ARG_CHOICE, &o->cpu, "NAME", "force a kernel set: scalar, avx2, avx512, avx512bf16, neon (default: auto)", 0, 0, od_cpu_names },
		{ "trace", OD_ARG_STRING, &o->trace, "FILE", "write what was done when, as Chrome trace JSON; with --local of all processes", 0, 0, NULL },
		{ "record-routes", OD_ARG_STRING, &o->record_routes, "FILE", "write which experts the routers chose, for od-bench cache", 0, 0, NULL },
		{ "prefill-rows", OD_ARG_UINT, &o->prefill_rows, "N", "prompt tokens that go through the layers together (default: 256)", 1, 4096, NULL },
	};
	const size_t n = sizeof(args) / sizeof(args[0]);

	_Static_assert(sizeof(args) / sizeof(args[0]) <= ODM_ENGINE_ARGS_MAX, "table too small");
	memcpy(table, args, sizeof(args));
	return n;
}

static bool has_option(const struct od_arg *table, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++) {
		if (table[i].kind != OD_ARG_TITLE && strcmp(table[i].name, name) == 0)
			return true;
	}
	return false;
}

static bool is_named(const char *const *names, const char *name)
{
	while (names != NULL && *names != NULL && strcmp(*names, name) != 0)
		names++;
	return names != NULL && *names != NULL;
}

int odm_engine_args_parse(struct odm_engine_args *a, const char *const *without, const struct od_arg *own, size_t n_own,
			  int argc, char **argv, const bool *help, const char *usage, struct od_err *err)
{
	struct od_arg all[ODM_ENGINE_ARGS_MAX], table[ODM_ENGINE_ARGS_MAX + OWN_MAX];
	size_t n_positional, n_all = odm_engine_args_table(a, all), n = 0;
	int rc;

	if (n_own > OWN_MAX)
		return od_fail(err, OD_ERR_INTERNAL, "too many options");
	for (size_t i = 0; i < n_all; i++) {
		if (all[i].kind == OD_ARG_TITLE ||
		    (!has_option(own, n_own, all[i].name) && !is_named(without, all[i].name)))
			table[n++] = all[i];
	}
	memcpy(table + n, own, n_own * sizeof(*own));
	n += n_own;
	rc = od_args_parse(table, n, argc, argv, NULL, 0, &n_positional, err);
	if (rc == OD_OK && *help) {
		fputs(usage, stdout);
		od_args_help(stdout, table, n);
	}
	return rc;
}

/* The first option that only a shadow obeys that --local starts, or NULL. */
static const char *shadow_only(const struct odm_engine_opts *o)
{
	if (o->precision >= 0)
		return "precision";
	if (o->dense_precision >= 0)
		return "dense-precision";
	if (o->activations >= 0)
		return "activations";
	return o->departure >= 0 ? "departure" : NULL;
}

/* The first option that only processes of --local obey, or NULL. */
static const char *local_only(const struct odm_engine_opts *o)
{
	if (o->slots > 0)
		return "slots";
	if (o->memory_limit_bytes > 0)
		return "memory-limit";
	if (o->cache_mib > 0)
		return "cache-mib";
	if (o->load_time_ms > 0)
		return "load-time";
	if (o->run_time_ms > 0)
		return "run-time";
	return shadow_only(o);
}

/* The first option about what main tells the shadow, or NULL. */
static const char *alignment(const struct odm_engine_args *a)
{
	if (a->align_token != 1)
		return "align-token";
	if (a->align_kv != 1)
		return "align-kv";
	return a->align_rows >= 0 ? "align-rows" : NULL;
}

/* The first option that says nothing without a cluster, or NULL. */
static const char *cluster_only(const struct odm_engine_args *a)
{
	const struct odm_engine_opts *o = &a->opts;

	if (o->predictor != ODM_PREDICTOR_AUTO)
		return "predictor";
	if (o->second_opinion >= 0)
		return "second-opinion";
	if (o->group_size > 0)
		return "group-size";
	return o->mixed ? "mixed" : alignment(a);
}

/* What would be silently ignored. */
static int check_useless(const struct odm_engine_args *a, struct od_err *err)
{
	const struct odm_engine_opts *o = &a->opts;
	const bool shadow = o->predictor == ODM_PREDICT_SHADOW || o->predictor == ODM_PREDICTOR_AUTO;
	const char *local = a->local > 0 ? NULL : local_only(o), *cluster = a->resident ? cluster_only(a) : NULL;
	const char *unheard = shadow ? NULL : shadow_only(o) != NULL ? shadow_only(o) : alignment(a);

	if (o->cache_mib == 0 && o->cache_policy != OD_CACHE_RANK)
		return od_fail(err, OD_ERR_ARG, "--cache-policy is about a cache: add --cache-mib");
	if (local != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for the processes that --local starts", local);
	if (o->hosts_path != NULL && o->form != OD_FORM_AUTO)
		return od_fail(err, OD_ERR_ARG, "--resident-form is for --resident and --local; workers elsewhere have an option of "
			       "their own");
	if (cluster != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for a cluster (--workers or --local); --resident has none", cluster);
	if (unheard != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for the shadow, and with --predictor %s there is none; leave one of "
			       "them out", unheard, odm_predictor_names[o->predictor]);
	return OD_OK;
}

enum od_dtype odm_engine_args_rows(const struct odm_engine_args *a)
{
	return a->align_rows < 0 ? 0 : a->align_rows + 1 == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;
}

int odm_engine_args_finish(struct odm_engine_args *a, struct od_err *err)
{
	struct odm_engine_opts *o = &a->opts;
	int given = (a->local > 0) + (o->hosts_path != NULL) + a->resident;
	int rc;

	if (given == 0)
		return od_fail(err, OD_ERR_ARG,
			       "who runs the experts? --workers hosts.txt (a cluster), --local N (processes on this "
			       "machine) or --resident (all of them in this process)");
	if (given > 1)
		return od_fail(err, OD_ERR_ARG, "--workers, --local and --resident exclude each other");
	if (o->second_opinion >= 0 && od_predictor_kinds[o->second_opinion] == NULL)
		o->second_opinion = -1; /* "none" comes after the kinds */
	rc = check_useless(a, err);
	if (rc != OD_OK)
		return rc;
	o->mode = a->resident ? ODM_RESIDENT : a->local > 0 ? ODM_LOCAL : ODM_WORKERS;
	o->local_workers = (uint32_t)a->local;
	o->profile = (enum od_profile)(a->profile + 1);
	o->align.token_period = (uint32_t)a->align_token;
	o->align.kv_period = (uint32_t)a->align_kv;
	o->align.rows = odm_engine_args_rows(a);
	o->connect_timeout_ns = a->connect_timeout_s * OD_NS_PER_S;
	return OD_OK;
}
