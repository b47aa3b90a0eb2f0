/* jinja_globals.h - finds the global functions of the language; only for common/text/jinja. */
#ifndef OD_TEXT_JINJA_GLOBALS_H
#define OD_TEXT_JINJA_GLOBALS_H

#include "common/text/jinja/jinja_calls.h"

/* NULL: there is none of that name. */
const struct jinja_function *jinja_find_global(const struct jinja_str *name);

#endif
