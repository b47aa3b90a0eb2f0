#include "common/pack/write/share_write.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/pack/pack_internal.h"
#include "common/pack/spool/spool.h"
#include "common/pack/spool/spool_source.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define SAVE_NS OD_NS_PER_S

struct writer {
	const struct od_share_job *job;
	struct od_pack *source, *pack; /* pack: the spool's */
	struct od_spool *spool;
	struct od_share share;
	uint8_t *buf; /* [OD_SPOOL_PIECE_MAX_BYTES] */
	uint64_t saved_ns, done_bytes, all_bytes;
};

static int copy_small_file(const struct writer *w, const char *name, size_t max_bytes, char **text, size_t *len,
			   struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), od_pack_folder(w->source), name, err);

	*text = NULL;
	return rc == OD_OK ? od_file_read(path, max_bytes, text, len, err) : rc;
}

static int copy_small(struct writer *w, struct od_err *err)
{
	char *text;
	size_t len;
	int rc = copy_small_file(w, OD_SUMS_NAME, OD_SPOOL_SUMS_MAX_BYTES, &text, &len, err);

	if (rc == OD_OK)
		rc = od_spool_put_sums(w->spool, text, len, err);
	free(text);
	for (size_t i = 0; rc == OD_OK && od_small_files[i].name != NULL; i++) {
		if (!od_spool_lacks_small(w->spool, i))
			continue;
		rc = copy_small_file(w, od_small_files[i].name, OD_SPOOL_SMALL_MAX_BYTES, &text, &len, err);
		if (rc == OD_OK)
			rc = od_spool_put_small(w->spool, i, text, len, err);
		free(text);
	}
	return rc;
}

static int copy_headers(struct writer *w, struct od_err *err)
{
	int rc = od_spool_open_model(w->spool, err);
	uint64_t xxh3;

	for (size_t i = 0; rc == OD_OK && i < od_spool_n_experts(w->spool); i++) {
		if (!od_spool_lacks_header(w->spool, i))
			continue;
		rc = od_spool_source_read(w->source, od_spool_header_offset(w->spool, i), w->buf,
					  od_spool_header_bytes(w->spool), &xxh3, err);
		if (rc == OD_OK)
			rc = od_spool_put_header(w->spool, i, w->buf, err);
	}
	return rc == OD_OK ? od_spool_open_pack(w->spool, &w->pack, err) : rc;
}

/* Whatever the state says of it, its chunks are read: so a share that was damaged since is made good by writing it
 * again. */
static int copy_expert(struct writer *w, uint32_t m, uint32_t expert, struct od_err *err)
{
	const struct od_pack_expert *x = od_pack_expert(w->pack, m, expert);
	const bool begun = od_spool_has_data(w->spool, m, expert);
	uint64_t xxh3;
	int rc = OD_OK;

	for (uint32_t c = 0; rc == OD_OK && c < od_spool_n_chunks(x); c++) {
		const struct od_chunk *k = od_spool_chunk(x, c);

		if (k->stored_bytes == 0 || (begun && od_spool_has_chunk(w->spool, m, expert, c)))
			continue;
		rc = od_spool_source_read(w->source, k->offset, w->buf, k->stored_bytes, &xxh3, err);
		if (rc == OD_OK)
			rc = od_spool_put_chunk(w->spool, m, expert, c, w->buf, xxh3, err);
	}
	if (rc == OD_OK)
		od_spool_mark(w->spool, m, expert, true);
	if (rc != OD_OK || od_now_ns() - w->saved_ns < SAVE_NS)
		return rc;
	w->saved_ns = od_now_ns();
	return od_spool_save(w->spool, &w->share, err);
}

static bool belongs(const struct writer *w, uint32_t m, uint32_t expert)
{
	return od_share_of(&w->share, m, expert) != OD_SHARE_NONE;
}

static int copy_experts(struct writer *w, uint32_t *n, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(w->pack);
	int rc = OD_OK;

	for (uint32_t m = 0; m < cfg->n_moe; m++) {
		for (uint32_t e = 0; e < cfg->n_experts; e++)
			w->all_bytes += belongs(w, m, e) ? od_pack_expert(w->pack, m, e)->bytes : 0;
	}
	for (uint32_t m = 0; rc == OD_OK && m < cfg->n_moe; m++) {
		for (uint32_t e = 0; rc == OD_OK && e < cfg->n_experts; e++) {
			if (!belongs(w, m, e))
				continue;
			rc = copy_expert(w, m, e, err);
			(*n)++;
			w->done_bytes += od_pack_expert(w->pack, m, e)->bytes;
			if (rc == OD_OK && w->job->progress != NULL)
				w->job->progress(w->job->arg, w->done_bytes, w->all_bytes);
		}
	}
	/* It will be carried elsewhere: what is said to be there shall be on the disk. */
	if (rc == OD_OK && fsync(w->pack->experts.file->fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot sync %s", w->pack->experts.file->path);
	return rc == OD_OK ? od_spool_save(w->spool, &w->share, err) : rc;
}

int od_share_write(const struct od_share_job *job, uint32_t *n, struct od_err *err)
{
	struct writer w = { .job = job, .buf = malloc(OD_SPOOL_PIECE_MAX_BYTES) };
	int rc = w.buf != NULL ? od_pack_open(&w.source, job->pack, err) : od_fail(err, OD_ERR_NOMEM, "no memory");

	*n = 0;
	if (rc == OD_OK)
		rc = od_share_parse(&w.share, job->share, job->group_size, od_pack_config(w.source)->top_k, err);
	if (rc == OD_OK)
		rc = od_spool_open(&w.spool, job->dir, err);
	if (rc == OD_OK)
		rc = copy_small(&w, err);
	if (rc == OD_OK)
		rc = copy_headers(&w, err);
	if (rc == OD_OK)
		rc = copy_experts(&w, n, err);
	od_pack_close(w.pack);
	od_spool_close(w.spool);
	od_pack_close(w.source);
	free(w.buf);
	return rc;
}
