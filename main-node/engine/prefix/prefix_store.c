#include "main-node/engine/prefix/prefix_store.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/timed_cond.h"
#include "common/compute/cards.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define NONE UINT32_MAX
_Static_assert(NONE == ODM_NO_SNAPSHOT, "one number for both");
#define MAX_SAVES 64u /* texts that wait to be written; more are lost */
#define STALLED_NS (2 * OD_NS_PER_S)
#define FLUSH_NS (5 * OD_NS_PER_S)
#define WAIT_NS (20 * OD_NS_PER_MS)
#define NICE 10 /* the writer's */
#define STATE_OLDER_US 1000000
#define READ_AT_ONCE (4u << 20) /* bytes of a file: progress is noted after each piece */

/* A text whose pages are to be written. */
struct save {
	struct save *next;
	int64_t used_us; /* since 1970 */
	bool is_long;
	uint32_t n_pages;
	/* [n_pages]: pages, and snapshots; NONE: none, or it holds something else by now */
	uint32_t *at[ODM_N_PREFIX_WHAT];
	int32_t *text; /* [n_pages * OD_KV_PAGE] */
};

struct odm_prefix_read {
	struct odm_prefix_store *store;
	struct odm_prefix_read *next; /* while it waits */
	uint32_t begin, at, end; /* pages [begin, at) were read */
	uint32_t *page; /* [end] */
	uint32_t state; /* snapshot that the last one's is read to */
	bool has_state; /* it was read */
	int32_t *text; /* [end * OD_KV_PAGE] */
	int64_t used_us; /* since 1970 */
	bool is_long;
	uint64_t progress_ns; /* when it began, or the last page was read */
	bool busy; /* the reader has it */
	bool ended, closed;
};

/* A region of a page: a stream of a layer. A part of a snapshot: one card's share. */
struct store_region {
	struct od_ref first; /* in the pool: that of page, or snapshot, 0 */
	size_t each_bytes;
	uint64_t stride; /* from one page's, or snapshot's, to the next */
};

struct odm_prefix_store {
	struct odm_prefix_folder folder;
	struct od_state_pool *pool;
	struct od_device *device;
	struct store_region *region[ODM_N_PREFIX_WHAT];
	size_t n_regions[ODM_N_PREFIX_WHAT];
	pthread_t writer, reader;
	bool has_writer, has_reader;
	/* The writer's. */
	uint8_t *write_buf;
	bool warned; /* the log says that files cannot be written */
	pthread_mutex_t lock;
	pthread_cond_t work, news; /* for the threads; a page was read */
	/* Under the lock. */
	struct save *first_save, **last_save;
	size_t n_saves;
	struct odm_prefix_read *first_read, **last_read;
	bool stuck; /* the reader has a read that was closed */
	bool stopping;
	uint64_t stop_ns;
};

/* ---- Rows ---- */

static bool has_state(const struct odm_prefix_store *s)
{
	return s->folder.id[ODM_PREFIX_STATE].rows_bytes > 0;
}

/* Lock held, so that the page, or the snapshot, stays what it is. False: the device has failed, and the target may hold
 * anything. */
static bool copy_rows(const struct odm_prefix_store *s, enum odm_prefix_what what, uint32_t i, uint8_t *rows,
		      bool to_pool)
{
	const uint64_t errors = od_device_load_errors(s->device);
	struct od_err err;

	for (size_t k = 0; k < s->n_regions[what]; k++) {
		const struct store_region *region = &s->region[what][k];
		const struct od_ref at = od_ref_at(region->first, i * region->stride);

		if (to_pool)
			od_device_put(s->device, OD_QUEUE_LOADS, at, rows, region->each_bytes);
		else
			od_device_get(s->device, OD_QUEUE_LOADS, rows, at, region->each_bytes);
		rows += region->each_bytes;
	}
	if (od_device_wait(s->device, OD_QUEUE_LOADS, od_device_ticket(s->device, OD_QUEUE_LOADS), &err) != OD_OK) {
		od_log_limited(OD_LOG_WARN, "prefix cache: %s", err.msg);
		return false;
	}
	/* the other thread's wait may have reported an error of this copy */
	return od_device_load_errors(s->device) == errors;
}

static void add_region(struct odm_prefix_store *s, enum odm_prefix_what what, struct od_ref first, size_t each_bytes,
		       uint64_t stride)
{
	s->region[what][s->n_regions[what]++] = (struct store_region){ first, each_bytes, stride };
}

static int list_regions(struct odm_prefix_store *s, const struct od_config *c, struct od_err *err)
{
	size_t sum = 0;

	s->region[ODM_PREFIX_PAGE] = calloc((size_t)c->n_layers * OD_MAX_STREAMS, sizeof(struct store_region));
	s->region[ODM_PREFIX_STATE] = calloc(OD_MAX_CARDS, sizeof(struct store_region));
	if (s->region[ODM_PREFIX_PAGE] == NULL || s->region[ODM_PREFIX_STATE] == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	for (uint32_t l = 0; l < c->n_layers; l++) {
		struct od_stream stream[OD_MAX_STREAMS];
		const uint32_t n = od_state_pool_streams(s->pool, l, stream);

		for (uint32_t i = 0; i < n; i++) {
			const size_t bytes = OD_KV_PAGE * stream[i].row_bytes;

			add_region(s, ODM_PREFIX_PAGE, stream[i].pages, bytes, stream[i].page_bytes);
			sum += bytes;
		}
	}
	assert(sum == s->folder.id[ODM_PREFIX_PAGE].rows_bytes);
	for (unsigned i = 0; has_state(s) && i < od_device_cards(s->device); i++) {
		if (od_state_pool_card_bytes(s->pool, i) > 0)
			add_region(s, ODM_PREFIX_STATE, od_state_pool_snapshot(s->pool, i, 0),
				   od_state_pool_card_bytes(s->pool, i), od_state_pool_card_bytes(s->pool, i));
	}
	return OD_OK;
}

/* The engine thread's: what the store's threads copy from now on, they copy after all that the device was given to
 * compute until now. */
static void follow_compute(const struct odm_prefix_store *s)
{
	od_device_after(s->device, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(s->device, OD_QUEUE_COMPUTE));
}

/* ---- Writing ---- */

/* Marks a file as used. The first pages of a text count as used last, so that they stay longest. False: there is
 * none. */
static bool touch(const char *path, enum odm_prefix_what what, int64_t used_us, uint32_t page)
{
	const int64_t us = used_us - page - (what == ODM_PREFIX_STATE ? STATE_OLDER_US : 0);
	const struct timespec at = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, times[2] = { at, at };

	return utimensat(AT_FDCWD, path, times, 0) == 0;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* False: the page, or its snapshot, is not there, or holds something else by now; or it cannot be copied. */
static bool take_rows(struct odm_prefix_store *s, const struct save *v, enum odm_prefix_what what, uint32_t page)
{
	bool there;

	pthread_mutex_lock(&s->lock);
	there = v->at[what][page] != NONE &&
		copy_rows(s, what, v->at[what][page], odm_prefix_file_rows(s->write_buf, page), false);
	pthread_mutex_unlock(&s->lock);
	return there;
}

static int write_file(struct odm_prefix_store *s, const struct save *v, enum odm_prefix_what what, uint32_t page,
		      const struct odm_prefix_key *key, const char *path, struct od_err *err)
{
	const struct odm_prefix_id *id = &s->folder.id[what];
	const size_t bytes = odm_prefix_file_bytes(id, page);
	int rc = odm_prefix_folder_make_room(&s->folder, bytes, err);

	if (rc != OD_OK)
		return rc;
	odm_prefix_file_seal(s->write_buf, id, key, v->text, page);
	rc = od_file_write_private(path, s->write_buf, bytes, err);
	if (rc != OD_OK)
		return rc;
	(void)touch(path, what, v->used_us, page);
	s->folder.all_bytes += bytes;
	odm_prefix_folder_note(&s->folder, what, key, true);
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

/* The page has a snapshot, and it holds nothing else yet. */
static bool keeps_state(struct odm_prefix_store *s, const struct save *v, uint32_t page)
{
	bool yes;

	pthread_mutex_lock(&s->lock);
	yes = v->at[ODM_PREFIX_STATE] != NULL && v->at[ODM_PREFIX_STATE][page] != NONE;
	pthread_mutex_unlock(&s->lock);
	return yes;
}

/* Writes what has no file yet. False: there is nothing to write, or it cannot be written. */
static bool save_rows(struct odm_prefix_store *s, const struct save *v, enum odm_prefix_what what, uint32_t page,
		      const struct odm_prefix_key *key)
{
	char path[PATH_MAX];
	struct od_err err;

	if (!odm_prefix_folder_path(&s->folder, path, what, key))
		return false;
	/* One that only has the name is replaced. */
	if (odm_prefix_folder_has(&s->folder, what, key) && touch(path, what, v->used_us, page))
		return true;
	if (!take_rows(s, v, what, page))
		return false;
	if (write_file(s, v, what, page, key, path, &err) == OD_OK) {
		s->warned = false;
		return true;
	}
	if (!s->warned)
		od_log(OD_LOG_WARN, "prefix cache: %s; pages are kept in memory only until this works again", err.msg);
	s->warned = true;
	return false;
}

/* A page without the one before it would never be found, nor a snapshot without its page. */
static void write_text(struct odm_prefix_store *s, const struct save *v)
{
	struct odm_prefix_key key;

	odm_prefix_key_begin(&key, &s->folder.id[ODM_PREFIX_PAGE], v->is_long);
	for (uint32_t i = 0; i < v->n_pages && has_time(s); i++) {
		odm_prefix_key_next(&key, v->text + (size_t)i * OD_KV_PAGE);
		if (!save_rows(s, v, ODM_PREFIX_PAGE, i, &key))
			return;
		if (keeps_state(s, v, i))
			(void)save_rows(s, v, ODM_PREFIX_STATE, i, &key);
	}
}

static void free_save(struct save *v)
{
	for (int what = 0; what < ODM_N_PREFIX_WHAT; what++)
		free(v->at[what]);
	free(v->text);
	free(v);
}

static void *writer_main(void *arg)
{
	struct odm_prefix_store *s = arg;
	struct save *v;

	(void)!setpriority(PRIO_PROCESS, 0, NICE); /* Linux: this thread's */
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

static void *copy_array(const void *from, size_t n, size_t each)
{
	void *to = malloc(n * each);

	return to == NULL ? NULL : memcpy(to, from, n * each);
}

void odm_prefix_store_save(struct odm_prefix_store *s, bool is_long, const int32_t *text, uint32_t n_pages,
			   const uint32_t *page, const uint32_t *state)
{
	struct save *v = n_pages > 0 ? calloc(1, sizeof(*v)) : NULL;

	if (v == NULL)
		return;
	*v = (struct save){ .used_us = now_us(), .is_long = is_long, .n_pages = n_pages };
	v->at[ODM_PREFIX_PAGE] = copy_array(page, n_pages, sizeof(*page));
	v->at[ODM_PREFIX_STATE] = state != NULL ? copy_array(state, n_pages, sizeof(*state)) : NULL;
	v->text = copy_array(text, (size_t)n_pages * OD_KV_PAGE, sizeof(*v->text));
	if (v->at[ODM_PREFIX_PAGE] != NULL && v->text != NULL) {
		follow_compute(s);
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

void odm_prefix_store_forget(struct odm_prefix_store *s, enum odm_prefix_what what, uint32_t number)
{
	pthread_mutex_lock(&s->lock);
	for (struct save *v = s->first_save; v != NULL; v = v->next)
		for (uint32_t i = 0; v->at[what] != NULL && i < v->n_pages; i++)
			if (v->at[what][i] == number)
				v->at[what][i] = NONE;
	pthread_mutex_unlock(&s->lock);
}

/* ---- Reading ---- */

static void note_progress(struct odm_prefix_store *s, struct odm_prefix_read *r)
{
	pthread_mutex_lock(&s->lock);
	r->progress_ns = od_now_ns();
	pthread_mutex_unlock(&s->lock);
}

/* The reader's: a file of page i of the text to buf. */
static int load_file(struct odm_prefix_store *s, struct odm_prefix_read *r, enum odm_prefix_what what, uint32_t i,
		     const struct odm_prefix_key *key, const char *path, uint8_t *buf, struct od_err *err)
{
	const size_t bytes = odm_prefix_file_bytes(&s->folder.id[what], i);
	uint64_t size;
	int fd, rc = od_file_open(path, &fd, &size, err);

	if (rc != OD_OK)
		return rc;
	if (size != bytes)
		rc = od_fail(err, OD_ERR_FORMAT, "expected %zu bytes, found %llu", bytes, (unsigned long long)size);
	for (size_t at = 0, n; rc == OD_OK && at < bytes; at += n) {
		n = bytes - at < READ_AT_ONCE ? bytes - at : READ_AT_ONCE;
		rc = od_file_pread(fd, buf + at, n, at, path, err);
		note_progress(s, r);
	}
	close(fd);
	return rc == OD_OK ? odm_prefix_file_check(buf, bytes, &s->folder.id[what], key, r->text, i, err) : rc;
}

/* One file; false: it cannot be had. One that is not what it should be is deleted. */
static bool read_file(struct odm_prefix_store *s, struct odm_prefix_read *r, enum odm_prefix_what what, uint32_t i,
		      const struct odm_prefix_key *key, uint8_t *buf)
{
	char path[PATH_MAX];
	struct od_err err;
	int rc;

	if (!odm_prefix_folder_path(&s->folder, path, what, key))
		return false;
	rc = load_file(s, r, what, i, key, path, buf, &err);
	if (rc == OD_OK) {
		(void)touch(path, what, r->used_us, i);
		return true;
	}
	odm_prefix_folder_note(&s->folder, what, key, false);
	if ((rc == OD_ERR_FORMAT || rc == OD_ERR_CORRUPT) && unlink(path) == 0)
		od_log(OD_LOG_WARN, "prefix cache: deleted %s: %s; its tokens are computed again", path, err.msg);
	return false;
}

/* Reads a file of page i into the pool. False: no more is to be read. */
static bool read_rows(struct odm_prefix_store *s, struct odm_prefix_read *r, enum odm_prefix_what what, uint32_t i,
		      const struct odm_prefix_key *key, uint8_t *buf)
{
	bool more = read_file(s, r, what, i, key, buf);

	pthread_mutex_lock(&s->lock);
	more = more && !r->closed && !s->stopping &&
	       copy_rows(s, what, what == ODM_PREFIX_STATE ? r->state : r->page[i], odm_prefix_file_rows(buf, i), true);
	if (more) {
		r->at = i + 1;
		r->has_state = what == ODM_PREFIX_STATE;
		r->progress_ns = od_now_ns();
		pthread_cond_broadcast(&s->news);
	}
	pthread_mutex_unlock(&s->lock);
	return more;
}

static size_t largest_file(const struct odm_prefix_store *s, uint32_t page)
{
	const size_t rows = odm_prefix_file_bytes(&s->folder.id[ODM_PREFIX_PAGE], page);
	const size_t state = odm_prefix_file_bytes(&s->folder.id[ODM_PREFIX_STATE], page);

	return rows > state ? rows : state;
}

static void read_text(struct odm_prefix_store *s, struct odm_prefix_read *r)
{
	uint8_t *buf = malloc(largest_file(s, r->end - 1));
	struct odm_prefix_key key;
	bool more = buf != NULL;

	odm_prefix_key_begin(&key, &s->folder.id[ODM_PREFIX_PAGE], r->is_long);
	for (uint32_t i = 0; more && i < r->end; i++) {
		odm_prefix_key_next(&key, r->text + (size_t)i * OD_KV_PAGE);
		if (i >= r->begin)
			more = read_rows(s, r, ODM_PREFIX_PAGE, i, &key, buf);
	}
	if (more && has_state(s))
		(void)read_rows(s, r, ODM_PREFIX_STATE, r->end - 1, &key, buf);
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

uint32_t odm_prefix_store_find(struct odm_prefix_store *s, bool is_long, const int32_t *text, uint32_t begin,
			       uint32_t n_pages)
{
	struct odm_prefix_key key;
	uint32_t end = begin;
	bool there;

	pthread_mutex_lock(&s->lock);
	there = !s->stuck;
	pthread_mutex_unlock(&s->lock);
	odm_prefix_key_begin(&key, &s->folder.id[ODM_PREFIX_PAGE], is_long);
	for (uint32_t i = 0; there && i < n_pages; i++) {
		odm_prefix_key_next(&key, text + (size_t)i * OD_KV_PAGE);
		if (i < begin)
			continue;
		there = odm_prefix_folder_has(&s->folder, ODM_PREFIX_PAGE, &key);
		if (there && (!has_state(s) || odm_prefix_folder_has(&s->folder, ODM_PREFIX_STATE, &key)))
			end = i + 1;
	}
	return end;
}

struct odm_prefix_read *odm_prefix_store_read(struct odm_prefix_store *s, bool is_long, const int32_t *text,
					      uint32_t begin, uint32_t end, const uint32_t *page, uint32_t state)
{
	struct odm_prefix_read *r = calloc(1, sizeof(*r));

	assert(begin < end && has_state(s) == (state != ODM_NO_SNAPSHOT));
	if (r == NULL)
		return NULL;
	*r = (struct odm_prefix_read){ .store = s,
				       .begin = begin,
				       .at = begin,
				       .end = end,
				       .state = state,
				       .used_us = now_us(),
				       .is_long = is_long,
				       .progress_ns = od_now_ns() };
	r->page = copy_array(page, end, sizeof(*page));
	r->text = copy_array(text, (size_t)end * OD_KV_PAGE, sizeof(*text));
	if (r->page == NULL || r->text == NULL) {
		free_read(r);
		return NULL;
	}
	follow_compute(s);
	pthread_mutex_lock(&s->lock);
	*s->last_read = r;
	s->last_read = &r->next;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	return r;
}

bool odm_prefix_read_goes_on(struct odm_prefix_read *r, uint32_t *end, bool *state)
{
	struct odm_prefix_store *s = r->store;
	bool stalled, ended;

	pthread_mutex_lock(&s->lock);
	*end = r->at;
	*state = r->has_state;
	ended = r->ended;
	stalled = od_now_ns() - r->progress_ns > STALLED_NS;
	pthread_mutex_unlock(&s->lock);
	if (!ended && stalled)
		od_log_limited(OD_LOG_WARN, "prefix cache: %s gave no page for %d s; what is missing is computed",
			       s->folder.dir, (int)(STALLED_NS / OD_NS_PER_S));
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
	const uint64_t until_ns = od_now_ns() + WAIT_NS;

	pthread_mutex_lock(&s->lock);
	(void)od_timed_cond_wait(&s->news, &s->lock, until_ns);
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
	int rc = odm_prefix_folder_init(&s->folder, o->dir, o->limit_bytes, &o->kind, err);

	if (rc == OD_OK)
		rc = list_regions(s, o->kind.config, err);
	if (rc != OD_OK)
		return rc;
	s->write_buf = malloc(largest_file(s, most));
	if (s->write_buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache: no memory for a page");
	return start_threads(s, err);
}

int odm_prefix_store_open(struct odm_prefix_store **out, const struct odm_prefix_store_opts *o, struct od_err *err)
{
	struct odm_prefix_store *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	pthread_mutex_init(&s->lock, NULL);
	od_timed_cond_init(&s->work);
	od_timed_cond_init(&s->news);
	s->pool = o->pool;
	s->device = o->device;
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

const char *odm_prefix_store_dir(const struct odm_prefix_store *s)
{
	return s->folder.dir;
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
	odm_prefix_folder_fini(&s->folder);
	free(s->write_buf);
	for (int what = 0; what < ODM_N_PREFIX_WHAT; what++)
		free(s->region[what]);
	free(s);
}
