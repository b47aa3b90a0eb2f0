/* pair_join.h - od-worker join and od-shadow join: makes this machine a member of the cluster of a main that shows six
 * words (od-main pair).
 *
 * Thread: main(), before others exist. */
#ifndef OD_PAIR_JOIN_H
#define OD_PAIR_JOIN_H

#include "common/net/hosts.h"

/* argv[0] is "join". Returns the exit status. */
int od_pair_join_command(enum od_node_kind role, int argc, char **argv);

#endif
