#include "common/net/store_wire.h"

#include "common/base/mem.h"

#include <inttypes.h>
#include <string.h>

int od_store_check_fetch(const Od__Fetch *f, size_t n_frames, const uint64_t *bytes, struct od_err *err)
{
	if (n_frames > 0)
		return od_fail(err, OD_ERR_PROTOCOL, "FETCH: expected no frames, found %zu", n_frames);
	if (f->file > OD_STORE_EXPERTS || bytes[f->file] == 0)
		return od_fail(err, OD_ERR_RANGE, "file %u: no file has this number", f->file);
	if (f->bytes == 0 || f->bytes > OD_STORE_PIECE_BYTES)
		return od_fail(err, OD_ERR_RANGE, "bytes: expected 1 to %u, found %u", OD_STORE_PIECE_BYTES, f->bytes);
	if (!od_within(f->offset, f->bytes, bytes[f->file]))
		return od_fail(err, OD_ERR_RANGE, "%u bytes at %" PRIu64 " of file %u, which has %" PRIu64, f->bytes,
			       f->offset, f->file, bytes[f->file]);
	return OD_OK;
}

int od_store_address(struct od_host *out, const char *text, const char *what, struct od_err *err)
{
	int rc;

	if (strncmp(text, "tcp://", 6) == 0)
		text += 6;
	rc = od_host_parse(out, text, OD_DEFAULT_STORE_PORT, err);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", what);
}
