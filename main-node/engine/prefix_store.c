#include "main-node/engine/prefix_store.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/id_table.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NONE UINT32_MAX
#define SUFFIX ".kv"
#define NAME_BYTES (2 * ODM_PREFIX_KEY_BYTES + sizeof(SUFFIX))
#define MAX_FILES (1u << 22)
#define MAX_SAVES 64u		      /* texts that wait to be written; more are lost */
#define STALLED_NS (2 * OD_NS_PER_S)
#define FLUSH_NS (5 * OD_NS_PER_S)
#define WAIT_NS (20 * OD_NS_PER_MS)
#define NICE 10 /* of the writer */

/* A text whose pages are to be written. */
struct save {
	struct save *next;
	int64_t used_us; /* since 1970 */
	uint32_t n_pages;
	uint32_t *page; /* [n_pages]; NONE: it holds something else by now */
	int32_t *text;	/* [n_pages * OD_KV_PAGE] */
};

struct odm_prefix_read {
	struct odm_prefix_store *store;
	struct odm_prefix_read *next; /* while it waits */
	uint32_t begin, at, end;      /* pages [begin, at) were read */
	uint32_t *page;		      /* [end] */
	int32_t *text;		      /* [end * OD_KV_PAGE] */
	int64_t used_us;	      /* since 1970 */
	uint64_t progress_ns;	      /* when it began, or the last page was read */
	bool busy;		      /* the reader has it */
	bool ended, closed;
};

/* A stream of a layer in the pool. */
struct part {
	uint8_t *pages;
	size_t page_bytes;
};

struct odm_prefix_store {
	char dir[PATH_MAX];
	struct odm_prefix_id id;
	struct od_state_pool *pool;
	uint64_t limit_bytes;
	struct part *part;
	size_t n_parts;
	pthread_t writer, reader;
	bool has_writer, has_reader;
	/* The writer's. */
	uint8_t *write_buf;
	uint64_t all_bytes; /* of all files */
	bool warned;	    /* the log says that files cannot be written */
	pthread_mutex_t lock;
	pthread_cond_t work, news; /* for the threads; a page was read */
	/* Under the lock. */
	struct od_id_table files; /* by their keys; not more than a hint */
	struct save *first_save, **last_save;
	size_t n_saves;
	struct odm_prefix_read *first_read, **last_read;
	bool stuck; /* the reader has a read that was closed */
	bool stopping;
	uint64_t stop_ns;
};

/* ---- Names ---- */

static bool path_of(const struct odm_prefix_store *s, char path[PATH_MAX], const struct odm_prefix_key *key)
{
	char name[NAME_BYTES];
	struct od_err err;

	sodium_bin2hex(name, sizeof(name), key->bytes, sizeof(key->bytes));
	memcpy(name + 2 * ODM_PREFIX_KEY_BYTES, SUFFIX, sizeof(SUFFIX));
	return od_path(path, PATH_MAX, s->dir, name, &err) == OD_OK;
}

static uint64_t file_id(const struct odm_prefix_key *key)
{
	uint64_t id;

	memcpy(&id, key->bytes, sizeof(id));
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
static enum odm_prefix_look look(const struct odm_prefix_store *s, const char *path)
{
	uint8_t head[ODM_PREFIX_HEADER_BYTES];
	struct od_err err;
	uint64_t size;
	int fd;
	enum odm_prefix_look l = ODM_PREFIX_UNKNOWN;

	if (od_file_open(path, &fd, &size, &err) != OD_OK)
		return l;
	if (size >= sizeof(head) && od_file_pread(fd, head, sizeof(head), 0, path, &err) == OD_OK)
		l = odm_prefix_file_look(head, sizeof(head), &s->id);
	close(fd);
	return l;
}

/* A file of the folder. first: also deletes what is of no use. False: out of memory. */
static bool list_file(struct odm_prefix_store *s, struct found_list *f, const char *name, bool first)
{
	struct odm_prefix_key key;
	const char *rest;
	char path[PATH_MAX];
	struct stat st;
	struct od_err err;

	if (!read_name(name, &key, &rest) || od_path(path, sizeof(path), s->dir, name, &err) != OD_OK)
		return true;
	if (first && strcmp(rest, SUFFIX ".tmp") == 0) /* of a process that was killed */
		unlink(path);
	if (strcmp(rest, SUFFIX) != 0 || lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return true;
	if (first) {
		const enum odm_prefix_look l = look(s, path);

		f->foreign += l == ODM_PREFIX_OTHER && unlink(path) == 0;
		if (l != ODM_PREFIX_OURS)
			return true;
	}
	if (f->n == f->room) {
		struct found *grown = realloc(f->at, (f->room * 2 + 64) * sizeof(*grown));

		if (grown == NULL)
			return false;
		f->at = grown;
		f->room = f->room * 2 + 64;
	}
	f->at[f->n++] = (struct found){ .key = key, .bytes = (uint64_t)st.st_size, .used = st.st_mtim };
	return true;
}

static int list_files(struct odm_prefix_store *s, struct found_list *f, bool first, struct od_err *err)
{
	DIR *d = opendir(s->dir);
	const struct dirent *entry;
	bool ok = true;

	*f = (struct found_list){ 0 };
	if (d == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read folder %s", s->dir);
	while (ok && (entry = readdir(d)) != NULL)
		ok = list_file(s, f, entry->d_name, first);
	closedir(d);
	return ok ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory for %zu files", s->dir, f->n);
}

static void set_there(struct odm_prefix_store *s, const struct odm_prefix_key *key, bool there)
{
	pthread_mutex_lock(&s->lock);
	if (there)
		(void)od_id_table_add(&s->files, file_id(key));
	else
		od_id_table_remove(&s->files, file_id(key));
	pthread_mutex_unlock(&s->lock);
}

/* Deletes the least recently used files until no more than this is left; counts them all anew. */
static int shrink(struct odm_prefix_store *s, uint64_t bytes, bool first, struct od_err *err)
{
	struct found_list f;
	char path[PATH_MAX], size[32];
	size_t gone = 0;
	int rc = list_files(s, &f, first, err);

	s->all_bytes = 0;
	for (size_t i = 0; i < f.n; i++)
		s->all_bytes += f.at[i].bytes;
	if (f.n > 0)
		qsort(f.at, f.n, sizeof(*f.at), by_use);
	for (; gone < f.n && s->all_bytes > bytes; gone++) {
		s->all_bytes -= f.at[gone].bytes;
		set_there(s, &f.at[gone].key, false);
		if (path_of(s, path, &f.at[gone].key))
			unlink(path);
	}
	for (size_t i = gone; first && i < f.n; i++)
		set_there(s, &f.at[i].key, true);
	if (first && f.foreign > 0)
		od_log(OD_LOG_INFO, "prefix cache: deleted %u files in %s: they are of another model or profile", f.foreign, s->dir);
	if (first && rc == OD_OK)
		od_log(OD_LOG_INFO, "prefix cache: %zu pages in %s, %s", f.n - gone, s->dir,
		       od_format_bytes(s->all_bytes, size, sizeof(size)));
	free(f.at);
	return rc;
}

static int open_dir(struct odm_prefix_store *s, const char *dir, struct od_err *err)
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
	if (rc == OD_OK && realpath(dir, s->dir) == NULL)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot find folder %s", dir);
	return rc;
}

/* At most half of what is free without the cache. */
static void limit_by_disk(struct odm_prefix_store *s)
{
	struct statvfs v;
	uint64_t most;

	if (statvfs(s->dir, &v) != 0)
		return;
	most = ((uint64_t)v.f_bavail * v.f_frsize + s->all_bytes) / 2;
	if (s->limit_bytes > most)
		s->limit_bytes = most;
}

/* ---- Rows ---- */

/* Lock held, so that the page stays what it is. */
static void copy_page(const struct odm_prefix_store *s, uint32_t page, uint8_t *rows, bool to_pool)
{
	for (size_t i = 0; i < s->n_parts; i++) {
		uint8_t *at = s->part[i].pages + page * s->part[i].page_bytes;

		memcpy(to_pool ? at : rows, to_pool ? rows : at, s->part[i].page_bytes);
		rows += s->part[i].page_bytes;
	}
}

static int list_parts(struct odm_prefix_store *s, const struct od_config *c, struct od_err *err)
{
	size_t sum = 0;

	s->part = calloc((size_t)c->n_layers * OD_MAX_STREAMS, sizeof(*s->part));
	if (s->part == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	for (uint32_t l = 0; l < c->n_layers; l++) {
		struct od_stream stream[OD_MAX_STREAMS];
		const uint32_t n = od_state_pool_streams(s->pool, l, stream);

		for (uint32_t i = 0; i < n; i++) {
			s->part[s->n_parts++] = (struct part){ od_ref_map(stream[i].pages), stream[i].page_bytes };
			sum += stream[i].page_bytes;
		}
	}
	assert(sum == s->id.rows_bytes);
	return OD_OK;
}

/* ---- Writing ---- */

/* Marks the file of a page as used. The first pages of a text count as used last, so that they stay longest. False: there is
 * none. */
static bool touch(const char *path, int64_t used_us, uint32_t page)
{
	const int64_t us = used_us - page;
	const struct timespec at = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, times[2] = { at, at };

	return utimensat(AT_FDCWD, path, times, 0) == 0;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static bool is_there(struct odm_prefix_store *s, const struct odm_prefix_key *key)
{
	bool there;

	pthread_mutex_lock(&s->lock);
	there = od_id_table_find(&s->files, file_id(key)) != OD_NO_NUMBER;
	pthread_mutex_unlock(&s->lock);
	return there;
}

/* False: the page holds something else by now. */
static bool take_rows(struct odm_prefix_store *s, const struct save *v, uint32_t i)
{
	bool there;

	pthread_mutex_lock(&s->lock);
	there = v->page[i] != NONE;
	if (there)
		copy_page(s, v->page[i], odm_prefix_file_rows(s->write_buf, i), false);
	pthread_mutex_unlock(&s->lock);
	return there;
}

static int write_page(struct odm_prefix_store *s, const struct save *v, uint32_t i, const struct odm_prefix_key *key,
		      const char *path, struct od_err *err)
{
	const size_t bytes = odm_prefix_file_bytes(&s->id, i);
	const uint64_t most = s->limit_bytes > bytes ? s->limit_bytes - bytes : 0, part = s->limit_bytes / 10 * 9;
	int rc = OD_OK;

	if (s->all_bytes > most)
		rc = shrink(s, most < part ? most : part, false, err); /* some more, so as not to do it for each file */
	if (rc == OD_OK && s->all_bytes + bytes > s->limit_bytes)
		rc = od_fail(err, OD_ERR_IO, "the disk of %s has too little room", s->dir);
	if (rc != OD_OK)
		return rc;
	odm_prefix_file_seal(s->write_buf, &s->id, key, v->text, i);
	rc = od_file_write_private(path, s->write_buf, bytes, err);
	if (rc != OD_OK)
		return rc;
	(void)touch(path, v->used_us, i);
	s->all_bytes += bytes;
	set_there(s, key, true);
	return OD_OK;
}

static bool has_time(struct odm_prefix_store *s)
{
	bool yes;

	pthread_mutex_lock(&s->lock);
	yes = !s->stopping || od_now_ns() < s->stop_ns;
	pthread_mutex_unlock(&s->lock);
	return yes;
}

/* A page without the one before it would never be found. */
static void write_text(struct odm_prefix_store *s, const struct save *v)
{
	struct odm_prefix_key key;
	char path[PATH_MAX];
	struct od_err err;

	odm_prefix_key_begin(&key, &s->id);
	for (uint32_t i = 0; i < v->n_pages && has_time(s); i++) {
		odm_prefix_key_next(&key, v->text + (size_t)i * OD_KV_PAGE);
		if (!path_of(s, path, &key))
			return;
		if (is_there(s, &key) && touch(path, v->used_us, i)) /* one that only has the name is replaced */
			continue;
		if (!take_rows(s, v, i))
			return;
		if (write_page(s, v, i, &key, path, &err) == OD_OK) {
			s->warned = false;
			continue;
		}
		if (!s->warned)
			od_log(OD_LOG_WARN, "prefix cache: %s; pages are kept in memory only until this works again", err.msg);
		s->warned = true;
		return;
	}
}

static void free_save(struct save *v)
{
	free(v->page);
	free(v->text);
	free(v);
}

static void *writer_main(void *arg)
{
	struct odm_prefix_store *s = arg;
	struct save *v;

	(void)!setpriority(PRIO_PROCESS, 0, NICE); /* of this thread */
	pthread_mutex_lock(&s->lock);
	while (true) {
		while (!s->stopping && s->first_save == NULL)
			pthread_cond_wait(&s->work, &s->lock);
		v = s->first_save;
		if (v == NULL)
			break;
		pthread_mutex_unlock(&s->lock);
		write_text(s, v);
		pthread_mutex_lock(&s->lock);
		s->first_save = v->next; /* until now odm_prefix_store_forget had to find it */
		if (s->first_save == NULL)
			s->last_save = &s->first_save;
		s->n_saves--;
		free_save(v);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void odm_prefix_store_save(struct odm_prefix_store *s, const int32_t *text, uint32_t n_pages, const uint32_t *page)
{
	struct save *v = n_pages > 0 ? calloc(1, sizeof(*v)) : NULL;

	if (v == NULL)
		return;
	*v = (struct save){ .used_us = now_us(), .n_pages = n_pages };
	v->page = malloc(n_pages * sizeof(*v->page));
	v->text = malloc((size_t)n_pages * OD_KV_PAGE * sizeof(*v->text));
	if (v->page != NULL && v->text != NULL) {
		memcpy(v->page, page, n_pages * sizeof(*v->page));
		memcpy(v->text, text, (size_t)n_pages * OD_KV_PAGE * sizeof(*v->text));
		pthread_mutex_lock(&s->lock);
		if (s->n_saves < MAX_SAVES) {
			*s->last_save = v;
			s->last_save = &v->next;
			s->n_saves++;
			v = NULL;
			pthread_cond_broadcast(&s->work);
		}
		pthread_mutex_unlock(&s->lock);
	}
	if (v != NULL)
		free_save(v);
}

void odm_prefix_store_forget(struct odm_prefix_store *s, uint32_t page)
{
	pthread_mutex_lock(&s->lock);
	for (struct save *v = s->first_save; v != NULL; v = v->next)
		for (uint32_t i = 0; i < v->n_pages; i++)
			if (v->page[i] == page)
				v->page[i] = NONE;
	pthread_mutex_unlock(&s->lock);
}

/* ---- Reading ---- */

/* The reader's: rows of page i of the text to buf. */
static int load_page(const struct odm_prefix_store *s, const struct odm_prefix_read *r, uint32_t i,
		     const struct odm_prefix_key *key, const char *path, uint8_t *buf, struct od_err *err)
{
	const size_t bytes = odm_prefix_file_bytes(&s->id, i);
	uint64_t size;
	int fd, rc = od_file_open(path, &fd, &size, err);

	if (rc != OD_OK)
		return rc;
	if (size != bytes)
		rc = od_fail(err, OD_ERR_FORMAT, "expected %zu bytes, found %llu", bytes, (unsigned long long)size);
	if (rc == OD_OK)
		rc = od_file_pread(fd, buf, bytes, 0, path, err);
	close(fd);
	return rc == OD_OK ? odm_prefix_file_check(buf, bytes, &s->id, key, r->text, i, err) : rc;
}

/* One page; false: it cannot be had. A file that is not what it should be is deleted. */
static bool read_page(struct odm_prefix_store *s, const struct odm_prefix_read *r, uint32_t i,
		      const struct odm_prefix_key *key, uint8_t *buf)
{
	char path[PATH_MAX];
	struct od_err err;
	int rc;

	if (!path_of(s, path, key))
		return false;
	rc = load_page(s, r, i, key, path, buf, &err);
	if (rc == OD_OK) {
		(void)touch(path, r->used_us, i);
		return true;
	}
	set_there(s, key, false);
	if ((rc == OD_ERR_FORMAT || rc == OD_ERR_CORRUPT) && unlink(path) == 0)
		od_log(OD_LOG_WARN, "prefix cache: deleted %s: %s; its tokens are computed again", path, err.msg);
	return false;
}

static void read_text(struct odm_prefix_store *s, struct odm_prefix_read *r)
{
	const size_t bytes = odm_prefix_file_bytes(&s->id, r->end - 1);
	uint8_t *buf = malloc(bytes);
	struct odm_prefix_key key;
	bool more = buf != NULL;

	odm_prefix_key_begin(&key, &s->id);
	for (uint32_t i = 0; more && i < r->end; i++) {
		odm_prefix_key_next(&key, r->text + (size_t)i * OD_KV_PAGE);
		if (i < r->begin)
			continue;
		more = read_page(s, r, i, &key, buf);
		pthread_mutex_lock(&s->lock);
		more = more && !r->closed && !s->stopping;
		if (more) {
			copy_page(s, r->page[i], odm_prefix_file_rows(buf, i), true);
			r->at = i + 1;
			r->progress_ns = od_now_ns();
			pthread_cond_broadcast(&s->news);
		}
		pthread_mutex_unlock(&s->lock);
	}
	free(buf);
}

static void free_read(struct odm_prefix_read *r)
{
	free(r->page);
	free(r->text);
	free(r);
}

static void *reader_main(void *arg)
{
	struct odm_prefix_store *s = arg;
	struct odm_prefix_read *r;

	pthread_mutex_lock(&s->lock);
	while (true) {
		while (!s->stopping && s->first_read == NULL)
			pthread_cond_wait(&s->work, &s->lock);
		if (s->stopping)
			break;
		r = s->first_read;
		s->first_read = r->next;
		if (s->first_read == NULL)
			s->last_read = &s->first_read;
		r->busy = true;
		pthread_mutex_unlock(&s->lock);
		read_text(s, r);
		pthread_mutex_lock(&s->lock);
		r->busy = false;
		r->ended = true;
		s->stuck = false;
		pthread_cond_broadcast(&s->news);
		if (r->closed)
			free_read(r);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

uint32_t odm_prefix_store_find(struct odm_prefix_store *s, const int32_t *text, uint32_t begin, uint32_t n_pages)
{
	struct odm_prefix_key key;
	uint32_t end = begin;
	bool there = true;

	odm_prefix_key_begin(&key, &s->id);
	for (uint32_t i = 0; there && i < n_pages; i++) {
		odm_prefix_key_next(&key, text + (size_t)i * OD_KV_PAGE);
		if (i < begin)
			continue;
		pthread_mutex_lock(&s->lock);
		there = !s->stuck && od_id_table_find(&s->files, file_id(&key)) != OD_NO_NUMBER;
		pthread_mutex_unlock(&s->lock);
		end += there;
	}
	return end;
}

struct odm_prefix_read *odm_prefix_store_read(struct odm_prefix_store *s, const int32_t *text, uint32_t begin, uint32_t end,
					      const uint32_t *page)
{
	struct odm_prefix_read *r = calloc(1, sizeof(*r));

	assert(begin < end);
	if (r == NULL)
		return NULL;
	*r = (struct odm_prefix_read){ .store = s, .begin = begin, .at = begin, .end = end, .used_us = now_us(),
					  .progress_ns = od_now_ns() };
	r->page = malloc(end * sizeof(*r->page));
	r->text = malloc((size_t)end * OD_KV_PAGE * sizeof(*r->text));
	if (r->page == NULL || r->text == NULL) {
		free_read(r);
		return NULL;
	}
	memcpy(r->page, page, end * sizeof(*r->page));
	memcpy(r->text, text, (size_t)end * OD_KV_PAGE * sizeof(*r->text));
	pthread_mutex_lock(&s->lock);
	*s->last_read = r;
	s->last_read = &r->next;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	return r;
}

bool odm_prefix_read_goes_on(struct odm_prefix_read *r, uint32_t *end)
{
	struct odm_prefix_store *s = r->store;
	bool stalled, ended;

	pthread_mutex_lock(&s->lock);
	*end = r->at;
	ended = r->ended;
	stalled = od_now_ns() - r->progress_ns > STALLED_NS;
	pthread_mutex_unlock(&s->lock);
	if (!ended && stalled)
		od_log_limited(OD_LOG_WARN, "prefix cache: %s gave no page for %d s; what is missing is computed", s->dir,
			       (int)(STALLED_NS / OD_NS_PER_S));
	return !ended && !stalled;
}

void odm_prefix_read_close(struct odm_prefix_read *r)
{
	struct odm_prefix_store *s;
	bool busy;

	if (r == NULL)
		return;
	s = r->store;
	pthread_mutex_lock(&s->lock);
	r->closed = true;
	busy = r->busy;
	s->stuck = s->stuck || busy;
	if (!busy && !r->ended) {
		struct odm_prefix_read **at = &s->first_read;

		while (*at != r)
			at = &(*at)->next;
		*at = r->next;
		if (s->last_read == &r->next)
			s->last_read = at;
	}
	pthread_mutex_unlock(&s->lock);
	if (!busy)
		free_read(r);
}

void odm_prefix_store_wait(struct odm_prefix_store *s)
{
	const uint64_t until = od_now_ns() + WAIT_NS;
	const struct timespec t = { .tv_sec = (time_t)(until / OD_NS_PER_S), .tv_nsec = (long)(until % OD_NS_PER_S) };

	pthread_mutex_lock(&s->lock);
	pthread_cond_timedwait(&s->news, &s->lock, &t);
	pthread_mutex_unlock(&s->lock);
}

/* ---- Life ---- */

static int start_threads(struct odm_prefix_store *s, struct od_err *err)
{
	s->has_writer = pthread_create(&s->writer, NULL, writer_main, s) == 0;
	s->has_reader = pthread_create(&s->reader, NULL, reader_main, s) == 0;
	if (!s->has_writer || !s->has_reader)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache: cannot start its threads");
	pthread_setname_np(s->writer, "od-prefix-write");
	pthread_setname_np(s->reader, "od-prefix-read");
	return OD_OK;
}

static int open_store(struct odm_prefix_store *s, const struct odm_prefix_store_opts *o, struct od_err *err)
{
	const uint32_t most = od_state_pages(od_state_pool_ctx(s->pool)) - 1; /* the last page that a text can have */
	uint64_t n_files;
	int rc;

	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "libsodium does not start");
	odm_prefix_id_init(&s->id, &o->kind);
	n_files = s->limit_bytes / s->id.rows_bytes + 1;
	rc = list_parts(s, o->kind.config, err);
	s->write_buf = malloc(odm_prefix_file_bytes(&s->id, most));
	if (rc == OD_OK && s->write_buf == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "prefix cache: no memory for a page");
	if (rc == OD_OK)
		rc = od_id_table_init(&s->files, n_files < MAX_FILES ? (uint32_t)n_files : MAX_FILES, err);
	if (rc == OD_OK)
		rc = open_dir(s, o->dir, err);
	if (rc == OD_OK)
		rc = shrink(s, s->limit_bytes, true, err);
	if (rc != OD_OK)
		return rc;
	limit_by_disk(s);
	return start_threads(s, err);
}

int odm_prefix_store_open(struct odm_prefix_store **out, const struct odm_prefix_store_opts *o, struct od_err *err)
{
	struct odm_prefix_store *s = calloc(1, sizeof(*s));
	pthread_condattr_t monotonic; /* the clock that od_now_ns reads */
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&s->work, &monotonic);
	pthread_cond_init(&s->news, &monotonic);
	pthread_condattr_destroy(&monotonic);
	s->pool = o->pool;
	s->limit_bytes = o->limit_bytes;
	s->last_save = &s->first_save;
	s->last_read = &s->first_read;
	rc = open_store(s, o, err);
	if (rc != OD_OK) {
		odm_prefix_store_close(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void odm_prefix_store_close(struct odm_prefix_store *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&s->lock);
	s->stopping = true;
	s->stop_ns = od_now_ns() + FLUSH_NS;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	if (s->has_writer)
		pthread_join(s->writer, NULL);
	if (s->has_reader)
		pthread_join(s->reader, NULL);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->news);
	pthread_mutex_destroy(&s->lock);
	od_id_table_fini(&s->files);
	free(s->write_buf);
	free(s->part);
	free(s);
}
