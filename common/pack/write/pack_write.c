#include "common/pack/write/pack_write.h"

#include "common/base/file.h"
#include "common/pack/checksum.h"
#include "common/pack/given.h"
#include "common/pack/import/source.h"
#include "common/pack/manifest.h"
#include "common/pack/shadow/shadow_add.h"
#include "common/pack/write/expert_write.h"
#include "common/pack/write/fingerprint.h"
#include "common/pack/write/mat_sums.h"
#include "common/pack/write/partial.h"
#include "common/text/tokenizer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES (8u << 20)

struct pack_writer {
	const struct od_pack_job *job;
	struct od_config config;
	struct od_checkpoint *source;
	struct od_partial partial;
	struct od_manifest manifest;
	struct od_fingerprint *fingerprint;
	struct od_pool *pool;
	uint64_t done_bytes, all_bytes; /* progress */
};

static void note(const struct pack_writer *w, const char *fmt, ...) OD_PRINTF(2, 3);

static void note(const struct pack_writer *w, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (w->job->note == NULL)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	w->job->note(w->job->arg, text);
}

static void advance(struct pack_writer *w, uint64_t bytes)
{
	w->done_bytes += bytes;
	if (w->job->progress != NULL)
		w->job->progress(w->job->arg, w->done_bytes, w->all_bytes);
}

/* A file of the partial for reading and writing; what it holds stays. */
static int open_file(struct pack_writer *w, const char *name, char path[PATH_MAX], int *fd, struct od_err *err)
{
	int rc = od_path(path, PATH_MAX, w->partial.dir, name, err);

	*fd = -1;
	if (rc != OD_OK)
		return rc;
	*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	return *fd >= 0 ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot create %s", path);
}

static int cut_file(int fd, uint64_t bytes, const char *path, struct od_err *err)
{
	if (ftruncate(fd, (off_t)bytes) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot set the size of %s", path);
	return OD_OK;
}

/* ---- small files ---- */

static int copy_small(struct pack_writer *w, const struct od_small_file *f, struct od_err *err)
{
	char from[PATH_MAX], to[PATH_MAX], *text;
	size_t len;
	int rc = od_path(from, sizeof(from), od_checkpoint_folder(w->source), f->source, err);

	if (rc == OD_OK)
		rc = od_path(to, sizeof(to), w->partial.dir, f->name, err);
	if (rc != OD_OK)
		return rc;
	if (!od_small_file_wanted(f, od_checkpoint_folder(w->source)) || !od_file_there(from)) {
		unlink(to);
		return f->required ? od_fail(err, OD_ERR_MISSING, "%s is missing", from) : OD_OK;
	}
	rc = od_file_read(from, OD_MODEL_MAX_BYTES, &text, &len, err);
	if (rc == OD_OK)
		rc = od_file_write_atomic(to, text, len, err);
	free(text);
	return rc;
}

static int copy_small_files(struct pack_writer *w, struct od_err *err)
{
	int rc = OD_OK;

	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++)
		if (f->source != NULL)
			rc = copy_small(w, f, err);
	if (rc == OD_OK && od_tokenizer_name(od_checkpoint_folder(w->source)) == NULL)
		note(w,
		     "warning: no tokenizer.json, tiktoken.model or tokenizer.model in %s: od-main will not be able to read prompts "
		     "with this pack; only od-bench can use it. Where there are a vocab.json and a merges.txt, transformers makes one: "
		     "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
		     w->job->checkpoint);
	return rc;
}

/* ---- dense.bin ---- */

/* State of the copy of one dense tensor. */
struct copying {
	int fd;
	const char *path;
	uint8_t *buf; /* [PIECE_BYTES], and a row of the widest matrix */
	XXH3_state_t *sum;
};

static int copy_piece(struct pack_writer *w, struct copying *c, size_t n, uint64_t *offset,
		      crypto_hash_sha256_state *sha, struct od_err *err)
{
	int rc = od_file_pwrite(c->fd, c->buf, n, *offset, c->path, err);

	crypto_hash_sha256_update(sha, c->buf, n);
	XXH3_64bits_update(c->sum, c->buf, n);
	*offset += n;
	advance(w, n);
	return rc;
}

/* The weights of a tensor to *offset, which moves on. */
static int copy_rows(struct pack_writer *w, struct copying *c, const struct od_dense_tensor *t,
		     const struct od_source *src, uint64_t *offset, crypto_hash_sha256_state *sha, struct od_err *err)
{
	const uint64_t n_in = t->n_in > 0 ? t->n_in : 1, each = od_mat_row_bytes(&t->type, n_in);
	const uint64_t step = PIECE_BYTES / each > 0 ? PIECE_BYTES / each : 1;
	int rc = OD_OK;

	for (uint64_t row = 0; rc == OD_OK && row < t->n_out; row += step) {
		const uint64_t n = step < t->n_out - row ? step : t->n_out - row;

		rc = od_source_read(w->source, src, n_in, row, n, c->buf, err);
		if (rc == OD_OK)
			rc = copy_piece(w, c, n * each, offset, sha, err);
	}
	return rc;
}

/* A tensor of scales, as copy_rows; NULL: none. */
static int copy_tensor(struct pack_writer *w, struct copying *c, const struct od_tensor *src, uint64_t *offset,
		       crypto_hash_sha256_state *sha, struct od_err *err)
{
	if (src != NULL)
		for (uint64_t at = 0; at < src->bytes;) {
			size_t n = src->bytes - at < PIECE_BYTES ? (size_t)(src->bytes - at) : PIECE_BYTES;
			int rc = od_checkpoint_read(w->source, src, at, c->buf, n, err);

			if (rc == OD_OK)
				rc = copy_piece(w, c, n, offset, sha, err);
			if (rc != OD_OK)
				return rc;
			at += n;
		}
	return OD_OK;
}

static int copy_dense(struct pack_writer *w, struct copying *c, struct od_dense_tensor *t, struct od_err *err)
{
	const struct od_source src = od_source_dense(w->source, &w->config, t->role, t->layer);
	uint64_t offset = t->offset;
	struct od_mat_sums sums;
	char name[OD_NAME_BYTES];
	int rc;

	od_mat_sums_init(&sums);
	XXH3_64bits_reset(c->sum);
	rc = copy_rows(w, c, t, &src, &offset, &sums.weights, err);
	if (rc == OD_OK)
		rc = copy_tensor(w, c, src.divisor, &offset, &sums.divisor, err);
	if (rc == OD_OK)
		rc = copy_tensor(w, c, src.scales, &offset, &sums.scales, err);
	if (rc != OD_OK)
		return rc;
	od_mat_sums_final(&sums, &t->type, t->sha256);
	t->xxh3 = XXH3_64bits_digest(c->sum);
	od_dense_source_name(&w->config, t->role, t->layer, name);
	return od_fingerprint_add(w->fingerprint, name, &t->type, t->n_out, t->n_in, t->sha256, err);
}

static int write_dense(struct pack_writer *w, struct od_err *err)
{
	char path[PATH_MAX];
	struct copying c = { .fd = -1,
			     .path = path,
			     .buf = malloc(PIECE_BYTES + od_manifest_row_bytes(&w->manifest)),
			     .sum = XXH3_createState() };
	int rc = OD_OK;

	if (c.buf == NULL || c.sum == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory");
	if (rc == OD_OK)
		rc = open_file(w, OD_DENSE_NAME, path, &c.fd, err);
	/* Emptied first: what lies between the tensors must be zero. */
	if (rc == OD_OK)
		rc = cut_file(c.fd, 0, path, err);
	if (rc == OD_OK)
		rc = cut_file(c.fd, w->manifest.dense_bytes, path, err);
	for (size_t i = 0; rc == OD_OK && i < w->manifest.n_dense; i++)
		rc = copy_dense(w, &c, &w->manifest.dense[i], err);
	XXH3_freeState(c.sum);
	free(c.buf);
	if (c.fd >= 0)
		close(c.fd);
	return rc;
}

/* ---- experts.bin ---- */

static uint64_t expert_source_bytes(const struct pack_writer *w, const struct od_expert_entry *e)
{
	uint64_t sum = 0, n_out, n_in;

	for (int mat = 0; mat < od_expert_tensors(&w->config); mat++) {
		od_expert_mat_shape(&w->config, (enum od_expert_mat)mat, &n_out, &n_in);
		sum += od_mat_bytes(&e->type[mat], n_in, 0, n_out);
	}
	return sum;
}

static int add_expert(struct pack_writer *w, size_t i, const struct od_expert_entry *e, uint64_t header_xxh3,
		      struct od_err *err)
{
	w->manifest.expert[i] = (struct od_expert_extent){ e->x.offset, e->x.bytes, header_xxh3 };
	w->manifest.experts_bytes = e->x.offset + e->x.bytes;
	advance(w, expert_source_bytes(w, e));
	return od_fingerprint_add_expert(w->fingerprint, &w->config, (uint32_t)(i / w->config.n_experts),
					 (uint32_t)(i % w->config.n_experts), e, err);
}

/* Keeps the complete experts of an earlier run, up to the first that is not. *kept: their number. */
static int keep_experts(struct pack_writer *w, struct od_expert_writer *ew, int fd, size_t *kept, struct od_err *err)
{
	struct stat st;
	int rc = OD_OK;

	*kept = 0;
	if (fstat(fd, &st) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot stat %s", OD_EXPERTS_NAME);
	while (rc == OD_OK && *kept < w->manifest.n_experts) {
		uint32_t m = (uint32_t)(*kept / w->config.n_experts), e = (uint32_t)(*kept % w->config.n_experts);
		struct od_expert_entry entry;
		uint64_t header_xxh3;

		if (od_expert_recheck(ew, m, e, w->manifest.experts_bytes, (uint64_t)st.st_size, &entry, &header_xxh3,
				      NULL) != OD_OK)
			break;
		rc = add_expert(w, (*kept)++, &entry, header_xxh3, err);
	}
	if (rc == OD_OK && w->partial.resumed)
		note(w, "resuming: %zu of %zu experts are done", *kept, w->manifest.n_experts);
	return rc;
}

static int write_experts(struct pack_writer *w, struct od_err *err)
{
	struct od_expert_writer *ew = NULL;
	char path[PATH_MAX];
	size_t kept = 0;
	int fd, rc = open_file(w, OD_EXPERTS_NAME, path, &fd, err);

	if (rc == OD_OK)
		rc = od_expert_writer_new(&ew, w->source, &w->config, w->job->codec, w->pool, fd, path, err);
	if (rc == OD_OK)
		rc = keep_experts(w, ew, fd, &kept, err);
	if (rc == OD_OK)
		rc = cut_file(fd, w->manifest.experts_bytes, path, err);
	for (size_t i = kept; rc == OD_OK && i < w->manifest.n_experts; i++) {
		struct od_expert_entry entry;
		uint64_t header_xxh3;

		rc = od_expert_write(ew, (uint32_t)(i / w->config.n_experts), (uint32_t)(i % w->config.n_experts),
				     w->manifest.experts_bytes, &entry, &header_xxh3, err);
		if (rc == OD_OK)
			rc = add_expert(w, i, &entry, header_xxh3, err);
	}
	od_expert_writer_free(ew);
	if (fd >= 0)
		close(fd);
	return rc;
}

/* ---- the whole ---- */

static int write_tables(struct pack_writer *w, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), w->partial.dir, OD_MODEL_NAME, err);

	if (rc == OD_OK)
		rc = od_manifest_write(&w->manifest, &w->config, w->source, path, err);
	return rc == OD_OK ? od_sums_write(w->partial.dir, err) : rc;
}

static int finish_fingerprint(struct pack_writer *w, struct od_err *err)
{
	const char *name = od_tokenizer_name(w->partial.dir);
	char path[PATH_MAX];
	int rc = name != NULL ? od_path(path, sizeof(path), w->partial.dir, name, err) : OD_OK;

	if (rc != OD_OK)
		return rc;
	return od_fingerprint_finish(w->fingerprint, &w->config, name != NULL ? path : NULL, w->manifest.fingerprint,
				     err);
}

/* Removes shadows that an earlier run was asked for and this one is not. */
static void remove_shadows(const struct pack_writer *w)
{
	char path[PATH_MAX];

	for (int i = 0; i < OD_N_PRECISIONS; i++)
		if (od_shadow_file_names[i] != NULL && (w->job->shadows & OD_SHADOW_BIT(i + 1)) == 0 &&
		    od_path(path, sizeof(path), w->partial.dir, od_shadow_file_names[i], NULL) == OD_OK)
			unlink(path);
}

/* Shadows are made from the finished pack, as later ones are, so that they need neither the checkpoint nor a second
 * code path. Opening it also shows that it can be read. */
static int write_shadows(struct pack_writer *w, struct od_err *err)
{
	struct od_pack *pack;
	unsigned missing;
	int rc = od_pack_open(&pack, w->partial.dir, err);

	if (rc != OD_OK)
		return rc;
	remove_shadows(w);
	const struct od_shadow_add job = {
		.pack = pack,
		.by_default = w->job->by_default,
		.n_threads = w->job->n_threads,
		.note = w->job->note,
		.progress = w->job->progress,
		.arg = w->job->arg,
		.done_bytes = w->done_bytes,
		.all_bytes = w->all_bytes,
	};

	missing = od_shadow_add(&job, w->job->shadows);
	if (w->job->missing != NULL)
		*w->job->missing = missing;
	od_pack_close(pack);
	return OD_OK;
}

/* Adds up what all steps will read or write, for the progress. */
static int plan(struct pack_writer *w, struct od_err *err)
{
	int rc = od_manifest_init(&w->manifest, &w->config, err);

	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < w->manifest.n_dense; i++) {
		struct od_dense_tensor *t = &w->manifest.dense[i];

		const struct od_source src = od_source_dense(w->source, &w->config, t->role, t->layer);

		t->type = src.type;
		if (src.run == 0) /* else rows change places, and are in their order then */
			t->form = src.form;
	}
	w->manifest.schema = od_checkpoint_gguf(w->source) != NULL ? OD_PACK_SCHEMA_GGUF : OD_PACK_SCHEMA;
	w->manifest.codec = w->job->codec;
	od_manifest_lay_out_dense(&w->manifest);
	for (size_t i = 0; i < w->manifest.n_dense; i++)
		w->all_bytes += w->manifest.dense[i].bytes;
	for (size_t i = 0; i < w->manifest.n_experts; i++)
		for (int mat = 0; mat < od_expert_tensors(&w->config); mat++) {
			const struct od_source s =
				od_source_expert(w->source, &w->config, (uint32_t)(i / w->config.n_experts),
						 (uint32_t)(i % w->config.n_experts), (enum od_expert_mat)mat);
			uint64_t n_out, n_in;

			od_expert_mat_shape(&w->config, (enum od_expert_mat)mat, &n_out, &n_in);
			w->all_bytes += od_mat_bytes(&s.type, n_in, 0, n_out);
		}
	w->all_bytes += od_shadow_set_bytes(&w->config, w->job->shadows);
	return OD_OK;
}

static void note_beginning(const struct pack_writer *w, const char *const *begin)
{
	for (; begin != NULL && *begin != NULL; begin++) {
		size_t n = 0;

		for (size_t i = 0; i < od_checkpoint_n_tensors(w->source); i++)
			n += strncmp(od_checkpoint_tensor(w->source, i)->name, *begin, strlen(*begin)) == 0;
		if (n > 0)
			note(w, "left out: %zu tensor%s %s*", n, n == 1 ? "" : "s", *begin);
	}
}

/* Layers behind the model's last one predict further tokens (MTP). */
static void note_gguf_layers(const struct pack_writer *w)
{
	size_t n = 0;
	unsigned layer;

	for (size_t i = 0; i < od_checkpoint_n_tensors(w->source); i++)
		n += sscanf(od_checkpoint_tensor(w->source, i)->name, "blk.%u.", &layer) == 1 &&
		     layer >= w->config.n_layers;
	if (n > 0)
		note(w, "left out: %zu tensors of layers behind the last one, which predict further tokens", n);
}

static void note_left_out(const struct pack_writer *w)
{
	if (od_checkpoint_gguf(w->source) != NULL) {
		note_gguf_layers(w);
		return;
	}
	note_beginning(w, w->config.family->left_out);
	note_beginning(w, w->config.multimodal ? w->config.family->other_modalities : NULL);
}

static int open_source(struct pack_writer *w, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_given_checkpoint(w->job->checkpoint, w->job->pack, err);

	if (rc == OD_OK)
		rc = od_checkpoint_open(&w->source, w->job->checkpoint, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), od_checkpoint_folder(w->source), "config.json", err);
	if (rc == OD_OK)
		rc = od_config_load(&w->config, path, err);
	if (rc == OD_OK)
		rc = od_source_check(w->source, &w->config, err);
	if (rc == OD_OK)
		note_left_out(w);
	return rc == OD_OK ? od_source_check_extras(w->source, &w->config, err) : rc;
}

static int write_all(struct pack_writer *w, struct od_err *err)
{
	int rc = open_source(w, err);

	if (rc == OD_OK)
		rc = od_partial_open(&w->partial, w->job->pack, w->source, w->job->codec, w->job->force, err);
	if (rc == OD_OK && w->partial.emptied)
		note(w, "%s is from another checkpoint or version, or coded otherwise: starting over", w->partial.dir);
	if (rc == OD_OK)
		rc = plan(w, err);
	if (rc == OD_OK)
		rc = od_fingerprint_new(&w->fingerprint, err);
	if (rc == OD_OK)
		rc = od_pool_new(&w->pool, w->job->n_threads, "pack", err);
	if (rc == OD_OK)
		rc = copy_small_files(w, err);
	if (rc == OD_OK)
		rc = write_dense(w, err);
	if (rc == OD_OK)
		rc = write_experts(w, err);
	if (rc == OD_OK)
		rc = finish_fingerprint(w, err);
	if (rc == OD_OK)
		rc = write_tables(w, err);
	if (rc == OD_OK)
		rc = write_shadows(w, err);
	return rc == OD_OK ? od_partial_publish(&w->partial, err) : rc;
}

/* A run that failed for lack of disk space, or by a failed read, can be continued. A checkpoint that was refused would
 * be refused again, so it leaves nothing behind. */
static void leave_partial(struct pack_writer *w, int rc)
{
	if (w->partial.lock_fd < 0) /* never ours: there is none, or another od-pack writes it */
		return;
	if (rc != OD_ERR_IO)
		od_partial_remove(&w->partial);
	else if (w->job->kept != NULL && od_is_dir(w->partial.dir))
		snprintf(w->job->kept, PATH_MAX, "%s", w->partial.dir);
}

int od_pack_write(const struct od_pack_job *job, struct od_err *err)
{
	struct pack_writer *w = calloc(1, sizeof(*w));
	int rc;

	if (job->kept != NULL)
		job->kept[0] = '\0';
	if (job->missing != NULL)
		*job->missing = 0;
	if (w == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory");
	w->job = job;
	w->partial.lock_fd = -1;
	rc = write_all(w, err);
	if (rc != OD_OK)
		leave_partial(w, rc);
	od_pool_free(w->pool);
	od_fingerprint_free(w->fingerprint);
	od_manifest_fini(&w->manifest);
	od_partial_close(&w->partial);
	od_checkpoint_close(w->source);
	free(w);
	return rc;
}
