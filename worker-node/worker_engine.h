/* worker_engine.h - the engine thread: receives RUNs, computes what is resident, answers with RESULTs. Experts of a RUN that
 * are ready at the same moment are one operation of the device and one RESULT; later ones are not waited for.
 *
 * Memory is bounded: rows are computed a few at a time; RUNs beyond OD_MAX_HELD_BYTES of rows are answered
 * OD_ERR_BUSY; outputs are computed only while those on their way hold less
 * than ODW_OUTPUT_BYTES.
 * Thread: start, stop and free by the owner; begin and end by the loop thread. From start to stop the device's compute
 * queue belongs to the engine thread.
 * Owner: the engine owns RUNs, scratch and outputs; ZeroMQ gives outputs back late, so odw_engine_free comes after
 * od_daemon_free. */
#ifndef ODW_WORKER_ENGINE_H
#define ODW_WORKER_ENGINE_H

#include "common/net/data_port.h"
#include "common/pack/pack.h"
#include "worker-node/pull/puller.h"
#include "worker-node/schedule.h"

#define ODW_SCRATCH_BYTES (8u << 20)
#define ODW_OUTPUT_BYTES (8u << 20) /* and one RESULT more */

struct odw_engine;

struct odw_engine_opts {
	const struct od_pack *pack;
	struct od_device *device; /* where the slots are */
	struct odw_schedule *schedule;
	struct od_data_port *port;
	struct odw_puller *puller; /* NULL: none */
	/* An expert's outputs are sent no earlier than this after their computation began, those of a group of n no earlier than
	 * n times this; 0: at once. */
	uint64_t run_ns;
};

/* What a session agreed on. */
struct odw_session {
	uint64_t id;
	enum od_profile profile;
	const struct od_backend *host; /* this CPU's table: turns rows to and from BF16, and names the kernels */
	uint32_t max_rows;
};

OD_MUST_CHECK int odw_engine_start(struct odw_engine **out, const struct odw_engine_opts *opts, struct od_err *err);
void odw_engine_stop(struct odw_engine *e); /* joins; NULL ok */
void odw_engine_free(struct odw_engine *e); /* NULL ok */

void odw_engine_begin(struct odw_engine *e, const struct odw_session *session);
/* After odw_schedule_end: what was under way for the session is thrown away, unanswered. */
void odw_engine_end(struct odw_engine *e);

#endif
