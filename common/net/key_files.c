#include "common/net/key_files.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MODE 0600
#define PUBLIC_MODE 0644

static void own_name(struct od_key_files *f)
{
	if (gethostname(f->name, sizeof(f->name) - 1) != 0 || f->name[0] == '\0')
		snprintf(f->name, sizeof(f->name), "node");
}

static int name_files(struct od_key_files *f, const char *dir, struct od_err *err)
{
	int rc = od_path(f->secret, sizeof(f->secret), dir, OD_KEY_NAME, err);

	own_name(f);
	return rc == OD_OK ? od_path(f->public, sizeof(f->public), dir, OD_PUBLIC_NAME, err) : rc;
}

int od_key_files_in(struct od_key_files *f, const char *dir, struct od_err *err)
{
	char bare[PATH_MAX];
	size_t len = strlen(dir);
	bool is_new;
	int rc;

	*f = (struct od_key_files){ 0 };
	while (len > 1 && dir[len - 1] == '/')
		len--;
	snprintf(bare, sizeof(bare), "%.*s", (int)len, dir);
	is_new = !od_file_there(bare);
	rc = od_mkdir_p(bare, err);
	/* the services read it, whatever root's umask */
	if (rc == OD_OK && is_new && strcmp(bare, OD_KEYS_DIR) == 0 && chmod(bare, 0755) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "%s", bare);
	return rc == OD_OK ? name_files(f, bare, err) : rc;
}

int od_key_files_usual(struct od_key_files *f, struct od_err *err)
{
	const char *dir = getenv("OD_KEYS");

	return od_key_files_in(f, dir != NULL && dir[0] != '\0' ? dir : OD_KEYS_DIR, err);
}

/* The services run as another user than the one who installs them. */
static int give_to_service(int fd, const char *path, struct od_err *err)
{
	const char usual[] = OD_KEYS_DIR "/";
	const struct passwd *user = NULL;

	if (geteuid() == 0 && strncmp(path, usual, sizeof(usual) - 1) == 0)
		user = getpwnam(OD_SERVICE_USER);
	if (user != NULL && fchown(fd, user->pw_uid, user->pw_gid) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot give %s to the user " OD_SERVICE_USER, path);
	return OD_OK;
}

static int exists(const char *path, struct od_err *err)
{
	return od_fail(err, OD_ERR_ARG,
		       "%s exists already, and keys are never overwritten: to make new ones, move it away; other "
		       "nodes then need the new public key",
		       path);
}

/* The temporary file is removed by whoever calls. */
static int write_whole(const char *path, mode_t mode, const char *text, const char *final, struct od_err *err)
{
	int rc = OD_OK, fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);

	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create %s", path);
	if (fchmod(fd, mode) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write %s", path);
	if (rc == OD_OK)
		rc = od_file_pwrite(fd, text, strlen(text), 0, path, err);
	if (rc == OD_OK)
		rc = give_to_service(fd, final, err);
	if (rc == OD_OK && fsync(fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write %s", path);
	if (close(fd) != 0 && rc == OD_OK)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write %s", path);
	return rc;
}

/* Never over a file, for link() does not replace one; and all of it or nothing, whatever ends this process. */
static int write_new(const char *path, mode_t mode, const char *text, struct od_err *err)
{
	char new[PATH_MAX + 8];
	int rc;

	if (od_file_there(path))
		return exists(path, err);
	snprintf(new, sizeof(new), "%s.new", path);
	unlink(new); /* another process may have ended before this */
	rc = write_whole(new, mode, text, path, err);
	if (rc == OD_OK && link(new, path) != 0)
		rc = errno == EEXIST ? exists(path, err) : od_fail_errno(err, OD_ERR_IO, "cannot create %s", path);
	unlink(new);
	return rc;
}

int od_key_files_write(const struct od_key_files *f, const struct od_key_pair *pair, struct od_err *err)
{
	char key[OD_KEY_CHARS + 1], text[1024];
	int rc;

	if (od_file_there(f->public))
		return exists(f->public, err);
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

int od_key_files_load(struct od_key_pair *out, bool *is_new, struct od_err *err)
{
	char secret[PATH_MAX], public[PATH_MAX];
	int rc = od_keys_path(secret, OD_KEY_NAME, err);

	memset(out, 0, sizeof(*out));
	*is_new = false;
	if (rc == OD_OK)
		rc = od_keys_path(public, OD_PUBLIC_NAME, err);
	if (rc != OD_OK)
		return rc;
	*is_new = !od_file_there(secret);
	if (!*is_new)
		return od_key_pair_load(out, secret, err);
	if (od_file_there(public))
		return od_fail(err, OD_ERR_ARG,
			       "there is %s without %s: if the secret key is lost, remove the public one, too", public,
			       secret);
	return od_key_pair_new(out, err);
}

int od_key_files_keep(const struct od_key_pair *pair, bool is_new, struct od_err *err)
{
	struct od_key_files f;
	int fd, rc = od_key_files_usual(&f, err);

	if (rc != OD_OK)
		return rc;
	if (is_new)
		return od_key_files_write(&f, pair, err);
	fd = open(f.secret, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ELOOP ?
			       OD_OK :
			       od_fail_errno(err, OD_ERR_IO, "%s", f.secret); /* a link is its owner's affair */
	rc = give_to_service(fd, f.secret, err);
	close(fd);
	return rc;
}

/* dir, or the nearest folder above it that exists: there dir would be made. */
static void nearest_folder(char dir[PATH_MAX])
{
	while (!od_file_there(dir)) {
		char *slash = strrchr(dir, '/');

		if (slash == NULL)
			snprintf(dir, PATH_MAX, ".");
		else if (slash == dir)
			dir[1] = '\0';
		else
			*slash = '\0';
	}
}

int od_key_files_check(struct od_err *err)
{
	char dir[PATH_MAX], probe[PATH_MAX];
	int rc = od_keys_path(dir, "", err);

	if (rc != OD_OK)
		return rc;
	memcpy(probe, dir, sizeof(probe));
	nearest_folder(probe);
	if (od_is_dir(probe) && access(probe, W_OK | X_OK) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_IO, "cannot write in %s (%s): %s", dir,
		       od_is_dir(probe) ? strerror(errno) : "it is no folder",
		       geteuid() == 0 ? "keys and hosts are kept there; OD_KEYS=DIR names another folder" :
					"run it with sudo, or name a folder of yours: OD_KEYS=DIR, for all programs");
}
