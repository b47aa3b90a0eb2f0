/* json_mix.h - JSON documents of a known kind that a fuzzer's input changes: it puts any value of any of them, and
 * values that often go wrong, at any place. So a few bytes reach what text would need luck for.
 *
 * Thread: one. Owner: lives as long as the process. */
#ifndef OD_FUZZ_JSON_MIX_H
#define OD_FUZZ_JSON_MIX_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct json_mix;

/* docs: an array of objects, kept. skip: a key whose value is not looked into, or NULL. */
struct json_mix *json_mix_new(json_t *docs, const char *skip);

/* Takes from *data: which document, the number of changes, the changes. A new reference. */
json_t *json_mix_make(const struct json_mix *m, const uint8_t **data, size_t *size);

#endif
