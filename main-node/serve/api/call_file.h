/* call_file.h - the file of call_memory.h, so that calls outlive the process: the prompts of conversations that go on
 * are then rendered as before, and what is cached of them is found.
 *
 * A record for each call, behind the ones before:
 *   magic, checksum (XXH3, 64 bits, of all behind it), bytes of the id and of the arguments (32 bits each); both texts
 * Bytes that are no record, as a crash or a disk may leave them, are dropped when the file is read. A file that has
 * grown to twice max_bytes is written anew with its newest records.
 * A thread of its own writes, so that no request waits for the disk; a call that finds too much waiting is lost.
 * Thread: any; a monitor. Owner: odm_call_file_open's caller. One process at a time has the file. */
#ifndef ODM_CALL_FILE_H
#define ODM_CALL_FILE_H

#include <stddef.h>

#include "common/base/status.h"

struct odm_call_file;

/* Calls back with each call of the file, the oldest first; creates it if there is none. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_call_file_open(struct odm_call_file **out, const char *path, size_t max_bytes,
				     void (*call)(void *arg, const char *id, const char *arguments), void *arg,
				     struct od_err *err);
void odm_call_file_add(struct odm_call_file *f, const char *id, const char *arguments);
void odm_call_file_close(struct odm_call_file *f); /* writes the calls that wait; NULL ok */

#endif
