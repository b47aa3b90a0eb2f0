/* pair_client.h - the joiner's side of a pairing socket: one connection with the keys that the words give, and what is
 * said there.
 *
 * Thread: one at a time. Owner: the caller. */
#ifndef OD_PAIR_CLIENT_H
#define OD_PAIR_CLIENT_H

#include "common/net/members_file.h"
#include "common/pair/pair_search.h"

struct od_pair_client;

/* Connects. OD_ERR_MISMATCH: main has other words, and has counted this attempt. *out is NULL unless OD_OK. keys must
 * outlive it. */
OD_MUST_CHECK int od_pair_client_open(struct od_pair_client **out, const struct od_pair_main *to,
				      const struct od_pair_keys *keys, struct od_err *err);
/* Messages that are on their way have a second to leave. NULL ok. */
void od_pair_client_close(struct od_pair_client *c);

struct od_pair_member {
	uint8_t key[OD_KEY_BYTES]; /* main's */
	char name[OD_PAIR_NAME];
	enum od_member_change change; /* main's hosts file has changed so */
};

/* Sends a JOIN and waits for the answer. OD_ERR_ARG: main refuses, and err says why. */
OD_MUST_CHECK int od_pair_client_ask(struct od_pair_client *c, Od__Pair__Join *join, struct od_pair_member *out,
				     struct od_err *err);
/* Sends a JOIN that has no answer. */
OD_MUST_CHECK int od_pair_client_tell(struct od_pair_client *c, Od__Pair__Join *join, struct od_err *err);

#endif
