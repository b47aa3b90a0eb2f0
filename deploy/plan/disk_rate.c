#include "deploy/plan/disk_rate.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/residency/residency.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (1u << 20) /* at a time */
#define READ_NS (OD_NS_PER_S / 2)

struct disk_reader {
	pthread_t thread;
	int fd;
	uint64_t first, end, bytes;
};

static void *read_disk(void *arg)
{
	struct disk_reader *d = arg;
	const uint64_t begin_ns = od_now_ns();
	void *buf = od_map(READ_BYTES);
	uint64_t at = d->first;

	while (buf != NULL && od_now_ns() - begin_ns < READ_NS) {
		const ssize_t n = pread(d->fd, buf, READ_BYTES, (off_t)at);

		if (n < (ssize_t)READ_BYTES)
			break;
		d->bytes += (uint64_t)n;
		at = at + 2 * READ_BYTES <= d->end ? at + READ_BYTES : d->first;
	}
	od_unmap(buf, READ_BYTES);
	return NULL;
}

int odp_disk_rate(const char *pack, double *gbps, struct od_err *err)
{
	struct disk_reader reader[OD_DEFAULT_READERS] = { 0 };
	char path[4096];
	struct stat st;
	uint64_t begin_ns, bytes = 0;
	unsigned n = 0;
	int fd;

	*gbps = NAN;
	snprintf(path, sizeof(path), "%s%s", pack, stat(pack, &st) == 0 && S_ISDIR(st.st_mode) ? "/experts.bin" : "");
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return OD_OK; /* a file system without O_DIRECT */
	if (fstat(fd, &st) != 0) {
		close(fd);
		return od_fail(err, OD_ERR_IO, "cannot read %s", path);
	}
	begin_ns = od_now_ns();
	for (; n < OD_DEFAULT_READERS; n++) {
		const uint64_t part = (uint64_t)st.st_size / OD_DEFAULT_READERS / READ_BYTES * READ_BYTES;

		reader[n] = (struct disk_reader){ .fd = fd, .first = n * part, .end = (n + 1) * part };
		if (pthread_create(&reader[n].thread, NULL, read_disk, &reader[n]) != 0)
			break;
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(reader[i].thread, NULL);
		bytes += reader[i].bytes;
	}
	if (bytes > 0)
		*gbps = (double)bytes / (double)(od_now_ns() - begin_ns);
	close(fd);
	return n > 0 ? OD_OK : od_fail(err, OD_ERR_NOMEM, "cannot start a thread that reads");
}
