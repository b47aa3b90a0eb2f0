/* jinja_strings.h - what Python's str methods do, for methods and filters; only for common/text/jinja.
 *
 * Positions and widths count characters. Thread: as the job. */
#ifndef OD_TEXT_JINJA_STRINGS_H
#define OD_TEXT_JINJA_STRINGS_H

#include "common/text/jinja/jinja_value.h"

enum jinja_side { JINJA_LEFT = 1, JINJA_RIGHT = 2, JINJA_BOTH = 3 };

/* chars NULL: whitespace. */
const struct jinja_str *jinja_strip(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *chars,
				    enum jinja_side side);
/* sep NULL: runs of whitespace. At most max splits, negative: any number; side: where they are counted from. */
struct jinja_seq *jinja_split(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sep, int64_t max,
			      enum jinja_side side);
struct jinja_seq *jinja_splitlines(struct jinja_job *j, const struct jinja_str *s, bool keep_ends);
/* count negative: all. */
const struct jinja_str *jinja_replace(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *old,
				      const struct jinja_str *new, int64_t count);
/* Fills with `fill` (one character) on these sides. */
const struct jinja_str *jinja_pad(struct jinja_job *j, const struct jinja_str *s, int64_t width,
				  const struct jinja_str *fill, enum jinja_side side);
/* The first (side left) or last position of sub within characters [begin, end); -1: none. */
int64_t jinja_find(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sub, int64_t begin,
		   int64_t end, enum jinja_side side);
int64_t jinja_count(struct jinja_job *j, const struct jinja_str *s, const struct jinja_str *sub, int64_t begin,
		    int64_t end);

const struct jinja_str *jinja_upper(struct jinja_job *j, const struct jinja_str *s);
const struct jinja_str *jinja_lower(struct jinja_job *j, const struct jinja_str *s);
const struct jinja_str *jinja_swapcase(struct jinja_job *j, const struct jinja_str *s);
const struct jinja_str *jinja_capitalize(struct jinja_job *j, const struct jinja_str *s);
const struct jinja_str *jinja_title(struct jinja_job *j, const struct jinja_str *s);
bool jinja_str_is_lower(const struct jinja_str *s);
bool jinja_str_is_upper(const struct jinja_str *s);

/* int(s, base) and float(s) of Python; false: not a number. An integer of more than 64 bits ends the job. */
bool jinja_parse_int(struct jinja_job *j, const struct jinja_str *s, int base, int64_t *out);
bool jinja_parse_float(struct jinja_job *j, const struct jinja_str *s, double *out);

#endif
