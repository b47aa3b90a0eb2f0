#include "main-node/keygen_command.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/key_files.h"

#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATUS_ARG 2

/* A folder (one that exists, or whose name ends with a slash), or the beginning of the files' names. */
static int choose_files(struct od_key_files *f, const char *out, struct od_err *err)
{
	const size_t len = out != NULL ? strlen(out) : 0;

	if (out == NULL)
		return od_key_files_usual(f, err);
	if (len == 0 || len + sizeof(".key") > sizeof(f->secret))
		return od_fail(err, OD_ERR_ARG, "--out: expected a folder or a name, found %zu characters", len);
	if (out[len - 1] == '/' || od_is_dir(out))
		return od_key_files_in(f, out, err);
	snprintf(f->secret, sizeof(f->secret), "%s.key", out);
	snprintf(f->public, sizeof(f->public), "%s.pub", out);
	snprintf(f->name, sizeof(f->name), "%s", strrchr(out, '/') != NULL ? strrchr(out, '/') + 1 : out);
	for (char *c = f->name; *c != '\0'; c++) { /* it is a word in files of keys */
		if ((unsigned char)*c <= ' ' || *c == '#')
			*c = '-';
	}
	return OD_OK;
}

static void say_what_to_copy(const struct od_key_files *f, const struct od_key_pair *pair)
{
	char key[OD_KEY_CHARS + 1], peers[PATH_MAX];

	if (od_keys_path(peers, OD_PEERS_NAME, NULL) != OD_OK)
		snprintf(peers, sizeof(peers), "%s/%s", OD_KEYS_DIR, OD_PEERS_NAME);
	printf("secret key  %s   (mode 0600; never copy it to another machine)\n"
	       "public key  %s\n\n",
	       f->secret, f->public);
	od_key_text(pair->public_key, key);
	printf("If od-main runs on this machine, every worker and shadow must know it. Add this line to %s there:\n\n"
	       "  %s %s\n\n",
	       peers, key, f->name);
	printf("If a worker or shadow runs on this machine, main must know it. Add this to its line in main's hosts.txt:\n\n"
	       "  key=%s\n",
	       key);
}

static int make(const char *out, struct od_err *err)
{
	struct od_key_pair pair;
	struct od_key_files f = { 0 };
	int rc = choose_files(&f, out, err);

	if (rc == OD_OK)
		rc = od_key_pair_new(&pair, err);
	if (rc == OD_OK)
		rc = od_key_files_write(&f, &pair, err);
	if (rc == OD_OK)
		say_what_to_copy(&f, &pair);
	sodium_memzero(&pair, sizeof(pair));
	if (rc == OD_ERR_IO && out == NULL && geteuid() != 0)
		rc = od_fail_within(
			err,
			"run it as root, or name a folder of yours: od-main keygen --out DIR/, and OD_KEYS=DIR for all programs");
	if (rc == OD_OK && fflush(stdout) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "standard output");
	return rc;
}

int odm_keygen_command(int argc, char **argv)
{
	const char *out = NULL;
	bool help = false;
	size_t n_positional;
	struct od_err err = { 0 };
	const struct od_arg table[] = {
		{ "out", OD_ARG_STRING, &out, "DIR|NAME",
		  "DIR/node.key and DIR/node.pub, or NAME.key and NAME.pub (default: $OD_KEYS, else " OD_KEYS_DIR ")",
		  0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "print this text", 0, 0, NULL },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n, argc, argv, NULL, 0, &n_positional, &err);

	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "keygen: %s", err.msg);
		return STATUS_ARG;
	}
	if (help) {
		printf("Usage: od-main keygen [--out DIR|NAME]\n"
		       "Makes this node's pair of keys, for links between machines. Never overwrites a file.\n");
		od_args_help(stdout, table, n);
		return 0;
	}
	rc = make(out, &err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "keygen: %s", err.msg);
	return rc == OD_OK ? 0 : 1;
}
