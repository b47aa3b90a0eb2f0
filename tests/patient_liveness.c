/* common/net/liveness.c with so much patience that no starved process is taken for a dead or a stuck one.
 *
 * Programs that test what daemons compute and say are linked with it, in place of that of libod: a machine with much to
 * do may give a process no CPU for seconds. test_liveness.c has the limits, test_daemon.c and tests/integ what
 * follows. */
#include "common/net/liveness.h"

#undef OD_DEAD_AFTER_NS
#undef OD_STUCK_AFTER_NS
#define OD_DEAD_AFTER_NS (3600 * OD_NS_PER_S)
#define OD_STUCK_AFTER_NS (3600 * OD_NS_PER_S)

#include "common/net/liveness.c"
