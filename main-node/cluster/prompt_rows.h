/* prompt_rows.h - how a prompt's rows go to the workers where they bind main's port: in batches (batch_rows.h), and in
 * two halves.
 *
 * Within a layer main's port would be idle while results return and main computes attention. So rows of the second half
 * are on their way meanwhile. The connections to workers share the port and do not take turns: rows that are sent too
 * early delay those before them. So the second half's are sent when little is in flight, or the first half's are
 * through.
 * Thread: the engine thread. Owner: the caller, the cluster service or the simulator. Times in ns. */
#ifndef ODM_PROMPT_ROWS_H
#define ODM_PROMPT_ROWS_H

#include "main-node/cluster/batch_rows.h"
#include "main-node/cluster/layer_pieces.h"

struct odm_prompt_rows {
	uint32_t n_experts, top_k;
	double row_bytes;
	struct odm_port_times port;
	const struct odm_pieces *measured; /* the layer whose first batch shows a byte's time; NULL: none */
	uint64_t ended_ns; /* when the last layer, or half of it, was through */
	double batch_bytes; /* row bytes of a batch, to all workers */
	uint32_t *n_dealt; /* [max_workers]: experts of the layer that was counted last */
};

OD_MUST_CHECK int odm_prompt_rows_init(struct odm_prompt_rows *p, const struct od_config *config, double row_bytes,
				       uint32_t max_workers, struct od_err *err);
void odm_prompt_rows_fini(struct odm_prompt_rows *p); /* all zero is fine */

/* A layer begins while no other one is under way; it is through. */
void odm_prompt_rows_begin(struct odm_prompt_rows *p, const struct odm_pieces *work);
void odm_prompt_rows_end(struct odm_prompt_rows *p, const struct odm_pieces *work, uint64_t now);
/* Counts into n_dealt [n_workers] the experts of a layer that has been dealt, and returns the number of workers that
 * have any. 0: a worker's do not fit into its slots (worker[i].slots) together, so that it would load some of them for
 * every batch. */
uint32_t odm_prompt_rows_count(struct odm_prompt_rows *p, const struct odm_pieces *work,
			       const struct odm_deal_times *worker, uint32_t n_workers);
/* Returns the rows of a RUN of a layer that has just been counted, at most `most`. n_with: of that count, or all
 * workers that could have experts. run_ns: 0, or a RUN of its workers with few rows; row_ns: each of many rows
 * besides. half: it has half of the step's rows. */
struct odm_prompt_layer {
	const struct odm_pieces *work;
	uint32_t n_with;
	double run_ns, row_ns;
	bool half;
	uint32_t most;
};
uint32_t odm_prompt_rows_batch(struct odm_prompt_rows *p, const struct odm_prompt_layer *layer, uint64_t now);
/* Rows of a step should go in two halves: each needs nearly every expert, and the workers [n_many] can keep a layer's
 * experts for the second one. */
bool odm_prompt_rows_halves(const struct odm_prompt_rows *p, const struct odm_deal_times *worker, uint32_t n_many,
			    size_t n_rows);
/* Less than a batch is in flight: another layer's rows may be sent before this one's are through. */
bool odm_prompt_rows_few(const struct odm_prompt_rows *p, uint64_t held_bytes);
/* Returns the i-th layer of those under way, work [ODM_HALVES], whose rows may be sent now; the earlier layer comes
 * first. NULL: there is none. */
struct odm_pieces *odm_prompt_rows_turn(const struct odm_prompt_rows *p, struct odm_pieces *work, unsigned i,
					uint64_t held_bytes);

#endif
