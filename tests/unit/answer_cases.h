/* answer_cases.h - the cases of tests/golden/chat/answers.json, and the templates that they name. */
#ifndef OD_TESTS_ANSWER_CASES_H
#define OD_TESTS_ANSWER_CASES_H

#include "main-node/chat/answer.h"

struct answer_case {
	const char *name, *template_text, *content, *reasoning;
	const char *text;
	size_t len;
	const json_t *tools; /* NULL: not known */
	const json_t *calls; /* result of odm_answer_object() */
	const json_t *echo; /* NULL: none; else for each call what the template gets */
	struct odm_chat_format format;
	bool in_thought;
};

struct answer_cases {
	json_t *files[3];
	struct answer_case *c;
	size_t n;
};

/* Set-up and teardown of a group of tests. Fails the test if a file cannot be read. */
extern struct answer_cases answer_cases;
int answer_cases_setup(void **state);
int answer_cases_teardown(void **state);
/* The format of this template, as odm_chat_template_open finds it. */
void answer_case_format(struct odm_chat_format *format, const char *template_text);
struct odm_answer_opts answer_case_opts(const struct answer_case *c);

#endif
