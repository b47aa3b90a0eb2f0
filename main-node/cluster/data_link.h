/* data_link.h - the engine's data socket to one daemon, worker or shadow: attach, send, receive (design section 7: the
 * thread that needs the answer owns the socket and polls it itself).
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_DATA_LINK_H
#define ODM_DATA_LINK_H

#include "common/net/wire.h"
#include "main-node/cluster/members.h"

struct odm_link {
	uint32_t member; /* id */
	uint64_t session; /* of the incarnation it is attached to; 0: closed */
	void *socket;
	uint64_t held_bytes;   /* rows of RUNs that have not had all their answers */
	uint64_t last_ns;      /* last send or answer */
	uint64_t last_pongs;   /* heartbeats at that time */
	unsigned resends;      /* since the last answer */
};

/* Connect and attach; waits until the daemon has answered, at most timeout_ms. On failure the link is closed. */
OD_MUST_CHECK int odm_link_open(struct odm_link *l, void *zmq_context, const struct odm_member *m, int timeout_ms,
				struct od_err *err);
void odm_link_close(struct odm_link *l);
/* session is filled in; never blocks (OD_ERR_BUSY: the queue is full or the connection is gone). */
OD_MUST_CHECK int odm_link_send(struct odm_link *l, uint64_t epoch, Od__Header *header,
				const struct od_out_frame *frames, size_t n_frames);
/* A message of the attached incarnation, od_msg_fini it. OD_ERR_BUSY: nothing there, or much garbage, which is dropped and
 * logged. */
OD_MUST_CHECK int odm_link_recv(struct odm_link *l, struct od_msg *m);
/* Ask to be attached again, after a connection that may have broken and come back. */
void odm_link_reattach(struct odm_link *l);

#endif
