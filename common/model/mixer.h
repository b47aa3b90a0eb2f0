/* mixer.h - one way in which rows of a sequence meet each other: which tensors it has, what state a layer keeps for it, and
 * the operations that rows go through. One file each under mixers/; a new one is a table of these functions.
 *
 * A mixer has one arithmetic for all phases and row counts, so that a row's result depends on nothing but its sequence.
 * Thread: the one of the device's compute queue. Owner: tables are constant. */
#ifndef OD_MODEL_MIXER_H
#define OD_MODEL_MIXER_H

#include "common/compute/ops.h"
#include "common/model/weights.h"

#define OD_MAX_STREAMS 2

/* What a layer keeps of a sequence. */
struct od_state_spec {
	uint32_t n_streams;
	uint32_t width[OD_MAX_STREAMS]; /* elements of a stream for each position; of the pool's type */
	uint64_t fixed_bytes;		/* that do not grow with the text; 0: none */
	uint64_t saved_bytes;		/* of each row, from which replay() can make the fixed state again */
};

/* Fixed state of a sequence in a step, which reads the committed copy and writes the next. */
struct od_fixed {
	struct od_ref committed, next;
};

/* A layer's rows on their way through its mixer. */
struct od_mix_call {
	struct od_device *device;
	const struct od_config *config;
	const struct od_layer_spec *spec;
	const struct od_layer_weights *w;
	enum od_profile profile;
	uint32_t n_rows, max_rows, max_position;
	struct od_ref rows;    /* struct od_row_info [n_rows] */
	struct od_turn turn;   /* by the layer's rope */
	struct od_ref x, y;    /* [n_rows][hidden]: normed rows in, mixed rows out; may be the same */
	struct od_ref scratch; /* od_mixer_ops.scratch_bytes */
	struct od_stream stream[OD_MAX_STREAMS]; /* the layer's, with this step's page tables */
	/* With fixed state: */
	const struct od_row_info *info; /* the rows on the host; a sequence's stand in order */
	const struct od_fixed *fixed;	/* [tables of the step] */
	struct od_ref saved;		/* [n_rows] of saved_bytes; nowhere: this step's rows are kept whole or not at all */
	const uint32_t *kept;		/* [tables]: replay() takes so many rows of each sequence, the first ones */
};

struct od_mixer_ops {
	const char *name;
	void (*state)(const struct od_mixer *mix, struct od_state_spec *out);
	/* *n_out 0: it has no such tensor. As od_role_shape. */
	void (*shape)(const struct od_config *cfg, const struct od_mixer *mix, enum od_role role, uint64_t *n_out, uint64_t *n_in);
	uint64_t (*scratch_bytes)(const struct od_config *cfg, const struct od_mixer *mix, size_t max_rows);
	/* Queue all that makes y of x, and writes the state of the rows' positions. */
	void (*run)(const struct od_mix_call *call);
	/* With fixed state: the next copy as the kept rows alone leave it, from what run() saved of them. x and y are nowhere.
	 * Else NULL. */
	void (*replay)(const struct od_mix_call *call);
};

extern const struct od_mixer_ops od_mixer_gqa; /* grouped-query attention; streams: keys after RoPE, values */
extern const struct od_mixer_ops od_mixer_mla; /* multi-head latent attention; one stream: latent, turned shared key */

/* For mixers: queue an operation over the call's rows. */
void od_mix_run(const struct od_mix_call *call, struct od_op *op);
/* Cuts a piece for each row off scratch; of a scratch that is nowhere, it counts the bytes. */
struct od_ref od_mix_cut(struct od_ref *scratch, size_t max_rows, uint64_t row_bytes);

#endif
