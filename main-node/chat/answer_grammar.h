/* answer_grammar.h - a grammar for what a model may write as the answer of a turn: thoughts, then content or calls, in
 * the form of its chat template (chat_format.h).
 *
 * Thoughts are free, but end. Content begins behind them, in Harmony in the final channel. Calls are those of the
 * request's tools, with arguments by their schemas; in XML, parameters that a schema does not name are any text.
 * Thread: any. Owner: nothing is kept. */
#ifndef ODM_CHAT_ANSWER_GRAMMAR_H
#define ODM_CHAT_ANSWER_GRAMMAR_H

#include <jansson.h>

#include "common/grammar/json_schema.h"
#include "common/grammar/vocab.h"
#include "main-node/chat/chat_format.h"

struct odm_answer_rules {
	const struct odm_chat_format *format;
	const struct od_vocab *vocab;
	bool in_thought; /* the prompt leaves a thought open */
	const char *lead; /* white space that may stand before the content; NULL: none */
	const json_t *tools; /* array of functions in OpenAI's format: those that may be called; empty: none */
	bool must_call; /* at least one call, and no content */
	bool one_call; /* at most one */
	/* Tools without "strict": true get any object, unless all do by their schemas. */
	bool all_strict;
	/* Content: a node of the grammar, or any text. */
	uint32_t content;
	bool free_content;
};

#define ODM_MAX_CHECKS 256 /* tools and parameters with schemas */

/* *root: the node for answers. Its schemas are checked when the grammar is finished: checks gets them [*n_checks], for
 * od_json_schema_check, which must be called for each. The error's text begins with the place in the request:
 * "tools[0].function.parameters#/properties/a/not: ...". */
OD_MUST_CHECK int odm_answer_grammar(struct od_grammar *g, const struct odm_answer_rules *rules, uint32_t *root,
				     struct od_schema_check *checks[ODM_MAX_CHECKS], size_t *n_checks,
				     struct od_err *err);

#endif
