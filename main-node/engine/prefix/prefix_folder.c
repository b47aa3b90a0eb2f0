#include "main-node/engine/prefix/prefix_folder.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SUFFIX_BYTES 4u
#define NAME_BYTES (2 * ODM_PREFIX_KEY_BYTES + SUFFIX_BYTES)
#define MAX_FILES (1u << 22)
#define MODEL_PREFIX "kv-"
#define MODEL_NAME_BYTES (sizeof(MODEL_PREFIX) + 2 * MODEL_HASH_BYTES)
#define MODEL_HASH_BYTES 8u
#define LOCK_NAME "lock"
#define BUSY_TRIES 20
#define BUSY_MS 50

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

	return sodium_hex2bin(key->bytes, sizeof(key->bytes), name, strnlen(name, 2 * ODM_PREFIX_KEY_BYTES), NULL, &n,
			      rest) == 0 &&
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

/* Reads the name of a file of the cache; false: it is none. is_tmp: the file is being written, or a killed process left
 * it. */
static bool read_file_name(const char *name, struct found *found, bool *is_tmp)
{
	const char *rest;

	*found = (struct found){ 0 };
	if (!read_name(name, &found->key, &rest))
		return false;
	while (found->what < ODM_N_PREFIX_WHAT && strncmp(rest, suffix[found->what], SUFFIX_BYTES - 1) != 0)
		found->what++;
	if (found->what == ODM_N_PREFIX_WHAT)
		return false;
	*is_tmp = strcmp(rest + SUFFIX_BYTES - 1, ".tmp") == 0;
	return *is_tmp || rest[SUFFIX_BYTES - 1] == '\0';
}

/* A file of the folder. first: also deletes what is of no use. False: out of memory. */
static bool list_file(struct odm_prefix_folder *f, struct found_list *l, const char *name, bool first)
{
	struct found found;
	char path[PATH_MAX];
	struct stat st;
	struct od_err err;
	bool is_tmp;

	if (!read_file_name(name, &found, &is_tmp) || od_path(path, sizeof(path), f->dir, name, &err) != OD_OK)
		return true;
	if (first && is_tmp)
		unlink(path);
	if (is_tmp || lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
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

void odm_prefix_folder_note(struct odm_prefix_folder *f, enum odm_prefix_what what, const struct odm_prefix_key *key,
			    bool there)
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
		od_log(OD_LOG_INFO, "prefix cache: deleted %u files in %s: they are of another model or profile",
		       l->foreign, f->dir);
	snprintf(snapshots, sizeof(snapshots), " and %zu snapshots", n[ODM_PREFIX_STATE]);
	od_log(OD_LOG_INFO, "prefix cache: %zu pages%s in %s, %s", n[ODM_PREFIX_PAGE],
	       f->id[ODM_PREFIX_STATE].rows_bytes > 0 ? snapshots : "", f->dir,
	       od_format_bytes(f->all_bytes, size, sizeof(size)));
}

/* Deletes the least recently used files until no more than this is left; counts them all anew. */
static int shrink(struct odm_prefix_folder *f, uint64_t bytes, bool first, struct od_err *err)
{
	struct found_list l;
	char path[PATH_MAX];
	size_t gone = 0;
	int rc = list_files(f, &l, first, err);

	if (rc != OD_OK) { /* files counted before still count */
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
	if (first)
		for (size_t i = gone; i < l.n; i++)
			odm_prefix_folder_note(f, l.at[i].what, &l.at[i].key, true);
	if (first)
		say_files(f, &l, gone);
	free(l.at);
	return OD_OK;
}

int odm_prefix_folder_make_room(struct odm_prefix_folder *f, size_t bytes, struct od_err *err)
{
	const uint64_t most = f->limit_bytes > bytes ? f->limit_bytes - bytes : 0, target = f->limit_bytes / 10 * 9;
	int rc = OD_OK;

	if (f->all_bytes > most)
		rc = shrink(f, most < target ? most : target, false,
			    err); /* some more, so as not to do it for each file */
	if (rc == OD_OK && f->all_bytes + bytes > f->limit_bytes)
		rc = od_fail(err, OD_ERR_IO, "the disk of %s has too little room", f->dir);
	return rc;
}

/* ---- The folder of all models ---- */

static int open_dir(char all[PATH_MAX], const char *dir, struct od_err *err)
{
	struct stat st;
	int rc = OD_OK;

	if (od_is_dir(dir)) {
		if (stat(dir, &st) != 0)
			return od_fail_errno(err, OD_ERR_IO, "cannot look at folder %s", dir);
		if ((st.st_mode & 077) != 0)
			return od_fail(err, OD_ERR_ARG,
				       "--prefix-cache: %s has mode %03o, expected 700: conversations are private; "
				       "chmod 700 it, or name another folder",
				       dir, st.st_mode & 0777u);
	} else {
		rc = od_mkdir_p(dir, err);
		if (rc != OD_OK)
			return od_fail_within(err, "--prefix-cache");
		if (chmod(dir, 0700) != 0)
			rc = od_fail_errno(err, OD_ERR_IO, "cannot chmod folder %s", dir);
	}
	if (rc == OD_OK && access(dir, R_OK | W_OK | X_OK) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "--prefix-cache: cannot use folder %s", dir);
	if (rc == OD_OK && realpath(dir, all) == NULL)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot find folder %s", dir);
	return rc;
}

static void name_model(char name[MODEL_NAME_BYTES], const struct odm_prefix_id *page)
{
	struct odm_prefix_key key;

	odm_prefix_key_begin(&key, page, false);
	memcpy(name, MODEL_PREFIX, sizeof(MODEL_PREFIX));
	sodium_bin2hex(name + strlen(MODEL_PREFIX), 2 * MODEL_HASH_BYTES + 1, key.bytes, MODEL_HASH_BYTES);
}

static bool is_model_name(const char *name)
{
	return strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX)) == 0 && strlen(name) == MODEL_NAME_BYTES - 1 &&
	       strspn(name + strlen(MODEL_PREFIX), "0123456789abcdef") == 2 * MODEL_HASH_BYTES;
}

/* The lock of a model's folder; *fd is -1 unless OD_OK, OD_ERR_BUSY: another process has it. */
static int lock_model(const char *dir, int *fd, struct od_err *err)
{
	char path[PATH_MAX], who[32] = "?";
	ssize_t n;
	int rc = od_path(path, sizeof(path), dir, LOCK_NAME, err);

	*fd = -1;
	if (rc != OD_OK)
		return rc;
	*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (*fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", path);
	if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
		return OD_OK;
	rc = errno == EWOULDBLOCK ? OD_ERR_BUSY : od_fail_errno(err, OD_ERR_IO, "cannot lock %s", path);
	n = pread(*fd, who, sizeof(who) - 1, 0);
	if (n > 0)
		who[n] = '\0';
	who[strcspn(who, "\n")] = '\0';
	if (rc == OD_ERR_BUSY)
		rc = od_fail(
			err, rc,
			"--prefix-cache: another od-main of this model (process %s) uses %s; give this one another folder, or end "
			"the other one",
			who, dir);
	close(*fd);
	*fd = -1;
	return rc;
}

/* The number is for the message to others; the time says when this model was used last. */
static void sign_lock(int fd)
{
	char text[32];
	const int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());

	if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
		od_log(OD_LOG_WARN, "prefix cache: cannot write its lock file");
}

/* Files of the layout without folders for models. */
static void take_old_files(struct odm_prefix_folder *f, const char *all)
{
	DIR *d = opendir(all);
	const struct dirent *entry;
	unsigned moved = 0, deleted = 0;

	while (d != NULL && (entry = readdir(d)) != NULL) {
		char from[PATH_MAX], to[PATH_MAX];
		enum odm_prefix_look is;
		struct found found;
		struct od_err err;
		bool is_tmp;

		if (!read_file_name(entry->d_name, &found, &is_tmp) ||
		    od_path(from, sizeof(from), all, entry->d_name, &err) != OD_OK ||
		    od_path(to, sizeof(to), f->dir, entry->d_name, &err) != OD_OK)
			continue;
		is = is_tmp ? ODM_PREFIX_OTHER : look(f, found.what, from);
		moved += is == ODM_PREFIX_OURS && rename(from, to) == 0;
		deleted += is == ODM_PREFIX_OTHER && unlink(from) == 0;
	}
	if (d != NULL)
		closedir(d);
	if (moved + deleted > 0)
		od_log(OD_LOG_INFO,
		       "prefix cache: %s was written by an older od-moe: moved %u files to %s, deleted %u that are incomplete or "
		       "of other models",
		       all, moved, f->dir, deleted);
}

/* A folder of another model that no process has. */
struct idle {
	char dir[PATH_MAX];
	int fd; /* its lock */
	uint64_t bytes;
	struct timespec used;
};

/* Counts the files of the folder, or deletes them. Returns their bytes. */
static uint64_t sum_files(const char *dir, bool delete)
{
	DIR *d = opendir(dir);
	const struct dirent *entry;
	uint64_t sum = 0;

	while (d != NULL && (entry = readdir(d)) != NULL) {
		char path[PATH_MAX];
		struct found found;
		struct od_err err;
		struct stat st;
		bool is_tmp;

		if ((!read_file_name(entry->d_name, &found, &is_tmp) && strcmp(entry->d_name, ODM_PREFIX_CALLS) != 0) ||
		    od_path(path, sizeof(path), dir, entry->d_name, &err) != OD_OK || lstat(path, &st) != 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		sum += !delete || unlink(path) == 0 ? (uint64_t)st.st_size : 0;
	}
	if (d != NULL)
		closedir(d);
	return sum;
}

static bool open_idle(struct idle *i, const char *all, const char *name)
{
	struct od_err err;
	struct stat st;

	if (!is_model_name(name) || od_path(i->dir, sizeof(i->dir), all, name, &err) != OD_OK || !od_is_dir(i->dir) ||
	    lock_model(i->dir, &i->fd, &err) != OD_OK)
		return false;
	if (fstat(i->fd, &st) == 0)
		i->used = st.st_mtim;
	i->bytes = sum_files(i->dir, false);
	return true;
}

/* Sums the bytes of folders of other models that no process has open, and finds the least recently used one; its fd is
 * -1 if there is none with files. */
static uint64_t find_idle(const char *all, struct idle *oldest)
{
	DIR *d = opendir(all);
	const struct dirent *entry;
	uint64_t sum = 0;

	oldest->fd = -1;
	while (d != NULL && (entry = readdir(d)) != NULL) {
		struct idle i = { 0 };

		if (!open_idle(&i, all, entry->d_name))
			continue;
		sum += i.bytes;
		if (i.bytes > 0 && (oldest->fd < 0 || i.used.tv_sec < oldest->used.tv_sec ||
				    (i.used.tv_sec == oldest->used.tv_sec && i.used.tv_nsec < oldest->used.tv_nsec))) {
			const int fd = oldest->fd;

			*oldest = i;
			i.fd = fd;
		}
		if (i.fd >= 0)
			close(i.fd);
	}
	if (d != NULL)
		closedir(d);
	return sum;
}

/* This model's files, and those of models that no process has, take at most half of what is free without them. */
static void limit_by_disk(struct odm_prefix_folder *f, const char *all)
{
	struct idle oldest;
	struct statvfs v;
	char size[32];
	uint64_t most = UINT64_MAX, idle = find_idle(all, &oldest), idle_most;

	if (statvfs(f->dir, &v) == 0)
		most = ((uint64_t)v.f_bavail * v.f_frsize + f->all_bytes + idle) / 2;
	if (f->limit_bytes > most)
		f->limit_bytes = most;
	idle_most = most - f->limit_bytes < f->limit_bytes ? most - f->limit_bytes : f->limit_bytes;
	while (idle > idle_most && oldest.fd >= 0) {
		const uint64_t gone = sum_files(oldest.dir, true);

		od_log(OD_LOG_INFO,
		       "prefix cache: deleted %s in %s, of a model that was not used for longer than others",
		       od_format_bytes(gone, size, sizeof(size)), oldest.dir);
		close(oldest.fd);
		if (gone == 0)
			return;
		idle = find_idle(all, &oldest);
	}
	if (oldest.fd >= 0)
		close(oldest.fd);
}

static int open_model(struct odm_prefix_folder *f, const char *all, struct od_err *err)
{
	char name[MODEL_NAME_BYTES];
	int rc;

	name_model(name, &f->id[ODM_PREFIX_PAGE]);
	rc = od_path(f->dir, sizeof(f->dir), all, name, err);
	if (rc == OD_OK && mkdir(f->dir, 0700) != 0 && errno != EEXIST)
		rc = od_fail_errno(err, OD_ERR_IO, "--prefix-cache: cannot create folder %s", f->dir);
	if (rc != OD_OK)
		return rc;
	/* Another server that starts has the locks of idle folders for a moment. */
	for (int i = 0; (rc = lock_model(f->dir, &f->lock_fd, err)) == OD_ERR_BUSY && i < BUSY_TRIES; i++)
		(void)poll(NULL, 0, BUSY_MS);
	if (rc == OD_OK)
		sign_lock(f->lock_fd);
	return rc;
}

int odm_prefix_folder_init(struct odm_prefix_folder *f, const char *dir, uint64_t limit_bytes,
			   const struct odm_prefix_kind *kind, struct od_err *err)
{
	uint64_t least, n_files;
	char all[PATH_MAX];
	int rc;

	pthread_mutex_init(&f->lock, NULL);
	f->lock_fd = -1;
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
		rc = open_dir(all, dir, err);
	if (rc == OD_OK)
		rc = open_model(f, all, err);
	if (rc != OD_OK)
		return rc;
	take_old_files(f, all);
	rc = shrink(f, limit_bytes, true, err);
	if (rc == OD_OK)
		limit_by_disk(f, all);
	return rc;
}

void odm_prefix_folder_fini(struct odm_prefix_folder *f)
{
	if (f->lock_fd >= 0) {
		sign_lock(f->lock_fd);
		close(f->lock_fd);
	}
	od_id_table_fini(&f->files);
	pthread_mutex_destroy(&f->lock);
}
