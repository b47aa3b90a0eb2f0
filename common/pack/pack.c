#include "common/pack/pack_internal.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/pack/checksum.h"
#include "common/pack/gguf/gguf.h"
#include "common/pack/gguf/gguf_folder.h"
#include "common/pack/gguf/gguf_pack.h"
#include "common/pack/given.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/models_folder.h"
#include "common/pack/spool/spool_state.h"
#include "common/text/tokenizer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct od_expert_entry *od_pack_entry(const struct od_pack *p, uint32_t m, uint32_t expert)
{
	return &p->expert[(size_t)m * p->config.n_experts + expert];
}

size_t od_pack_held_experts(const struct od_pack *p, size_t *first)
{
	uint32_t begin, end;

	od_config_moe_held(&p->config, &begin, &end);
	*first = (size_t)begin * p->config.n_experts;
	return (size_t)(end - begin) * p->config.n_experts;
}

uint64_t od_plain_offset(const struct od_config *cfg, const struct od_expert_entry *e, int mat)
{
	uint64_t at = 0, n_out, n_in;

	for (int i = 0; i < mat; i++) {
		od_expert_mat_shape(cfg, (enum od_expert_mat)i, &n_out, &n_in);
		at += od_mat_memory_bytes(&e->type[i], n_out, n_in);
	}
	return at;
}

static int open_big(struct od_pack *p, struct od_pack_data *d, const char *name, uint64_t expected, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), p->dir, name, err);

	if (rc == OD_OK)
		rc = od_data_add(d, path, err);
	if (rc == OD_OK && od_data_bytes(d) != expected)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected %" PRIu64 " bytes (model.json), found %" PRIu64 "%s",
			     path, expected, od_data_bytes(d), od_data_bytes(d) < expected ? ": cut short" : "");
	return rc;
}

static int read_expert_header(struct od_pack *p, size_t i, uint8_t *buf, struct od_err *err)
{
	const struct od_expert_extent *extent = &p->manifest.expert[i];
	const uint32_t m = (uint32_t)(i / p->config.n_experts), expert = (uint32_t)(i % p->config.n_experts);
	const size_t len = od_expert_header_bytes(&p->config);
	struct od_expert_entry *e = &p->expert[i];
	const char *path = od_data_path(&p->experts, extent->offset);
	int rc;

	if (extent->bytes < len)
		return od_fail(err, OD_ERR_RANGE, "%s: expert (%u, %u): expected at least %zu bytes, found %" PRIu64,
			       path, m, expert, len, extent->bytes);
	rc = od_data_read(&p->experts, false, buf, len, extent->offset, err);
	if (rc == OD_OK)
		rc = od_check_xxh3(XXH3_64bits(buf, len), extent->header_xxh3, err,
				   "%s: expert (%u, %u): header at offset %" PRIu64 ": checksum (in model.json)", path,
				   m, expert, extent->offset);
	if (rc == OD_OK)
		rc = od_expert_header_parse(e, &p->config, m, expert, buf, extent->offset, p->manifest.experts_bytes,
					    path, err);
	if (rc == OD_OK && e->x.bytes != extent->bytes)
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "%s: expert (%u, %u): %" PRIu64 " bytes by its header, %" PRIu64 " by model.json", path, m,
			     expert, e->x.bytes, extent->bytes);
	return rc;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void measure_shard(struct od_pack *p, const struct od_expert_entry *e, const struct od_shard *s)
{
	const struct od_mat_type *type = &e->type[s->mat];
	uint64_t n_out, n_in;

	od_expert_mat_shape(&p->config, (enum od_expert_mat)s->mat, &n_out, &n_in);
	p->shard_exponents = larger(p->shard_exponents, s->e.raw_bytes);
	p->shard_sm = larger(p->shard_sm, s->sm.raw_bytes);
	if (!od_codec_merges_in_place(od_entry_coding(e, s->mat)))
		p->shard_apart_sm = larger(p->shard_apart_sm, s->sm.raw_bytes);
	if (od_entry_coding(e, s->mat) != OD_BF16)
		p->shard_host_rows = larger(p->shard_host_rows, od_mat_memory_bytes(type, s->n_rows, n_in));
}

static void measure_expert(struct od_pack *p, const struct od_expert_entry *e, uint64_t layer_bytes[OD_N_EXPERT_BUFS])
{
	uint64_t stored = 0, raw = 0, n_out, n_in;

	for (int buf = 0; buf < OD_N_EXPERT_BUFS; buf++) {
		uint64_t bytes = od_expert_buf_bytes(&p->config, e, (enum od_expert_buf)buf);

		p->buf_bytes[buf] = larger(p->buf_bytes[buf], bytes);
		layer_bytes[buf] = larger(layer_bytes[buf], bytes);
	}
	for (uint32_t i = 0; i < e->x.n_shards; i++) {
		const struct od_shard *s = &e->x.shard[i];

		stored += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
		measure_shard(p, e, s);
	}
	for (int mat = 0; mat < od_expert_tensors(&p->config); mat++) {
		od_expert_mat_shape(&p->config, (enum od_expert_mat)mat, &n_out, &n_in);
		raw += od_mat_bytes(&e->type[mat], n_in, 0, n_out);
	}
	p->stored_bytes = larger(p->stored_bytes, stored);
	p->raw_bytes = larger(p->raw_bytes, raw);
}

int od_pack_check_dense(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t found, struct od_err *err)
{
	if (od_pack_is_gguf(p))
		return od_gguf_sums_check(p->sums, (size_t)(t - p->manifest.dense), found, err);
	return od_check_xxh3(found, t->xxh3, err, "checksum");
}

size_t od_pack_sum_index(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard)
{
	return p->manifest.n_dense +
	       ((size_t)m * p->config.n_experts + expert) * od_pack_entry(p, m, expert)->x.n_shards + shard;
}

int od_pack_check_chunk(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard, const struct od_chunk *c,
			const uint8_t *buf, struct od_err *err)
{
	const uint64_t found = XXH3_64bits(buf, c->stored_bytes);

	if (od_pack_entry(p, m, expert)->as_bytes && c->stored_bytes == 0)
		return OD_OK; /* there are no SM-chunks */
	if (p->sums != NULL)
		return od_gguf_sums_check(p->sums, od_pack_sum_index(p, m, expert, shard), found, err);
	/* In a share of a GGUF file the puller may replace it meanwhile (od_spool_put_chunk). */
	return od_check_xxh3(found, __atomic_load_n(&c->xxh3, __ATOMIC_RELAXED), err, "checksum");
}

int od_pack_measure(struct od_pack *p, struct od_err *err)
{
	p->layer = calloc((size_t)p->config.n_moe + 1, sizeof(*p->layer));
	if (p->layer == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %u layers", p->dir, p->config.n_moe);
	for (size_t i = 0; i < p->manifest.n_experts; i++)
		measure_expert(p, &p->expert[i], p->layer[i / p->config.n_experts].bytes);
	return OD_OK;
}

static int read_expert_headers(struct od_pack *p, struct od_err *err)
{
	const uint64_t len = od_expert_header_bytes(&p->config);
	uint8_t *buf;
	int rc = OD_OK;

	/* The headers are in the file, so a file too small for one header bounds what is allocated here. */
	if (len > p->manifest.experts_bytes)
		return od_fail(err, OD_ERR_RANGE, "%s: %" PRIu64 " bytes, less than one expert's header of %" PRIu64,
			       od_data_path(&p->experts, 0), p->manifest.experts_bytes, len);
	p->expert = calloc(p->manifest.n_experts, sizeof(*p->expert));
	buf = malloc(len);
	if (p->expert == NULL || buf == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory for expert tables", od_data_path(&p->experts, 0));
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_experts; i++) {
		rc = read_expert_header(p, i, buf, err);
	}
	free(buf);
	return rc == OD_OK ? od_pack_measure(p, err) : rc;
}

/* A share of a GGUF file: model.json fixes all but the checksums. An expert whose header is damaged counts as
 * absent. */
static int read_share_expert(struct od_pack *p, size_t i, uint64_t *header, struct od_err *err)
{
	const struct od_expert_extent *extent = &p->manifest.expert[i];
	const struct od_layer_types *layer = &p->manifest.layer[i / p->config.n_experts];
	struct od_expert_entry *e = &p->expert[i];
	struct od_shard *shard;
	int rc = od_share_expert(e, &p->config, layer->type, extent->offset, err);

	if (rc == OD_OK)
		rc = od_data_read(&p->experts, false, header, OD_SHARE_HEADER_WORDS(e->x.n_shards) * sizeof(*header),
				  extent->offset, err);
	if (rc != OD_OK)
		return rc;
	if (header[0] != XXH3_64bits(header + 1, e->x.n_shards * sizeof(*header)))
		od_pack_set_has_expert(p, (uint32_t)(i / p->config.n_experts), (uint32_t)(i % p->config.n_experts),
				       false);
	shard = (struct od_shard *)e->x.shard; /* ours until the pack is open */
	for (uint32_t s = 0; s < e->x.n_shards; s++)
		shard[s].e.xxh3 = header[1 + s];
	return OD_OK;
}

static int read_share(struct od_pack *p, struct od_err *err)
{
	uint64_t *header = malloc(od_share_header_bytes(&p->config));
	int rc = OD_OK;

	p->expert = calloc(p->manifest.n_experts, sizeof(*p->expert));
	if (p->expert == NULL || header == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory for expert tables", p->dir);
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_experts; i++)
		rc = read_share_expert(p, i, header, err);
	free(header);
	return rc == OD_OK ? od_pack_measure(p, err) : rc;
}

int od_pack_read_extras(struct od_pack *p, struct od_err *err)
{
	const char *name = od_tokenizer_name(p->folder);
	char path[PATH_MAX];
	int rc = name != NULL ? od_path(path, sizeof(path), p->folder, name, err) : OD_OK;

	if (rc == OD_OK && name != NULL) {
		p->tokenizer_path = strdup(path);
		if (p->tokenizer_path == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	}
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), p->folder, "generation_config.json", err);
	if (rc == OD_OK && od_file_there(path))
		rc = od_json_load(path, OD_GENERATION_MAX_BYTES, &p->generation, err);
	return rc == OD_OK ? od_config_add_eos(&p->config, p->generation, path, err) : rc;
}

/* Reads which experts a spool has. */
static int read_state(struct od_pack *p, struct od_err *err)
{
	struct od_spool_state s = { .fingerprint = p->manifest.fingerprint,
				    .n_moe = p->config.n_moe,
				    .n_experts = p->config.n_experts,
				    .whole = calloc(p->manifest.n_experts, 1) };
	int rc = OD_OK;

	p->has = calloc(p->manifest.n_experts, sizeof(*p->has));
	if (s.whole == NULL || p->has == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", p->dir);
	if (rc == OD_OK)
		rc = od_spool_state_read(&s, p->dir, err);
	if (rc == OD_OK)
		for (size_t i = 0; i < p->manifest.n_experts; i++)
			atomic_init(&p->has[i], s.whole[i] != 0);
	free(s.whole);
	return rc;
}

static int read_pack(struct od_pack *p, bool spool, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_sums_check(p->dir, err);

	p->folder = strdup(p->dir);
	if (rc == OD_OK && p->folder == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "pack %s", p->dir);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), p->dir, "config.json", err);
	if (rc == OD_OK)
		rc = od_config_load(&p->config, path, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), p->dir, OD_MODEL_NAME, err);
	if (rc == OD_OK)
		rc = od_manifest_read(&p->manifest, &p->config, path, err);
	if (rc == OD_OK && !spool && p->manifest.layer != NULL)
		rc = od_fail(
			err, OD_ERR_ARG,
			"%s has the small files that belong to a GGUF file, and no weights: give the GGUF file itself",
			p->dir);
	if (rc == OD_OK && !spool)
		rc = open_big(p, &p->dense, OD_DENSE_NAME, p->manifest.dense_bytes, err);
	if (rc == OD_OK)
		rc = open_big(p, &p->experts, OD_EXPERTS_NAME, p->manifest.experts_bytes, err);
	if (rc == OD_OK && p->manifest.layer == NULL)
		rc = read_expert_headers(p, err);
	if (rc == OD_OK && spool)
		rc = read_state(p, err);
	if (rc == OD_OK && p->manifest.layer != NULL)
		rc = read_share(p, err); /* it takes back what the state says of damaged experts */
	return rc == OD_OK ? od_pack_read_extras(p, err) : rc;
}

static bool has_file(const char *dir, const char *name)
{
	struct od_err ignored;
	char path[PATH_MAX];

	return od_path(path, sizeof(path), dir, name, &ignored) == OD_OK && od_file_there(path);
}

/* Until the pack is closed, od-pack rm does not remove it. */
static int hold(const struct od_pack *p, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->dense.n; i++)
		rc = od_models_hold(p->dense.file[i].fd, p->dense.file[i].path, err);
	return rc;
}

static int open_pack(struct od_pack **out, const char *given, bool some, struct od_err *err)
{
	struct od_pack *p;
	char dir[PATH_MAX];
	bool spool, in_place;
	int rc = od_models_find(dir, given, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	in_place = od_gguf_is(dir);
	rc = in_place ? OD_OK : od_given_pack(dir, err);
	if (rc != OD_OK)
		return rc == OD_ERR_MISSING ? od_models_name_others(dir, err) : rc;
	spool = !in_place && has_file(dir, OD_SPOOL_STATE_NAME);
	if (spool && !some)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s is one worker's share of a pack (it has a " OD_SPOOL_STATE_NAME
			       "): only od-worker can use it; expected a complete pack",
			       dir);
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "pack %s", dir);
	/* from here od_pack_close() is valid */
	p->dir = strdup(dir);
	if (p->dir == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "pack %s", dir);
	else
		rc = in_place ? od_gguf_pack_fill(p, err) : read_pack(p, spool, err);
	if (rc == OD_OK)
		rc = hold(p, err);
	if (rc != OD_OK) {
		od_pack_close(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

int od_pack_open(struct od_pack **out, const char *dir, struct od_err *err)
{
	return open_pack(out, dir, false, err);
}

int od_pack_open_some(struct od_pack **out, const char *dir, struct od_err *err)
{
	return open_pack(out, dir, true, err);
}

void od_pack_close(struct od_pack *p)
{
	if (p == NULL)
		return;
	if (p->expert != NULL)
		for (size_t i = 0; i < p->manifest.n_experts; i++)
			free((void *)p->expert[i].x.shard);
	free(p->expert);
	free(p->has);
	free(p->tensor);
	free(p->layer);
	od_manifest_fini(&p->manifest);
	od_gguf_sums_close(p->sums);
	od_data_fini(&p->dense);
	od_data_fini(&p->experts);
	json_decref(p->generation);
	free(p->tokenizer_path);
	if (p->temporary)
		od_gguf_folder_remove(p->folder);
	free(p->folder);
	free(p->dir);
	free(p);
}

const char *od_pack_dir(const struct od_pack *p)
{
	return p->dir;
}

const char *od_pack_folder(const struct od_pack *p)
{
	return p->folder;
}

bool od_pack_is_gguf(const struct od_pack *p)
{
	return p->sums != NULL;
}

bool od_pack_as_bytes(const struct od_pack *p)
{
	return p->shard_sm == 0;
}

enum od_codec od_pack_codec(const struct od_pack *p)
{
	return p->manifest.codec;
}

int od_pack_set_prior(struct od_pack *p, const struct od_cache_prior *prior, struct od_err *err)
{
	return od_config_set_prior(&p->config, prior, err);
}

int od_pack_take_layers(struct od_pack *p, uint32_t begin, uint32_t end, struct od_err *err)
{
	return od_config_take_layers(&p->config, begin, end, err);
}

const struct od_config *od_pack_config(const struct od_pack *p)
{
	return &p->config;
}

const char *od_pack_fingerprint(const struct od_pack *p)
{
	return p->manifest.fingerprint;
}

void od_pack_fingerprint_bytes(const struct od_pack *p, uint8_t out[OD_FINGERPRINT_CHARS / 2])
{
	if (!od_unhex(p->manifest.fingerprint, out, OD_FINGERPRINT_CHARS / 2))
		abort(); /* opening has seen to it that these are hexadecimal digits */
}

const char *od_pack_tokenizer_path(const struct od_pack *p)
{
	return p->tokenizer_path;
}

const json_t *od_pack_generation_config(const struct od_pack *p)
{
	return p->generation;
}

const struct od_pack_expert *od_pack_expert(const struct od_pack *p, uint32_t m, uint32_t expert)
{
	return &od_pack_entry(p, m, expert)->x;
}

bool od_pack_read_direct(struct od_pack *p, bool direct)
{
	return od_data_direct(&p->experts, direct);
}

static void drop_cached(const struct od_pack *p, uint64_t begin, uint64_t end)
{
	const struct od_data_file *f = od_data_file(&p->experts, begin);

	if (end > begin) /* 0 bytes would be all to the file's end */
		(void)posix_fadvise(f->fd, (off_t)(begin - f->begin), (off_t)(end - begin), POSIX_FADV_DONTNEED);
}

void od_pack_drop_cached(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n)
{
	const struct od_shard *s = &od_pack_expert(p, m, expert)->shard[first];

	for (uint32_t i = 0; i < n; i++) {
		drop_cached(p, s[i].sm.offset, s[i].sm.offset + s[i].sm.stored_bytes);
		drop_cached(p, s[i].e.offset, s[i].e.offset + s[i].e.stored_bytes);
	}
}

int od_pack_read_stored(const struct od_pack *p, const struct od_chunk *c, void *to, struct od_err *err)
{
	return od_data_read(&p->experts, false, to, c->stored_bytes, c->offset, err);
}

bool od_pack_is_spool(const struct od_pack *p)
{
	return p->has != NULL;
}

bool od_pack_has_expert(const struct od_pack *p, uint32_t m, uint32_t expert)
{
	return p->has == NULL || atomic_load(&p->has[(size_t)m * p->config.n_experts + expert]);
}

void od_pack_set_has_expert(struct od_pack *p, uint32_t m, uint32_t expert, bool has)
{
	atomic_store(&p->has[(size_t)m * p->config.n_experts + expert], has);
	atomic_fetch_add(&p->n_changes, 1);
}

uint64_t od_pack_expert_stored_bytes(const struct od_pack *p)
{
	return p->stored_bytes;
}

uint64_t od_pack_expert_raw_bytes(const struct od_pack *p)
{
	return p->raw_bytes;
}

uint64_t od_pack_bytes(const struct od_pack *p)
{
	/* experts of a GGUF file are in the same files */
	return od_data_bytes(&p->dense) + (od_pack_is_gguf(p) ? 0 : od_data_bytes(&p->experts));
}

uint64_t od_pack_weights(const struct od_pack *p)
{
	uint64_t expert = 0, dense = 0, n_out, n_in;

	for (int mat = 0; mat < od_expert_tensors(&p->config); mat++) {
		od_expert_mat_shape(&p->config, (enum od_expert_mat)mat, &n_out, &n_in);
		expert += n_out * n_in;
	}
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		dense += t->n_out * (t->n_in > 0 ? t->n_in : 1);
	}
	return dense + p->manifest.n_experts * expert;
}

enum od_dtype od_pack_expert_dtype(const struct od_pack *p)
{
	return od_pack_entry(p, 0, 0)->type[0].dtype;
}
