#include "common/pack/pack_verify.h"

#include "common/base/file.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/pack/checksum.h"
#include "common/pack/expert_sums.h"
#include "common/pack/gguf/gguf_map.h"
#include "common/pack/given.h"
#include "common/pack/import/source.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/shadow/shadow_file.h"
#include "common/pack/shadow/shadow_write.h"
#include "common/pack/team.h"
#include "common/pack/write/expert_write.h"
#include "common/pack/write/fingerprint.h"
#include "common/pack/write/mat_sums.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (4u << 20)

struct verifier {
	const struct od_verify_job *job;
	struct od_pack *pack;
	struct od_checkpoint *source; /* NULL: not compared */
	struct od_gguf *gguf; /* for its tensors' names; NULL: a pack */
	struct od_device *device; /* puts rows together where they can be looked at */
	struct od_inflater **inflater; /* [n_threads] */
	size_t shard_bytes, scale_bytes;
	struct od_buf *rows; /* [n_threads][shard_bytes] */
	uint8_t *want; /* [n_threads][shard_bytes]: the expected bytes */
	uint8_t *last_scales; /* [n_threads][scale_bytes]: divisor and last row of scales of the shard before */
	struct od_shadow_file shadow[OD_N_PRECISIONS];
	size_t n_shadows;
	uint64_t done_bytes, all_bytes;
};

static int differs(const struct od_tensor *t, const char *file, const char *what, uint64_t first, uint64_t last,
		   struct od_err *err)
{
	return od_fail(err, OD_ERR_MISMATCH,
		       "%s: tensor %s differs from the checkpoint's within %s %" PRIu64 " to %" PRIu64 " of the tensor",
		       file, t->name, what, first, last);
}

/* The tensor's bytes [at, at + len) as the checkpoint has them; want has room for len. */
static int compare(const struct verifier *v, const struct od_tensor *t, uint64_t at, const uint8_t *found,
		   uint8_t *want, size_t len, const char *file, struct od_err *err)
{
	int rc = od_checkpoint_read(v->source, t, at, want, len, err);

	return rc != OD_OK || memcmp(found, want, len) == 0 ? rc : differs(t, file, "bytes", at, at + len - 1, err);
}

static int same_type(const struct od_source *src, const struct od_mat_type *type, const char *file, struct od_err *err)
{
	char ours[OD_MAT_TYPE_CHARS], theirs[OD_MAT_TYPE_CHARS];

	if (od_mat_type_same(&src->type, type))
		return OD_OK;
	return od_fail(err, OD_ERR_MISMATCH, "%s: tensor %s: type %s, the checkpoint has %s", file, src->weights->name,
		       od_mat_type_text(type, ours), od_mat_type_text(&src->type, theirs));
}

/* ---- small files against the checkpoint's ---- */

static int compare_small(const struct verifier *v, const struct od_small_file *f, struct od_err *err)
{
	char ours[PATH_MAX], theirs[PATH_MAX];
	uint8_t a[OD_SHA256_BYTES], b[OD_SHA256_BYTES];
	bool have_ours, have_theirs;
	int rc = od_path(ours, sizeof(ours), v->pack->dir, f->name, err);

	if (rc == OD_OK)
		rc = od_path(theirs, sizeof(theirs), od_checkpoint_folder(v->source), f->source, err);
	if (rc != OD_OK)
		return rc;
	have_ours = od_file_there(ours);
	have_theirs = od_small_file_wanted(f, od_checkpoint_folder(v->source)) && od_file_there(theirs);
	if (!have_ours && !have_theirs)
		return OD_OK;
	if (have_ours != have_theirs)
		return od_fail(err, OD_ERR_MISMATCH, "%s exists, %s does not", have_ours ? ours : theirs,
			       have_ours ? theirs : ours);
	rc = od_sha256_file(ours, a, err);
	if (rc == OD_OK)
		rc = od_sha256_file(theirs, b, err);
	if (rc == OD_OK && memcmp(a, b, sizeof(a)) != 0)
		rc = od_fail(err, OD_ERR_MISMATCH, "%s differs from %s", ours, theirs);
	return rc;
}

static int open_source(struct verifier *v, struct od_err *err)
{
	int rc = OD_OK;

	if (v->job->against == NULL)
		return OD_OK;
	if (v->gguf != NULL)
		return od_fail(
			err, OD_ERR_ARG,
			"%s is a GGUF file; only packs are compared with what they were made from: od-pack FILE PACK "
			"makes one",
			v->job->pack);
	rc = od_given_checkpoint(v->job->against, NULL, err);
	if (rc == OD_OK)
		rc = od_checkpoint_open(&v->source, v->job->against, err);
	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++)
		if (f->source != NULL)
			rc = compare_small(v, f, err);
	return rc == OD_OK ? od_source_check(v->source, &v->pack->config, err) : rc;
}

/* ---- dense.bin ---- */

static int check_sums(const struct verifier *v, const struct od_dense_tensor *t, uint64_t xxh3,
		      const uint8_t sha256[OD_SHA256_BYTES], struct od_err *err)
{
	int rc = od_check_xxh3(xxh3, t->xxh3, err, "%s: tensor %s of layer %u at offset %" PRIu64 ": checksum",
			       v->pack->dense.file->path, od_role_name(t->role), t->layer, t->offset);

	if (rc != OD_OK)
		return rc;
	if (memcmp(sha256, t->sha256, OD_SHA256_BYTES) != 0)
		return od_fail(err, OD_ERR_CORRUPT, "%s: tensor %s of layer %u: SHA-256 differs from model.json's",
			       v->pack->dense.file->path, od_role_name(t->role), t->layer);
	return OD_OK;
}

/* Scales or a divisor of a dense tensor, of so many bytes; src NULL: not compared. */
static int verify_section(struct verifier *v, const struct od_tensor *src, uint64_t bytes, uint64_t *offset,
			  uint8_t *buf, uint8_t *want, XXH3_state_t *sum, crypto_hash_sha256_state *sha,
			  struct od_err *err)
{
	const struct od_data_file *f = v->pack->dense.file;

	for (uint64_t at = 0; at < bytes;) {
		size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
		int rc = od_file_pread(f->fd, buf, n, *offset, f->path, err);

		if (rc == OD_OK && src != NULL)
			rc = compare(v, src, at, buf, want, n, f->path, err);
		if (rc != OD_OK)
			return rc;
		crypto_hash_sha256_update(sha, buf, n);
		XXH3_64bits_update(sum, buf, n);
		at += n;
		*offset += n;
	}
	return OD_OK;
}

/* The weights of a dense tensor. */
static int verify_rows(struct verifier *v, const struct od_dense_tensor *t, const struct od_source *src, uint8_t *buf,
		       uint8_t *want, XXH3_state_t *sum, crypto_hash_sha256_state *sha, struct od_err *err)
{
	const struct od_data_file *f = v->pack->dense.file;
	const uint64_t n_in = t->n_in > 0 ? t->n_in : 1, each = od_mat_row_bytes(&t->type, n_in);
	const uint64_t step = PIECE_BYTES / each > 0 ? PIECE_BYTES / each : 1;

	for (uint64_t row = 0; row < t->n_out; row += step) {
		const uint64_t n = step < t->n_out - row ? step : t->n_out - row, at = row * each;
		int rc = od_file_pread(f->fd, buf, n * each, t->offset + at, f->path, err);

		if (rc == OD_OK && src->weights != NULL)
			rc = od_source_read(v->source, src, n_in, row, n, want, err);
		if (rc == OD_OK && src->weights != NULL && memcmp(buf, want, n * each) != 0)
			rc = differs(src->weights, f->path, "bytes", at, at + n * each - 1, err);
		if (rc != OD_OK)
			return rc;
		crypto_hash_sha256_update(sha, buf, n * each);
		XXH3_64bits_update(sum, buf, n * each);
	}
	return OD_OK;
}

static int verify_tensor(struct verifier *v, const struct od_dense_tensor *t, uint8_t *buf, uint8_t *want,
			 XXH3_state_t *sum, struct od_err *err)
{
	const struct od_pack *p = v->pack;
	const uint64_t n_in = t->n_in > 0 ? t->n_in : 1, weights = t->n_out * od_mat_row_bytes(&t->type, n_in);
	const uint64_t divisor = od_mat_divisor_bytes(&t->type);
	struct od_source src = { .weights = NULL };
	uint8_t sha256[OD_SHA256_BYTES];
	struct od_mat_sums sums;
	uint64_t at = t->offset + weights;
	int rc = OD_OK;

	if (v->source != NULL) {
		src = od_source_dense(v->source, &p->config, t->role, t->layer);
		rc = same_type(&src, &t->type, p->dense.file->path, err);
	}
	od_mat_sums_init(&sums);
	XXH3_64bits_reset(sum);
	if (rc == OD_OK)
		rc = verify_rows(v, t, &src, buf, want, sum, &sums.weights, err);
	if (rc == OD_OK)
		rc = verify_section(v, src.divisor, divisor, &at, buf, want, sum, &sums.divisor, err);
	if (rc == OD_OK)
		rc = verify_section(v, src.scales, t->bytes - weights - divisor, &at, buf, want, sum, &sums.scales,
				    err);
	od_mat_sums_final(&sums, &t->type, sha256);
	if (rc == OD_OK)
		rc = check_sums(v, t, XXH3_64bits_digest(sum), sha256, err);
	if (rc == OD_OK)
		rc = od_check_zeros(p->dense.file->fd, p->dense.file->path, t->offset + t->bytes,
				    od_region_end(t->offset + t->bytes), err);
	return rc;
}

/* A tensor of a GGUF file, as the loader sums it: rows in the checkpoint's order. */
static int verify_in_place(struct verifier *v, const struct od_dense_tensor *t, uint8_t *buf, XXH3_state_t *sum,
			   struct od_err *err)
{
	const struct od_pack *p = v->pack;
	const uint64_t n_in = t->n_in > 0 ? t->n_in : 1, each = od_mat_row_bytes(&t->type, n_in);
	const uint64_t step = PIECE_BYTES / each > 0 ? PIECE_BYTES / each : 1;
	struct od_gguf_place place;
	int rc = od_gguf_dense(v->gguf, &p->config, t->role, t->layer, &place, err);

	if (rc != OD_OK)
		return rc;
	XXH3_64bits_reset(sum);
	for (uint64_t row = 0; rc == OD_OK && row < t->n_out; row += step) {
		const uint64_t n = step < t->n_out - row ? step : t->n_out - row;

		rc = od_dense_read(p, t, row, n, buf, err);
		if (rc == OD_OK)
			XXH3_64bits_update(sum, buf, n * each);
	}
	if (rc == OD_OK)
		rc = od_pack_check_dense(p, t, XXH3_64bits_digest(sum), err);
	return rc == OD_OK ?
		       OD_OK :
		       od_fail_within(err, "%s: tensor %s", od_data_path(&p->dense, t->offset), place.tensor->name);
}

static int verify_dense(struct verifier *v, struct od_err *err)
{
	const uint64_t room = PIECE_BYTES + od_manifest_row_bytes(&v->pack->manifest);
	uint8_t *buf = malloc(room), *want = malloc(room);
	XXH3_state_t *sum = XXH3_createState();
	int rc = OD_OK;

	if (buf == NULL || want == NULL || sum == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to verify");
	for (size_t i = 0; rc == OD_OK && i < v->pack->manifest.n_dense; i++) {
		rc = v->gguf != NULL ? verify_in_place(v, &v->pack->manifest.dense[i], buf, sum, err) :
				       verify_tensor(v, &v->pack->manifest.dense[i], buf, want, sum, err);
		v->done_bytes += v->pack->manifest.dense[i].bytes;
		if (rc == OD_OK && v->job->progress != NULL)
			v->job->progress(v->job->arg, v->done_bytes, v->all_bytes);
	}
	XXH3_freeState(sum);
	free(buf);
	free(want);
	return rc;
}

/* ---- experts.bin ---- */

/* A shard that was read. */
struct pack_verify_seen {
	uint32_t m, expert, shard;
	const struct od_shard *s;
	const struct od_mat_type *type;
	struct od_mat w; /* its rows */
	uint8_t *want, *last; /* the thread's */
	const struct od_source *src; /* NULL: not compared */
};

static int scales_differ(const struct verifier *v, const struct pack_verify_seen *x, const char *what,
			 struct od_err *err)
{
	return od_fail(err, OD_ERR_CORRUPT, "%s: expert (%u, %u) shard %u: its %s differs from the previous shard's",
		       v->pack->experts.file->path, x->m, x->expert, x->shard, what);
}

/* Bytes that several shards of one matrix repeat must be equal in all of them, and are summed once. */
static int verify_scales(const struct verifier *v, const struct pack_verify_seen *x, struct od_mat_sums *sums,
			 struct od_err *err)
{
	const uint64_t each = od_mat_scale_row_bytes(x->type, x->w.n_in), divisor = od_mat_divisor_bytes(x->type);
	const uint64_t first = x->s->row_begin, end = first + x->s->n_rows;
	int rc = OD_OK;

	if (divisor > 0 && first == 0) {
		crypto_hash_sha256_update(&sums->divisor, (const uint8_t *)x->w.scales.divisor, divisor);
		memcpy(x->last, x->w.scales.divisor, divisor);
		if (x->src != NULL)
			rc = compare(v, x->src->divisor, 0, x->last, x->want, divisor, v->pack->experts.file->path,
				     err);
	} else if (divisor > 0 && memcmp(x->last, x->w.scales.divisor, divisor) != 0) {
		return scales_differ(v, x, "divisor", err);
	}
	for (uint64_t row = first; rc == OD_OK && row < end; row++) {
		const uint8_t *at = (const uint8_t *)x->w.scales.at + (row - first) * each;
		const uint64_t block = od_mat_scale_row(x->type, row);

		if (row > 0 && block == od_mat_scale_row(x->type, row - 1)) {
			if (row == first && memcmp(x->last + sizeof(float), at, each) != 0)
				return scales_differ(v, x, "first row of scales", err);
			continue;
		}
		crypto_hash_sha256_update(&sums->scales, at, each);
		if (x->src != NULL)
			rc = od_source_read_scales(v->source, x->src, x->w.n_in, block, 1, x->want, err);
		if (rc == OD_OK && x->src != NULL && memcmp(at, x->want, each) != 0)
			rc = differs(x->src->scales, v->pack->experts.file->path, "an expert's rows", block, block,
				     err);
	}
	memcpy(x->last + sizeof(float), (const uint8_t *)x->w.scales.at + (x->s->n_rows - 1) * each, each);
	return rc;
}

static int verify_shard(const struct verifier *v, unsigned thread, uint32_t m, uint32_t expert, uint32_t shard,
			struct od_mat_sums *sums, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(v->pack, m, expert);
	const struct od_shard *s = &e->x.shard[shard];
	const struct od_ref at = od_buf_ref(v->rows, thread * v->shard_bytes);
	uint8_t *rows = od_ref_map(at);
	struct pack_verify_seen x = { .m = m,
				      .expert = expert,
				      .shard = shard,
				      .s = s,
				      .type = &e->type[s->mat],
				      .want = v->want + thread * v->shard_bytes,
				      .last = v->last_scales + thread * v->scale_bytes };
	uint64_t n_out, n_in, each;
	struct od_source src;
	int rc = od_inflater_rows(v->inflater[thread], m, expert, shard, at, err);

	if (rc != OD_OK)
		return rc;
	od_expert_mat_shape(&v->pack->config, (enum od_expert_mat)s->mat, &n_out, &n_in);
	each = od_mat_row_bytes(x.type, n_in);
	od_mat_bind(&x.w, x.type, s->n_rows, n_in, rows);
	crypto_hash_sha256_update(&sums->weights, rows, s->n_rows * each);
	if (v->source != NULL) {
		src = od_source_expert(v->source, &v->pack->config, m, expert, (enum od_expert_mat)s->mat);
		x.src = &src;
		rc = same_type(&src, x.type, v->pack->experts.file->path, err);
		if (rc == OD_OK)
			rc = od_source_read(v->source, &src, n_in, s->row_begin, s->n_rows, x.want, err);
		if (rc == OD_OK && memcmp(rows, x.want, s->n_rows * each) != 0)
			rc = differs(src.weights, v->pack->experts.file->path, "an expert's rows", s->row_begin,
				     (uint64_t)s->row_begin + s->n_rows - 1, err);
	}
	return rc == OD_OK && x.type->scale != 0 ? verify_scales(v, &x, sums, err) : rc;
}

static int verify_expert(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct verifier *v = arg;
	const struct od_pack *p = v->pack;
	const struct od_expert_entry *e = &p->expert[item];
	uint32_t m = (uint32_t)(item / p->config.n_experts), expert = (uint32_t)(item % p->config.n_experts), shard = 0;
	int rc;

	*bytes = e->x.bytes;
	if (!od_pack_has_expert(p, m, expert))
		return OD_OK; /* a hole of a spool */
	/* A spool has chunks; nothing writes padding there, nothing reads it, and nothing could make it good. */
	rc = od_pack_is_spool(p) ? OD_OK : od_expert_check_padding(e, p->experts.file->fd, p->experts.file->path, err);
	for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(&p->config); mat++) {
		struct od_mat_sums sums;
		uint8_t sha256[OD_SHA256_BYTES];

		od_mat_sums_init(&sums);
		for (; rc == OD_OK && shard < e->x.n_shards && e->x.shard[shard].mat == mat; shard++)
			rc = verify_shard(v, thread, m, expert, shard, &sums, err);
		od_mat_sums_final(&sums, &e->type[mat], sha256);
		if (od_expert_sums_apply(p)) /* chunks have checksums, and that is all */
			continue;
		if (rc == OD_OK && memcmp(sha256, e->sha256[mat], sizeof(sha256)) != 0)
			rc = od_fail(err, OD_ERR_CORRUPT,
				     "%s: expert (%u, %u): matrix %s: SHA-256 differs from the "
				     "header's",
				     p->experts.file->path, m, expert, od_expert_mat_name((enum od_expert_mat)mat));
	}
	return rc;
}

static uint64_t experts_bytes(const struct verifier *v)
{
	uint64_t n = 0;

	if (v->gguf == NULL)
		return v->pack->manifest.experts_bytes;
	for (size_t i = 0; i < v->pack->manifest.n_experts; i++)
		n += v->pack->expert[i].x.bytes;
	return n;
}

/* An expert of a GGUF file. */
static int verify_expert_in_place(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct verifier *v = arg;
	const struct od_pack *p = v->pack;
	const struct od_expert_entry *e = &p->expert[item];
	const uint32_t m = (uint32_t)(item / p->config.n_experts), expert = (uint32_t)(item % p->config.n_experts);
	const struct od_ref at = od_buf_ref(v->rows, thread * v->shard_bytes);
	int rc = OD_OK;

	*bytes = e->x.bytes;
	for (uint32_t i = 0; rc == OD_OK && i < e->x.n_shards; i++)
		rc = od_inflater_rows(v->inflater[thread], m, expert, i, at, err);
	return rc;
}

static int verify_experts(struct verifier *v, struct od_err *err)
{
	const struct od_pack *p = v->pack;
	const struct od_team_job team = {
		.fn = v->gguf != NULL ? verify_expert_in_place : verify_expert,
		.arg = v,
		.n_items = p->manifest.n_experts,
		.n_threads = v->job->n_threads,
		.progress = v->job->progress,
		.progress_arg = v->job->arg,
		.done_bytes = v->done_bytes,
		.all_bytes = v->all_bytes,
	};
	int rc;

	v->shard_bytes = od_round_up(od_shard_max_memory(&p->config), OD_PAD_BYTES);
	v->scale_bytes = od_shard_max_e_bytes(&p->config); /* more than a row of them takes */
	v->last_scales = od_alloc_array(v->job->n_threads, v->scale_bytes);
	v->want = od_alloc_array(v->job->n_threads, v->shard_bytes);
	if (v->want == NULL || v->last_scales == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to verify");
	rc = od_device_cpu_new(&v->device, OD_CPU_AUTO, 1, "od-verify", err);
	if (rc == OD_OK)
		rc = od_buf_new(&v->rows, v->device, v->job->n_threads * v->shard_bytes, "verifying", err);
	if (rc == OD_OK)
		rc = od_inflaters_new(&v->inflater, v->job->n_threads, p, v->device, OD_FORM_PLAIN, err);
	if (rc == OD_OK)
		rc = od_team_run(&team, err);
	v->done_bytes += experts_bytes(v);
	return rc;
}

/* ---- the rest ---- */

/* All the sums that go into it hold by now. */
static int verify_fingerprint(struct verifier *v, struct od_err *err)
{
	const struct od_pack *p = v->pack;
	char name[OD_NAME_BYTES], hex[OD_FINGERPRINT_CHARS + 1];
	struct od_fingerprint *f;
	int rc;

	if (od_expert_sums_apply(p))
		return OD_OK; /* it is the GGUF file's, made from what a share does not have */
	rc = od_fingerprint_new(&f, err);
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		od_dense_source_name(&p->config, t->role, t->layer, name);
		rc = od_fingerprint_add(f, name, &t->type, t->n_out, t->n_in, t->sha256, err);
	}
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_experts; i++)
		rc = od_fingerprint_add_expert(f, &p->config, (uint32_t)(i / p->config.n_experts),
					       (uint32_t)(i % p->config.n_experts), &p->expert[i], err);
	if (rc == OD_OK)
		rc = od_fingerprint_finish(f, &p->config, p->tokenizer_path, hex, err);
	od_fingerprint_free(f);
	if (rc == OD_OK && strcmp(hex, p->manifest.fingerprint) != 0)
		rc = od_fail(err, OD_ERR_CORRUPT, "%s/%s: field \"fingerprint\": expected %s, found %s", p->dir,
			     OD_MODEL_NAME, hex, p->manifest.fingerprint);
	return rc;
}

/* Headers first: what is wrong with them should not take an hour to be said. */
static int open_shadows(struct verifier *v, struct od_err *err)
{
	unsigned set;
	int rc = od_shadow_present(v->pack, &set, err);

	for (int p = 1; rc == OD_OK && p <= OD_N_PRECISIONS; p++)
		if ((set & OD_SHADOW_BIT(p)) != 0) {
			struct od_shadow_file *f = &v->shadow[v->n_shadows++];

			rc = od_shadow_file_open(f, v->pack, (enum od_precision)p, err);
			v->all_bytes += f->table.file_bytes;
		}
	return rc;
}

/* Quantised once more, from weights that are known to be good by now. */
static int verify_shadow(struct verifier *v, struct od_shadow_file *f, struct od_err *err)
{
	const struct od_shadow_job job = {
		.pack = v->pack,
		.table = &f->table,
		.fd = f->file.fd,
		.path = f->file.path,
		.check = true,
		.n_threads = v->job->n_threads,
		.progress = v->job->progress,
		.progress_arg = v->job->arg,
		.done_bytes = v->done_bytes,
		.all_bytes = v->all_bytes,
	};

	v->done_bytes += f->table.file_bytes;
	return od_shadow_run(&job, err);
}

static void begin_sums(struct verifier *v)
{
	if (v->job->sums == NULL)
		return;
	*v->job->sums = (struct od_verify_sums){ .lost = v->pack->temporary };
	if (v->gguf != NULL)
		v->job->sums->known = od_gguf_sums_n_known(v->pack->sums);
}

int od_pack_verify(const struct od_verify_job *job, struct od_err *err)
{
	struct verifier v = { .job = job };
	int rc = od_pack_open_some(&v.pack, job->pack, err);

	if (rc == OD_OK && od_pack_is_gguf(v.pack))
		rc = od_gguf_open(&v.gguf, v.pack->dir, err);
	if (rc == OD_OK) {
		for (size_t i = 0; !od_pack_is_spool(v.pack) && i < v.pack->manifest.n_dense; i++)
			v.all_bytes += v.pack->manifest.dense[i].bytes;
		v.all_bytes += experts_bytes(&v);
		begin_sums(&v);
		rc = open_source(&v, err);
	}
	if (rc == OD_OK)
		rc = open_shadows(&v, err);
	if (rc == OD_OK)
		rc = od_pack_is_spool(v.pack) ? OD_OK : verify_dense(&v, err);
	if (rc == OD_OK)
		rc = verify_experts(&v, err);
	if (rc == OD_OK && v.gguf == NULL) /* opening a GGUF file has computed its own */
		rc = verify_fingerprint(&v, err);
	if (rc == OD_OK && job->sums != NULL && v.gguf != NULL)
		job->sums->now = od_gguf_sums_n_known(v.pack->sums);
	for (size_t i = 0; rc == OD_OK && i < v.n_shadows; i++)
		rc = verify_shadow(&v, &v.shadow[i], err);
	for (size_t i = 0; i < v.n_shadows; i++)
		od_shadow_file_close(&v.shadow[i]);
	od_inflaters_free(v.inflater, job->n_threads);
	od_buf_free(v.rows);
	od_device_free(v.device);
	od_free(v.want);
	od_free(v.last_scales);
	od_checkpoint_close(v.source);
	od_gguf_close(v.gguf);
	od_pack_close(v.pack);
	return rc;
}
