/* call_memory.h - the arguments of the newest calls, as the model wrote them.
 *
 * Clients of Anthropic's and Ollama's APIs have a call's input as an object. What they send back has lost its spaces,
 * escapes and the spelling of numbers, so the next prompt would differ from what the model wrote. The memory is
 * bounded; a call that it has forgotten is written as the client sent it.
 *
 * It may have a file (call_file.h), from which it begins after a restart.
 *
 * Thread: any; a monitor. Owner: odm_call_memory_new's caller. */
#ifndef ODM_CALL_MEMORY_H
#define ODM_CALL_MEMORY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "main-node/chat/json_text.h"

struct odm_call_memory;

/* max_bytes: of ids and arguments. NULL: out of memory. */
struct odm_call_memory *odm_call_memory_new(uint32_t max_calls, size_t max_bytes);
void odm_call_memory_free(struct odm_call_memory *m); /* NULL ok */
/* Once, before calls come: remembers those in this file, and keeps later ones there. On an error it goes on without. */
OD_MUST_CHECK int odm_call_memory_use_file(struct odm_call_memory *m, const char *path, struct od_err *err);
/* Writes what is not written yet; later calls are in memory only. */
void odm_call_memory_leave_file(struct odm_call_memory *m);

/* Replaces a call of the same id, and forgets the oldest ones if there are too many. */
void odm_call_memory_put(struct odm_call_memory *m, const char *id, const char *arguments);
/* The text of this call's arguments (malloc'd), if its value is input; else NULL. m: NULL ok. Numbers are compared by
 * value. */
char *odm_call_memory_get(struct odm_call_memory *m, const char *id, const json_t *input);
/* Appends the text of this call's arguments as the model wrote them, if it is known; else source, the text of input as
 * the client sent it, with spaces as most models write them. id: NULL: the client sent none. */
void odm_call_memory_write(struct odm_call_memory *m, struct od_strbuf *out, const char *id, const json_t *input,
			   struct odm_slice source);

#endif
