/* od-plan: whether a model runs on given machines, how fast, and what would make it faster; and whether a cluster is as
 * it should be. This file is the command line. */
#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/compute/open_device.h"
#include "deploy/plan/plan_check.h"
#include "deploy/plan/plan_report.h"

#include <signal.h>
#include <sodium.h>
#include <stdlib.h>

#define EXIT_GOOD 0
#define EXIT_NO_FIT 1 /* or failed */
#define EXIT_USAGE 2
#define HOSTS_MAX_BYTES (1u << 20)

struct plan_options {
	const char *word[2]; /* MODEL, HOSTS */
	size_t n_words;
	int profile; /* enum od_profile - 1 */
	const char *trace;
	struct odp_check_opts check; /* --check; engine.ctx_tokens and json are for plans, too */
	bool verbose, help, version;
};

static int usage_error(const char *text)
{
	fprintf(stderr, "od-plan: %s; see od-plan --help\n", text);
	return EXIT_USAGE;
}

static int read_hosts(struct od_hosts *hosts, const char *path, struct od_err *err)
{
	char *text;
	size_t len;
	int rc = od_file_read_text(path, HOSTS_MAX_BYTES, &text, &len, err);

	if (rc == OD_OK)
		rc = od_hosts_parse_some(hosts, text, len, path, err);
	if (rc == OD_OK && hosts->n == 0 && !hosts->has_main)
		rc = od_fail(err, OD_ERR_ARG,
			     "%s lists no host: expected lines such as \"main 10.0.0.8 memory=12G ...\"", path);
	free(text);
	return rc;
}

static int plan(const struct plan_options *o, struct odp_plan *p, struct odp_model *m, struct od_err *err)
{
	struct od_hosts hosts = { 0 };
	const struct odp_plan_opts po = { .hosts = o->n_words > 1 ? &hosts : NULL,
					  .hosts_path = o->word[1],
					  .ctx_tokens = o->check.engine.ctx_tokens,
					  .trace_path = o->trace };
	int rc = o->n_words > 1 ? read_hosts(&hosts, o->word[1], err) : OD_OK;

	if (rc == OD_OK)
		rc = odp_model_open(m, o->word[0], (enum od_profile)(o->profile + 1), err);
	if (rc == OD_OK)
		rc = odp_plan_make(p, m, &po, err);
	od_hosts_fini(&hosts);
	return rc;
}

static int run_plan(const struct plan_options *o)
{
	struct odp_plan p = { 0 };
	struct odp_model m = { 0 };
	struct od_err err = { 0 };
	int rc = plan(o, &p, &m, &err), status = EXIT_GOOD;

	if (rc == OD_OK && o->check.json)
		rc = odp_plan_print_json(&p, stdout, &err);
	else if (rc == OD_OK)
		odp_plan_print(&p, stdout);
	if (rc != OD_OK) {
		fprintf(stderr, "od-plan: %s\n", err.msg);
		status = rc == OD_ERR_ARG ? EXIT_USAGE : EXIT_NO_FIT;
	} else if (p.n_problems > 0) {
		status = EXIT_NO_FIT;
	}
	odp_plan_fini(&p);
	odp_model_close(&m);
	return status;
}

static bool is_json(const char *path)
{
	const size_t len = path != NULL ? strlen(path) : 0;

	return len > 5 && strcmp(path + len - 5, ".json") == 0;
}

static int run_check(struct plan_options *o)
{
	struct od_err err = { 0 };
	bool good = false;
	int rc;

	od_log_init("od-plan", o->verbose ? OD_LOG_DEBUG : OD_LOG_ERROR);
	if (is_json(o->word[0]))
		return usage_error(
			"--check needs the pack that the daemons have, or its GGUF file; a config.json alone is for a plan");
	o->check.engine.pack = o->word[0];
	o->check.engine.profile = (enum od_profile)(o->profile + 1);
	rc = odp_check(&o->check, stdout, &good, &err);
	if (rc != OD_OK)
		fprintf(stderr, "od-plan: %s\n", err.msg);
	return rc == OD_ERR_ARG ? EXIT_USAGE : rc != OD_OK || !good ? EXIT_NO_FIT : EXIT_GOOD;
}

static int run(struct plan_options *o)
{
	const struct odp_check_opts *c = &o->check;
	const bool check = c->hosts_path != NULL;

	if (check && o->n_words > 1)
		return usage_error("expected one MODEL at most with --check FILE");
	if (check && o->trace != NULL)
		return usage_error("--trace belongs to planning, not to --check");
	if (check)
		return run_check(o);
	if (c->write || c->engine.threads > 0 || c->engine.device != NULL || c->engine.cpu != OD_CPU_AUTO ||
	    c->engine.mixed || c->keys.key != NULL || c->keys.peers != NULL || c->keys.insecure || o->verbose)
		return usage_error("these options belong to --check FILE, which is missing");
	if (o->n_words == 0)
		return usage_error("expected MODEL: a pack, a GGUF file, a checkpoint, or a config.json");
	return run_plan(o);
}

static void print_help(const struct od_arg *table, size_t n)
{
	printf("od-plan MODEL [HOSTS]           say whether a model runs on given machines, how fast, and what limits it\n"
	       "od-plan --check HOSTS [MODEL]   ask and measure the machines of a cluster, and say what is wrong where\n"
	       "\n"
	       "MODEL is a pack (or its name in od-pack list), a GGUF file, a checkpoint's folder, or its config.json alone.\n"
	       "HOSTS is the hosts file of od-main --workers, with words behind each host that say what the machine offers,\n"
	       "and a line of role main; a file with that line alone is a machine without a cluster. Without HOSTS this\n"
	       "machine is measured, and planned for.\n"
	       "    main   10.0.0.8   memory=12G speed=2 link=1G\n"
	       "    shadow 10.0.0.9   memory=64G speed=4 link=1G\n"
	       "    worker 10.0.0.11  memory=12G read=3.5G speed=0.4 many=3 link=1G latency=0.2\n"
	       "memory: what the daemon may use. read: stored experts, bytes a second. speed, many: 10^10 weights a second,\n"
	       "with one row and with many. link: bits a second. latency: a round trip in ms. fixed: ms that a RUN, or a layer\n"
	       "of main or a shadow, takes beside its products. recall, accept: shares of the experts and of the tokens that\n"
	       "a shadow predicts. od-plan --check HOSTS --write measures and writes them.\n"
	       "Figures of a plan are simulated, not measured.\n"
	       "Exit status: 0 it fits, or nothing is wrong; 1 it does not fit, something is wrong, or failed; 2 wrong usage.\n");
	od_args_help(stdout, table, n);
}

int main(int argc, char **argv)
{
	struct plan_options o = { 0 };
	struct odp_check_opts *c = &o.check;
	const struct od_arg table[] = {
		{ "ctx-size", OD_ARG_UINT, &c->engine.ctx_tokens, "N",
		  "tokens of context of each text (default: 4096, or the model's if that is less; --check: as od-main's)",
		  1, UINT32_MAX, NULL },
		{ "profile", OD_ARG_CHOICE, &o.profile, "f32|bf16", "as od-main's (default: f32)", 0, 0,
		  od_profile_names },
		{ "json", OD_ARG_FLAG, &c->json, NULL, "print all numbers as JSON", 0, 0, NULL },
		{ "trace", OD_ARG_STRING, &o.trace, "FILE",
		  "write what was simulated for one text as a Chrome trace, as od-main --trace does", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o.help, NULL, "print this text", 0, 0, NULL },
		{ "version", OD_ARG_FLAG, &o.version, NULL, "print the version", 0, 0, NULL },
		{ NULL, OD_ARG_TITLE, NULL, NULL, "Checking a cluster", 0, 0, NULL },
		{ "check", OD_ARG_STRING, &c->hosts_path, "FILE", "hosts file of the cluster to ask and measure", 0, 0,
		  NULL },
		{ "write", OD_ARG_FLAG, &c->write, NULL, "write what was measured into the hosts file", 0, 0, NULL },
		{ "threads", OD_ARG_UINT, &c->engine.threads, "N", "as od-main's", 1, 1024, NULL },
		{ "device", OD_ARG_STRING, &c->engine.device, "NAME", OD_DEVICE_HELP, 0, 0, NULL },
		{ "cpu", OD_ARG_CHOICE, &c->engine.cpu, "NAME", "as od-main's", 0, 0, od_cpu_names },
		{ "mixed", OD_ARG_FLAG, &c->engine.mixed, NULL, "as od-main's", 0, 0, NULL },
		{ "key", OD_ARG_STRING, &c->keys.key, "FILE", "as od-main's", 0, 0, NULL },
		{ "peers", OD_ARG_STRING, &c->keys.peers, "FILE", "as od-main's", 0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &c->keys.insecure, NULL, "as od-main's", 0, 0, NULL },
		{ "verbose", OD_ARG_FLAG, &o.verbose, NULL, "log more", 0, 0, NULL },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	struct od_err err;

	odm_engine_defaults(&c->engine);
	od_log_init("od-plan", OD_LOG_ERROR);
	signal(SIGPIPE, SIG_IGN);
	if (od_args_parse(table, n, argc, argv, o.word, 2, &o.n_words, &err) != OD_OK)
		return usage_error(err.msg);
	if (o.help) {
		print_help(table, n);
		return EXIT_GOOD;
	}
	if (o.version) {
		printf("od-plan %s\n", OD_VERSION);
		return EXIT_GOOD;
	}
	if (sodium_init() < 0) {
		fprintf(stderr, "od-plan: libsodium does not start\n");
		return EXIT_NO_FIT;
	}
	return run(&o);
}
