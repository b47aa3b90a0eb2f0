/* pair_search.h - finds the od-main pair of this network: asks every network of this machine, or one address, by UDP.
 *
 * Answers are anybody's: whoever can send a datagram can claim to be main, and learns nothing that helps without the
 * words (docs/PROTOCOL.md, "Pairing").
 * Thread: any. Owner: nothing is kept. */
#ifndef OD_PAIR_SEARCH_H
#define OD_PAIR_SEARCH_H

#include "common/pair/pair_keys.h"
#include "common/pair/pair_wire.h"

struct od_pair_main {
	char address[100]; /* numeric, as its answer came from */
	char name[OD_PAIR_NAME];
	uint8_t salt[OD_PAIR_SALT_BYTES];
	uint16_t port; /* TCP */
	uint32_t tries;
};

/* Asks until something answers; a second more if everybody was asked, for there may be two. where: host or host:port;
 * NULL: everybody. OD_ERR_TIMEOUT: nothing answered within limit_ms. OD_ERR_ARG: several mains did. */
OD_MUST_CHECK int od_pair_search(struct od_pair_main *out, const char *where, unsigned limit_ms, struct od_err *err);

#endif
