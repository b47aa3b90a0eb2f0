/* status.h - error codes, and struct od_err, the reason that accompanies a code.
 *
 * Codes are negative, 0 is good. They are sent on the wire and used in scripts: never renumber.
 * Thread: any. Owner: the caller owns the od_err; nothing here allocates. */
#ifndef OD_BASE_STATUS_H
#define OD_BASE_STATUS_H

#include <stdarg.h>

#define OD_MUST_CHECK __attribute__((warn_unused_result))
#define OD_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

enum od_status {
	OD_OK = 0,
	OD_ERR_NOMEM = -1, /* an allocation failed or a budget is too small */
	OD_ERR_IO = -2, /* the operating system refused a read, write, open */
	OD_ERR_ARG = -3, /* the user's command line or hosts file is wrong */
	OD_ERR_FORMAT = -4, /* a file is malformed: syntax, missing or extra fields */
	OD_ERR_CORRUPT = -5, /* a checksum does not match */
	OD_ERR_RANGE = -6, /* an index, offset or length is outside its bounds */
	OD_ERR_SHAPE = -7, /* a tensor or message has other dimensions than expected */
	OD_ERR_UNSUPPORTED = -8, /* valid, but not supported here */
	OD_ERR_MISMATCH = -9, /* two sides disagree: version, fingerprint, profile, kernel class */
	OD_ERR_BUSY = -10, /* a bounded queue or a single-owner resource is taken */
	OD_ERR_CANCELLED = -11, /* stopped on request */
	OD_ERR_TIMEOUT = -12, /* a deadline passed */
	OD_ERR_UNREACHABLE = -13, /* no worker or host is left for the request */
	OD_ERR_PROTOCOL = -14, /* a peer sent a message that is not allowed here */
	OD_ERR_MISSING = -15, /* a file, tensor or field that must exist does not */
	OD_ERR_INTERNAL = -16, /* a bug in this program */
};

/* Why an operation failed, in words that an operator can act on. */
struct od_err {
	int code;
	char msg[768];
};

/* A short text for a code, never NULL. */
const char *od_status_text(int code);

/* Fill err (NULL is fine) and return code, so that callers can write `return od_fail(...)`. */
int od_fail(struct od_err *err, int code, const char *fmt, ...) OD_PRINTF(3, 4);

/* As od_fail, with ": <strerror(errno)>" behind the text. */
int od_fail_errno(struct od_err *err, int code, const char *fmt, ...) OD_PRINTF(3, 4);

/* Prepends context to the reason in err: "pack /x: reason". Returns err->code; with err NULL the code is lost and
 * OD_ERR_INTERNAL is returned. */
int od_fail_within(struct od_err *err, const char *fmt, ...) OD_PRINTF(2, 3);

#endif
