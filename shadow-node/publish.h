/* publish.h - sends the shadow's results to main: PREDICT on the control socket through the loop thread, STATE_REQUEST
 * and TOKENS_REQUEST on the data socket. Thread: the emulator thread. Owner: the caller owns everything. */
#ifndef ODS_PUBLISH_H
#define ODS_PUBLISH_H

#include "common/daemon/daemon.h"
#include "shadow-node/emulator.h"

struct ods_publisher {
	struct od_daemon *daemon;
	struct od_data_port *port;
	uint64_t session; /* messages of another session are dropped */
	/* [OD_N_COUNTERS]: counts predictions dropped on a full queue; a lost one costs only time */
	uint64_t *counters;
};

/* The sink is valid as long as *p is. */
struct ods_sink ods_publisher_sink(struct ods_publisher *p);

#endif
