/* request_rows.h - rows of a test: a request of one API, and the request of chat completions that it must become, or
 * the error. JSON is written with ' for ". */
#ifndef REQUEST_ROWS_H
#define REQUEST_ROWS_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "main-node/serve/http/api_error.h"

struct request_row {
	const char *given, *expected; /* the error's message if it is no object */
};

static char *with_quotes(const char *text)
{
	char *copy = strdup(text);

	assert_non_null(copy);
	for (char *c = copy; *c != '\0'; c++)
		*c = *c == '\'' ? '"' : *c;
	return copy;
}

static json_t *parse_row(const char *text)
{
	json_error_t e;
	json_t *v = json_loads(text, 0, &e);

	if (v == NULL)
		fail_msg("%s: %s", text, e.text);
	return v;
}

/* The error names the field with which its message begins. */
static void check_error(const char *message, int rc, const json_t *chat, const struct odm_api_error *e)
{
	assert_int_not_equal(rc, OD_OK);
	assert_null(chat);
	assert_string_equal(e->message, message);
	assert_int_equal(e->status, 400);
	assert_int_equal(strlen(e->param), strcspn(e->message, ": "));
	assert_memory_equal(e->param, e->message, strlen(e->param));
}

/* Compares texts, so that the order and spelling of members count. */
static void check_rows(const struct request_row *rows, size_t n,
		       int (*convert)(json_t **chat, const json_t *request, const char *body, struct odm_api_error *e))
{
	for (size_t i = 0; i < n; i++) {
		char *given = with_quotes(rows[i].given), *expected = with_quotes(rows[i].expected), *found;
		json_t *request = parse_row(given), *chat;
		struct odm_api_error e = { 0 };
		int rc = convert(&chat, request, given, &e);

		if (expected[0] != '{') {
			check_error(expected, rc, chat, &e);
		} else if (rc != OD_OK) {
			fail_msg("%s is refused: %s", given, e.message);
		} else {
			found = json_dumps(chat, 0);
			assert_string_equal(found, expected);
			free(found);
		}
		json_decref(chat);
		json_decref(request);
		free(expected);
		free(given);
	}
}

#endif
