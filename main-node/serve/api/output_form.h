/* output_form.h - the form that a request asks of its answer: a JSON schema, a regular expression, a grammar, choices,
 * or calls of tools; and the constraints that are made of these.
 *
 * Constraints are kept, for requests with the same form follow each other.
 * Thread: any; the kept ones are a monitor. Owner: references. */
#ifndef ODM_OUTPUT_FORM_H
#define ODM_OUTPUT_FORM_H

#include "common/grammar/constraint.h"
#include "main-node/chat/answer_grammar.h"
#include "main-node/serve/http/api_error.h"

struct odm_chat_template;

enum odm_output_kind {
	ODM_OUTPUT_FREE,
	ODM_OUTPUT_JSON, /* value: a schema */
	ODM_OUTPUT_REGEX, /* text */
	ODM_OUTPUT_CHOICE, /* value: an array of texts */
	ODM_OUTPUT_GRAMMAR, /* text: GBNF */
};

/* Borrowed from the request. */
struct odm_output_form {
	enum odm_output_kind kind;
	const json_t *value;
	const char *text;
	size_t len;
	char param[64]; /* the field that says it */
};

/* Reads response_format, structured_outputs, guided_json and so on, json_schema and grammar, of which there may be
 * one. */
OD_MUST_CHECK int odm_output_form_read(struct odm_output_form *f, const json_t *request, struct odm_api_error *e);

struct odm_constraints;

/* NULL: out of memory. */
struct odm_constraints *odm_constraints_new(void);
void odm_constraints_free(struct odm_constraints *c); /* NULL ok */
/* A constraint for content of this form, as a text of its own (rules NULL), or as the content of an answer; then rules
 * has all but vocab and content. chat: its marks are no text; NULL: there is no template. *out: a reference; NULL: any
 * text is allowed, or an error. */
OD_MUST_CHECK int odm_constraints_get(struct odm_constraints *c, const struct odm_output_form *f,
				      const struct odm_answer_rules *rules, const struct odm_chat_template *chat,
				      const struct od_tokenizer *tokenizer, uint32_t n_tokens,
				      struct od_constraint **out, struct odm_api_error *e);

#endif
