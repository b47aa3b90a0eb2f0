/* loader.h - the threads that fill slots: each takes the most urgent shard, reads its chunks, inflates them into the
 * slot, and reports. Reading one shard overlaps inflating another (ZipMoE, arXiv 2601.21198, section 3.2) because
 * several threads do both, each with its own staging memory.
 *
 * Thread: start and stop by the owner. Owner: pack, schedule, slots and port are borrowed until odw_loaders_stop. */
#ifndef ODW_LOADER_H
#define ODW_LOADER_H

#include "common/net/data_port.h"
#include "common/pack/pack.h"
#include "worker-node/load_schedule.h"
#include "worker-node/puller.h"
#include "worker-node/slots.h"

#define ODW_MAX_LOADERS 64

struct odw_loaders;

/* The engine is woken through port whenever an expert that a RUN waits for is there, or cannot be had. puller: is told of
 * what cannot be loaded, and says what that means; NULL: the pack is what it is. */
OD_MUST_CHECK int odw_loaders_start(struct odw_loaders **out, const struct od_pack *pack, enum od_form form,
				    struct odw_schedule *schedule, struct odw_slots *slots, struct od_data_port *port,
				    struct odw_puller *puller, unsigned n_threads, struct od_err *err);
/* Stops the schedule, joins, frees. NULL ok. */
void odw_loaders_stop(struct odw_loaders *l);

#endif
