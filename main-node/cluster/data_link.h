/* data_link.h - the engine's data socket to one daemon, worker or shadow: attach, send, receive. The engine thread
 * polls it itself, so that an answer needs no hand-over between threads.
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_DATA_LINK_H
#define ODM_DATA_LINK_H

#include "common/net/wire.h"
#include "main-node/cluster/members.h"

/* State of a link for recovery.c while a layer waits. */
struct odm_link_watch {
	unsigned served; /* RUNs that it has answered */
	unsigned lost; /* answers until those that it has lost are forgiven */
	unsigned unanswered; /* probes since its last message */
	unsigned resends; /* since its last answer */
	uint64_t quiet; /* probe rounds since its last answer while it owed one */
	enum {
		ODM_LINK_UNKNOWN,
		ODM_LINK_REACHED, /* it has read all messages sent before its heartbeat number `pongs` */
		ODM_LINK_IDLE, /* after that it was idle */
	} state;
	uint64_t pongs;
	uint32_t most_rows; /* the largest piece that it may be computing */
	bool late; /* in this step; others were asked for what it owed */
	uint64_t moved_ns; /* when it was last sent a RUN, or answered */
	/* [ODM_HALVES]: for the layers under way: the time that all its RUNs should take; its answers */
	double expect_ns[2];
	struct odm_layer_report report[2];
};

struct odm_link {
	uint32_t member; /* id */
	uint64_t session; /* the incarnation's that it is attached to; 0: closed */
	uint64_t others; /* as the member's */
	void *socket;
	bool attached; /* the daemon has sent ATTACHED */
	uint64_t begun_ns, looked_ns, asked_ns; /* private to odm_link_attach */
	uint64_t told_requests[2]; /* version of the names (struct odm_step_requests) that it was last sent, by phase */
	uint64_t window_bytes; /* limit of bytes in flight */
	uint64_t held_bytes; /* row bytes in flight: of RUNs that are not completely answered */
	struct odm_link_watch watch;
};

/* Starts to connect; does not wait. */
OD_MUST_CHECK int odm_link_open(struct odm_link *l, void *zmq_context, const struct odm_member *m, struct od_err *err);
/* Continues to attach: OD_OK when attached, OD_ERR_BUSY when not yet, OD_ERR_TIMEOUT when the daemon has not answered
 * after two seconds of calls. */
OD_MUST_CHECK int odm_link_attach(struct odm_link *l);
void odm_link_close(struct odm_link *l);
/* session is filled in; never blocks (OD_ERR_BUSY: the queue is full or the connection is gone). */
OD_MUST_CHECK int odm_link_send(struct odm_link *l, uint64_t epoch, Od__Header *header,
				const struct od_out_frame *frames, size_t n_frames);
/* To the first of several shadows: who the others are [n]. It begins anew. n 0: sends nothing. */
OD_MUST_CHECK int odm_link_send_parts(struct odm_link *l, uint64_t epoch, struct odm_member *part, uint32_t n);
/* Receives a message of the attached incarnation; the caller calls od_msg_fini. OD_ERR_BUSY: no message, or many
 * malformed ones, which are dropped and logged. */
OD_MUST_CHECK int odm_link_recv(struct odm_link *l, struct od_msg *m);
/* Sends ATTACH again, because the connection may have been interrupted. */
void odm_link_reattach(struct odm_link *l);

#endif
