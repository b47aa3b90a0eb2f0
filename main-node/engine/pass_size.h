/* pass_size.h - how many rows and logits the two passes of an engine have room for.
 *
 * Thread: pure functions. */
#ifndef ODM_PASS_SIZE_H
#define ODM_PASS_SIZE_H

#include "common/model/forward_open.h"

bool odm_pass_size_fixed(const struct od_config *c); /* a layer has fixed state: it does not grow with the text */
/* The maximum number of rows of a decode step that has drafts. */
uint32_t odm_pass_size_drafted(const struct od_config *c);
/* The maximum number of rows of a decode step of up to max_sequences texts, drafts included. */
uint32_t odm_pass_size_rows(const struct od_config *c, uint32_t max_sequences);

/* o->max_rows: of a prefill chunk. Options of the pass for decode steps; of that for prefill. */
struct od_forward_opts odm_pass_size_decode(const struct od_forward_opts *o, uint32_t max_sequences);
struct od_forward_opts odm_pass_size_prefill(const struct od_forward_opts *o, uint32_t max_sequences);
/* Adds the memory of both. */
void odm_pass_size_split(const struct od_forward_opts *o, uint32_t max_sequences, struct od_split *s);

#endif
