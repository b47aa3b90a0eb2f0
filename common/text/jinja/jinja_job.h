/* jinja_job.h - what one parse or one rendering needs: memory, limits, and the way out on errors; only for
 * common/text/jinja.
 *
 * A rendering knows of each byte of text in its memory whether the template wrote it: what is copied by the functions
 * here keeps that, whatever path it takes through filters and methods; bytes that come in another way (the caller's
 * JSON, a buffer on the stack) count as the caller's until jinja_own() says otherwise. So what is forgotten errs on the
 * safe side.
 *
 * All memory of a job is in its arena and goes at once, at its end. So an error leaves by longjmp from wherever it is
 * found to the function that began the job (as in Lua), and nothing between must be undone. No function that holds
 * anything else (a malloc'd block, a lock, a descriptor) may call into these files.
 * Thread: a job belongs to one thread. */
#ifndef OD_TEXT_JINJA_JOB_H
#define OD_TEXT_JINJA_JOB_H

#include <jansson.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "common/base/status.h"

struct jinja_block;
struct od_jinja_opts;

struct jinja_job {
	jmp_buf leave; /* set by whoever begins the job */
	struct od_err *err;
	int code; /* why it left */
	struct jinja_block *blocks;
	size_t used_bytes, max_bytes;
	uint64_t operations_left;
	unsigned depth, max_depth;
	const char *name; /* the template's, for messages */
	uint32_t line; /* line that is being parsed or executed */
	struct tm now;
	const struct od_jinja_opts *opts; /* NULL while parsing */
	/* whose memory holds the template's own text; NULL while that is parsed: nothing is marked */
	const struct jinja_job *template;
};

/* Ends the job. The message gets the template's name and line in front. */
_Noreturn void jinja_fail(struct jinja_job *j, int code, const char *fmt, ...) OD_PRINTF(3, 4);

/* Zeroed memory, never NULL, aligned for every type. It lives as long as the job. */
void *jinja_alloc(struct jinja_job *j, size_t bytes);
void *jinja_alloc_array(struct jinja_job *j, size_t n, size_t each_bytes);
/* Room for element n in *v (a pointer to any type): may move it. */
void jinja_grow(struct jinja_job *j, void *v, size_t n, size_t *cap, size_t each_bytes);
void jinja_free_all(struct jinja_job *j);

/* Counts operations; work on n bytes counts n / JINJA_BYTES_PER_OPERATION. */
#define JINJA_BYTES_PER_OPERATION 32
void jinja_charge(struct jinja_job *j, uint64_t operations);

/* Around whatever calls itself. */
void jinja_enter(struct jinja_job *j);
static inline void jinja_leave(struct jinja_job *j)
{
	j->depth--;
}

/* ---- whose text a byte is ---- */

/* Copies text within the job's memory; each byte keeps its owner. Bytes from elsewhere become the template's if they
 * stand in the template, else the caller's. */
void jinja_copy(struct jinja_job *j, char *to, const char *from, size_t len);
/* These bytes of the job's memory are the template's text. */
void jinja_own(struct jinja_job *j, const char *p, size_t len);
/* For each byte of a text in the job's memory, 1: the template's; NULL while parsing. */
const unsigned char *jinja_owned(const struct jinja_job *j, const char *p);

/* Text under construction. */
struct jinja_text {
	char *p;
	size_t len, cap, max; /* max 0: no limit but the job's memory */
};

void jinja_add(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len);
void jinja_add_times(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len, size_t times);
/* Adds text that this program writes for a template: digits, brackets of JSON, ... */
void jinja_add_own(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len);
#define jinja_lit(j, t, literal) jinja_add_own((j), (t), "" literal, sizeof(literal) - 1)
/* One character as UTF-8, and a format: made of the character at `of`, and whose that is. of NULL: the caller's. */
void jinja_add_char(struct jinja_job *j, struct jinja_text *t, uint32_t code_point, const char *of);
void jinja_addf_of(struct jinja_job *j, struct jinja_text *t, const char *of, const char *fmt, ...) OD_PRINTF(4, 5);
/* A format of numbers and names of this program. */
void jinja_addf(struct jinja_job *j, struct jinja_text *t, const char *fmt, ...) OD_PRINTF(3, 4);

#endif
