#include "common/pair/pair_join.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/key_files.h"
#include "common/pair/pair_client.h"
#include "common/pair/pair_service.h"
#include "common/pair/pair_words.h"

#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_MS 10000
#define LOOKS_FOR_TRIES 10
#define LOOK_NS (100 * OD_NS_PER_MS)
#define LOOK_MS 1000 /* without an answer, main has ended */
#define MAX_ARGS 16
#define STATUS_ARG 2

struct join {
	enum od_node_kind role;
	char program[16]; /* "od-worker": the unit's name, too */
	uint64_t port;
	bool enable, help;
	char words[OD_PAIR_TEXT];
	const char *where; /* NULL: everybody is asked */
	struct od_key_pair own;
	bool new_own; /* not written yet */
	char peers[PATH_MAX];
	struct od_pair_main main;
	struct od_pair_keys keys;
	struct od_pair_client *client;
	struct od_pair_member member; /* main, as it presents itself */
	enum od_member_change change; /* the peers file has changed so */
};

static int parse(struct join *j, int argc, char **argv, struct od_err *err)
{
	const char *given[MAX_ARGS];
	size_t n_given;
	const struct od_arg table[] = {
		{ "enable", OD_ARG_FLAG, &j->enable, NULL, "then turn the service on: systemctl enable, and start it",
		  0, 0, NULL },
		{ "port", OD_ARG_UINT, &j->port, "N", "the daemon's --port, if it is not the usual one", 1, 65535,
		  NULL },
		{ "help", OD_ARG_FLAG, &j->help, NULL, "print this text", 0, 0, NULL },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n, argc, argv, given, MAX_ARGS, &n_given, err);

	if (rc != OD_OK)
		return rc;
	if (!j->help)
		return od_pair_words_read(j->words, &j->where, (char **)given, n_given, err);
	printf("Usage: %s join [--enable] WORDS [ADDRESS]\n"
	       "Makes this machine a %s of the main whose od-main pair shows these six words. Main is looked for\n"
	       "in this machine's networks, or at ADDRESS.\n",
	       j->program, od_node_names[j->role]);
	od_args_help(stdout, table, n);
	return OD_OK;
}

/* All that can be known before anything is sent. */
static int prepare(struct join *j, struct od_err *err)
{
	struct od_peers peers = { 0 };
	int rc = j->enable ? od_pair_service_check(j->program, err) : OD_OK;

	if (rc == OD_OK)
		rc = od_key_files_check(err);
	if (rc == OD_OK)
		rc = od_keys_path(j->peers, OD_PEERS_NAME, err);
	if (rc == OD_OK && od_file_there(j->peers))
		rc = od_peers_load(&peers, j->peers, err);
	od_peers_fini(&peers);
	if (rc == OD_OK)
		rc = od_key_files_load(&j->own, &j->new_own, err);
	return rc;
}

/* Main counts an attempt when its handshake fails, which may be after this side knows. */
static void say_tries(const struct join *j, struct od_err *err)
{
	struct od_pair_main now;
	struct od_err unknown;

	for (unsigned i = 0; i < LOOKS_FOR_TRIES; i++) {
		if (od_pair_search(&now, j->where != NULL ? j->where : j->main.address, LOOK_MS, &unknown) != OD_OK)
			break;
		if (memcmp(now.salt, j->main.salt, sizeof(now.salt)) == 0 && now.tries < j->main.tries) {
			od_fail(err, OD_ERR_ARG, "these are not the words that main shows (%s, %s): %u more tr%s",
				j->main.name, j->main.address, now.tries, now.tries == 1 ? "y" : "ies");
			return;
		}
		od_sleep_until(od_now_ns() + LOOK_NS);
	}
	od_fail(err, OD_ERR_ARG,
		"these are not the words that main shows (%s, %s); if it has ended the pairing, start od-main pair again",
		j->main.name, j->main.address);
}

static int find_main(struct join *j, struct od_err *err)
{
	int rc = od_pair_search(&j->main, j->where, SEARCH_MS, err);

	if (rc == OD_OK)
		rc = od_pair_keys_derive(&j->keys, j->words, j->main.salt, err);
	if (rc == OD_OK)
		rc = od_pair_client_open(&j->client, &j->main, &j->keys, err);
	if (rc == OD_ERR_MISMATCH) {
		say_tries(j, err);
		rc = err->code;
	}
	return rc;
}

/* Each side writes when it knows that the other one can: a failure in between leaves what a second join completes. */
static int exchange(struct join *j, struct od_err *err)
{
	struct od_peers_put_opts opts = { .alone = j->role == OD_NODE_WORKER, .try = true };
	Od__Pair__Join m = OD__PAIR__JOIN__INIT;
	char name[OD_PAIR_NAME];
	int rc;

	od_pair_own_name(name);
	m.stage = OD__PAIR__JOIN__STAGE__ASK;
	m.role = (char *)od_node_names[j->role];
	m.port = (uint32_t)j->port;
	m.key = (ProtobufCBinaryData){ OD_KEY_BYTES, j->own.public_key };
	m.host_name = name;
	rc = od_pair_client_ask(j->client, &m, &j->member, err);
	if (rc == OD_OK)
		rc = od_peers_put(j->peers, j->member.key, j->main.address, &opts, &j->change, err);
	if (rc == OD_OK)
		rc = od_key_files_keep(&j->own, j->new_own, err);
	m.stage = OD__PAIR__JOIN__STAGE__WRITE;
	if (rc == OD_OK)
		rc = od_pair_client_ask(j->client, &m, &j->member, err);
	opts.try = false;
	if (rc == OD_OK)
		rc = od_peers_put(j->peers, j->member.key, j->main.address, &opts, &j->change, err);
	m.stage = OD__PAIR__JOIN__STAGE__DONE;
	return rc == OD_OK ? od_pair_client_tell(j->client, &m, err) : rc;
}

static void say_result(const struct join *j)
{
	const bool same = j->change == OD_MEMBER_SAME && j->member.change == OD_MEMBER_SAME;

	printf("This machine is %s %s of %s (%s).\n", same ? "already a" : "now a", od_node_names[j->role],
	       j->member.name, j->main.address);
	if (j->change == OD_MEMBER_NEW_KEY || j->change == OD_MEMBER_NEW_ADDRESS)
		printf("Main has another %s than before: its line in %s was replaced.\n",
		       j->change == OD_MEMBER_NEW_KEY ? "key" : "address", j->peers);
	if (j->member.change == OD_MEMBER_NEW_KEY || j->member.change == OD_MEMBER_NEW_ADDRESS)
		printf("This machine has another %s than before: main has replaced its line.\n",
		       j->member.change == OD_MEMBER_NEW_KEY ? "key" : "address");
	if (strchr(j->main.address, ':') != NULL)
		printf("Main reaches it by IPv6, so the daemon must listen there: --listen ::\n");
}

/* A daemon that runs has read its keys at its start. */
static int use(const struct join *j, struct od_err *err)
{
	const bool same = j->change == OD_MEMBER_SAME && !j->new_own;
	const char *how = same ? "start" : "restart", *keys = getenv("OD_KEYS"); /* the service does not know it */
	int rc;

	if (!j->enable && keys != NULL && keys[0] != '\0') {
		printf("To start it: OD_KEYS=%s %s --listen 0.0.0.0\n", keys, j->program);
		return OD_OK;
	}
	if (!j->enable) {
		if (same || !od_pair_service_runs(j->program))
			printf("To start it now and after each boot: systemctl enable --now %s\n", j->program);
		else
			printf("The service %s runs with what it knew before: systemctl restart %s\n", j->program,
			       j->program);
		return OD_OK;
	}
	rc = od_pair_service_turn_on(j->program, true, how, err);
	if (rc == OD_OK)
		printf("The service %s is enabled and starts: journalctl -fu %s\n", j->program, j->program);
	return rc;
}

static int run(struct join *j, struct od_err *err)
{
	int rc = prepare(j, err);

	if (rc == OD_OK)
		rc = find_main(j, err);
	if (rc == OD_OK)
		rc = exchange(j, err);
	od_pair_client_close(j->client);
	if (rc != OD_OK)
		return rc;
	say_result(j);
	rc = use(j, err);
	if (rc == OD_OK && fflush(stdout) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "standard output");
	return rc;
}

int od_pair_join_command(enum od_node_kind role, int argc, char **argv)
{
	struct join j = { .role = role,
			  .port = role == OD_NODE_WORKER ? OD_DEFAULT_WORKER_PORT : OD_DEFAULT_SHADOW_PORT };
	struct od_err err = { 0 };
	int rc;

	snprintf(j.program, sizeof(j.program), "od-%s", od_node_names[role]);
	od_log_init(j.program, OD_LOG_INFO);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is treated like a full disk */
	rc = parse(&j, argc, argv, &err);
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "join: %s", err.msg);
		return STATUS_ARG;
	}
	if (j.help)
		return 0;
	rc = run(&j, &err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "join: %s", err.msg);
	od_pair_keys_clear(&j.keys);
	sodium_memzero(&j.own, sizeof(j.own));
	sodium_memzero(j.words, sizeof(j.words));
	return rc == OD_OK ? 0 : 1;
}
