/* shadow_link.h - keeps the shadow aligned in token and KV cache (OD-MoE section 3.2), with configured periods. Main
 * sends STEP when a step begins, with the true token or without; STATE with the KV rows of each layer as soon as they
 * are computed; and tokens or older rows on request. Main never waits for the shadow: a message that cannot be sent is
 * dropped, and the shadow requests its content later. Main also drops messages that would exceed
 * ODM_SHADOW_UNSENT_BYTES of unsent bytes, when a shadow reads slowly or not at all; answers to requests may use only
 * half of that. SEQ_ messages (some hundred bytes; with a logit bias 9 KiB at most) are bounded by SNDHWM alone: a
 * shadow that misses one is wrong, not only late.
 *
 * Decode steps of a sequence count from n = 1. The shadow gets the token of step n when n - 1 is a multiple of the
 * token period (period 0: only of the first step). After every step whose n is a multiple of the KV period, main sends
 * all rows since the previous alignment; with period 0 it never sends KV rows, not even the prompt's.
 * A shadow in this process (od-bench recall) gets the same messages through `deliver`, without a socket. Rows go from
 * the sequence state's pages straight into messages, each STATE from one page; if the device cannot map its memory,
 * they go through a stage.
 * Thread: the engine thread, which owns the device's compute queue. Owner: odm_shadow_link_init ...
 * odm_shadow_link_fini by the caller. */
#ifndef ODM_SHADOW_LINK_H
#define ODM_SHADOW_LINK_H

#include "main-node/cluster/cluster.h"
#include "common/model/forward_open.h"
#include "main-node/cluster/data_link.h"
#include "main-node/cluster/unsent.h"
#include "main-node/step/step.h"

/* Bounds on unsent bytes, summed over all incarnations of the shadow: in total, and the level up to which answers to
 * requests are sent. A correct shadow has at most 8 MiB of requests open. */
#define ODM_SHADOW_UNSENT_BYTES (64ull << 20)
#define ODM_SHADOW_ANSWER_BYTES (ODM_SHADOW_UNSENT_BYTES / 2)

/* A logit bias as SEQ_OPEN carries it. */
struct odm_told_bias {
	uint32_t token[OD_MAX_LOGIT_BIAS];
	float bias[OD_MAX_LOGIT_BIAS];
};

/* A sequence that was announced to the shadow, or would be if there were a shadow. */
struct odm_told {
	uint64_t sequence; /* 0: a free slot */
	bool opened; /* SEQ_OPEN was sent to this shadow */
	bool fresh; /* no STEP was sent since, so the shadow has no token to continue with */
	bool corrected; /* rows of its last step were undone, so the shadow's next token is wrong */
	struct od_seq_state *seq;
	Od__SeqOpen open;
	Od__RareSampling rare; /* open's */
	uint32_t n_tokens; /* main's tokens in `token` */
	/* Tokens of a prompt that the shadow needs: TOKENS up to here were sent, or another sequence has them. */
	uint32_t n_told;
	/* The current step. */
	bool in_step; /* the sequence is in a decode step */
	uint32_t begin, n; /* its rows */
	uint32_t due_rows; /* rows that STATEs carry, up to its last row; 0: none */
	uint32_t staged_at; /* index of the first of them in the stage, in rows; UINT32_MAX: not staged */
};

struct odm_shadow_link {
	struct odm_link link; /* socket NULL: no shadow */
	struct odm_unsent *unsent; /* on this link, and on earlier links that are being closed */
	bool is_slow; /* a message was dropped for lack of room; the log has a warning */
	struct odm_align align;
	const struct od_config *config;
	uint32_t ctx;
	uint32_t max_sequences;
	struct odm_told *told; /* [max_sequences] */
	struct odm_told **part; /* [max_sequences]: by part of the current decode step */
	int32_t *token; /* [max_sequences][ctx] */
	struct odm_told_bias *bias; /* [max_sequences]: that `open` points to; memory is touched only when used */
	struct od_device *device;
	uint32_t next_layer; /* next layer of the decode step: STATEs of earlier layers are sent */
	struct odm_state_stage {
		uint8_t *bytes; /* [max_layers][layer_bytes]; NULL: the device can map its memory */
		size_t layer_bytes; /* for `rows` rows of each stream, stream after stream */
		uint32_t rows, max_layers;
		uint32_t layer, n_layers; /* layers [layer, layer + n_layers) are staged */
	} stage;
	struct odm_state_batch *batch; /* the STATE that is being built */
	uint64_t *counters; /* [OD_N_COUNTERS], set by the owner: bytes sent and time spent are added */
	/* NULL: messages go over the link. Otherwise they go to this call, which borrows them. */
	int (*deliver)(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames);
	void *deliver_arg;
};

/* o->state: the pool of the sequences; its maximum number of sequences is the limit here. */
OD_MUST_CHECK int odm_shadow_link_init(struct odm_shadow_link *s, const struct od_forward_opts *o, uint32_t ctx_tokens,
				       const struct odm_align *align, struct od_err *err);
void odm_shadow_link_fini(struct odm_shadow_link *s);
/* Another incarnation of the shadow: takes the attached link (socket NULL: no shadow now). */
void odm_shadow_link_follow(struct odm_shadow_link *s, const struct odm_link *link);

/* The token that predictions for the first row of a part must assume; -1: any, because the shadow chooses it. Call
 * before odm_shadow_link_step. */
int32_t odm_shadow_link_token(const struct odm_shadow_link *s, const struct odm_step *step,
			      const struct odm_part *part);
/* Call for every step, prompts too, before its layers. */
void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step);
/* A decode step has queued the state of all layers up to and including this one, and the caller will wait for them
 * anyway: odm_shadow_link_state then need not wait. Optional. */
void odm_shadow_link_collect(struct odm_shadow_link *s, const struct odm_step *step, uint32_t layer);
/* A decode step has computed the state of all layers up to and including this one: sends their STATEs. */
void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer);
/* Answers the shadow's requests received since the last call. */
void odm_shadow_link_serve(struct odm_shadow_link *s, uint64_t epoch);
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const Od__StateRequest *r);
void odm_shadow_link_answer_tokens(struct odm_shadow_link *s, uint64_t epoch, const Od__TokensRequest *r);
/* The sequence was truncated to length rows. */
void odm_shadow_link_truncate(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence, uint32_t length);
void odm_shadow_link_close_sequence(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence);

#endif
