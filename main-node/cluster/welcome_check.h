/* welcome_check.h - validates a daemon's WELCOME before main uses it. The daemon checks HELLO, and main checks the
 * answer: a daemon that should have refused and did not must not change a token.
 *
 * Thread: pure function. */
#ifndef ODM_WELCOME_CHECK_H
#define ODM_WELCOME_CHECK_H

#include "common/net/hosts.h"
#include "common/net/wire.h"
#include "main-node/cluster/cluster_opts.h"

/* OD_ERR_MISMATCH: another role than the hosts file says, or a worker of another kernel class without --mixed; an
 * operator must act. OD_ERR_PROTOCOL: a number out of the ranges of PROTOCOL.md. */
OD_MUST_CHECK int odm_check_welcome(const Od__Welcome *w, enum od_node_kind role, const struct odm_cluster_opts *o,
				    struct od_err *err);

#endif
