#include "main-node/keygen_command.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MODE 0600
#define PUBLIC_MODE 0644
#define STATUS_ARG 2

struct files {
	char secret[PATH_MAX], public[PATH_MAX], name[256];
};

static int in_folder(struct files *f, const char *path, struct od_err *err)
{
	char dir[PATH_MAX];
	size_t len = strlen(path);
	int rc;

	while (len > 1 && path[len - 1] == '/')
		len--;
	snprintf(dir, sizeof(dir), "%.*s", (int)len, path);
	rc = od_mkdir_p(dir, err);
	if (rc == OD_OK)
		rc = od_path(f->secret, sizeof(f->secret), dir, OD_KEY_NAME, err);
	return rc == OD_OK ? od_path(f->public, sizeof(f->public), dir, OD_PUBLIC_NAME, err) : rc;
}

/* A folder (one that exists, or whose name ends with a slash), or the beginning of the files' names. */
static int choose_files(struct files *f, const char *out, struct od_err *err)
{
	const size_t len = out != NULL ? strlen(out) : 0;
	char dir[PATH_MAX];
	int rc;

	if (gethostname(f->name, sizeof(f->name) - 1) != 0 || f->name[0] == '\0')
		snprintf(f->name, sizeof(f->name), "node");
	if (out == NULL) {
		rc = od_keys_path(dir, "", err); /* ends with a slash */
		return rc == OD_OK ? in_folder(f, dir, err) : rc;
	}
	if (len == 0 || len + sizeof(".key") > sizeof(f->secret))
		return od_fail(err, OD_ERR_ARG, "--out: expected a folder or a name, found %zu characters", len);
	if (out[len - 1] == '/' || od_is_dir(out))
		return in_folder(f, out, err);
	snprintf(f->secret, sizeof(f->secret), "%s.key", out);
	snprintf(f->public, sizeof(f->public), "%s.pub", out);
	snprintf(f->name, sizeof(f->name), "%s", strrchr(out, '/') != NULL ? strrchr(out, '/') + 1 : out);
	for (char *c = f->name; *c != '\0'; c++) { /* it is a word in files of keys */
		if ((unsigned char)*c <= ' ' || *c == '#')
			*c = '-';
	}
	return OD_OK;
}

/* Never over a file: O_EXCL, and no file of that name stays behind on failure. */
static int write_new(const char *path, mode_t mode, const char *text, struct od_err *err)
{
	const size_t len = strlen(text);
	int rc = OD_OK, fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);

	if (fd < 0 && errno == EEXIST)
		return od_fail(err, OD_ERR_ARG,
			       "%s exists already, and keys are never overwritten: to make new ones, move it away; "
			       "other nodes then need the new public key",
			       path);
	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create %s", path);
	if (fchmod(fd, mode) != 0 || write(fd, text, len) != (ssize_t)len || fsync(fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write %s", path);
	if (close(fd) != 0 && rc == OD_OK)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write %s", path);
	if (rc != OD_OK)
		unlink(path);
	return rc;
}

static int write_files(const struct files *f, const struct od_key_pair *pair, struct od_err *err)
{
	char key[OD_KEY_CHARS + 1], text[1024];
	int rc;

	if (od_file_there(f->public))
		return od_fail(err, OD_ERR_ARG,
			       "%s exists already, and keys are never overwritten: to make new ones, move it away; "
			       "other nodes then need the new public key",
			       f->public);
	snprintf(text, sizeof(text), "# Secret key of od-moe node %s. It stays on this machine.\n%s\n", f->name,
		 od_key_text(pair->secret_key, key));
	rc = write_new(f->secret, SECRET_MODE, text, err);
	sodium_memzero(text, sizeof(text));
	sodium_memzero(key, sizeof(key));
	if (rc != OD_OK)
		return rc;
	snprintf(text, sizeof(text), "# Public key of od-moe node %s.\n%s %s\n", f->name,
		 od_key_text(pair->public_key, key), f->name);
	rc = write_new(f->public, PUBLIC_MODE, text, err);
	if (rc != OD_OK)
		unlink(f->secret);
	return rc;
}

static void say_what_to_copy(const struct files *f, const struct od_key_pair *pair)
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
	struct files f = { 0 };
	int rc = choose_files(&f, out, err);

	if (rc == OD_OK)
		rc = od_key_pair_new(&pair, err);
	if (rc == OD_OK)
		rc = write_files(&f, &pair, err);
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
