/* publish.h - the shadow's way back to main: PREDICT on the control socket through the loop thread, STATE_REQUEST
 * and TOKENS_REQUEST on the data socket. Thread: the emulator thread. Owner: the caller owns everything. */
#ifndef ODS_PUBLISH_H
#define ODS_PUBLISH_H

#include "common/net/daemon.h"
#include "shadow-node/emulator.h"

struct ods_publisher {
	struct od_daemon *daemon;
	struct od_data_port *port;
	uint64_t session; /* what is for another one goes nowhere */
	uint64_t *counters; /* [OD_N_COUNTERS]: predictions that found the queue full are added; they only cost time */
};

/* A sink that is good for as long as *p is. */
struct ods_sink ods_publisher_sink(struct ods_publisher *p);

#endif
