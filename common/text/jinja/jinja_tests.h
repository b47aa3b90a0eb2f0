/* jinja_tests.h - finds the tests of the language; only for common/text/jinja. */
#ifndef OD_TEXT_JINJA_TESTS_H
#define OD_TEXT_JINJA_TESTS_H

#include "common/text/jinja/jinja_calls.h"

/* NULL: there is none of that name. */
const struct jinja_function *jinja_find_test(const struct jinja_str *name);

#endif
