/* od-plan: checks a cluster. This file is the command line. */
#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/compute/open_device.h"
#include "deploy/plan/plan_check.h"

#include <signal.h>

int main(int argc, char **argv)
{
	struct odp_check_opts o = { 0 };
	int profile = 0;
	bool help = false, version = false, verbose = false, good = false;
	const struct od_arg table[] = {
		{ "check", OD_ARG_STRING, &o.hosts_path, "FILE", "hosts file of the cluster to ask and measure", 0, 0,
		  NULL },
		{ "write", OD_ARG_FLAG, &o.write, NULL, "write what was measured into the hosts file", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o.json, NULL, "the report as JSON", 0, 0, NULL },
		{ "profile", OD_ARG_CHOICE, &profile, "f32|bf16", "as od-main's", 0, 0, od_profile_names },
		{ "ctx-size", OD_ARG_UINT, &o.engine.ctx_tokens, "N", "as od-main's", 1, 4294967295.0, NULL },
		{ "threads", OD_ARG_UINT, &o.engine.threads, "N", "as od-main's", 1, 1024, NULL },
		{ "device", OD_ARG_STRING, &o.engine.device, "NAME", OD_DEVICE_HELP, 0, 0, NULL },
		{ "cpu", OD_ARG_CHOICE, &o.engine.cpu, "NAME", "as od-main's", 0, 0, od_cpu_names },
		{ "mixed", OD_ARG_FLAG, &o.engine.mixed, NULL, "as od-main's", 0, 0, NULL },
		{ "key", OD_ARG_STRING, &o.keys.key, "FILE", "as od-main's", 0, 0, NULL },
		{ "peers", OD_ARG_STRING, &o.keys.peers, "FILE", "as od-main's", 0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &o.keys.insecure, NULL, "as od-main's", 0, 0, NULL },
		{ "verbose", OD_ARG_FLAG, &verbose, NULL, "log more", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "show this help", 0, 0, NULL },
		{ "version", OD_ARG_FLAG, &version, NULL, "show the version", 0, 0, NULL },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	struct od_err err = { 0 };
	size_t n_positional;
	int rc;

	odm_engine_defaults(&o.engine);
	od_log_init(argv[0], OD_LOG_ERROR);
	rc = od_args_parse(table, n, argc, argv, &o.engine.pack, 1, &n_positional, &err);
	if (rc == OD_OK && help)
		od_args_help(stdout, table, n);
	if (rc == OD_OK && version)
		printf("od-plan %s\n", OD_VERSION);
	if (rc == OD_OK && (help || version))
		return 0;
	if (rc == OD_OK && o.hosts_path == NULL)
		rc = od_fail(&err, OD_ERR_ARG, "--check FILE is missing");
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return 2;
	}
	od_log_init(argv[0], verbose ? OD_LOG_DEBUG : OD_LOG_ERROR);
	signal(SIGPIPE, SIG_IGN);
	o.engine.profile = (enum od_profile)(profile + 1);
	rc = odp_check(&o, stdout, &good, &err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
	return rc == OD_ERR_ARG ? 2 : rc != OD_OK || !good ? 1 : 0;
}
