#include "main-node/node/engine_args.h"

#include "common/compute/open_device.h"
#include "common/pack/load/expert_form.h"
#include "main-node/node/local_nodes.h"

#include <stdlib.h>
#include <string.h>

#define OWN_MAX 48
#define MAX_HEDGE_PERCENT 400 /* every hedge there can be of a top-1 model */

void odm_engine_args_defaults(struct odm_engine_args *a)
{
	*a = (struct odm_engine_args){ .align_token = 1, .align_kv = 1 };
	odm_main_opts_defaults(&a->opts);
}

size_t odm_engine_args_table(struct odm_engine_args *a, struct od_arg *table)
{
	struct odm_main_opts *o = &a->opts;
	const struct od_arg args[] = {
		{ .kind = OD_ARG_TITLE, .help = "The model, and where its experts run" },
		{ "pack", OD_ARG_STRING, &o->engine.pack, "MODEL",
		  "the model: a pack, a GGUF file, or a name of od-pack list (default: $OD_PACK, else /var/lib/od-moe/pack, else the only model of that list)",
		  0, 0, NULL },
		{ "workers", OD_ARG_STRING, &o->cluster.hosts_path, "FILE",
		  "cluster, a host a line: [worker|shadow] host[:port] [key=PUBLICKEY]; SIGHUP: reread", 0, 0, NULL },
		{ "local", OD_ARG_UINT, &a->local, "N", "a shadow and N workers as child processes on this machine", 1,
		  64, NULL },
		{ "resident", OD_ARG_FLAG, &a->resident, NULL, "all experts in the memory of this process, no cluster",
		  0, 0, NULL },
		{ "memory", OD_ARG_SIZE, &o->engine.memory_bytes, "SIZE",
		  "not with --resident: limit of this process; without a cluster it keeps as many experts as fit and loads the others (default: what is free, less 256 MiB or 3%, whichever is more)",
		  1, 0, NULL },
		{ "resident-form", OD_ARG_CHOICE, &o->engine.form, "bf16|planes",
		  "not with --workers: keep BF16 or compress to 2/3 (default: faster)", 0, 0, od_form_names },
		{ .kind = OD_ARG_TITLE, .help = "Compute" },
		{ "ctx-size", OD_ARG_UINT, &o->engine.ctx_tokens, "N",
		  "tokens of context (default: as many as the model was trained for, as far as memory allows)", 1,
		  4294967295.0, NULL },
		{ "profile", OD_ARG_CHOICE, &a->profile, "f32|bf16",
		  "f32: same bits on every CPU (default); bf16: half wire and KV bytes", 0, 0, od_profile_names },
		{ "routing", OD_ARG_STRING, &a->routing, "router|cache-prior:LAMBDA",
		  "cache-prior: prefer experts that the text used last, by LAMBDA (0 to 1) of the router's range: fewer loads, other tokens (default: router)",
		  0, 0, NULL },
		{ "routing-keep", OD_ARG_UINT, &o->engine.routing_keep, "J",
		  "with cache-prior: the J best experts are always used (default: 2; top-2 models 1, top-1 models 0)",
		  0, OD_MAX_CHOICE, NULL },
		{ "routing-cache", OD_ARG_UINT, &o->engine.routing_recent, "N",
		  "with cache-prior: the N experts of a layer that were used last are preferred (default: half)", 1,
		  OD_MAX_EXPERTS, NULL },
		{ "threads", OD_ARG_UINT, &o->engine.threads, "N", "compute threads (default: one per CPU)", 1, 1024,
		  NULL },
		{ "device", OD_ARG_STRING, &o->engine.device, "NAME", OD_DEVICE_HELP, 0, 0, NULL },
		{ "cpu", OD_ARG_CHOICE, &o->engine.cpu, "NAME",
		  "kernels: scalar, avx2, avx512, avx512bf16 or neon (default: auto)", 0, 0, od_cpu_names },
		{ "trace", OD_ARG_STRING, &o->trace, "FILE",
		  "write a Chrome trace (JSON); with --local of all processes", 0, 0, NULL },
		{ "prefill-rows", OD_ARG_UINT, &o->engine.prefill_rows, "N",
		  "prompt tokens in one pass through the layers (default: 512)", 1, 4096, NULL },
		/* The last group: od-main adds the options of the store to it. */
		{ .kind = OD_ARG_TITLE, .help = "Cluster" },
		{ "predictor", OD_ARG_CHOICE, &o->cluster.predictor, "NAME",
		  "predicts which experts come next: shadow; in main next-gate or trajectory; none (default: shadow if there is one)",
		  0, 0, odm_predictor_names },
		{ "hedge", OD_ARG_REAL, &o->cluster.hedge_percent, "PERCENT",
		  "also prefetch likely runners-up of the prediction into free slots, up to PERCENT wasted loads per expert use; 0: off (default: 5)",
		  0, MAX_HEDGE_PERCENT, NULL },
		{ "draft", OD_ARG_STRING, &a->draft, "auto|off|lookup|N",
		  "verify drafts, several tokens a step: of the shadow, as many as pay (default) or up to N; lookup: from the text itself",
		  0, 0, NULL },
		{ "group-size", OD_ARG_UINT, &o->cluster.group_size, "G",
		  "workers that serve one layer together (default: the model's top-k)", 1, 1024, NULL },
		{ "mixed", OD_ARG_FLAG, &o->engine.mixed, NULL,
		  "allow workers of other kernel classes (CPUs, GPUs); tokens then depend on placement", 0, 0, NULL },
		{ "align-token", OD_ARG_UINT, &a->align_token, "I",
		  "send every I-th token to the shadow; 0: only the first (default: 1)", 0, 1e9, NULL },
		{ "align-kv", OD_ARG_UINT, &a->align_kv, "J",
		  "send it keys and values after every J tokens; 0: never (default: 1)", 0, 1e9, NULL },
		{ "key", OD_ARG_STRING, &o->keys.key, "FILE",
		  "this node's secret key (default, beyond loopback: $OD_KEYS/node.key, else /etc/od-moe/node.key)", 0,
		  0, NULL },
		{ "peers", OD_ARG_STRING, &o->keys.peers, "FILE",
		  "public keys a line each, with host: those of hosts without key=, and who may pull from --serve-store; SIGHUP: reread (default: peers beside node.key)",
		  0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &o->keys.insecure, NULL,
		  "no keys: traffic to other machines is not encrypted", 0, 0, NULL },
		{ "worker-arg", OD_ARG_LIST, &o->local.worker_args, "ARG",
		  "with --local: pass ARG (--slots=2) to every worker; repeatable", 0, 0, NULL },
		{ "shadow-arg", OD_ARG_LIST, &o->local.shadow_args, "ARG",
		  "with --local: pass ARG (--precision=nf4) to the shadow; repeatable", 0, 0, NULL },
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
	return rc == OD_OK ? od_device_check(a->opts.engine.device, err) : rc;
}

/* The first option that only processes of --local obey, or NULL. */
static const char *local_only(const struct odm_main_opts *o)
{
	return o->local.worker_args.n > 0 ? "worker-arg" : o->local.shadow_args.n > 0 ? "shadow-arg" : NULL;
}

/* The first option about what main tells the shadow, or NULL. */
static const char *alignment(const struct odm_engine_args *a)
{
	if (a->align_token != 1)
		return "align-token";
	return a->align_kv != 1 ? "align-kv" : NULL;
}

static bool has_hedge(const struct odm_main_opts *o)
{
	struct odm_main_opts defaults;

	odm_main_opts_defaults(&defaults);
	return o->cluster.hedge_percent != defaults.cluster.hedge_percent;
}

/* The first option that says nothing without a cluster, or NULL. */
static const char *cluster_only(const struct odm_engine_args *a)
{
	const struct odm_main_opts *o = &a->opts;

	if (o->cluster.predictor != ODM_PREDICTOR_AUTO)
		return "predictor";
	if (o->cluster.group_size > 0)
		return "group-size";
	if (has_hedge(o))
		return "hedge";
	return o->engine.mixed ? "mixed" : alignment(a);
}

/* The first option that says nothing without other processes, or NULL. */
static const char *other_machines(const struct odm_engine_args *a)
{
	const struct odm_main_opts *o = &a->opts;

	if (o->cluster.predictor == ODM_PREDICT_SHADOW)
		return "predictor shadow";
	if (o->cluster.group_size > 0)
		return "group-size";
	return o->engine.mixed ? "mixed" : alignment(a);
}

/* Refuses options that would be silently ignored. */
static int check_useless(const struct odm_engine_args *a, struct od_err *err)
{
	const struct odm_main_opts *o = &a->opts;
	const bool shadow = o->cluster.predictor == ODM_PREDICT_SHADOW || o->cluster.predictor == ODM_PREDICTOR_AUTO;
	const bool tiered = !a->resident && a->local == 0 && o->cluster.hosts_path == NULL;
	const char *local = a->local > 0 ? NULL : local_only(o), *cluster = a->resident ? cluster_only(a) : NULL,
		   *other = tiered ? other_machines(a) : NULL;
	const char *unheard = shadow ? NULL : o->local.shadow_args.n > 0 ? "shadow-arg" : alignment(a);

	if (local != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s needs --local: it is for the processes that --local starts",
			       local);
	if (o->cluster.hosts_path != NULL && o->engine.form != OD_FORM_AUTO)
		return od_fail(err, OD_ERR_ARG, "--resident-form is not for --workers: give it to each od-worker");
	if (cluster != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s is for a cluster (--workers or --local); --resident has none",
			       cluster);
	if (other != NULL)
		return od_fail(err, OD_ERR_ARG, "--%s needs a cluster: --workers or --local", other);
	if (unheard != NULL)
		return od_fail(err, OD_ERR_ARG,
			       "--%s is for the shadow, and with --predictor %s there is none; leave one of "
			       "them out",
			       unheard,
			       o->cluster.own != NULL ? o->cluster.own->name :
							odm_predictor_names[o->cluster.predictor]);
	if (o->cluster.predictor == ODM_PREDICT_NONE && o->cluster.own == NULL && has_hedge(o))
		return od_fail(err, OD_ERR_ARG,
			       "--hedge is about predictions, and with --predictor none there are none; leave one of "
			       "them out");
	return OD_OK;
}

/* The first option about keys, or NULL. */
static const char *about_keys(const struct od_keys_args *k)
{
	return k->key != NULL ? "key" : k->peers != NULL ? "peers" : k->insecure ? "insecure" : NULL;
}

static int check_keys(const struct odm_main_opts *o, struct od_err *err)
{
	if (about_keys(&o->keys) == NULL || o->cluster.hosts_path != NULL || o->serve_store != NULL)
		return OD_OK;
	return od_fail(err, OD_ERR_ARG,
		       "--%s needs --workers or --serve-store: od-main has no other links to other machines",
		       about_keys(&o->keys));
}

static int parse_draft(struct odm_engine_args *a, struct od_err *err)
{
	struct odm_main_opts *o = &a->opts;
	char *end;

	if (a->draft == NULL || strcmp(a->draft, "auto") == 0)
		return OD_OK;
	o->engine.draft = strcmp(a->draft, "off") == 0 ? ODM_DRAFT_OFF : ODM_DRAFT_LOOKUP;
	if (o->engine.draft == ODM_DRAFT_OFF || strcmp(a->draft, "lookup") == 0)
		return OD_OK;
	o->engine.draft = ODM_DRAFT_SHADOW;
	o->engine.draft_tokens = strtoul(a->draft, &end, 10);
	if (a->draft[0] < '0' || a->draft[0] > '9' || *end != '\0' || o->engine.draft_tokens == 0 ||
	    o->engine.draft_tokens > ODM_MAX_DRAFT)
		return od_fail(err, OD_ERR_ARG, "--draft: expected auto, off, lookup, or 1 to %d tokens, found \"%s\"",
			       ODM_MAX_DRAFT, a->draft);
	if (a->resident || o->mode == ODM_TIERED ||
	    (o->cluster.predictor != ODM_PREDICT_SHADOW && o->cluster.predictor != ODM_PREDICTOR_AUTO))
		return od_fail(err, OD_ERR_ARG,
			       "--draft %s: there is no shadow to draft tokens; --draft lookup takes drafts from the "
			       "text itself",
			       a->draft);
	return OD_OK;
}

int odm_engine_args_routing(struct odm_engine_args *a, struct od_err *err)
{
	static const char prior[] = "cache-prior:";
	struct odm_engine_opts *o = &a->opts.engine;
	const size_t n = strlen(prior);

	o->cache_prior = a->routing != NULL && strncmp(a->routing, prior, n) == 0;
	if (o->cache_prior && od_parse_real(a->routing + n, 0, 1, &o->routing_lambda, NULL) == OD_OK)
		return OD_OK;
	if (a->routing != NULL && strcmp(a->routing, "router") != 0)
		return od_fail(
			err, OD_ERR_ARG,
			"--routing: expected router, or cache-prior:LAMBDA with LAMBDA from 0 to 1, found \"%s\" "
			"(--routing-keep and --routing-cache set the numbers that answers name behind LAMBDA)",
			a->routing);
	if (o->routing_keep != UINT64_MAX || o->routing_recent != 0)
		return od_fail(err, OD_ERR_ARG, "--%s needs --routing cache-prior:LAMBDA",
			       o->routing_recent != 0 ? "routing-cache" : "routing-keep");
	return OD_OK;
}

int odm_engine_args_finish(struct odm_engine_args *a, struct od_err *err)
{
	struct odm_main_opts *o = &a->opts;
	int given = (a->local > 0) + (o->cluster.hosts_path != NULL) + a->resident;
	int rc;

	if (given > 1)
		return od_fail(err, OD_ERR_ARG, "--workers, --local and --resident exclude each other");
	if (a->resident && o->engine.memory_bytes > 0)
		return od_fail(
			err, OD_ERR_ARG,
			"--memory and --resident exclude each other: --memory is for a process that keeps a part "
			"of the model");
	if (given == 0)
		o->mode = ODM_TIERED;
	rc = check_useless(a, err);
	if (rc == OD_OK)
		rc = check_keys(o, err);
	if (rc == OD_OK)
		rc = odm_engine_args_routing(a, err);
	if (rc == OD_OK)
		rc = parse_draft(a, err);
	if (rc == OD_OK)
		rc = odm_local_check_args("worker-arg", &o->local.worker_args, err);
	if (rc == OD_OK)
		rc = odm_local_check_args("shadow-arg", &o->local.shadow_args, err);
	if (rc != OD_OK)
		return rc;
	if (given == 1)
		o->mode = a->resident ? ODM_RESIDENT : a->local > 0 ? ODM_LOCAL : ODM_WORKERS;
	o->local.workers = (uint32_t)a->local;
	o->engine.profile = (enum od_profile)(a->profile + 1);
	o->cluster.align.token_period = (uint32_t)a->align_token;
	o->cluster.align.kv_period = (uint32_t)a->align_kv;
	return OD_OK;
}
