/* name_lookup.h - looks up the address of a host's name, on a thread of its own: a name server that does not answer must not silence
 * our heartbeats.
 *
 * Thread: the caller's one. Owner: the caller, until odm_name_lookup_end. */
#ifndef ODM_NAME_LOOKUP_H
#define ODM_NAME_LOOKUP_H

#include <stdbool.h>

#define ODM_ADDRESS_CHARS 100

struct odm_name_lookup;

/* NULL: no memory, or no thread. */
struct odm_name_lookup *odm_name_lookup_begin(const char *name);
/* False: it is under way. *why: NULL, or why there is no address; else address is numeric, an IPv4 one if the host has one. */
bool odm_name_lookup_done(const struct odm_name_lookup *l, char address[ODM_ADDRESS_CHARS], const char **why);
/* Waits for nothing: a thread that still waits for a name server, which cannot be stopped, ends some time later. NULL ok. */
void odm_name_lookup_end(struct odm_name_lookup *l);

#endif
