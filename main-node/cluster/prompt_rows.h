/* prompt_rows.h - how a prompt's rows go to the workers where they bind main's port: in batches (batch_rows.h), and in
 * two halves.
 *
 * Within a layer main's port would be idle while results return and main computes attention. So rows of the second half
 * are on their way meanwhile. The connections to workers share the port and do not take turns: rows that are sent too
 * early delay those before them. So the second half's are sent when little is in flight, or the first half's are
 * through.
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_PROMPT_ROWS_H
#define ODM_PROMPT_ROWS_H

#include "main-node/cluster/batch_rows.h"
#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/layer_pieces.h"

struct odm_prompt_rows {
	const struct odm_links *net; /* borrowed */
	uint32_t n_experts, top_k;
	size_t row_bytes;
	struct odm_port_times port;
	const struct odm_pieces *measured; /* the layer whose first batch shows a byte's time; NULL: none */
	uint64_t ended_ns; /* when the last layer, or half of it, was through */
	uint64_t batch_bytes; /* row bytes of a batch, to all workers */
	uint32_t *n_dealt; /* [OD_MAX_HOSTS], by index in the view: experts of the layer */
};

OD_MUST_CHECK int odm_prompt_rows_init(struct odm_prompt_rows *p, const struct odm_links *net,
				       const struct od_config *config, size_t row_bytes, struct od_err *err);
void odm_prompt_rows_fini(struct odm_prompt_rows *p); /* all zero is fine */

/* A layer begins while no other one is under way; it is through. */
void odm_prompt_rows_begin(struct odm_prompt_rows *p, const struct odm_pieces *work);
void odm_prompt_rows_end(struct odm_prompt_rows *p, const struct odm_pieces *work);
/* Rows of the RUNs of a layer that has been dealt, at most `most`. half: it has half of the step's rows. */
uint32_t odm_prompt_rows_batch(struct odm_prompt_rows *p, const struct odm_pieces *work, bool half, uint32_t most);
/* Rows of a step should go in two halves: each needs nearly every expert, and the workers can keep a layer's experts
 * for the second one. */
bool odm_prompt_rows_halves(const struct odm_prompt_rows *p, size_t n_rows);
/* Less than a batch is in flight: another layer's rows may be sent before this one's are through. */
bool odm_prompt_rows_few(const struct odm_prompt_rows *p);

#endif
