#include "main-node/serve/api/call_file.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strbuf.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC "ODCALL1\n"
#define MAGIC_BYTES (sizeof(MAGIC) - 1)
#define AT_SUM MAGIC_BYTES
#define AT_LENGTHS (AT_SUM + sizeof(uint64_t))
#define HEAD_BYTES (AT_LENGTHS + 2 * sizeof(uint32_t))
#define MAX_WRONG_SUMS 1000 /* then the rest is not looked at: a sum may be of a large part of the file */

struct odm_call_file {
	char path[PATH_MAX];
	size_t max_bytes;
	pthread_t thread;
	bool has_thread;
	/* The thread's, once it runs. */
	int fd;
	size_t bytes;
	bool warned; /* the log says that calls cannot be written */
	pthread_mutex_t lock;
	pthread_cond_t work;
	/* Under the lock. */
	struct od_strbuf waiting; /* records */
	bool stopping;
};

/* ---- Records ---- */

struct call_record {
	size_t at, bytes; /* in the file */
	const char *id, *arguments;
	uint32_t id_len, arguments_len;
};

static void add_record(struct od_strbuf *to, const char *id, const char *arguments)
{
	const uint32_t lengths[2] = { (uint32_t)strlen(id), (uint32_t)strlen(arguments) };
	const size_t begin = to->len;
	uint64_t sum = 0;

	od_strbuf_append(to, MAGIC, MAGIC_BYTES);
	od_strbuf_append(to, (const char *)&sum, sizeof(sum));
	od_strbuf_append(to, (const char *)lengths, sizeof(lengths));
	od_strbuf_append(to, id, lengths[0]);
	od_strbuf_append(to, arguments, lengths[1]);
	if (to->failed)
		return;
	sum = XXH3_64bits(to->text + begin + AT_LENGTHS, to->len - begin - AT_LENGTHS);
	memcpy(to->text + begin + AT_SUM, &sum, sizeof(sum));
}

/* False: no record begins there. *wrong_sum: one did, but for its sum. */
static bool read_record(struct call_record *r, const char *data, size_t len, size_t at, bool *wrong_sum)
{
	uint32_t lengths[2];
	uint64_t sum;

	*wrong_sum = false;
	if (len - at < HEAD_BYTES || memcmp(data + at, MAGIC, MAGIC_BYTES) != 0)
		return false;
	memcpy(&sum, data + at + AT_SUM, sizeof(sum));
	memcpy(lengths, data + at + AT_LENGTHS, sizeof(lengths));
	*r = (struct call_record){ .at = at, .id_len = lengths[0], .arguments_len = lengths[1] };
	r->bytes = HEAD_BYTES + (size_t)lengths[0] + lengths[1]; /* 64 bits */
	if (r->bytes > len - at)
		return false;
	r->id = data + at + HEAD_BYTES;
	r->arguments = r->id + r->id_len;
	*wrong_sum = XXH3_64bits(data + at + AT_LENGTHS, r->bytes - AT_LENGTHS) != sum;
	return !*wrong_sum && memchr(r->id, '\0', r->bytes - HEAD_BYTES) == NULL;
}

/* The first record at or behind *at, which then is its end. False: there is none. */
static bool next_record(struct call_record *r, const char *data, size_t len, size_t *at, unsigned *wrong_sums)
{
	for (size_t from = *at; from < len && *wrong_sums < MAX_WRONG_SUMS; from++) {
		const char *magic = memmem(data + from, len - from, MAGIC, MAGIC_BYTES);
		bool wrong;

		if (magic == NULL)
			return false;
		from = (size_t)(magic - data);
		if (read_record(r, data, len, from, &wrong)) {
			*at = from + r->bytes;
			return true;
		}
		*wrong_sums += wrong;
	}
	return false;
}

static size_t sum_records(const char *data, size_t len)
{
	struct call_record r;
	unsigned wrong_sums = 0;
	size_t sum = 0;

	for (size_t at = 0; next_record(&r, data, len, &at, &wrong_sums);)
		sum += r.bytes;
	return sum;
}

/* ---- The file ---- */

/* Writes the file anew, with the newest records of data [len], max_bytes at most. */
static int write_anew(struct odm_call_file *f, const char *data, size_t len, struct od_err *err)
{
	size_t sum = sum_records(data, len);
	struct od_strbuf kept = { 0 };
	struct call_record r;
	unsigned wrong_sums = 0;
	int rc;

	for (size_t at = 0; next_record(&r, data, len, &at, &wrong_sums); sum -= r.bytes)
		if (sum <= f->max_bytes)
			od_strbuf_append(&kept, data + r.at, r.bytes);
	rc = kept.failed ? od_fail(err, OD_ERR_NOMEM, "no memory for %s", f->path) :
			   od_file_write_private(f->path, od_strbuf_text(&kept), kept.len, err);
	if (rc == OD_OK)
		f->bytes = kept.len;
	od_strbuf_fini(&kept);
	return rc;
}

static int open_for_writing(struct odm_call_file *f, struct od_err *err)
{
	struct stat st;

	if (f->fd >= 0)
		close(f->fd);
	f->fd = open(f->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (f->fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", f->path);
	if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
		return od_fail(err, OD_ERR_IO, "%s is no regular file", f->path);
	return OD_OK;
}

static int read_calls(struct odm_call_file *f, void (*call)(void *arg, const char *id, const char *arguments),
		      void *arg, struct od_err *err)
{
	struct call_record r;
	unsigned wrong_sums = 0;
	size_t len, sum = 0;
	char *data;
	int rc;

	if (!od_file_there(f->path))
		return OD_OK;
	/* It is written anew before it has so many bytes. */
	rc = od_file_read(f->path, 4 * f->max_bytes, &data, &len, err);
	if (rc != OD_OK) {
		od_log(OD_LOG_WARN, "%s; it is written anew", err->msg);
		return write_anew(f, "", 0, err);
	}
	for (size_t at = 0; next_record(&r, data, len, &at, &wrong_sums);) {
		char *id = strndup(r.id, r.id_len), *arguments = strndup(r.arguments, r.arguments_len);

		if (id != NULL && arguments != NULL)
			call(arg, id, arguments);
		free(id);
		free(arguments);
		sum += r.bytes;
	}
	f->bytes = len;
	if (sum != len)
		od_log(OD_LOG_WARN,
		       "%s: dropped %zu bytes that are no calls; tool calls of older answers may be computed again",
		       f->path, len - sum);
	if (sum != len || len > f->max_bytes)
		rc = write_anew(f, data, len, err);
	free(data);
	return rc;
}

/* The thread's: writes these records, or none. */
static int append(struct odm_call_file *f, const struct od_strbuf *records, struct od_err *err)
{
	int rc = od_file_pwrite(f->fd, records->text, records->len, f->bytes, f->path, err);
	size_t len;
	char *data;

	if (rc != OD_OK) {
		(void)!ftruncate(f->fd, (off_t)f->bytes);
		return rc;
	}
	f->bytes += records->len;
	if (f->bytes <= 2 * f->max_bytes)
		return OD_OK;
	rc = od_file_read(f->path, 4 * f->max_bytes, &data, &len, err);
	if (rc == OD_OK)
		rc = write_anew(f, data, len, err);
	free(data);
	return rc == OD_OK ? open_for_writing(f, err) : rc;
}

static void *writer_main(void *arg)
{
	struct odm_call_file *f = arg;
	struct od_strbuf records;
	struct od_err err;
	int rc;

	pthread_mutex_lock(&f->lock);
	while (true) {
		while (!f->stopping && f->waiting.len == 0)
			pthread_cond_wait(&f->work, &f->lock);
		if (f->waiting.len == 0)
			break;
		records = f->waiting;
		f->waiting = (struct od_strbuf){ 0 };
		pthread_mutex_unlock(&f->lock);
		rc = append(f, &records, &err);
		if (rc != OD_OK && !f->warned)
			od_log(OD_LOG_WARN, "%s; tool calls are in memory only until this works again", err.msg);
		f->warned = rc != OD_OK;
		od_strbuf_fini(&records);
		pthread_mutex_lock(&f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	(void)!fsync(f->fd);
	return NULL;
}

/* ---- Life ---- */

int odm_call_file_open(struct odm_call_file **out, const char *path, size_t max_bytes,
		       void (*call)(void *arg, const char *id, const char *arguments), void *arg, struct od_err *err)
{
	struct odm_call_file *f = calloc(1, sizeof(*f));
	int rc = OD_OK;

	*out = NULL;
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", path);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->work, NULL);
	f->fd = -1;
	f->max_bytes = max_bytes;
	if (strlen(path) >= sizeof(f->path))
		rc = od_fail(err, OD_ERR_RANGE, "%s: the path is too long", path);
	else
		memcpy(f->path, path, strlen(path) + 1);
	if (rc == OD_OK)
		rc = read_calls(f, call, arg, err);
	if (rc == OD_OK)
		rc = open_for_writing(f, err);
	if (rc == OD_OK) {
		f->has_thread = pthread_create(&f->thread, NULL, writer_main, f) == 0;
		if (!f->has_thread)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: cannot start a thread", path);
	}
	if (rc != OD_OK) {
		odm_call_file_close(f);
		return rc;
	}
	pthread_setname_np(f->thread, "od-calls");
	*out = f;
	return OD_OK;
}

void odm_call_file_add(struct odm_call_file *f, const char *id, const char *arguments)
{
	if (strlen(id) + strlen(arguments) > f->max_bytes)
		return;
	pthread_mutex_lock(&f->lock);
	if (f->waiting.len < f->max_bytes)
		add_record(&f->waiting, id, arguments);
	if (f->waiting.failed) /* half of a record may be there */
		od_strbuf_fini(&f->waiting);
	pthread_cond_signal(&f->work);
	pthread_mutex_unlock(&f->lock);
}

void odm_call_file_close(struct odm_call_file *f)
{
	if (f == NULL)
		return;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_signal(&f->work);
	pthread_mutex_unlock(&f->lock);
	if (f->has_thread)
		pthread_join(f->thread, NULL);
	if (f->fd >= 0)
		close(f->fd);
	od_strbuf_fini(&f->waiting);
	pthread_cond_destroy(&f->work);
	pthread_mutex_destroy(&f->lock);
	free(f);
}
