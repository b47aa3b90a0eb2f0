/* data_link.h - the engine's data socket to one daemon, worker or shadow: attach, send, receive (design section 7: the
 * thread that needs the answer owns the socket and polls it itself).
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_DATA_LINK_H
#define ODM_DATA_LINK_H

#include "common/net/wire.h"
#include "main-node/cluster/members.h"

/* What recovery.c knows of a link while a layer waits. */
struct odm_link_watch {
	bool served;	     /* a RUN */
	unsigned unanswered; /* probes since the last message */
	unsigned resends;    /* since the last answer */
	uint64_t quiet;	     /* rounds of probes since then, while it owed one */
	enum {
		ODM_LINK_UNKNOWN,
		ODM_LINK_REACHED, /* it has read all that was sent before pongs heartbeats; */
		ODM_LINK_IDLE,	  /* later it had nothing to do */
	} state;
	uint64_t pongs;
	uint32_t most_rows; /* of a piece that it may be computing */
};

struct odm_link {
	uint32_t member; /* id */
	uint64_t session; /* of the incarnation it is attached to; 0: closed */
	void *socket;
	bool attached;	  /* the daemon has said so */
	uint64_t begun_ns, looked_ns, asked_ns; /* odm_link_attach's */
	uint64_t held_bytes; /* rows of RUNs that have not had all their answers */
	struct odm_link_watch watch;
};

/* Begins to connect, and waits for nothing. */
OD_MUST_CHECK int odm_link_open(struct odm_link *l, void *zmq_context, const struct odm_member *m, struct od_err *err);
/* Goes on with it: OD_OK when it is attached, OD_ERR_BUSY when not yet, OD_ERR_TIMEOUT when it was called for two seconds and
 * the daemon has not answered. */
OD_MUST_CHECK int odm_link_attach(struct odm_link *l);
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
