#include "deploy/hub/hub_file.h"

#include "common/base/file.h"
#include "common/pack/sums.h"
#include "deploy/hub/git_sum.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES (1u << 20)

struct fetch {
	const struct odp_file_job *job;
	struct odp_http_request r;
	char part[PATH_MAX], path[PATH_MAX];
	int fd;
	uint64_t at; /* bytes in the part that are in the sum, too */
	crypto_hash_sha256_state sha256;
	struct odp_git_sum git;
};

static bool paths(struct fetch *f, const char *dir, const char *name)
{
	return snprintf(f->path, sizeof(f->path), "%s/%s", dir, name) < (int)sizeof(f->path) &&
	       snprintf(f->part, sizeof(f->part), "%s/%s.part", dir, name) < (int)sizeof(f->part);
}

static bool is_whole(const char *path, uint64_t bytes)
{
	struct stat st;

	return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

uint64_t odp_file_have(const char *dir, const char *name, uint64_t bytes)
{
	struct fetch f;
	struct stat st;

	if (!paths(&f, dir, name))
		return 0;
	if (is_whole(f.path, bytes))
		return bytes;
	return lstat(f.part, &st) == 0 && (uint64_t)st.st_size <= bytes ? (uint64_t)st.st_size : 0;
}

/* ---- the sum ---- */

static void begin_sum(struct fetch *f)
{
	crypto_hash_sha256_init(&f->sha256);
	odp_git_sum_init(&f->git, f->job->bytes);
	f->at = 0;
}

static void add_sum(struct fetch *f, const void *bytes, size_t n)
{
	if (f->job->sum.kind == ODP_SUM_SHA256)
		crypto_hash_sha256_update(&f->sha256, bytes, n);
	else if (f->job->sum.kind == ODP_SUM_GIT)
		odp_git_sum_update(&f->git, bytes, n);
	f->at += n;
	f->job->advance(f->job->arg, (int64_t)n);
}

static int check_sum(struct fetch *f, struct od_err *err)
{
	const size_t n = f->job->sum.kind == ODP_SUM_SHA256 ? ODP_SUM_BYTES : ODP_GIT_SUM_BYTES;
	char expected[OD_HEX_CHARS(ODP_SUM_BYTES) + 1], found[OD_HEX_CHARS(ODP_SUM_BYTES) + 1];
	uint8_t sum[ODP_SUM_BYTES];

	if (f->job->sum.kind == ODP_SUM_NONE)
		return OD_OK;
	if (f->job->sum.kind == ODP_SUM_SHA256)
		crypto_hash_sha256_final(&f->sha256, sum);
	else
		odp_git_sum_final(&f->git, sum);
	if (memcmp(sum, f->job->sum.bytes, n) == 0)
		return OD_OK;
	od_hex(f->job->sum.bytes, n, expected);
	od_hex(sum, n, found);
	return od_fail(err, OD_ERR_CORRUPT, "%s: expected the %s %s that the hub lists, found %s: deleted", f->part,
		       f->job->sum.kind == ODP_SUM_SHA256 ? "SHA-256" : "git SHA-1", expected, found);
}

/* ---- the part ---- */

static int cut(struct fetch *f, struct od_err *err)
{
	f->job->advance(f->job->arg, -(int64_t)f->at);
	begin_sum(f);
	f->r.from = 0;
	return ftruncate(f->fd, 0) == 0 ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot empty %s", f->part);
}

/* Sums up what an earlier run left. */
static int read_part(struct fetch *f, uint64_t size, struct od_err *err)
{
	uint8_t *buf = malloc(PIECE_BYTES);
	int rc = buf != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory to read %s", f->part);

	begin_sum(f);
	while (rc == OD_OK && f->at < size) {
		const size_t n = size - f->at < PIECE_BYTES ? (size_t)(size - f->at) : PIECE_BYTES;

		rc = od_file_pread(f->fd, buf, n, f->at, f->part, err);
		if (rc == OD_OK)
			add_sum(f, buf, n);
	}
	free(buf);
	f->r.from = f->at;
	return rc;
}

static int open_part(struct fetch *f, struct od_err *err)
{
	struct stat st;

	f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (f->fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot write %s", f->part);
	if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
		return od_fail(err, OD_ERR_IO, "%s is not a regular file", f->part);
	begin_sum(f);
	if ((uint64_t)st.st_size > f->job->bytes)
		return cut(f, err);
	return read_part(f, (uint64_t)st.st_size, err);
}

/* ---- the transfer ---- */

static int wrong_length(const struct fetch *f, uint64_t found, struct od_err *err)
{
	return od_fail(err, OD_ERR_PROTOCOL, "%s: expected %" PRIu64 " bytes, as listed, but the server has %" PRIu64,
		       f->job->name, f->job->bytes, found);
}

/* Bytes of two versions of a file must not be mixed where no checksum would show it. */
static bool is_other_version(const struct odp_file_job *job, const struct odp_http_answer *a)
{
	if (job->sum.kind != ODP_SUM_NONE)
		return false;
	if (job->etag != NULL && job->etag[0] != '\0')
		return strcmp(job->etag, a->etag) != 0;
	return job->modified != NULL && job->modified[0] != '\0' && strcmp(job->modified, a->modified) != 0;
}

static int on_begin(void *arg, const struct odp_http_answer *a, struct od_err *err)
{
	struct fetch *f = arg;
	char text[400];
	uint64_t all;

	if (is_other_version(f->job, a))
		return od_fail(err, OD_ERR_PROTOCOL,
			       "%s: another version of it has come to %s meanwhile (by ETag or Last-Modified)",
			       f->job->name, a->host);
	if (a->status != 206) {
		if (a->has_length && a->length != f->job->bytes)
			return wrong_length(f, a->length, err);
		if (f->at == 0)
			return OD_OK;
		snprintf(text, sizeof(text), "%s does not send parts of files: %.200s begins anew", a->host,
			 f->job->name);
		f->job->note(f->job->arg, text);
		return cut(f, err);
	}
	if (!a->has_range || a->range_begin != f->at)
		return od_fail(err, OD_ERR_PROTOCOL, "%s: asked %s for the bytes from %" PRIu64 " on, got others",
			       f->job->name, a->host, f->at);
	all = a->range_total != 0 ? a->range_total : f->job->bytes;
	if (all != f->job->bytes)
		return wrong_length(f, all, err);
	return OD_OK;
}

static int on_take(void *arg, const void *bytes, size_t n, bool *enough, struct od_err *err)
{
	struct fetch *f = arg;
	int rc;

	(void)enough;
	if (n > f->job->bytes - f->at)
		return od_fail(err, OD_ERR_PROTOCOL,
			       "%s: expected %" PRIu64 " bytes, as listed, but the server sends more", f->job->name,
			       f->job->bytes);
	rc = od_file_pwrite(f->fd, bytes, n, f->at, f->part, err);
	if (rc != OD_OK)
		return rc;
	add_sum(f, bytes, n);
	f->r.from = f->at;
	return OD_OK;
}

/* Bytes from f->at to the end. A body without a length that ends early looks whole to libcurl: asks for the rest. */
static int transfer(struct odp_http *h, struct fetch *f, struct odp_http_answer *answer, struct od_err *err)
{
	while (f->at < f->job->bytes) {
		const uint64_t before = f->at;
		int rc = odp_http_run(h, &f->r, answer, err);

		if (rc != OD_OK && answer->status == 416)
			return od_fail(err, OD_ERR_PROTOCOL,
				       "%s: expected %" PRIu64 " bytes, as listed, but %s has none from byte %" PRIu64
				       " on (status 416)",
				       f->job->name, f->job->bytes, answer->host, f->at);
		if (rc != OD_OK)
			return rc;
		if (f->at == before)
			return od_fail(err, OD_ERR_PROTOCOL,
				       "%s: %s sends nothing from byte %" PRIu64 " of %" PRIu64 " on", f->job->name,
				       answer->host, f->at, f->job->bytes);
	}
	return OD_OK;
}

static int publish(struct fetch *f, struct od_err *err)
{
	if (fsync(f->fd) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot sync %s", f->part);
	if (rename(f->part, f->path) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot rename %s", f->part);
	return od_fsync_dir(f->job->dir, err);
}

/* If what an earlier run left spoils the sum, once more from the beginning. */
static int fetch(struct odp_http *h, struct fetch *f, struct odp_http_answer *answer, struct od_err *err)
{
	int rc = open_part(f, err);
	const bool resumed = f->at > 0;

	if (rc == OD_OK)
		rc = transfer(h, f, answer, err);
	if (rc != OD_OK)
		return rc;
	rc = check_sum(f, err);
	if (rc == OD_ERR_CORRUPT && resumed) {
		f->job->note(f->job->arg,
			     "what an earlier run left of this file is not what the hub lists: it begins anew");
		rc = cut(f, err);
		if (rc == OD_OK)
			rc = transfer(h, f, answer, err);
		if (rc != OD_OK)
			return rc;
		rc = check_sum(f, err);
	}
	if (rc == OD_ERR_CORRUPT) {
		f->job->advance(f->job->arg, -(int64_t)f->at);
		unlink(f->part);
	}
	return rc == OD_OK ? publish(f, err) : rc;
}

int odp_file_fetch(struct odp_http *h, const struct odp_file_job *job, struct odp_http_answer *answer,
		   struct od_err *err)
{
	struct fetch f = { .job = job, .fd = -1 };
	int rc;

	*answer = (struct odp_http_answer){ 0 };
	if (!paths(&f, job->dir, job->name))
		return od_fail(err, OD_ERR_ARG, "%s/%s: the name is too long", job->dir, job->name);
	if (is_whole(f.path, job->bytes)) {
		job->advance(job->arg, (int64_t)job->bytes);
		return OD_OK;
	}
	f.r = (struct odp_http_request){ .url = job->url, .begin = on_begin, .take = on_take, .arg = &f };
	rc = fetch(h, &f, answer, err);
	if (f.fd >= 0)
		close(f.fd);
	return rc;
}
