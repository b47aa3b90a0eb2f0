/* predictions_internal.h - the table of predictions.h, for the files that work on it: predictions.c (sequences, steps,
 * predictions, recall), prediction_wants.c (WANTs and where experts are loaded) and prediction_drafts.c (what the table
 * says of a draft).
 *
 * Thread: all of it under the table's lock. */
#ifndef ODM_PREDICTIONS_INTERNAL_H
#define ODM_PREDICTIONS_INTERNAL_H

#include <pthread.h>
#include <string.h>

#include "common/base/id_table.h"
#include "main-node/predict/predict_tally.h"
#include "main-node/predict/prediction_wants.h"

#define KEPT 3 /* decode steps: the previous (for late predictions), the current, the next */
#define PROMPT KEPT /* slot of the prefill step */
#define SLOTS (KEPT + 1)
#define NO_CELL UINT32_MAX

/* Prediction of a row at a layer; all zero when void. The experts that it wants are in `wanted` (struct od_wanted). */
struct row_prediction {
	struct od_candidates predicted; /* received before the router chose */
	bool stand_in; /* main's own prediction: the shadow has sent none */
	uint64_t came_ns;
	int32_t token; /* assumed by the prediction */
};

/* A position after the sequence's rows in the current step. All zero when nothing is predicted for it. */
struct ahead {
	int32_t token; /* assumed by the newest prediction */
	float margin; /* the assumed token's */
	double right; /* probability that it is right, if those before it are */
	bool shadow; /* the shadow predicted it; false: only a stand-in */
	uint64_t first_ns; /* arrival of the shadow's first prediction */
};

/* Row of a step at a layer: what is counted for it. It outlives the prediction, which late ones are compared with. */
enum { ROUTED = 1, IN_TIME = 2, LATE = 4, STOOD_IN = 8 };
struct score {
	uint8_t what;
	uint8_t hits; /* used experts that the prediction had, in time or late */
	uint8_t stood_in_hits; /* used experts that the stand-in had */
};

/* One (step, m). */
struct entry {
	uint32_t version;
	bool dirty; /* WANTs to be sent */
	bool resolved; /* the router has chosen */
	bool learnt; /* odm_predictions_learn is done */
	uint32_t n_required; /* prefill: experts known for certain */
	uint32_t required_rows; /* as odm_want.rows */
	uint32_t n_sent; /* in the version that was placed last */
	uint64_t epoch; /* the version's that was placed last */
	/* When it was learnt: experts of its predictions, and when the last of them came. */
	uint32_t right, wrong;
	uint64_t came_ns;
};

struct step_row {
	uint64_t sequence;
	uint32_t position, number; /* the sequence's */
	uint32_t cell; /* index into `row` and `wanted`; NO_CELL: no predictions are kept */
	int32_t token;
};

struct step_slot {
	uint64_t step; /* 0: unused */
	bool begun;
	uint32_t n_rows;
	struct step_row *row; /* [max_rows] */
	uint64_t begun_ns;
};

/* A sequence's part of a decode step: its rows at positions [begin, begin + n), without those that were undone. */
struct predict_part {
	uint64_t serial; /* number of the decode step; the part is valid for that step only */
	uint32_t begin, n, first_row;
	uint64_t first_ns; /* arrival of the first prediction that was kept; 0: none yet */
	bool first_known; /* first_ns is counted */
	uint32_t newest_m; /* highest layer of the kept predictions */
};

struct sequence {
	uint64_t id; /* 0: none */
	uint32_t prompt_tokens;
	uint64_t closed; /* serial number of its closing; 0: open */
	uint64_t steps, heard; /* decode steps begun: now, and at the shadow's last prediction */
	uint64_t counted_from; /* serial of the first step that counts */
	struct predict_part part[KEPT]; /* by slot */
	/* The next step. The shadow predicts positions one after the other: those from `end` to `top` have
	 * predictions. */
	uint32_t end; /* end of the current step's rows */
	uint32_t top; /* end of the predicted positions */
	uint32_t limit; /* limit of `top` */
	uint32_t ahead; /* rows of the next step at most: [end, end + ahead) */
	struct odm_outlook outlook; /* for which of them to prefetch: wanted_end() */
	double all_right; /* probability that all rows of the current step stand */
	struct odm_tally tally;
};

struct odm_predictions {
	struct odm_predictions_opts o;
	pthread_mutex_t lock;
	struct step_slot slot[SLOTS];
	/* number of the current decode step; it has slot serial % KEPT, the next step the slot after that */
	uint64_t serial;
	struct od_id_table ids;
	struct sequence *sequence; /* [max_sequences], by number */
	uint64_t last_closed;
	/* Predictions of the current and later steps. Each sequence has a ring of cells, one a position, so no
	 * prediction moves when a step begins. What is outside of [begin of its current rows, top) is void. */
	uint32_t n_ring;
	size_t n_cells;
	struct ahead *ahead; /* [n_cells] */
	struct row_prediction *row; /* [n_moe][n_cells] */
	struct od_wanted *wanted; /* [n_moe][n_cells] */
	struct step_row *step_row; /* [KEPT][max_rows] */
	struct entry *entry; /* [SLOTS][n_moe] */
	uint16_t *used; /* [KEPT][n_moe][max_rows][top_k] */
	struct score *score; /* [KEPT][n_moe][max_rows] */
	uint32_t *where; /* [SLOTS][n_moe][n_experts] */
	uint16_t *sent; /* [SLOTS][n_moe][n_experts]: by rank, in the version that was placed last */
	uint32_t *sent_to; /* [SLOTS][n_moe][n_experts]: their members */
	uint8_t *mark; /* [SLOTS][n_moe][n_experts]: WAS_WANTED, ... */
	uint16_t *required; /* [n_moe][n_experts]: of the prefill step */
	struct od_want_policy *policy;
	struct odm_voided voided;
	uint32_t n_dirty;
	/* Scratch. */
	uint32_t *cell; /* [most_rows][max_sequences]: i-th rows of the sequences of a step */
	uint32_t *n_listed; /* [most_rows] */
	uint32_t *stamp; /* [n_experts]: the last round in which it was seen */
	uint32_t round;
};

/* ---- Layout ---- */

static inline struct step_slot *slot_at(struct odm_predictions *p, uint64_t serial)
{
	return &p->slot[serial % KEPT];
}

static inline size_t number_of(const struct odm_predictions *p, const struct step_slot *s)
{
	return (size_t)(s - p->slot);
}

static inline size_t entry_index(const struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return number_of(p, s) * p->o.n_moe + m;
}

static inline struct entry *entry_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return &p->entry[entry_index(p, s, m)];
}

/* Rows of a sequence in a step, at most. */
static inline uint32_t most_rows(const struct odm_predictions *p)
{
	return p->o.max_draft + 1;
}

static inline uint32_t cell_of(const struct odm_predictions *p, const struct sequence *q, uint32_t position)
{
	return (uint32_t)(q - p->sequence) * p->n_ring + position % p->n_ring;
}

/* WANTs of the next step are for the predicted rows at positions [q->end, wanted_end): the first one, and those of its
 * draft that are likely enough to be needed, which takes that all tokens of the current step and all up to that row are
 * right. */
static inline uint32_t wanted_end(const struct odm_predictions *p, const struct sequence *q)
{
	const uint32_t most = q->top - q->end < q->ahead ? q->top : q->end + q->ahead;
	double right = q->all_right;
	uint32_t end = q->end;

	for (; end < most; end++) {
		right *= p->ahead[cell_of(p, q, end)].right;
		if (end > q->end && right < q->outlook.least)
			break;
	}
	return end;
}

static inline struct row_prediction *row_of(struct odm_predictions *p, uint32_t m, uint32_t cell)
{
	return &p->row[m * p->n_cells + cell];
}

static inline struct od_wanted *wanted_of(struct odm_predictions *p, uint32_t m, uint32_t cell)
{
	return &p->wanted[m * p->n_cells + cell];
}

static inline uint16_t *used_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t row)
{
	return p->used + (entry_index(p, s, m) * p->o.max_rows + row) * p->o.top_k;
}

static inline struct score *score_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint32_t row)
{
	return &p->score[entry_index(p, s, m) * p->o.max_rows + row];
}

static inline uint32_t *where_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->where + entry_index(p, s, m) * p->o.n_experts;
}

static inline uint16_t *sent_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->sent + entry_index(p, s, m) * p->o.n_experts;
}

static inline uint32_t *sent_to(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->sent_to + entry_index(p, s, m) * p->o.n_experts;
}

static inline uint8_t *mark_of(struct odm_predictions *p, const struct step_slot *s, uint32_t m)
{
	return p->mark + entry_index(p, s, m) * p->o.n_experts;
}

/* The slot of the step, if the table still holds it. */
static inline struct step_slot *find(struct odm_predictions *p, uint64_t step)
{
	if (step != 0)
		for (size_t i = 0; i < SLOTS; i++)
			if (p->slot[i].step == step)
				return &p->slot[i];
	return NULL;
}

/* The sequence of a row; NULL: it has ended and was removed. */
static inline struct sequence *sequence_of(struct odm_predictions *p, const struct step_row *r)
{
	struct sequence *q = r->number != OD_NO_NUMBER ? &p->sequence[r->number] : NULL;

	return q != NULL && q->id == r->sequence ? q : NULL;
}

static inline struct sequence *find_sequence(struct odm_predictions *p, uint64_t id)
{
	const uint32_t number = id != 0 ? od_id_table_find(&p->ids, id) : OD_NO_NUMBER;

	return number != OD_NO_NUMBER ? &p->sequence[number] : NULL;
}

static inline void set_dirty(struct odm_predictions *p, struct entry *e, bool dirty)
{
	if (e->dirty != dirty)
		p->n_dirty += dirty ? 1 : (uint32_t)-1;
	e->dirty = dirty;
}

static inline void begin_round(struct odm_predictions *p)
{
	if (++p->round == 0) { /* once in 2^32 rounds */
		memset(p->stamp, 0, p->o.n_experts * sizeof(*p->stamp));
		p->round = 1;
	}
}

/* Counts the used and wasted WANTs of the layer. */
void odm_wants_settle(struct odm_predictions *p, const struct step_slot *s, uint32_t m, uint64_t *c);

#endif
