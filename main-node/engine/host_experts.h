/* host_experts.h - experts that the CPUs compute where they are, in host memory beside a card, instead of loading them
 * to it: the card sends the rows, which are small, and gets their results. The kernels give the card's bits.
 *
 * Thread: the engine thread. Owner: odm_host_experts_new's caller. */
#ifndef ODM_HOST_EXPERTS_H
#define ODM_HOST_EXPERTS_H

#include "common/model/forward_open.h"
#include "common/residency/host_tier.h"
#include "common/residency/schedule.h"

struct odm_host_experts;

/* tier: its form is not -1, cpu: the one it was given, p: its pack; all borrowed. o: the card's. *out is NULL unless
 * OD_OK. */
OD_MUST_CHECK int odm_host_experts_new(struct odm_host_experts **out, const struct od_host_tier *tier,
				       struct od_device *cpu, const struct od_pack *p, const struct od_forward_opts *o,
				       struct od_err *err);
void odm_host_experts_free(struct odm_host_experts *h); /* NULL ok */

/* Steps of so many rows may have some: their runner needs OD_FETCH_ROWS. NULL: false. */
bool odm_host_experts_may(const struct odm_host_experts *h, size_t n_rows);
/* Chooses experts of a layer before its RUN, of item [n], and records their uses in the cache. They are moved behind
 * the others, whose ranks are numbered anew. Returns how many they are: odm_host_experts_run computes them. */
size_t odm_host_experts_take(struct odm_host_experts *h, struct od_schedule *s, const struct od_moe_call *call,
			     struct od_schedule_item *item, size_t n);
/* Computes them, and queues the transfer of their results to call->y_at. Once. */
OD_MUST_CHECK int odm_host_experts_run(struct odm_host_experts *h, const struct od_moe_call *call, struct od_err *err);
/* After odm_host_experts_take: an item of the RUN has been computed on the card; and all have been. ready_ns: when the
 * last expert of any load was ready. */
void odm_host_experts_note(struct odm_host_experts *h, const struct od_schedule_item *item);
void odm_host_experts_end(struct odm_host_experts *h, uint64_t ready_ns);

#endif
