#include "common/pack/gguf/gguf_sums.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "ODGGSUM1"

/* The state of the files that the sums belong to. */
struct sums_head {
	char magic[8];
	uint64_t n;
	uint8_t state[48]; /* the files' sizes and times */
};

struct od_gguf_sums {
	char *path; /* NULL: in memory alone */
	size_t n, map_bytes;
	struct sums_head *head; /* NULL: no map */
	_Atomic uint64_t *sum; /* [n]; 0: not known yet */
	_Atomic uint64_t n_learned;
};

static void state_of(const struct od_gguf *g, uint8_t out[48])
{
	uint64_t mix[6] = { 0 };

	for (size_t i = 0; i < od_gguf_n_files(g); i++) {
		const struct od_gguf_file *f = od_gguf_file(g, i);

		mix[i % 3 * 2] = mix[i % 3 * 2] * 31 + f->size_bytes;
		mix[i % 3 * 2 + 1] = mix[i % 3 * 2 + 1] * 31 + (uint64_t)f->mtime_ns;
	}
	memcpy(out, mix, sizeof(mix));
}

/* The file of sums that is there, of the same state of the GGUF file; -1: there is none. A symbolic link might lead
 * anywhere. */
static int open_file(const struct od_gguf_sums *s, const struct sums_head *want)
{
	const int fd = open(s->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct sums_head found;
	struct od_err ignored;
	struct stat st;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == (off_t)s->map_bytes &&
	    od_file_pread(fd, &found, sizeof(found), 0, s->path, &ignored) == OD_OK &&
	    memcmp(&found, want, sizeof(found)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Puts the new file at its path, or closes it and opens the one that another process has put there meanwhile. One of
 * another state is replaced and not changed: processes may have mapped it. -1: it cannot be put there. */
static int put_file(const struct od_gguf_sums *s, const struct sums_head *head, int fd, const char *path)
{
	int other;

	if (link(path, s->path) == 0) {
		unlink(path);
		return fd;
	}
	other = open_file(s, head);
	if (other < 0 && rename(path, s->path) == 0)
		return fd;
	unlink(path);
	close(fd);
	return other;
}

/* A file of sums of which none is known; -1: there can be none. */
static int make_file(const struct od_gguf_sums *s, const struct sums_head *head)
{
	char path[PATH_MAX];
	struct od_err ignored;
	int fd;

	if (snprintf(path, sizeof(path), "%s.XXXXXX", s->path) >= (int)sizeof(path))
		return -1;
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -1;
	/* A page without its place on the disk would kill the process when the disk is full. */
	if (posix_fallocate(fd, 0, (off_t)s->map_bytes) == 0 &&
	    od_file_pwrite(fd, head, sizeof(*head), 0, path, &ignored) == OD_OK && fchmod(fd, 0644) == 0)
		return put_file(s, head, fd, path);
	unlink(path);
	close(fd);
	return -1;
}

static bool map_file(struct od_gguf_sums *s, const struct sums_head *head)
{
	int fd = open_file(s, head);
	void *map;

	if (fd < 0)
		fd = make_file(s, head);
	if (fd < 0)
		return false;
	map = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return false;
	s->head = map;
	s->sum = (_Atomic uint64_t *)(void *)(s->head + 1);
	return true;
}

int od_gguf_sums_open(struct od_gguf_sums **out, const char *path, const struct od_gguf *g, size_t n,
		      struct od_err *err)
{
	struct od_gguf_sums *s = calloc(1, sizeof(*s));
	struct sums_head want = { .magic = MAGIC, .n = n };
	int rc = OD_OK;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for checksums");
	s->n = n;
	s->map_bytes = sizeof(want) + n * sizeof(*s->sum);
	state_of(g, want.state);
	s->path = path != NULL ? strdup(path) : NULL;
	if (path != NULL && s->path == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for checksums");
	/* Without a place to keep them they are computed anew each time. */
	if (rc == OD_OK && (s->path == NULL || !map_file(s, &want))) {
		s->sum = calloc(n + 1, sizeof(*s->sum));
		if (s->sum == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "no memory for %zu checksums", n);
	}
	if (rc != OD_OK) {
		od_gguf_sums_close(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_gguf_sums_close(struct od_gguf_sums *s)
{
	if (s == NULL)
		return;
	if (s->head != NULL)
		munmap(s->head, s->map_bytes);
	else
		free((void *)s->sum);
	free(s->path);
	free(s);
}

int od_gguf_sums_check(struct od_gguf_sums *s, size_t i, uint64_t found, struct od_err *err)
{
	uint64_t known = 0;

	found = found != 0 ? found : 1; /* 0 means that none is known */
	if (atomic_compare_exchange_strong(&s->sum[i], &known, found)) {
		atomic_fetch_add(&s->n_learned, 1);
		return OD_OK;
	}
	if (known == found)
		return OD_OK;
	return od_fail(err, OD_ERR_CORRUPT,
		       "checksum %016" PRIx64 ", it was %016" PRIx64
		       " when it was read first: the file has changed or the disk returns other bytes%s%s",
		       found, known, s->path != NULL ? "; to begin anew, remove " : "", s->path != NULL ? s->path : "");
}

uint64_t od_gguf_sums_known(const struct od_gguf_sums *s, size_t i)
{
	return atomic_load(&s->sum[i]);
}

uint64_t od_gguf_sums_learned(const struct od_gguf_sums *s)
{
	return atomic_load(&s->n_learned);
}

size_t od_gguf_sums_n_known(const struct od_gguf_sums *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n; i++)
		n += atomic_load(&s->sum[i]) != 0;
	return n;
}
