#include "common/pack/shadow/shadow_file.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int od_shadow_present(const struct od_pack *p, unsigned *set, struct od_err *err)
{
	char path[PATH_MAX];

	*set = 0;
	for (int precision = 1; precision <= OD_N_PRECISIONS; precision++) {
		int rc;

		if (od_shadow_file_names[precision - 1] == NULL)
			continue;
		rc = od_path(path, sizeof(path), p->folder, od_shadow_file_names[precision - 1], err);
		if (rc != OD_OK)
			return rc;
		if (od_file_there(path))
			*set |= OD_SHADOW_BIT(precision);
	}
	return OD_OK;
}

static int read_header(struct od_shadow_file *f, const struct od_pack *p, uint64_t size, struct od_err *err)
{
	uint8_t *buf;
	int rc;

	/* The file's size bounds what is allocated. */
	if (size < f->table.header_bytes)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: expected a header of %" PRIu64 " bytes, found a file of %" PRIu64 ": cut short",
			       f->file.path, f->table.header_bytes, size);
	buf = malloc(f->table.header_bytes);
	if (buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for its header", f->file.path);
	rc = od_file_pread(f->file.fd, buf, f->table.header_bytes, 0, f->file.path, err);
	if (rc == OD_OK)
		rc = od_shadow_header_parse(&f->table, p->manifest.fingerprint, buf, f->file.path, err);
	free(buf);
	if (rc == OD_OK && size != f->table.file_bytes)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected %" PRIu64 " bytes, found %" PRIu64 "%s", f->file.path,
			     f->table.file_bytes, size, size < f->table.file_bytes ? ": cut short" : "");
	return rc;
}

int od_shadow_file_open(struct od_shadow_file *f, const struct od_pack *p, enum od_precision precision,
			struct od_err *err)
{
	char path[PATH_MAX];
	uint64_t size;
	int rc = od_path(path, sizeof(path), p->folder, od_shadow_file_names[precision - 1], err);

	*f = (struct od_shadow_file){ .file.fd = -1 };
	if (rc == OD_OK)
		rc = od_shadow_table_init(&f->table, &p->config, precision, err);
	if (rc != OD_OK)
		return rc;
	if (!od_file_there(path))
		return od_fail(err, OD_ERR_MISSING, "pack %s has no %s shadow", p->dir,
			       od_precision_names[precision - 1]);
	f->file.path = strdup(path);
	if (f->file.path == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	rc = od_file_open(path, &f->file.fd, &size, err);
	return rc == OD_OK ? read_header(f, p, size, err) : rc;
}

void od_shadow_file_close(struct od_shadow_file *f)
{
	if (f->file.fd >= 0)
		close(f->file.fd);
	free(f->file.path);
	od_shadow_table_fini(&f->table);
	*f = (struct od_shadow_file){ .file.fd = -1 };
}
