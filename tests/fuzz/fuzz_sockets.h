/* fuzz_sockets.h - a ROUTER and a DEALER of one process that have met, so that each can be sent anything as if by the
 * other. */
#ifndef OD_FUZZ_SOCKETS_H
#define OD_FUZZ_SOCKETS_H

#include "common/net/wire.h"
#include "tests/fuzz/fuzz.h"

static void *router, *dealer;
static struct od_route to_dealer;

static inline void open_sockets(void)
{
	void *context = zmq_ctx_new();
	Od__Header h = OD__HEADER__INIT;
	Od__Attach b = OD__ATTACH__INIT;
	struct od_msg m;
	int on = 1;

	router = zmq_socket(context, ZMQ_ROUTER);
	dealer = zmq_socket(context, ZMQ_DEALER);
	check(zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &on, sizeof(on)) == 0);
	check(zmq_bind(router, "inproc://fuzz") == 0);
	check(zmq_connect(dealer, "inproc://fuzz") == 0);
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &b;
	check(od_wire_send(dealer, NULL, &h, NULL, 0) == OD_OK);
	check(od_wire_recv(router, true, &m, NULL) == OD_OK);
	to_dealer = m.route;
	od_msg_fini(&m);
}

#endif
