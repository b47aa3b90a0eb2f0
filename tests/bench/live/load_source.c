#include "tests/bench/live/load_source.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/pack/manifest.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define READ_BYTES (1u << 20)

const char *const load_kind_names[] = { "cache", "disk", "direct", "paced", NULL };

static int open_experts(const struct od_pack *pack, char path[PATH_MAX], int *fd, struct od_err *err)
{
	uint64_t size;
	int rc = od_path(path, PATH_MAX, od_pack_dir(pack), OD_EXPERTS_NAME, err);

	*fd = -1;
	return rc == OD_OK ? od_file_open(path, fd, &size, err) : rc;
}

/* Into the page cache. */
static int read_once(const struct load_source *s, int fd, const char *path, struct od_err *err)
{
	uint8_t *buf = malloc(READ_BYTES);
	int rc = buf != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s", path);

	for (size_t i = 0; rc == OD_OK && i < s->n; i++) {
		const struct od_pack_expert *x = od_pack_expert(s->pack, s->expert[i].m, s->expert[i].expert);

		for (uint64_t at = 0; rc == OD_OK && at < x->bytes; at += READ_BYTES)
			rc = od_file_pread(fd, buf, x->bytes - at < READ_BYTES ? x->bytes - at : READ_BYTES,
					   x->offset + at, path, err);
	}
	free(buf);
	return rc;
}

static int settle_cache(struct load_source *s, struct od_err *err)
{
	char path[PATH_MAX];
	int fd, rc = open_experts(s->pack, path, &fd, err);

	if (rc == OD_OK && s->kind == LOAD_CACHE)
		rc = read_once(s, fd, path, err);
	/* Pages that are not on the disk yet would stay. */
	else if (rc == OD_OK && (fdatasync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0))
		rc = od_fail_errno(err, OD_ERR_IO, "%s: dropping it from the page cache", path);
	if (fd >= 0)
		close(fd);
	return rc;
}

int load_source_begin(struct load_source *s, struct od_err *err)
{
	s->pace.free_ns = 0;
	if (od_pack_read_direct(s->pack, s->kind == LOAD_DIRECT) != (s->kind == LOAD_DIRECT))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: its file system cannot be read past the page cache; leave direct out of "
			       "--source",
			       od_pack_dir(s->pack));
	return s->kind == LOAD_PACED ? OD_OK : settle_cache(s, err);
}

static const struct load_expert *find(const struct load_source *s, uint32_t m, uint32_t expert)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->expert[i].m == m && s->expert[i].expert == expert)
			return &s->expert[i];
	return NULL;
}

static int read_memory(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, unsigned which,
		       const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		       struct od_err *err)
{
	const struct load_source *s = arg;
	const struct od_pack_expert *x = od_pack_expert(s->pack, m, expert);
	const struct load_expert *e = find(s, m, expert);

	(void)mem;
	(void)staging;
	if (e == NULL)
		return od_fail(err, OD_ERR_RANGE, "expert (%u, %u) is not in memory", m, expert);
	for (uint32_t i = 0; i < n; i++) {
		const struct od_shard *shard = &x->shard[first + i];

		b[i] = (struct od_shard_bytes){ .sm = od_buf_ref(e->stored, shard->sm.offset - x->offset),
						.e = od_buf_ref(e->stored, shard->e.offset - x->offset),
						.checked = OD_SET_STORED & ~which };
	}
	return OD_OK;
}

void load_source_init(struct load_source *s)
{
	s->pace.pack = s->pack;
	s->pace.read = read_memory;
	s->pace.read_arg = s;
	pthread_mutex_init(&s->pace.lock, NULL);
}

int load_source_read(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, unsigned which,
		     const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		     struct od_err *err)
{
	struct load_source *s = arg;

	if (s->kind == LOAD_PACED)
		return odw_paced_read(&s->pace, m, expert, first, n, which, mem, staging, b, err);
	return od_shards_read(s->pack, m, expert, first, n, which, mem, staging, b, err);
}

int load_experts_read(const struct od_pack *pack, struct od_device *d, struct load_expert *expert, size_t n,
		      struct od_err *err)
{
	char path[PATH_MAX];
	int fd, rc = open_experts(pack, path, &fd, err);

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		const struct od_pack_expert *x = od_pack_expert(pack, expert[i].m, expert[i].expert);
		uint8_t *to = NULL;

		if (expert[i].stored != NULL)
			continue;
		rc = od_buf_new_shared(&expert[i].stored, d, x->bytes, "an expert", err);
		if (rc == OD_OK)
			to = od_ref_stage(od_buf_ref(expert[i].stored, 0));
		if (rc == OD_OK && to == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "no memory for the stage of an expert");
		if (rc == OD_OK)
			rc = od_file_pread(fd, to, x->bytes, x->offset, path, err);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

void load_experts_free(struct load_expert *expert, size_t n)
{
	if (expert != NULL)
		for (size_t i = 0; i < n; i++)
			od_buf_free(expert[i].stored);
}
