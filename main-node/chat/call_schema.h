/* call_schema.h - which types a parameter of a function may have, by the function's JSON schema.
 *
 * Read are type, const, enum, $ref within the schema (recursive ones, too), allOf, anyOf, oneOf, nullable, and, where
 * these say nothing, keywords that mean a type, as "properties" mean an object. Thread: any. Owner: nothing is kept. */
#ifndef ODM_CHAT_CALL_SCHEMA_H
#define ODM_CHAT_CALL_SCHEMA_H

#include <jansson.h>
#include <stddef.h>

/* JSON schema's types, as bits. */
enum {
	ODM_TYPE_STRING = 1,
	ODM_TYPE_INTEGER = 2,
	ODM_TYPE_NUMBER = 4,
	ODM_TYPE_BOOLEAN = 8,
	ODM_TYPE_OBJECT = 16,
	ODM_TYPE_ARRAY = 32,
	ODM_TYPE_NULL = 64,
};

/* The types that a value has: all numbers are of both kinds. */
unsigned odm_type_of_value(const json_t *v);

/* function: a tool's "function", or NULL. key [len]: the parameter's name. 0: the schema does not say. */
unsigned odm_param_types(const json_t *function, const char *key, size_t len);

#endif
