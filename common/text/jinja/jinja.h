/* jinja.h - renders chat templates: the subset of Jinja2 that published models use, values in, text out.
 *
 * The text is what Python's jinja2 makes of it in the environment of transformers' apply_chat_template: an immutable
 * sandbox with trim_blocks, lstrip_blocks, loop controls, the tag `generation`, a plain tojson, raise_exception and
 * strftime_now. A tag, filter or test that does not exist here is refused by name when the template is parsed.
 * Templates come from strangers: nesting, operations, memory and length of the output are limited.
 * An error names the template's line, what was expected and what was found.
 * Thread: a parsed template is immutable; any number of threads may render it at the same time.
 * Owner: the caller owns the template, the variables and the text. Nothing here keeps a pointer to the variables. */
#ifndef OD_TEXT_JINJA_H
#define OD_TEXT_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "common/base/status.h"
#include "common/text/text_spans.h"

struct od_jinja;

/* text: len bytes of UTF-8. name: for messages, "chat_template.jinja". OD_ERR_FORMAT: not a template;
 * OD_ERR_UNSUPPORTED: a feature that does not exist here; OD_ERR_RANGE: too large or too deep. *out is NULL unless
 * OD_OK. */
OD_MUST_CHECK int od_jinja_parse(struct od_jinja **out, const char *text, size_t len, const char *name,
				 struct od_err *err);
void od_jinja_free(struct od_jinja *t); /* NULL ok */

/* Zero takes the default of a field. */
struct od_jinja_limits {
	uint64_t operations; /* about 10 to 50 ns each (default: 20 million) */
	size_t memory_bytes; /* one rendering (default: 512 MiB) */
	size_t output_bytes; /* (default: 64 MiB) */
	unsigned depth; /* nesting of calls and expressions (default: 1200) */
};

struct od_jinja_opts {
	struct od_jinja_limits limits;
	const struct tm *now; /* result of strftime_now; NULL: the local time */
	/* The text that tojson writes for an object within vars; NULL, as callback or answer: as Python's json.dumps
	 * does. It must live as long as the rendering. */
	const char *(*source)(void *arg, const json_t *object);
	/* Returns the bytes of string, object[key] within vars, that count as the template's own text: how many spans,
	 * 0 for none. They must live as long as the call from which they come. NULL: no string has any. Keys, and
	 * strings in arrays, never have. */
	size_t (*own)(void *arg, const json_t *object, const char *key, const json_t *string,
		      const struct od_text_span **span);
	void *arg;
	/* Gets the bytes of the text that the template did not write: what comes from vars, however the template
	 * changes it. Empty unless OD_OK; NULL: not wanted. */
	struct od_text_spans *users;
};

/* vars: a JSON object, the template's variables. opts may be NULL. *text is malloc'd, with a NUL that *len does not
 * count; NULL unless OD_OK. OD_ERR_ARG: the template refuses these variables (raise_exception); OD_ERR_FORMAT: an
 * operation of the template fails; OD_ERR_UNSUPPORTED: it needs what does not exist here; OD_ERR_RANGE: a limit;
 * OD_ERR_NOMEM. */
OD_MUST_CHECK int od_jinja_render(const struct od_jinja *t, const json_t *vars, const struct od_jinja_opts *opts,
				  char **text, size_t *len, struct od_err *err);

#endif
