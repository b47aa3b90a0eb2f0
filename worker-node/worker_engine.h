/* worker_engine.h - the worker's engine thread: receives RUNs, computes resident experts, answers with RESULTs. Experts
 * of a RUN that are resident at the same time form one device operation and one RESULT; it does not wait for later
 * ones.
 *
 * Memory is bounded: a few rows are computed at a time; RUNs beyond OD_MAX_HELD_BYTES of rows are answered with
 * OD_ERR_BUSY; nothing is computed while outputs in flight hold ODW_OUTPUT_BYTES or more.
 * Thread: start, stop and free by the owner; begin and end by the loop thread. From start to stop the engine thread
 * owns the device's compute queue.
 * Owner: the engine owns RUNs, scratch and outputs. ZeroMQ releases outputs late, so call odw_engine_free after
 * od_daemon_free. */
#ifndef ODW_WORKER_ENGINE_H
#define ODW_WORKER_ENGINE_H

#include "common/daemon/data_port.h"
#include "common/pack/pack.h"
#include "worker-node/pull/puller.h"
#include "common/residency/schedule.h"

#define ODW_SCRATCH_BYTES (8u << 20)
#define ODW_OUTPUT_BYTES (8u << 20) /* plus one RESULT */

struct odw_engine;

struct odw_engine_opts {
	const struct od_pack *pack;
	struct od_device *device; /* holds the slots */
	struct od_schedule *schedule;
	struct od_data_port *port;
	struct odw_puller *puller; /* NULL: none */
	/* Minimum time from the start of an expert's computation to its RESULT; n times this for n experts. 0: none. */
	uint64_t run_ns;
};

/* The parameters of a session. */
struct odw_session {
	uint64_t id;
	enum od_profile profile;
	const struct od_backend *host; /* this CPU's table: converts rows to and from BF16, names the kernels */
	uint32_t max_rows;
};

/* Memory for the rows that are computed together, as the engine allocates it. */
uint64_t odw_engine_scratch_bytes(const struct od_config *cfg);

OD_MUST_CHECK int odw_engine_start(struct odw_engine **out, const struct odw_engine_opts *opts, struct od_err *err);
void odw_engine_stop(struct odw_engine *e); /* joins; NULL ok */
uint64_t odw_engine_compute_ns(const struct odw_engine *e); /* any thread: of all groups so far, pace included */
void odw_engine_free(struct odw_engine *e); /* NULL ok */

void odw_engine_begin(struct odw_engine *e, const struct odw_session *session);
/* After od_schedule_end: drops the session's work without an answer. */
void odw_engine_end(struct odw_engine *e);

/* Loop thread. Has the engine thread got on since the last call? Wakes it if it sleeps. */
bool odw_engine_alive(struct odw_engine *e);
/* Loop thread. From the first call on RUNs are answered BUSY. True: none is open, and all RESULTs are sent. */
bool odw_engine_drained(struct odw_engine *e);

#endif
