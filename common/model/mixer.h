/* mixer.h - a mixer (a kind of attention): its tensors, the state that a layer keeps per sequence, and its operations.
 * Each is a table of functions in a file under mixers/.
 *
 * A mixer uses the same arithmetic for all phases and row counts, so that a row's result depends only on its sequence.
 * Thread: the one of the device's compute queue. Owner: tables are constant. */
#ifndef OD_MODEL_MIXER_H
#define OD_MODEL_MIXER_H

#include "common/compute/ops.h"
#include "common/model/weights.h"

#define OD_MAX_STREAMS 3 /* two of a mixer, and recent experts */

/* The state of a sequence in a layer: streams with a row per position, and fixed state, which does not grow with the
 * text. */
struct od_state_spec {
	uint32_t n_streams;
	uint32_t width[OD_MAX_STREAMS]; /* elements per position of a stream, of the pool's type */
	uint64_t fixed_bytes; /* 0: none */
	uint64_t saved_bytes; /* per row, from which replay() can rebuild the fixed state */
};

/* Rows [first, first + n) of the sequence with this table, counted among its own rows; n is above 0. Its fixed state
 * before them is at `from`; the one behind them goes to `to`. */
struct od_span {
	uint32_t table, first, n;
	struct od_ref from, to;
};

/* The arguments of a mixer for one layer of a step. */
struct od_mix_call {
	struct od_device *device;
	const struct od_config *config;
	const struct od_layer_spec *spec;
	const struct od_layer_weights *w;
	enum od_profile profile;
	uint32_t n_rows, max_rows, max_position;
	struct od_ref rows; /* struct od_row_info [n_rows] */
	struct od_turn turn; /* the layer's RoPE */
	struct od_ref x, y; /* [n_rows][hidden]: normed rows in, mixed rows out; may be the same */
	struct od_ref scratch; /* od_mixer_ops.scratch_bytes */
	struct od_stream stream[OD_MAX_STREAMS]; /* the mixer's (kv_of: that layer's), with this step's page tables */
	/* Only with fixed state: */
	const struct od_row_info *info; /* the rows on the host; those of a sequence are in order */
	/* [n_spans]: those of a sequence are in order, and each begins where the one before ends */
	const struct od_span *span;
	uint32_t n_spans;
	struct od_ref saved; /* [n_rows] of saved_bytes; nowhere: this step commits all its rows or none */
};

struct od_mixer_ops {
	const char *name;
	void (*state)(const struct od_mixer *mix, struct od_state_spec *out);
	/* As od_role_shape; *n_out 0: the mixer has no such tensor. */
	void (*shape)(const struct od_config *cfg, const struct od_mixer *mix, enum od_role role, uint64_t *n_out,
		      uint64_t *n_in);
	uint64_t (*scratch_bytes)(const struct od_config *cfg, const struct od_mixer *mix, size_t max_rows);
	/* Queues the operations that compute y from x and write the state of the rows' positions. Spans have all
	 * rows. */
	void (*run)(const struct od_mix_call *call);
	/* Writes the fixed state behind the spans again, from the bytes that run() saved: of each sequence its first
	 * rows, or none. x and y are nowhere. The function is NULL without fixed state. */
	void (*replay)(const struct od_mix_call *call);
};

extern const struct od_mixer_ops od_mixer_gqa; /* grouped-query attention; streams: keys after RoPE, values */
extern const struct od_mixer_ops od_mixer_mla; /* multi-head latent attention; one stream: latent, shared RoPE key */
/* gated delta rule; fixed state: last inputs of the convolution, a matrix a head */
extern const struct od_mixer_ops od_mixer_delta;

/* For mixers: queues an operation over the call's rows. */
void od_mix_run(const struct od_mix_call *call, struct od_op *op);
/* Takes row_bytes * max_rows from scratch; if scratch is nowhere, only counts the bytes. */
struct od_ref od_mix_cut(struct od_ref *scratch, size_t max_rows, uint64_t row_bytes);

#endif
