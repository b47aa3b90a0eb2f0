/* schema_file.h - od-main --json-schema: a file with a JSON schema, and the constraint that is made of it.
 *
 * Thread: one at a time. Owner: the caller. */
#ifndef ODM_SCHEMA_FILE_H
#define ODM_SCHEMA_FILE_H

#include <jansson.h>

#include "common/grammar/constraint.h"

struct odm_schema {
	json_t *value; /* NULL: none */
	struct od_vocab *vocab;
	struct od_constraint *constraint; /* NULL before odm_schema_open */
};

/* Reads and checks the schema. The error's text names the file and the keyword. */
OD_MUST_CHECK int odm_schema_read(struct odm_schema *s, const char *path, struct od_err *err);
/* Makes the constraint, for a model of n_tokens logits. */
OD_MUST_CHECK int odm_schema_open(struct odm_schema *s, const struct od_tokenizer *t, uint32_t n_tokens,
				  struct od_err *err);
void odm_schema_fini(struct odm_schema *s);

#endif
