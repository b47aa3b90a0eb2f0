/* pair_host.h - main's side of a pairing: answers questions of the network, admits who has the words to the pairing
 * socket, and writes those who join into the hosts file (docs/PROTOCOL.md, "Pairing").
 *
 * Thread: one at a time; the gate has its own. Owner: the caller. */
#ifndef ODM_PAIR_HOST_H
#define ODM_PAIR_HOST_H

#include <zmq.h>

#include "common/net/members_file.h"
#include "common/pair/pair_wire.h"

struct odm_pair_host;

#define ODM_PAIR_TRIES 3 /* wrong attempts end a pairing */
#define ODM_PAIR_ITEMS 3

struct odm_pair_host_ops {
	/* A host has written its own files, too. change: of the hosts file. */
	void (*joined)(void *arg, const struct od_host *host, const char *name, enum od_member_change change);
	void (*wrong)(void *arg, const char *address, unsigned left);
	/* A host was refused; it was told why. */
	void (*refused)(void *arg, const char *address, const char *why);
};

struct odm_pair_host_opts {
	const char *words, *hosts_path;
	uint8_t key[OD_KEY_BYTES]; /* main's long-term public key */
	struct odm_pair_host_ops ops;
	void *arg;
};

/* Listens on OD_PAIR_PORT, UDP and TCP. *out is NULL unless OD_OK. The words are not kept. */
OD_MUST_CHECK int odm_pair_host_open(struct odm_pair_host **out, const struct odm_pair_host_opts *opts,
				     struct od_err *err);
void odm_pair_host_close(struct odm_pair_host *h); /* NULL ok */

/* Fills what zmq_poll is to wait for, and after it does what is due. */
void odm_pair_host_items(const struct odm_pair_host *h, zmq_pollitem_t item[ODM_PAIR_ITEMS]);
void odm_pair_host_take(struct odm_pair_host *h, const zmq_pollitem_t item[ODM_PAIR_ITEMS]);
/* The hosts that this pairing has written and that have not said that they are done: they have failed since, or hide.
 * Returns how many. h may be NULL. */
unsigned odm_pair_host_unfinished(const struct odm_pair_host *h,
				  void (*each)(void *arg, const struct od_host *host, const char *name));
unsigned odm_pair_host_tries(const struct odm_pair_host *h); /* left */

#endif
