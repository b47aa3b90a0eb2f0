/* shadow_link.h - keeps the shadow aligned in token and KV cache (OD-MoE section 3.2), as often as asked for: STEP when
 * a step begins, with the true token or without, STATE with the rows of each layer as soon as main has computed them,
 * and tokens or older rows when the shadow asks for them. Nothing waits for the shadow: what cannot be sent is left
 * out, and it asks again. So is what would make more than ODM_SHADOW_UNSENT_BYTES wait in main's memory, when a shadow
 * reads slowly or not at all; answers leave half of that to what comes by itself. SEQ_ messages, of some hundred bytes, are
 * bounded by SNDHWM alone: a shadow that misses one of these is wrong, not only late.
 *
 * Decode steps of a sequence count from n = 1. The shadow is given the token of step n when n - 1 is a multiple of the
 * token period (period 0: of the first alone). After every step whose n is a multiple of the KV period, all rows since
 * the alignment before become true; with period 0 nothing of main's keys and values ever comes, the prompt's neither.
 * A shadow in this process (od-bench recall) gets the same messages through `deliver`, without a socket.
 * Rows go from the sequence state's pages straight into messages, a STATE from one page; where the device maps no memory,
 * through a stage.
 * Thread: the engine thread, which owns the device's compute queue. Owner: odm_shadow_link_init ... odm_shadow_link_fini
 * by the caller. */
#ifndef ODM_SHADOW_LINK_H
#define ODM_SHADOW_LINK_H

#include "main-node/cluster/cluster.h"
#include "main-node/cluster/data_link.h"
#include "main-node/cluster/unsent.h"
#include "main-node/engine/expert_service.h"

/* Of what has not left this process, in messages of all incarnations: in all, and as far as answers to requests may fill it.
 * An honest shadow has at most 8 MiB of requests open. */
#define ODM_SHADOW_UNSENT_BYTES (64ull << 20)
#define ODM_SHADOW_ANSWER_BYTES (ODM_SHADOW_UNSENT_BYTES / 2)

/* A sequence that main has told of, or would have if there were a shadow. */
struct odm_told {
	uint64_t sequence;    /* 0: a free place */
	bool opened;	      /* the shadow has had its SEQ_OPEN, */
	bool fresh;	      /* but no STEP of it, and so no token to go on with */
	struct od_seq_state *seq;
	Od__SeqOpen open;
	uint32_t n_tokens;    /* of its tokens, main's */
	/* Of the step under way. */
	bool in_step;	      /* of decode */
	uint32_t begin, n;    /* its rows */
	uint32_t due_rows;    /* that STATEs carry, up to its last row; 0: none */
	uint32_t staged_at;   /* where the stage has these, in rows; UINT32_MAX: it has not */
};

struct odm_shadow_link {
	struct odm_link link; /* socket NULL: no shadow */
	struct odm_unsent *unsent; /* on the link, and on links before it that are being closed */
	bool is_slow;	      /* something was left out for lack of room, and the log says so */
	struct odm_align align;
	const struct od_config *config;
	uint32_t ctx;
	uint32_t max_sequences;
	struct odm_told *told; /* [max_sequences] */
	struct odm_told **part; /* [max_sequences]: by part of the decode step under way */
	int32_t *token;	       /* [max_sequences][ctx] */
	struct od_device *device;
	uint32_t next_layer;   /* of the decode step: STATEs of the layers before it are out */
	struct odm_state_stage {
		uint8_t *bytes;	    /* [max_layers][layer_bytes]; NULL: the device maps its memory */
		size_t layer_bytes; /* for `rows` rows of each stream, stream after stream */
		uint32_t rows, max_layers;
		uint32_t layer, n_layers; /* of which there are rows */
	} stage;
	struct odm_state_batch *batch; /* the STATE that is being put together */
	uint64_t *counters;   /* [OD_N_COUNTERS], the owner's to set: bytes sent are added */
	/* NULL: over the link. Else here, borrowed for the length of the call. */
	int (*deliver)(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames);
	void *deliver_arg;
};

/* o->state: of the sequences that it will tell of; as many as that can have. */
OD_MUST_CHECK int odm_shadow_link_init(struct odm_shadow_link *s, const struct od_forward_opts *o, uint32_t ctx_tokens,
				       const struct odm_align *align, struct od_err *err);
void odm_shadow_link_fini(struct odm_shadow_link *s);
/* Another incarnation of the shadow: takes the link, which is attached (socket NULL: there is none now). */
void odm_shadow_link_follow(struct odm_shadow_link *s, const struct odm_link *link);

/* The token that predictions for the first row of a part must have assumed; -1: any, it is left to the shadow. Before
 * odm_shadow_link_step. */
int32_t odm_shadow_link_token(const struct odm_shadow_link *s, const struct odm_step *step, const struct odm_part *part);
/* Of every step, also of a prompt's, before its layers. */
void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step);
/* A decode step has queued the state of all layers up to and with this one, and the caller will wait for them anyway:
 * odm_shadow_link_state then need not wait. May be left out. */
void odm_shadow_link_collect(struct odm_shadow_link *s, const struct odm_step *step, uint32_t layer);
/* A decode step has the state of all layers up to and with this one. */
void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer);
/* Answer what it asked for meanwhile. */
void odm_shadow_link_serve(struct odm_shadow_link *s, uint64_t epoch);
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const Od__StateRequest *r);
void odm_shadow_link_answer_tokens(struct odm_shadow_link *s, uint64_t epoch, const Od__TokensRequest *r);
/* Rows of the sequence from length on are undone. */
void odm_shadow_link_truncate(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence, uint32_t length);
void odm_shadow_link_close_sequence(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence);

#endif
