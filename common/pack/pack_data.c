#include "common/pack/pack_data.h"

#include "common/base/file.h"
#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_ALIGN 4096u /* so that pages of a file are pages of the data */

uint64_t od_data_bytes(const struct od_pack_data *d)
{
	return d->n > 0 ? d->file[d->n - 1].begin + d->file[d->n - 1].bytes : 0;
}

int od_data_add(struct od_pack_data *d, const char *path, struct od_err *err)
{
	struct od_data_file *file = reallocarray(d->file, d->n + 1, sizeof(*file)), *f;
	int rc;

	if (file == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	d->file = file;
	f = &file[d->n];
	*f = (struct od_data_file){ .path = strdup(path), .fd = -1, .direct_fd = -1 };
	if (f->path == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	f->begin = od_round_up(od_data_bytes(d), FILE_ALIGN);
	d->n++; /* od_data_fini frees it from here on */
	rc = od_file_open(path, &f->fd, &f->bytes, err);
	if (rc == OD_OK && f->bytes > INT64_MAX - FILE_ALIGN - f->begin)
		rc = od_fail(err, OD_ERR_RANGE, "%s: too large", path);
	return rc;
}

void od_data_fini(struct od_pack_data *d)
{
	for (size_t i = 0; i < d->n; i++) {
		if (d->file[i].fd >= 0)
			close(d->file[i].fd);
		if (d->file[i].direct_fd >= 0)
			close(d->file[i].direct_fd);
		free(d->file[i].path);
	}
	free(d->file);
	*d = (struct od_pack_data){ 0 };
}

const struct od_data_file *od_data_file(const struct od_pack_data *d, uint64_t offset)
{
	size_t i = d->n - 1;

	while (i > 0 && offset < d->file[i].begin)
		i--;
	return &d->file[i];
}

int od_data_read(const struct od_pack_data *d, bool direct, void *buf, size_t len, uint64_t offset, struct od_err *err)
{
	const struct od_data_file *f = od_data_file(d, offset);

	if (direct && f->direct_fd >= 0)
		return od_file_pread_direct(f->direct_fd, f->fd, buf, len, offset - f->begin, f->path, err);
	return od_file_pread(f->fd, buf, len, offset - f->begin, f->path, err);
}

bool od_data_is_direct(const struct od_pack_data *d, uint64_t offset)
{
	return od_data_file(d, offset)->direct_fd >= 0;
}

bool od_data_direct(struct od_pack_data *d, bool direct)
{
	bool all = d->n > 0;

	for (size_t i = 0; i < d->n; i++) {
		struct od_data_file *f = &d->file[i];

		if (direct && f->direct_fd < 0)
			f->direct_fd = od_file_open_direct(f->path);
		if (!direct && f->direct_fd >= 0) {
			close(f->direct_fd);
			f->direct_fd = -1;
		}
		all = all && f->direct_fd >= 0;
	}
	return all;
}
