#include "common/pack/spool/spool.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/pack/checksum.h"
#include "common/pack/pack_internal.h"
#include "common/pack/spool/spool_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 128
#define DISK_BLOCK_BYTES 4096u /* allocation unit of the usual file systems */

struct od_spool {
	char *dir, *path; /* path: of experts.bin */
	int lock_fd, fd;
	struct od_config config;
	struct od_manifest manifest;
	bool has_manifest;
	struct od_pack *pack; /* borrowed; NULL until od_spool_open_pack */
	struct od_share share;
	uint8_t *buf; /* [OD_SPOOL_PIECE_MAX_BYTES] */
};

/* ---- the folder ---- */

static bool is_temporary_of(const char *name, const char *of)
{
	size_t len = strlen(of);

	return strncmp(name, of, len) == 0 && strcmp(name + len, ".tmp") == 0;
}

/* A name that a spool has, or that an interrupted write left. */
static bool is_ours(const char *name)
{
	static const char *const own[] = { ".", "..", "lost+found", OD_SUMS_NAME, OD_SPOOL_STATE_NAME, OD_EXPERTS_NAME,
					   NULL };

	for (const char *const *o = own; *o != NULL; o++) {
		if (strcmp(name, *o) == 0 || is_temporary_of(name, *o))
			return true;
	}
	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++) {
		if (strcmp(name, f->name) == 0 || is_temporary_of(name, f->name))
			return true;
	}
	return false;
}

static bool has_file(const struct od_spool *s, const char *name)
{
	char path[PATH_MAX];

	return od_path(path, sizeof(path), s->dir, name, NULL) == OD_OK && od_file_there(path);
}

static int refuse_foreign(const struct od_spool *s, struct od_err *err)
{
	struct dirent *e;
	int rc = OD_OK;
	DIR *d;

	if (has_file(s, OD_DENSE_NAME))
		return od_fail(err, OD_ERR_ARG,
			       "%s holds a pack (it has %s): use it with --pack, or give the spool a "
			       "folder of its own",
			       s->dir, OD_DENSE_NAME);
	if (has_file(s, OD_SUMS_NAME))
		return OD_OK;
	d = opendir(s->dir);
	if (d == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read folder %s", s->dir);
	while (rc == OD_OK && (e = readdir(d)) != NULL) {
		if (!is_ours(e->d_name))
			rc = od_fail(err, OD_ERR_ARG,
				     "%s is not empty and not a spool: give the spool a folder of its own", s->dir);
	}
	closedir(d);
	return rc;
}

static int lock_folder(struct od_spool *s, struct od_err *err)
{
	s->lock_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->lock_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open folder %s", s->dir);
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return OD_OK;
	if (errno == EWOULDBLOCK)
		return od_fail(err, OD_ERR_BUSY,
			       "spool %s is in use by another process; each worker needs one of its own", s->dir);
	return od_fail_errno(err, OD_ERR_IO, "cannot lock %s", s->dir);
}

int od_spool_open(struct od_spool **out, const char *dir, struct od_err *err)
{
	struct od_spool *s = calloc(1, sizeof(*s));
	char path[PATH_MAX], resolved[PATH_MAX];
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "spool %s", dir);
	s->lock_fd = s->fd = -1; /* from here od_spool_close() is valid */
	rc = od_dir_resolve(resolved, dir, err); /* a link to a disk: the folder is made there */
	s->dir = strdup(resolved);
	s->buf = malloc(OD_SPOOL_PIECE_MAX_BYTES);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), resolved, OD_EXPERTS_NAME, err);
	s->path = strdup(rc == OD_OK ? path : "");
	if (rc == OD_OK && (s->dir == NULL || s->path == NULL || s->buf == NULL || sodium_init() < 0))
		rc = od_fail(err, OD_ERR_NOMEM, "spool %s", dir);
	if (rc == OD_OK)
		rc = od_mkdir_p(resolved, err);
	if (rc == OD_OK)
		rc = lock_folder(s, err);
	if (rc == OD_OK)
		rc = refuse_foreign(s, err);
	if (rc != OD_OK) {
		od_spool_close(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_spool_close(struct od_spool *s)
{
	if (s == NULL)
		return;
	if (s->has_manifest)
		od_manifest_fini(&s->manifest);
	if (s->fd >= 0)
		close(s->fd);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	free(s->buf);
	free(s->path);
	free(s->dir);
	free(s);
}

/* ---- small files ---- */

bool od_spool_small_whole(const struct od_spool *s)
{
	return od_sums_check(s->dir, NULL) == OD_OK;
}

static int read_sums(const struct od_spool *s, char **text, size_t *len, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), s->dir, OD_SUMS_NAME, err);

	*text = NULL;
	return rc == OD_OK ? od_file_read(path, OD_SPOOL_SUMS_MAX_BYTES, text, len, err) : rc;
}

bool od_spool_identity(const struct od_spool *s, uint8_t sha256[OD_SHA256_BYTES])
{
	char *text;
	size_t len;

	if (read_sums(s, &text, &len, NULL) != OD_OK)
		return false;
	crypto_hash_sha256(sha256, (const uint8_t *)text, len);
	free(text);
	return true;
}

/* The sum that the text has for a small file. False: it does not name it. */
static bool named_sum(const char *text, size_t len, const char *name, uint8_t sha256[OD_SHA256_BYTES])
{
	char line[LINE_BYTES], hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1];
	size_t n = (size_t)snprintf(line, sizeof(line), "  %s\n", name), sum = OD_HEX_CHARS(OD_SHA256_BYTES);

	for (size_t at = 0; len - at >= sum + n;) {
		const char *end = memchr(text + at, '\n', len - at);

		if (memcmp(text + at + sum, line, n) == 0) {
			memcpy(hex, text + at, sum);
			hex[sum] = '\0';
			return od_unhex(hex, sha256, OD_SHA256_BYTES);
		}
		if (end == NULL)
			return false;
		at = (size_t)(end - text) + 1;
	}
	return false;
}

/* The lines of the small files, in order, and nothing else. */
static int check_sums(const struct od_spool *s, const char *text, size_t len, struct od_err *err)
{
	char good[OD_SPOOL_SUMS_MAX_BYTES + LINE_BYTES] = "", hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1];
	uint8_t sum[OD_SHA256_BYTES];
	size_t n = 0;

	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++) {
		if (named_sum(text, len, f->name, sum)) {
			od_hex(sum, sizeof(sum), hex);
			n += (size_t)snprintf(good + n, sizeof(good) - n, "%s  %s\n", hex, f->name);
		} else if (f->required) {
			return od_fail(err, OD_ERR_FORMAT, "%s/%s: the received file does not name %s", s->dir,
				       OD_SUMS_NAME, f->name);
		}
	}
	if (n == len && memcmp(good, text, len) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_FORMAT, "%s/%s: the received file was not written by od-pack", s->dir, OD_SUMS_NAME);
}

int od_spool_put_sums(struct od_spool *s, const char *text, size_t len, struct od_err *err)
{
	char path[PATH_MAX], *old;
	size_t old_len;
	int rc = len <= OD_SPOOL_SUMS_MAX_BYTES ? check_sums(s, text, len, err) :
						  od_fail(err, OD_ERR_FORMAT, "%s: %zu bytes", OD_SUMS_NAME, len);

	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), s->dir, OD_SUMS_NAME, err);
	if (rc != OD_OK)
		return rc;
	if (read_sums(s, &old, &old_len, NULL) != OD_OK)
		return od_file_write_atomic(path, text, len, err);
	if (old_len != len || memcmp(old, text, len) != 0)
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "spool %s was filled from another pack (their " OD_SUMS_NAME
			     " differ): use another folder, or remove this one",
			     s->dir);
	free(old);
	return rc;
}

static bool small_sum(const struct od_spool *s, size_t i, uint8_t sum[OD_SHA256_BYTES])
{
	char *text;
	size_t len;
	bool named;

	if (read_sums(s, &text, &len, NULL) != OD_OK)
		return false;
	named = named_sum(text, len, od_small_files[i].name, sum);
	free(text);
	return named;
}

bool od_spool_lacks_small(const struct od_spool *s, size_t i)
{
	uint8_t expected[OD_SHA256_BYTES], found[OD_SHA256_BYTES];
	char path[PATH_MAX];

	if (!small_sum(s, i, expected))
		return false;
	return od_path(path, sizeof(path), s->dir, od_small_files[i].name, NULL) != OD_OK ||
	       od_sha256_file(path, found, NULL) != OD_OK || memcmp(expected, found, sizeof(found)) != 0;
}

int od_spool_put_small(struct od_spool *s, size_t i, const void *bytes, size_t len, struct od_err *err)
{
	uint8_t expected[OD_SHA256_BYTES], found[OD_SHA256_BYTES];
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), s->dir, od_small_files[i].name, err);

	if (rc != OD_OK)
		return rc;
	if (!small_sum(s, i, expected))
		return od_fail(err, OD_ERR_PROTOCOL, "%s does not name %s", OD_SUMS_NAME, od_small_files[i].name);
	crypto_hash_sha256(found, bytes, len);
	if (memcmp(expected, found, sizeof(found)) != 0)
		return od_fail(err, OD_ERR_CORRUPT,
			       "%s: the received bytes do not have the SHA-256 of " OD_SUMS_NAME "; check the "
			       "store's pack with od-pack verify",
			       path);
	return od_file_write_atomic(path, bytes, len, err);
}

/* ---- headers ---- */

static int make_experts(struct od_spool *s, struct od_err *err)
{
	char state[PATH_MAX];
	off_t size;

	s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (s->fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", s->path);
	size = lseek(s->fd, 0, SEEK_END);
	if (size >= 0 && (uint64_t)size == s->manifest.experts_bytes)
		return OD_OK;
	/* A new file, or not the one that the state is about. */
	if (od_path(state, sizeof(state), s->dir, OD_SPOOL_STATE_NAME, NULL) == OD_OK)
		unlink(state);
	if (ftruncate(s->fd, (off_t)s->manifest.experts_bytes) != 0)
		return od_fail_errno(err, OD_ERR_IO,
				     "cannot make %s as long as in the pack (%" PRIu64 " bytes, most of it "
				     "holes)",
				     s->path, s->manifest.experts_bytes);
	return OD_OK;
}

int od_spool_open_model(struct od_spool *s, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_sums_check(s->dir, err);

	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), s->dir, "config.json", err);
	if (rc == OD_OK)
		rc = od_config_load(&s->config, path, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), s->dir, OD_MODEL_NAME, err);
	if (rc == OD_OK)
		rc = od_manifest_read(&s->manifest, &s->config, path, err);
	if (rc != OD_OK)
		return rc;
	s->has_manifest = true;
	if (od_spool_header_bytes(s) > OD_SPOOL_PIECE_MAX_BYTES)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: headers of %zu bytes, %u can be pulled", path,
			       od_spool_header_bytes(s), OD_SPOOL_PIECE_MAX_BYTES);
	return make_experts(s, err);
}

/* A share of a GGUF file: chunks' checksums come with the chunks, not before them in headers. */
static bool is_gguf(const struct od_spool *s)
{
	return s->manifest.layer != NULL;
}

size_t od_spool_n_experts(const struct od_spool *s)
{
	return s->manifest.n_experts;
}

size_t od_spool_header_bytes(const struct od_spool *s)
{
	return is_gguf(s) ? od_share_header_bytes(&s->config) : od_expert_header_bytes(&s->config);
}

uint64_t od_spool_header_offset(const struct od_spool *s, size_t i)
{
	return s->manifest.expert[i].offset;
}

bool od_spool_lacks_header(struct od_spool *s, size_t i)
{
	const struct od_expert_extent *extent = &s->manifest.expert[i];
	const size_t len = od_spool_header_bytes(s);

	if (is_gguf(s))
		return false;
	return od_file_pread(s->fd, s->buf, len, extent->offset, s->path, NULL) != OD_OK ||
	       XXH3_64bits(s->buf, len) != extent->header_xxh3;
}

static int check_chunk_sizes(const struct od_spool *s, const struct od_pack_expert *x, struct od_err *err)
{
	for (uint32_t c = 0; c < od_spool_n_chunks(x); c++) {
		if (od_spool_chunk(x, c)->stored_bytes > OD_SPOOL_PIECE_MAX_BYTES)
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: a chunk of %u bytes, %u can be pulled", s->path,
				       od_spool_chunk(x, c)->stored_bytes, OD_SPOOL_PIECE_MAX_BYTES);
	}
	return OD_OK;
}

int od_spool_put_header(struct od_spool *s, size_t i, const void *bytes, struct od_err *err)
{
	const struct od_expert_extent *extent = &s->manifest.expert[i];
	const size_t len = od_spool_header_bytes(s);
	const uint32_t m = (uint32_t)(i / s->config.n_experts), expert = (uint32_t)(i % s->config.n_experts);
	struct od_expert_entry e;
	int rc;

	if (XXH3_64bits(bytes, len) != extent->header_xxh3)
		return od_fail(err, OD_ERR_CORRUPT,
			       "header of expert (%u, %u): the received bytes do not have the checksum of "
			       "model.json; check the store's pack with od-pack verify",
			       m, expert);
	rc = od_expert_header_parse(&e, &s->config, m, expert, bytes, extent->offset, s->manifest.experts_bytes,
				    s->path, err);
	if (rc == OD_OK && e.x.bytes != extent->bytes)
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "%s: expert (%u, %u): %" PRIu64 " bytes by its header, %" PRIu64 " by model.json", s->path,
			     m, expert, e.x.bytes, extent->bytes);
	if (rc == OD_OK)
		rc = check_chunk_sizes(s, &e.x, err);
	free((void *)e.x.shard);
	return rc == OD_OK ? od_file_pwrite(s->fd, bytes, len, extent->offset, s->path, err) : rc;
}

/* ---- experts ---- */

static int new_state(struct od_spool *s, struct od_err *err)
{
	struct od_spool_state st = { .fingerprint = s->manifest.fingerprint,
				     .n_moe = s->config.n_moe,
				     .n_experts = s->config.n_experts,
				     .whole = calloc(s->manifest.n_experts, 1) };
	int rc = st.whole != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "spool %s", s->dir);

	if (rc == OD_OK) {
		rc = od_spool_state_read(&st, s->dir, err);
		if (rc == OD_ERR_MISSING || rc == OD_ERR_CORRUPT) {
			if (rc == OD_ERR_CORRUPT)
				od_log(OD_LOG_WARN, "%s: what is in the spool will be checked again", err->msg);
			rc = od_spool_state_write(&st, s->dir, err);
		}
	}
	s->share = st.share;
	free(st.whole);
	return rc;
}

int od_spool_open_pack(struct od_spool *s, struct od_pack **pack, struct od_err *err)
{
	int rc = new_state(s, err);

	*pack = NULL;
	if (rc == OD_OK)
		rc = od_pack_open_some(&s->pack, s->dir, err);
	for (size_t i = 0; rc == OD_OK && i < s->pack->manifest.n_experts; i++)
		rc = check_chunk_sizes(s, &s->pack->expert[i].x, err);
	if (rc != OD_OK) {
		od_pack_close(s->pack);
		s->pack = NULL;
		return rc;
	}
	*pack = s->pack;
	return OD_OK;
}

struct od_share od_spool_share(const struct od_spool *s)
{
	return s->share;
}

static uint64_t file_bytes(const struct od_spool *s, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	if (od_path(path, sizeof(path), s->dir, name, NULL) != OD_OK || stat(path, &st) != 0)
		return 0;
	return ((uint64_t)st.st_size + DISK_BLOCK_BYTES - 1) / DISK_BLOCK_BYTES * DISK_BLOCK_BYTES;
}

uint64_t od_spool_small_bytes(const struct od_spool *s)
{
	/* the new beside the old */
	uint64_t bytes = file_bytes(s, OD_SUMS_NAME) + 2 * file_bytes(s, OD_SPOOL_STATE_NAME);

	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++)
		bytes += file_bytes(s, f->name);
	return bytes;
}

uint64_t od_spool_expert_bytes(const struct od_spool *s, uint32_t m, uint32_t expert)
{
	return od_pack_expert(s->pack, m, expert)->bytes;
}

bool od_spool_has_data(const struct od_spool *s, uint32_t m, uint32_t expert)
{
	const struct od_pack_expert *x = od_pack_expert(s->pack, m, expert);
	off_t from = (off_t)(x->offset + od_spool_header_bytes(s)), at = lseek(s->fd, from, SEEK_DATA);

	if (at < 0)
		return errno != ENXIO; /* ENXIO: holes up to the end. Else this file system does not say */
	return (uint64_t)at < x->offset + x->bytes;
}

bool od_spool_has_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c)
{
	const struct od_chunk *k = od_spool_chunk(od_pack_expert(s->pack, m, expert), c);

	return od_file_pread(s->fd, s->buf, k->stored_bytes, k->offset, s->path, NULL) == OD_OK &&
	       XXH3_64bits(s->buf, k->stored_bytes) == k->xxh3;
}

/* Keeps the checksum that came with a chunk of a GGUF file. A loader may look at the one that was there before: of an
 * expert that was complete and is pulled again. */
static int put_sum(struct od_spool *s, const struct od_pack_expert *x, uint32_t shard, uint64_t xxh3,
		   struct od_err *err)
{
	struct od_shard *to = (struct od_shard *)&x->shard[shard]; /* the spool's thread alone writes it */
	uint64_t *header = (uint64_t *)(void *)s->buf;

	__atomic_store_n(&to->e.xxh3, xxh3, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < x->n_shards; i++)
		header[1 + i] = x->shard[i].e.xxh3;
	header[0] = XXH3_64bits(header + 1, x->n_shards * sizeof(*header));
	return od_file_pwrite(s->fd, header, OD_SHARE_HEADER_WORDS(x->n_shards) * sizeof(*header), x->offset, s->path,
			      err);
}

int od_spool_put_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c, const void *bytes, uint64_t xxh3,
		       struct od_err *err)
{
	const struct od_pack_expert *x = od_pack_expert(s->pack, m, expert);
	const struct od_chunk *k = od_spool_chunk(x, c);
	int rc = OD_OK;

	if (XXH3_64bits(bytes, k->stored_bytes) != (is_gguf(s) ? xxh3 : k->xxh3))
		return od_fail(err, OD_ERR_CORRUPT,
			       "expert (%u, %u) shard %u, %s-chunk: the received bytes do not have the "
			       "checksum %s; check the store's pack with od-pack verify",
			       m, expert, c % x->n_shards, c < x->n_shards ? "SM" : "E",
			       is_gguf(s) ? "that came with them" : "of the expert's header");
	if (is_gguf(s) && xxh3 != k->xxh3)
		rc = put_sum(s, x, c - x->n_shards, xxh3, err);
	if (rc != OD_OK)
		return rc;
	return od_file_pwrite(s->fd, bytes, k->stored_bytes, k->offset, s->path, err);
}

void od_spool_mark(struct od_spool *s, uint32_t m, uint32_t expert, bool whole)
{
	od_pack_set_has_expert(s->pack, m, expert, whole);
}

void od_spool_drop(struct od_spool *s, uint32_t m, uint32_t expert)
{
	const struct od_pack_expert *x = od_pack_expert(s->pack, m, expert);
	const uint64_t head = od_spool_header_bytes(s);

	od_pack_set_has_expert(s->pack, m, expert, false);
	if (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(x->offset + head),
		      (off_t)(x->bytes - head)) != 0)
		od_log_limited(OD_LOG_WARN, "%s: cannot give back the space of an expert: %s", s->path,
			       strerror(errno));
}

int od_spool_save(struct od_spool *s, const struct od_share *share, struct od_err *err)
{
	struct od_spool_state st = { .fingerprint = s->manifest.fingerprint,
				     .share = *share,
				     .n_moe = s->config.n_moe,
				     .n_experts = s->config.n_experts,
				     .whole = malloc(s->manifest.n_experts) };
	int rc;

	if (st.whole == NULL)
		return od_fail(err, OD_ERR_NOMEM, "spool %s", s->dir);
	for (size_t i = 0; i < s->manifest.n_experts; i++)
		st.whole[i] = od_pack_has_expert(s->pack, (uint32_t)(i / s->config.n_experts),
						 (uint32_t)(i % s->config.n_experts));
	rc = od_spool_state_write(&st, s->dir, err);
	if (rc == OD_OK)
		s->share = *share;
	free(st.whole);
	return rc;
}
