/* shadow_link.h - keeps the shadow aligned in token and KV cache (OD-MoE section 3.2): STEP with the true token when a
 * step begins, STATE with the rows of each layer as soon as main has computed them, and older rows when the shadow asks
 * for them. Nothing waits for the shadow: what cannot be sent is left out, and it asks again.
 *
 * A shadow in this process (od-bench recall) gets the same messages through `deliver`, without a socket.
 * Thread: the engine thread. */
#ifndef ODM_SHADOW_LINK_H
#define ODM_SHADOW_LINK_H

#include "main-node/cluster.h"
#include "main-node/expert_service.h"
#include "main-node/worker_link.h"

struct odm_shadow_link {
	struct odm_link link; /* socket NULL: no shadow */
	uint64_t sequence;    /* that the shadow knows of; 0: none */
	struct od_seq_state *seq;
	uint64_t state_bytes; /* KV rows sent */
	/* NULL: over the link. Else here, borrowed for the length of the call. */
	int (*deliver)(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames);
	void *deliver_arg;
};

/* Attach to this incarnation of the shadow (NULL: there is none now). */
void odm_shadow_link_follow(struct odm_shadow_link *s, struct odm_cluster *c, const struct odm_member *shadow);
void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step);
void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer);
/* Answer what it asked for meanwhile. */
void odm_shadow_link_serve(struct odm_shadow_link *s, const struct od_config *cfg, uint64_t epoch);
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const struct od_config *cfg,
			    const Od__StateRequest *r);
void odm_shadow_link_close_sequence(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence);

#endif
