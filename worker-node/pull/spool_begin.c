#include "worker-node/pull/spool_begin.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 100
#define BUSY_MS 20
#define PROGRESS_NS (5 * OD_NS_PER_S)

_Static_assert(OD_SPOOL_PIECE_MAX_BYTES == OD_STORE_PIECE_BYTES, "what a spool takes is what a store sends");

/* Ranges of files that are all needed, in any order. */
struct wanted {
	const char *what; /* for messages */
	size_t n;
	uint8_t *state; /* [n] */
	void *arg;
	void (*range)(void *arg, size_t i, uint32_t *file, uint64_t *offset, uint32_t *bytes);
	int (*put)(void *arg, size_t i, const uint8_t *bytes, struct od_err *err);
};
enum { LACKING, ASKED, DONE };

static void ask(struct odw_store *store, struct wanted *w)
{
	for (size_t i = 0; i < w->n; i++) {
		uint64_t offset;
		uint32_t file, bytes;

		if (w->state[i] != LACKING)
			continue;
		w->range(w->arg, i, &file, &offset, &bytes);
		if (odw_store_fetch(store, file, offset, bytes, i) != OD_OK)
			return;
		w->state[i] = ASKED;
	}
}

static int take(struct odw_store *store, struct wanted *w, size_t *n_done, struct od_err *err)
{
	const struct timespec pause = { .tv_nsec = BUSY_MS * OD_NS_PER_MS };
	struct odw_fetched f;
	int rc = OD_OK;

	while (rc == OD_OK && odw_store_next(store, &f)) {
		if (f.tag >= w->n || w->state[f.tag] != ASKED) {
			; /* answer to an earlier pull */
		} else if (f.code == OD_ERR_BUSY) {
			w->state[f.tag] = LACKING;
			nanosleep(&pause, NULL);
		} else if (f.code != OD_OK) {
			rc = od_fail(err, f.code, "store %s cannot send %s: %s", odw_store_name(store), w->what,
				     f.reason);
		} else {
			rc = w->put(w->arg, f.tag, f.bytes, err);
			w->state[f.tag] = DONE;
			(*n_done)++;
		}
		od_msg_fini(&f.msg);
	}
	return rc;
}

static int pull_all(struct odw_store *store, struct wanted *w, struct od_err *err)
{
	uint64_t life = odw_store_life(store), said_ns = od_now_ns();
	size_t n_done = 0;
	int rc = OD_OK;

	for (size_t i = 0; i < w->n; i++)
		n_done += w->state[i] == DONE;
	while (rc == OD_OK && n_done < w->n) {
		odw_store_tick(store);
		if (life != odw_store_life(store)) {
			for (size_t i = 0; i < w->n; i++)
				w->state[i] = w->state[i] == ASKED ? LACKING : w->state[i];
			life = odw_store_life(store);
		}
		ask(store, w);
		odw_store_wait(store, -1, TICK_MS);
		rc = take(store, w, &n_done, err);
		if (od_now_ns() - said_ns < PROGRESS_NS)
			continue;
		said_ns = od_now_ns();
		if (odw_store_ready(store))
			od_log(OD_LOG_INFO, "pulling %s: %zu of %zu", w->what, n_done, w->n);
	}
	return rc;
}

/* ---- small files ---- */

struct small {
	uint32_t file;
	uint64_t bytes;
	uint8_t *buf;
};

static void small_range(void *arg, size_t i, uint32_t *file, uint64_t *offset, uint32_t *bytes)
{
	const struct small *s = arg;
	const uint64_t left = s->bytes - i * (uint64_t)OD_STORE_SHARE_BYTES;

	*file = s->file;
	*offset = i * (uint64_t)OD_STORE_SHARE_BYTES;
	*bytes = left < OD_STORE_SHARE_BYTES ? (uint32_t)left : OD_STORE_SHARE_BYTES;
}

static int small_put(void *arg, size_t i, const uint8_t *bytes, struct od_err *err)
{
	const struct small *s = arg;
	uint64_t offset;
	uint32_t file, len;

	(void)err;
	small_range(arg, i, &file, &offset, &len);
	memcpy(s->buf + offset, bytes, len);
	return OD_OK;
}

/* *buf is malloc'd. */
static int pull_file(struct odw_store *store, uint32_t file, const char *name, uint64_t max_bytes, uint8_t **buf,
		     size_t *len, struct od_err *err)
{
	struct small s = { .file = file, .bytes = odw_store_info(store)->bytes[file] };
	uint8_t state[OD_SPOOL_SMALL_MAX_BYTES / OD_STORE_SHARE_BYTES + 1] = { LACKING };
	struct wanted w = { .what = name, .state = state, .arg = &s, .range = small_range, .put = small_put };
	int rc;

	*buf = NULL;
	*len = (size_t)s.bytes;
	if (s.bytes == 0 || s.bytes > max_bytes)
		return od_fail(err, OD_ERR_FORMAT, "store %s: %s of %" PRIu64 " bytes, expected 1 to %" PRIu64,
			       odw_store_name(store), name, s.bytes, max_bytes);
	s.buf = malloc((size_t)s.bytes);
	if (s.buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s", name);
	w.n = (size_t)((s.bytes + OD_STORE_SHARE_BYTES - 1) / OD_STORE_SHARE_BYTES);
	rc = pull_all(store, &w, err);
	if (rc != OD_OK) {
		free(s.buf);
		return rc;
	}
	*buf = s.buf;
	return OD_OK;
}

static int check_identity(const struct od_spool *spool, const struct odw_store *store, struct od_err *err)
{
	uint8_t ours[OD_SHA256_BYTES];

	if (!od_spool_identity(spool, ours) || memcmp(ours, odw_store_info(store)->sums_sha256, sizeof(ours)) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_MISMATCH,
		       "the spool has files of another pack than store %s: use another --spool folder, "
		       "or delete this one",
		       odw_store_name(store));
}

static void wait_for_store(struct odw_store *store)
{
	struct odw_fetched f;

	while (odw_store_tick(store), !odw_store_ready(store)) {
		odw_store_wait(store, -1, TICK_MS);
		if (odw_store_next(store, &f))
			od_msg_fini(&f.msg);
	}
}

static int pull_small(struct od_spool *spool, struct odw_store *store, struct od_err *err)
{
	uint8_t *buf, sum[OD_SHA256_BYTES];
	size_t len;
	int rc;

	wait_for_store(store);
	rc = check_identity(spool, store, err);
	if (rc == OD_OK)
		rc = pull_file(store, OD_STORE_SUMS, OD_SUMS_NAME, OD_SPOOL_SUMS_MAX_BYTES, &buf, &len, err);
	if (rc != OD_OK)
		return rc;
	crypto_hash_sha256(sum, buf, len);
	if (memcmp(sum, odw_store_info(store)->sums_sha256, sizeof(sum)) != 0)
		rc = od_fail(err, OD_ERR_CORRUPT,
			     "store %s: its " OD_SUMS_NAME " differs from the one that it announced",
			     odw_store_name(store));
	else
		rc = od_spool_put_sums(spool, (const char *)buf, len, err);
	free(buf);
	for (uint32_t i = 0; rc == OD_OK && od_small_files[i].name != NULL; i++) {
		if (!od_spool_lacks_small(spool, i))
			continue;
		rc = pull_file(store, od_small_files[i].number, od_small_files[i].name, OD_SPOOL_SMALL_MAX_BYTES, &buf,
			       &len, err);
		if (rc != OD_OK)
			return rc;
		rc = od_spool_put_small(spool, i, buf, len, err);
		free(buf);
	}
	return rc;
}

/* ---- headers ---- */

static void header_range(void *arg, size_t i, uint32_t *file, uint64_t *offset, uint32_t *bytes)
{
	*file = OD_STORE_EXPERTS;
	*offset = od_spool_header_offset(arg, i);
	*bytes = (uint32_t)od_spool_header_bytes(arg);
}

static int header_put(void *arg, size_t i, const uint8_t *bytes, struct od_err *err)
{
	return od_spool_put_header(arg, i, bytes, err);
}

static int pull_headers(struct od_spool *spool, struct odw_store *store, struct od_err *err)
{
	struct wanted w = { .what = "headers of experts",
			    .n = od_spool_n_experts(spool),
			    .arg = spool,
			    .range = header_range,
			    .put = header_put };
	size_t lacking = 0;
	int rc = OD_OK;

	w.state = calloc(w.n, 1);
	if (w.state == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu experts", w.n);
	for (size_t i = 0; i < w.n; i++) {
		w.state[i] = od_spool_lacks_header(spool, i) ? LACKING : DONE;
		lacking += w.state[i] == LACKING;
	}
	if (lacking > 0) {
		wait_for_store(store);
		rc = check_identity(spool, store, err);
		if (rc == OD_OK)
			rc = pull_all(store, &w, err);
	}
	free(w.state);
	return rc;
}

int odw_spool_begin(struct od_spool *spool, struct odw_store *store, struct od_pack **pack, struct od_err *err)
{
	int rc = OD_OK;

	*pack = NULL;
	if (!od_spool_small_whole(spool))
		rc = pull_small(spool, store, err);
	if (rc == OD_OK) {
		rc = od_spool_open_model(spool, err);
		if (rc == OD_ERR_MISMATCH) /* a store's new pack does not reach a spool that has small files already */
			rc = od_fail_within(
				err,
				"a spool is a copy of the store's pack: make that one again, then empty the spool's folder");
	}
	if (rc == OD_OK)
		rc = pull_headers(spool, store, err);
	return rc == OD_OK ? od_spool_open_pack(spool, pack, err) : rc;
}
