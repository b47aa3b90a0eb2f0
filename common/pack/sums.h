/* sums.h - SHA-256 of files, and a pack's SHA256SUMS file in the format of sha256sum.
 *
 * It covers the small files; the big ones have a checksum per tensor and chunk. The format is strict (lower-case
 * digits, sorted, no file missing, none extra), so that any flipped bit is detected.
 * Thread: any. */
#ifndef OD_PACK_SUMS_H
#define OD_PACK_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_SUMS_NAME "SHA256SUMS"
#define OD_SHA256_BYTES 32

/* The small files of a pack, sorted by name. */
struct od_small_file {
	const char *name;
	bool required;
	const char *source; /* its path in the checkpoint that it is copied from; NULL: od-pack makes it */
	uint32_t number; /* pinned: names the file on the wire between a store and its workers */
};
extern const struct od_small_file od_small_files[]; /* ends with a NULL name */
/* f has a source. False for a file that a pack of this checkpoint does not have: of several tokeniser files all but
 * od_tokenizer_name's. */
bool od_small_file_wanted(const struct od_small_file *f, const char *checkpoint);

#define OD_HEX_CHARS(n_bytes) (2 * (n_bytes))
/* hex gets 2 n digits and a NUL. */
void od_hex(const uint8_t *bytes, size_t n, char *hex);
/* Exactly 2 n lower-case digits; false otherwise. */
bool od_unhex(const char *hex, uint8_t *bytes, size_t n);

/* Sums a small file: one above 256 MiB is refused. */
OD_MUST_CHECK int od_sha256_file(const char *path, uint8_t sha256[OD_SHA256_BYTES], struct od_err *err);

OD_MUST_CHECK int od_sums_write(const char *dir, struct od_err *err);
OD_MUST_CHECK int od_sums_check(const char *dir, struct od_err *err);

#endif
