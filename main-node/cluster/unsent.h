/* unsent.h - counts unsent bytes: bytes given to ZeroMQ for a peer that have not left this process. It bounds the
 * memory that a slow peer can use. ZeroMQ's own bound (SNDHWM) counts messages, whatever their size.
 *
 * A counter may serve several sockets, one after the other. It is freed when its owner has unref'd it and the last
 * message has left or was discarded, which may be after its socket was closed.
 * Thread: any; ZeroMQ's I/O thread lowers it. */
#ifndef ODM_UNSENT_H
#define ODM_UNSENT_H

#include "common/net/wire.h"

struct odm_unsent;

/* Overhead counted for every frame, header frames too: memory of ZeroMQ and the allocator, rounded up. */
#define ODM_UNSENT_FRAME_BYTES 256u

struct odm_unsent *odm_unsent_new(void); /* NULL: out of memory */
void odm_unsent_unref(struct odm_unsent *u); /* NULL ok */
uint64_t odm_unsent_bytes(const struct odm_unsent *u);

/* od_wire_send on a DEALER, counted. The frames are copied: `done` must be NULL. */
OD_MUST_CHECK int odm_unsent_send(struct odm_unsent *u, void *socket, Od__Header *header,
				  const struct od_out_frame *frames, size_t n_frames);

#endif
