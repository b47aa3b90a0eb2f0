/* name_lookup.h - looks up the addresses of a host's name, on a thread of its own: a name server that does not answer
 * must not silence our heartbeats.
 *
 * Thread: the caller's one. Owner: the caller, until odm_name_lookup_end. */
#ifndef ODM_NAME_LOOKUP_H
#define ODM_NAME_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#define ODM_ADDRESS_CHARS 100
#define ODM_MAX_ADDRESSES 16 /* more are left out */

struct odm_addresses {
	uint32_t n;
	/* numeric; those of IPv4 first, because our default listening addresses are IPv4 */
	char at[ODM_MAX_ADDRESSES][ODM_ADDRESS_CHARS];
};

struct odm_name_lookup;

/* NULL: no memory, or no thread. */
struct odm_name_lookup *odm_name_lookup_begin(const char *name);
/* False: it is under way. *why: NULL, or why there is no address. */
bool odm_name_lookup_done(const struct odm_name_lookup *l, struct odm_addresses *found, const char **why);
/* Waits for nothing: a thread that still waits for a name server, which cannot be stopped, ends some time later. NULL
 * ok. */
void odm_name_lookup_end(struct odm_name_lookup *l);

#endif
