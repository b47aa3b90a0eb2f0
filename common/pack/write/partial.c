#include "common/pack/write/partial.h"

#include "common/base/file.h"
#include "common/pack/shadow/shadow_layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lz4.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define SOURCE_MAX_BYTES (16u << 20)

static const char *const big_files[] = { OD_DENSE_NAME, OD_EXPERTS_NAME, NULL };

static void remove_file(const char *dir, const char *name)
{
	char path[PATH_MAX];

	if (name != NULL && od_path(path, sizeof(path), dir, name, NULL) == OD_OK)
		unlink(path);
}

/* Each file that od-pack ever makes in a pack's folder, and nothing else: od-pack deletes only its own. */
static void remove_files(const char *dir)
{
	static const char *const other[] = { OD_SUMS_NAME, OD_SOURCE_NAME, OD_SUMS_NAME ".tmp", OD_SOURCE_NAME ".tmp",
					     NULL };
	char tmp[64];

	for (const char *const *name = big_files; *name != NULL; name++)
		remove_file(dir, *name);
	for (int i = 0; i < OD_N_PRECISIONS; i++) {
		remove_file(dir, od_shadow_file_names[i]);
		remove_file(dir, od_shadow_temp_names[i]);
	}
	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++) {
		remove_file(dir, f->name);
		snprintf(tmp, sizeof(tmp), "%s.tmp", f->name); /* left by an interrupted od_file_write_atomic */
		remove_file(dir, tmp);
	}
	for (const char *const *name = od_shadow_old_names; *name != NULL; name++) {
		remove_file(dir, *name);
		snprintf(tmp, sizeof(tmp), "%s.tmp", *name);
		remove_file(dir, tmp);
	}
	for (const char *const *name = other; *name != NULL; name++)
		remove_file(dir, *name);
}

static bool is_empty_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	bool empty = true;

	if (d == NULL)
		return false;
	while (empty && (e = readdir(d)) != NULL)
		empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
	closedir(d);
	return empty;
}

static int check_target(const char *pack, bool force, struct od_err *err)
{
	char path[PATH_MAX];
	struct stat st, parent;

	if (access(pack, F_OK) != 0)
		return OD_OK;
	/* Known now, not when all is packed: such a folder cannot be renamed. */
	if (od_path(path, sizeof(path), pack, "..", err) == OD_OK && stat(pack, &st) == 0 && stat(path, &parent) == 0 &&
	    st.st_dev != parent.st_dev)
		return od_fail(err, OD_ERR_ARG,
			       "%s is the root of a file system, which a pack cannot replace; name a folder "
			       "inside it",
			       pack);
	if (is_empty_dir(pack))
		return OD_OK;
	/* Even --force must not delete a folder that is not a pack. */
	if (od_path(path, sizeof(path), pack, OD_MODEL_NAME, err) != OD_OK || access(path, F_OK) != 0)
		return od_fail(
			err, OD_ERR_ARG,
			"%s exists and is not a pack (no %s in it); not replacing it: give the pack another name", pack,
			OD_MODEL_NAME);
	return force ? OD_OK : od_fail(err, OD_ERR_ARG, "%s exists already; --force replaces it", pack);
}

/* Names, sizes, times and header sums of the source, and how it is coded, as text. *out is malloc'd. */
static int describe_source(const struct od_checkpoint *c, enum od_codec codec, char **out, size_t *len,
			   struct od_err *err)
{
	char path[PATH_MAX], hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1];
	uint8_t sum[OD_SHA256_BYTES];
	FILE *f;
	int rc = od_path(path, sizeof(path), od_checkpoint_folder(c), "config.json", err);

	*out = NULL;
	*len = 0;
	if (rc == OD_OK)
		rc = od_sha256_file(path, sum, err);
	if (rc != OD_OK)
		return rc;
	f = open_memstream(out, len);
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory");
	od_hex(sum, sizeof(sum), hex);
	fprintf(f, "od-pack partial, schema %d, codec %s, zstd %s, lz4 %s\nconfig.json %s\n", OD_PACK_SCHEMA,
		od_codec_names[codec], ZSTD_versionString(), LZ4_versionString(), hex);
	for (size_t i = 0; i < od_checkpoint_n_files(c); i++) {
		const struct od_checkpoint_file *file = od_checkpoint_file(c, i);

		od_hex(file->header_sha256, OD_SHA256_BYTES, hex);
		fprintf(f, "%s %" PRIu64 " %" PRId64 " %s\n", file->name, file->size_bytes, file->mtime_ns, hex);
	}
	if (fclose(f) != 0)
		return od_fail(err, OD_ERR_NOMEM, "no memory");
	return OD_OK;
}

/* Keep what is there when its source is ours, else start over. */
static int adopt(struct od_partial *p, const struct od_checkpoint *c, enum od_codec codec, struct od_err *err)
{
	char path[PATH_MAX], *ours = NULL, *theirs = NULL;
	size_t our_len, their_len = 0;
	int rc = od_path(path, sizeof(path), p->dir, OD_SOURCE_NAME, err);

	if (rc == OD_OK)
		rc = describe_source(c, codec, &ours, &our_len, err);
	if (rc != OD_OK)
		goto done;
	if (od_file_read(path, SOURCE_MAX_BYTES, &theirs, &their_len, NULL) == OD_OK && our_len == their_len &&
	    memcmp(ours, theirs, our_len) == 0) {
		p->resumed = true;
		goto done;
	}
	p->emptied = !is_empty_dir(p->dir);
	remove_files(p->dir);
	rc = od_file_write_atomic(path, ours, our_len, err);
done:
	free(ours);
	free(theirs);
	return rc;
}

void od_partial_close(struct od_partial *p)
{
	if (p->lock_fd >= 0)
		close(p->lock_fd);
	p->lock_fd = -1;
}

void od_partial_remove(const struct od_partial *p)
{
	remove_files(p->dir);
	rmdir(p->dir); /* fails, as intended, when other files are there */
}

int od_partial_open(struct od_partial *p, const char *pack, const struct od_checkpoint *c, enum od_codec codec,
		    bool force, struct od_err *err)
{
	int rc;

	*p = (struct od_partial){ .lock_fd = -1, .force = force };
	/* A link to a larger disk: the partial must lie there, too. */
	rc = od_dir_resolve(p->pack, pack, err);
	if (rc == OD_OK && (size_t)snprintf(p->dir, sizeof(p->dir), "%s.partial", p->pack) >= sizeof(p->dir))
		rc = od_fail(err, OD_ERR_ARG, "bad pack folder name \"%s\"", pack);
	if (rc == OD_OK)
		rc = check_target(p->pack, force, err);
	if (rc == OD_OK)
		rc = od_mkdir_p(p->dir, err);
	if (rc != OD_OK)
		return rc;
	p->lock_fd = open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->lock_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", p->dir);
	if (flock(p->lock_fd, LOCK_EX | LOCK_NB) != 0) {
		od_partial_close(p); /* without the lock nothing there is ours */
		return od_fail(err, OD_ERR_BUSY, "another od-pack is writing %s", p->dir);
	}
	return adopt(p, c, codec, err);
}

static int sync_file(const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, name, err), fd;

	if (rc != OD_OK)
		return rc;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot open %s", path);
	if (fsync(fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot sync %s", path);
	close(fd);
	return rc;
}

static int sync_all(const char *dir, struct od_err *err)
{
	int rc = OD_OK;

	for (const char *const *name = big_files; rc == OD_OK && *name != NULL; name++)
		rc = sync_file(dir, *name, err);
	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++)
		rc = sync_file(dir, f->name, err);
	return rc == OD_OK ? od_fsync_dir(dir, err) : rc;
}

/* The old pack changes places with the new one in one step, then goes. */
static int replace(struct od_partial *p, struct od_err *err)
{
	if (renameat2(AT_FDCWD, p->dir, AT_FDCWD, p->pack, RENAME_EXCHANGE) != 0)
		return od_fail_errno(err, OD_ERR_IO,
				     "cannot exchange %s and %s (remove the old pack by hand, then run "
				     "this again)",
				     p->dir, p->pack);
	od_partial_close(p); /* the folder holds the old pack now, and nothing to continue */
	remove_files(p->dir);
	if (rmdir(p->dir) != 0)
		return od_fail_errno(err, OD_ERR_IO, "%s is complete, but the previous pack is left in %s", p->pack,
				     p->dir);
	return OD_OK;
}

static int sync_parent(const char *path, struct od_err *err)
{
	char parent[PATH_MAX], *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (slash == NULL)
		snprintf(parent, sizeof(parent), ".");
	else
		slash[slash == parent ? 1 : 0] = '\0';
	return od_fsync_dir(parent, err);
}

int od_partial_publish(struct od_partial *p, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = sync_all(p->dir, err);

	if (rc == OD_OK)
		rc = check_target(p->pack, p->force, err);
	if (rc != OD_OK)
		return rc;
	/* rename replaces nothing but an empty folder. */
	if (rename(p->dir, p->pack) != 0) {
		if (!p->force || (errno != ENOTEMPTY && errno != EEXIST))
			return od_fail_errno(err, OD_ERR_IO, "cannot rename %s to %s", p->dir, p->pack);
		rc = replace(p, err);
	}
	/* The note about the source goes last: killed before, the next run can still resume. */
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), p->pack, OD_SOURCE_NAME, err);
	if (rc != OD_OK)
		return rc;
	unlink(path);
	rc = od_fsync_dir(p->pack, err);
	return rc == OD_OK ? sync_parent(p->pack, err) : rc;
}
