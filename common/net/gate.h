/* gate.h - lets only known keys in: CURVE on the ROUTERs of one ZeroMQ context, and the handler that ZeroMQ asks about
 * each client's public key before a byte of our protocol passes (ZAP, ZeroMQ RFC 27).
 *
 * A peer that does not pass is disconnected by ZeroMQ after 2 s at the latest (HANDSHAKE_IVL), counted, and logged
 * once. Of those that have not shown a key yet a ROUTER keeps the newest OD_GATE_PENDING; the gate ends the others.
 * Thread: new, guard, start and free from one thread at a time; the others from any thread. The gate has its own
 * thread.
 * Owner: the caller. One gate per context. Free it before its ROUTERs are closed; they refuse all connections then. */
#ifndef OD_NET_GATE_H
#define OD_NET_GATE_H

#include "common/net/keys.h"

struct od_gate;

/* Binds the handler, so that ROUTERs may be guarded. No key is admitted yet. */
OD_MUST_CHECK int od_gate_new(struct od_gate **out, void *zmq_context, const struct od_key_pair *own,
			      struct od_err *err);
void od_gate_free(struct od_gate *g); /* NULL ok */

/* Before the ROUTER is bound: it then accepts CURVE only, and only keys that the gate admits. At most
 * OD_GATE_SOCKETS. */
#define OD_GATE_SOCKETS 2
#define OD_GATE_PENDING 256 /* all workers of a large cluster may come to the store at once */
OD_MUST_CHECK int od_gate_guard(struct od_gate *g, void *router, struct od_err *err);
/* Before od_gate_start. forged: called on the gate's thread, instead of a line in the log, for each client whose
 * handshake was made for another key than own; it must not block. address: numeric. */
void od_gate_on_forged(struct od_gate *g, void (*forged)(void *arg, const char *address), void *arg);
/* Before a guarded ROUTER is closed while the gate stays; not after od_gate_start. */
void od_gate_release(struct od_gate *g, void *router);
OD_MUST_CHECK int od_gate_start(struct od_gate *g, struct od_err *err);

/* From now on these keys are admitted and no others; key [n][OD_KEY_BYTES] is copied. Connections that exist stay.
 * where: the file, for the log. */
OD_MUST_CHECK int od_gate_admit(struct od_gate *g, const uint8_t *key, size_t n, const char *where, struct od_err *err);
OD_MUST_CHECK int od_gate_admit_peers(struct od_gate *g, const struct od_peers *peers, const char *where,
				      struct od_err *err);

uint64_t od_gate_refused(struct od_gate *g); /* connections; NULL: 0 */

#endif
