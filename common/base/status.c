#include "common/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *od_status_text(int code)
{
	switch ((enum od_status)code) {
	case OD_OK: return "ok";
	case OD_ERR_NOMEM: return "out of memory";
	case OD_ERR_IO: return "input/output error";
	case OD_ERR_ARG: return "bad argument";
	case OD_ERR_FORMAT: return "malformed file";
	case OD_ERR_CORRUPT: return "checksum mismatch";
	case OD_ERR_RANGE: return "out of range";
	case OD_ERR_SHAPE: return "wrong shape";
	case OD_ERR_UNSUPPORTED: return "not supported";
	case OD_ERR_MISMATCH: return "mismatch";
	case OD_ERR_BUSY: return "busy";
	case OD_ERR_CANCELLED: return "cancelled";
	case OD_ERR_TIMEOUT: return "timed out";
	case OD_ERR_UNREACHABLE: return "unreachable";
	case OD_ERR_PROTOCOL: return "protocol violation";
	case OD_ERR_MISSING: return "missing";
	case OD_ERR_INTERNAL: return "internal error";
	}
	return "unknown status";
}

static int fill(struct od_err *err, int code, const char *suffix, const char *fmt, va_list ap)
{
	size_t used;
	int n;

	if (err == NULL)
		return code;
	err->code = code;
	n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	used = n < 0 ? 0 : (size_t)n;
	if (suffix != NULL && used < sizeof(err->msg))
		snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", suffix);
	return code;
}

int od_fail(struct od_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fill(err, code, NULL, fmt, ap);
	va_end(ap);
	return code;
}

int od_fail_errno(struct od_err *err, int code, const char *fmt, ...)
{
	char reason[128];
	const char *text = strerror_r(errno, reason, sizeof(reason)); /* the GNU one: returns the text */
	va_list ap;

	va_start(ap, fmt);
	fill(err, code, text, fmt, ap);
	va_end(ap);
	return code;
}

int od_fail_within(struct od_err *err, const char *fmt, ...)
{
	char old[sizeof(err->msg)];
	va_list ap;

	if (err == NULL)
		return OD_ERR_INTERNAL;
	memcpy(old, err->msg, sizeof(old));
	va_start(ap, fmt);
	fill(err, err->code, old, fmt, ap);
	va_end(ap);
	return err->code;
}
