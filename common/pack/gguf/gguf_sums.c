#include "common/pack/gguf/gguf_sums.h"

#include "common/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
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

/* One that is being made has no head yet: then it is not used by this process. */
static bool map_file(struct od_gguf_sums *s, const struct sums_head *want)
{
	const int fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	struct stat st;
	void *map;

	if (fd < 0)
		return false;
	/* A page without its place on the disk would kill the process when the disk is full. (posix_fallocate would
	 * write where the file system cannot do that, while others write sums.) */
	if (fstat(fd, &st) != 0 || (st.st_size != (off_t)s->map_bytes && ftruncate(fd, (off_t)s->map_bytes) != 0) ||
	    (fallocate(fd, 0, 0, (off_t)s->map_bytes) != 0 && errno != EOPNOTSUPP)) {
		close(fd);
		return false;
	}
	map = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return false;
	s->head = map;
	s->sum = (_Atomic uint64_t *)(void *)(s->head + 1);
	if (memcmp(s->head, want, sizeof(*want)) != 0) {
		for (size_t i = 0; i < s->n; i++)
			atomic_store(&s->sum[i], 0);
		*s->head = *want;
	}
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
