/* client_fields.h - every field of a request that clients are known to send, and what becomes of it. docs/CLIENTS.md is
 * made from this table (make docs/CLIENTS.md).
 *
 * Fields that are done are read by the tables of json_fields.h; this one refuses the others by name, renames aliases,
 * and says once in the log which fields it does not know.
 * Thread: any. */
#ifndef ODM_CLIENT_FIELDS_H
#define ODM_CLIENT_FIELDS_H

#include "main-node/serve/http/api_error.h"

enum odm_api_kind {
	ODM_API_COMPLETIONS = 1,
	ODM_API_CHAT = 2,
	ODM_API_RESPONSES = 4,
	ODM_API_MESSAGES = 8,
	ODM_API_TOKENS = 16, /* /tokenize and /detokenize */
	ODM_API_OLLAMA_CHAT = 32,
	ODM_API_OLLAMA_GENERATE = 64,
	ODM_API_OLLAMA_SHOW = 128,
	ODM_API_OLLAMA_OPTIONS = 256, /* the object `options` of the first two, which is looked at with them */
	ODM_API_CHOICES = 512, /* takes what ODM_API_CHAT takes, but for its own rows */
	ODM_API_INFILL = 1024, /* takes what ODM_API_COMPLETIONS takes, but for its own rows */
};

enum odm_fate {
	ODM_FIELD_DONE,
	ODM_FIELD_ALIAS, /* done, as the field `means` */
	ODM_FIELD_IGNORED, /* it does not change the answer */
	ODM_FIELD_REFUSED, /* unless its value asks for nothing: null, false, 0, "", [], {} or `neutral` */
};

struct odm_client_field {
	const char *name; /* "text.format": the field format of the object text, which is done or ignored */
	unsigned apis; /* enum odm_api_kind */
	enum odm_fate fate;
	const char *means; /* ODM_FIELD_ALIAS */
	const char *neutral; /* ODM_FIELD_REFUSED: one more JSON value that asks for nothing; NULL: none */
	const char *note; /* shown on the page; NULL: none */
};
extern const struct odm_client_field odm_client_fields[]; /* ends with a NULL name */

/* Changes request (an object), which came to this API. e names a field that is refused. */
OD_MUST_CHECK int odm_client_fields_apply(json_t *request, enum odm_api_kind api, struct odm_api_error *e);

#endif
