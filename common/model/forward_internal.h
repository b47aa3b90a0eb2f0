/* forward_internal.h - what the files of a forward pass share: its struct and where its buffers lie.
 *
 * Thread and owner: as forward.h. */
#ifndef OD_MODEL_FORWARD_INTERNAL_H
#define OD_MODEL_FORWARD_INTERNAL_H

#include "common/compute/cards.h"
#include "common/model/forward.h"
#include "common/model/forward_open.h"

/* Cut from one buffer of the device. */
enum buffer {
	/* Buffers with one element for each of max_rows rows. */
	BUF_INFO, /* struct od_row_info */
	BUF_X, /* [hidden]: the residual stream */
	BUF_H, /* [hidden]: normed rows; between times what the mixer gave */
	BUF_ANGLES, /* rope by rope [dims]: of the row's position */
	BUF_PROBABILITY, /* [n_experts] */
	BUF_EXPERT, /* uint16_t [top_k] */
	BUF_WEIGHT, /* [top_k] */
	BUF_MARGIN, /* [1] */
	BUF_Y, /* [top_k][hidden]: what the experts gave */
	/* [hidden]: rows normed for the router, then for the shared experts, where each has a norm of its own */
	BUF_ASIDE,
	BUF_BESIDE, /* [hidden]: what a dense layer's network, or the shared experts, gave */
	BUF_SCORE, /* [1]: the gate of the latter */
	BUF_INPUT, /* [n_layers][layer_input]: each layer's own input */
	BUF_PROJECT, /* [n_layers][layer_input]: addend of BUF_INPUT */
	BUF_GATED, /* [layer_input]: of the layer under way */
	BUF_EMBED, /* [embed_row_bytes]: the token's row of a table in a file */
	BUF_LAYER_EMBED, /* [layer_embed_row_bytes]: as BUF_EMBED */
	N_ROW_BUFFERS,
	/* once: */
	BUF_MIX = N_ROW_BUFFERS, /* scratch of mixers */
	BUF_FFN, /* scratch of dense networks */
	BUF_TABLES, /* uint32_t [n_tables][table_pages]: page tables of the step's sequences */
	BUF_INV_FREQ, /* rope by rope [2][dims / 2]: of short and of long texts */
	BUF_LOGITS, /* [max_logits][vocab] */
	BUF_SAVED, /* layer by layer [OD_KEEP_ROWS] of what its mixer saves */
	N_BUFFERS
};

enum phase { PHASE_IDLE, PHASE_ATTENTION, PHASE_EXPERTS, PHASE_LOGITS, PHASE_ENDED };

#define NO_TABLE UINT32_MAX

/* Rows [first, first + n) of the step, which go through the layers together. */
struct half {
	size_t first, n;
	enum phase phase;
	uint32_t layer;
	unsigned fetched;
	struct od_moe_call call; /* the one that od_forward_submit has submitted */
};

struct od_forward {
	struct od_forward_opts o;
	struct half half[2], *now; /* now: the one that calls are about */
	unsigned n_halves; /* 1: half[0] has all rows */
	uint64_t step;
	uint32_t max_position, table_pages, n_tables;
	bool taken; /* the layer's weights, from a stream */
	unsigned n_cards, card; /* card: the one of the layer under way */
	struct od_buf *buf[OD_MAX_CARDS];
	bool moves; /* the layer under way is on another card, where its rows are not yet */
	void *moved; /* rows on their way from card to card; NULL: there is one card */
	uint64_t at[N_BUFFERS]; /* in each buf */
	uint64_t row_bytes[N_BUFFERS]; /* bytes of a row in each buffer of rows */
	/* OD_OP_EMBED reads these: the tables, or the buffers for those in a file. */
	struct od_weight embed, layer_embed;
	/* On the host: the buffers that begin sends, and those for fetched results. */
	struct od_row *rows; /* [max_rows] */
	struct od_row_info *info; /* [max_rows] */
	uint32_t *tables; /* [n_tables][table_pages] */
	uint32_t *table_of; /* [sequences]: by index (seq_state.h); NO_TABLE: the step has no rows of it */
	struct od_seq_state **of; /* [n_tables]: whose table it is */
	uint32_t *begun; /* [n_tables]: position of its first row */
	uint32_t *count; /* [n_tables]: its rows */
	struct od_span *span; /* [n_tables * (OD_MAX_MARKS + 1)]: of the layer under way */
	/* [2][2][n_layers]: of its dense network or shared experts, by half; two sets, because an abandoned step may
	 * still be queued */
	struct od_ffn_segment *segment;
	bool second; /* whose turn it is */
	uint64_t put; /* ticket for what begin has put from there */
	bool put_open; /* the device may still read it */
	bool queued; /* work that has not been waited for */
	int failed; /* first error that a wait of this step returned; OD_OK: none yet */
	uint64_t failures; /* the device's count when the step began */
	void *host[N_BUFFERS]; /* memory that fetches fill: the device's mapping, else a stage */
	bool staged; /* the latter */
};

/* Elements of the ropes before this one; with rope n_ropes, of all ropes. */
uint32_t od_forward_dims_before(const struct od_config *c, uint32_t rope);
/* Bytes of BUF_SAVED for the layers before this one. */
uint64_t od_forward_saved_before(const struct od_config *c, uint32_t layer);
size_t od_forward_max_logits(const struct od_forward_opts *o);

static inline struct od_ref od_forward_ref(const struct od_forward *f, enum buffer b)
{
	return od_buf_ref(f->buf[f->card], f->at[b]);
}

#endif
