#include "main-node/engine/prefix_folder.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SUFFIX_BYTES 4u
#define NAME_BYTES (2 * ODM_PREFIX_KEY_BYTES + SUFFIX_BYTES)
#define MAX_FILES (1u << 22)

static const char suffix[ODM_N_PREFIX_WHAT][SUFFIX_BYTES] = { ".kv", ".fs" };

/* ---- Names ---- */

bool odm_prefix_folder_path(const struct odm_prefix_folder *f, char path[PATH_MAX], enum odm_prefix_what what,
			    const struct odm_prefix_key *key)
{
	char name[NAME_BYTES];
	struct od_err err;

	sodium_bin2hex(name, sizeof(name), key->bytes, sizeof(key->bytes));
	memcpy(name + 2 * ODM_PREFIX_KEY_BYTES, suffix[what], SUFFIX_BYTES);
	return od_path(path, PATH_MAX, f->dir, name, &err) == OD_OK;
}

static uint64_t file_id(enum odm_prefix_what what, const struct odm_prefix_key *key)
{
	uint64_t id;

	memcpy(&id, key->bytes + what * sizeof(id), sizeof(id));
	return id;
}

/* *rest: what follows the key in the name. */
static bool read_name(const char *name, struct odm_prefix_key *key, const char **rest)
{
	size_t n;

	return sodium_hex2bin(key->bytes, sizeof(key->bytes), name, strnlen(name, 2 * ODM_PREFIX_KEY_BYTES), NULL, &n, rest) == 0 &&
	       n == sizeof(key->bytes) && *rest == name + 2 * ODM_PREFIX_KEY_BYTES;
}

/* ---- The folder ---- */

struct found {
	enum odm_prefix_what what;
	struct odm_prefix_key key;
	uint64_t bytes;
	struct timespec used;
};

struct found_list {
	struct found *at;
	size_t n, room;
	unsigned foreign;
};

static int by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const struct found *)a)->used, *y = &((const struct found *)b)->used;

	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* Whose a file is, by its header. */
static enum odm_prefix_look look(const struct odm_prefix_folder *f, enum odm_prefix_what what, const char *path)
{
	uint8_t head[ODM_PREFIX_HEADER_BYTES];
	struct od_err err;
	uint64_t size;
	int fd;
	enum odm_prefix_look l = ODM_PREFIX_UNKNOWN;

	if (od_file_open(path, &fd, &size, &err) != OD_OK)
		return l;
	if (size >= sizeof(head) && od_file_pread(fd, head, sizeof(head), 0, path, &err) == OD_OK)
		l = odm_prefix_file_look(head, sizeof(head), &f->id[what]);
	close(fd);
	return l;
}

static bool add_found(struct found_list *l, const struct found *found)
{
	if (l->n == l->room) {
		struct found *grown = realloc(l->at, (l->room * 2 + 64) * sizeof(*grown));

		if (grown == NULL)
			return false;
		l->at = grown;
		l->room = l->room * 2 + 64;
	}
	l->at[l->n++] = *found;
	return true;
}

/* A file of the folder. first: also deletes what is of no use. False: out of memory. */
static bool list_file(struct odm_prefix_folder *f, struct found_list *l, const char *name, bool first)
{
	struct found found = { 0 };
	const char *rest;
	char path[PATH_MAX];
	struct stat st;
	struct od_err err;

	if (!read_name(name, &found.key, &rest) || od_path(path, sizeof(path), f->dir, name, &err) != OD_OK)
		return true;
	while (found.what < ODM_N_PREFIX_WHAT && strncmp(rest, suffix[found.what], SUFFIX_BYTES - 1) != 0)
		found.what++;
	if (found.what == ODM_N_PREFIX_WHAT)
		return true;
	if (first && strcmp(rest + SUFFIX_BYTES - 1, ".tmp") == 0) /* of a process that was killed */
		unlink(path);
	if (rest[SUFFIX_BYTES - 1] != 0 || lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return true;
	if (first) {
		const enum odm_prefix_look is = look(f, found.what, path);

		l->foreign += is == ODM_PREFIX_OTHER && unlink(path) == 0;
		if (is != ODM_PREFIX_OURS)
			return true;
	}
	found.bytes = (uint64_t)st.st_size;
	found.used = st.st_mtim;
	return add_found(l, &found);
}

static int list_files(struct odm_prefix_folder *f, struct found_list *l, bool first, struct od_err *err)
{
	DIR *d = opendir(f->dir);
	const struct dirent *entry;
	bool ok = true;

	*l = (struct found_list){ 0 };
	if (d == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read folder %s", f->dir);
	while (ok && (entry = readdir(d)) != NULL)
		ok = list_file(f, l, entry->d_name, first);
	closedir(d);
	return ok ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory for %zu files", f->dir, l->n);
}

void odm_prefix_folder_note(struct odm_prefix_folder *f, enum odm_prefix_what what, const struct odm_prefix_key *key, bool there)
{
	pthread_mutex_lock(&f->lock);
	if (there)
		(void)od_id_table_add(&f->files, file_id(what, key));
	else
		od_id_table_remove(&f->files, file_id(what, key));
	pthread_mutex_unlock(&f->lock);
}

bool odm_prefix_folder_has(struct odm_prefix_folder *f, enum odm_prefix_what what, const struct odm_prefix_key *key)
{
	bool there;

	pthread_mutex_lock(&f->lock);
	there = od_id_table_find(&f->files, file_id(what, key)) != OD_NO_NUMBER;
	pthread_mutex_unlock(&f->lock);
	return there;
}

static void say_files(const struct odm_prefix_folder *f, const struct found_list *l, size_t gone)
{
	size_t n[ODM_N_PREFIX_WHAT] = { 0 };
	char size[32], snapshots[48];

	for (size_t i = gone; i < l->n; i++)
		n[l->at[i].what]++;
	if (l->foreign > 0)
		od_log(OD_LOG_INFO, "prefix cache: deleted %u files in %s: they are of another model or profile", l->foreign, f->dir);
	snprintf(snapshots, sizeof(snapshots), " and %zu snapshots", n[ODM_PREFIX_STATE]);
	od_log(OD_LOG_INFO, "prefix cache: %zu pages%s in %s, %s", n[ODM_PREFIX_PAGE],
	       f->id[ODM_PREFIX_STATE].rows_bytes > 0 ? snapshots : "", f->dir, od_format_bytes(f->all_bytes, size, sizeof(size)));
}

/* Deletes the least recently used files until no more than this is left; counts them all anew. */
static int shrink(struct odm_prefix_folder *f, uint64_t bytes, bool first, struct od_err *err)
{
	struct found_list l;
	char path[PATH_MAX];
	size_t gone = 0;
	int rc = list_files(f, &l, first, err);

	if (rc != OD_OK) { /* what was counted before still counts */
		free(l.at);
		return rc;
	}
	f->all_bytes = 0;
	for (size_t i = 0; i < l.n; i++)
		f->all_bytes += l.at[i].bytes;
	if (l.n > 0)
		qsort(l.at, l.n, sizeof(*l.at), by_use);
	for (; gone < l.n && f->all_bytes > bytes; gone++) {
		f->all_bytes -= l.at[gone].bytes;
		odm_prefix_folder_note(f, l.at[gone].what, &l.at[gone].key, false);
		if (odm_prefix_folder_path(f, path, l.at[gone].what, &l.at[gone].key))
			unlink(path);
	}
	for (size_t i = gone; first && i < l.n; i++)
		odm_prefix_folder_note(f, l.at[i].what, &l.at[i].key, true);
	if (first)
		say_files(f, &l, gone);
	free(l.at);
	return OD_OK;
}

int odm_prefix_folder_make_room(struct odm_prefix_folder *f, size_t bytes, struct od_err *err)
{
	const uint64_t most = f->limit_bytes > bytes ? f->limit_bytes - bytes : 0, part = f->limit_bytes / 10 * 9;
	int rc = OD_OK;

	if (f->all_bytes > most)
		rc = shrink(f, most < part ? most : part, false, err); /* some more, so as not to do it for each file */
	if (rc == OD_OK && f->all_bytes + bytes > f->limit_bytes)
		rc = od_fail(err, OD_ERR_IO, "the disk of %s has too little room", f->dir);
	return rc;
}

static int open_dir(struct odm_prefix_folder *f, const char *dir, struct od_err *err)
{
	struct stat st;
	int rc = OD_OK;

	if (od_is_dir(dir)) {
		if (stat(dir, &st) != 0)
			return od_fail_errno(err, OD_ERR_IO, "cannot look at folder %s", dir);
		if ((st.st_mode & 077) != 0)
			return od_fail(err, OD_ERR_ARG, "--prefix-cache: %s has mode %03o, expected 700: conversations are private; "
				       "chmod 700 it, or name another folder", dir, st.st_mode & 0777u);
	} else {
		rc = od_mkdir_p(dir, err);
		if (rc == OD_OK && chmod(dir, 0700) != 0)
			rc = od_fail_errno(err, OD_ERR_IO, "cannot chmod folder %s", dir);
	}
	if (rc == OD_OK && access(dir, R_OK | W_OK | X_OK) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "--prefix-cache: cannot use folder %s", dir);
	if (rc == OD_OK && realpath(dir, f->dir) == NULL)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot find folder %s", dir);
	return rc;
}

/* At most half of what is free without the cache. */
static void limit_by_disk(struct odm_prefix_folder *f)
{
	struct statvfs v;
	uint64_t most;

	if (statvfs(f->dir, &v) != 0)
		return;
	most = ((uint64_t)v.f_bavail * v.f_frsize + f->all_bytes) / 2;
	if (f->limit_bytes > most)
		f->limit_bytes = most;
}

int odm_prefix_folder_init(struct odm_prefix_folder *f, const char *dir, uint64_t limit_bytes, const struct odm_prefix_kind *kind,
			   struct od_err *err)
{
	uint64_t least, n_files;
	int rc;

	pthread_mutex_init(&f->lock, NULL);
	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "libsodium does not start");
	f->limit_bytes = limit_bytes;
	for (int what = 0; what < ODM_N_PREFIX_WHAT; what++)
		odm_prefix_id_init(&f->id[what], kind, (enum odm_prefix_what)what);
	least = f->id[ODM_PREFIX_PAGE].rows_bytes;
	if (f->id[ODM_PREFIX_STATE].rows_bytes > 0 && f->id[ODM_PREFIX_STATE].rows_bytes < least)
		least = f->id[ODM_PREFIX_STATE].rows_bytes;
	n_files = limit_bytes / least + 1;
	rc = od_id_table_init(&f->files, n_files < MAX_FILES ? (uint32_t)n_files : MAX_FILES, err);
	if (rc == OD_OK)
		rc = open_dir(f, dir, err);
	if (rc == OD_OK)
		rc = shrink(f, limit_bytes, true, err);
	if (rc == OD_OK)
		limit_by_disk(f);
	return rc;
}

void odm_prefix_folder_fini(struct odm_prefix_folder *f)
{
	od_id_table_fini(&f->files);
	pthread_mutex_destroy(&f->lock);
}
