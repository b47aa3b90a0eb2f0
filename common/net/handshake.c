#include "common/net/handshake.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define EVENTS \
	(ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
	 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED)

void *od_handshake_watch(void *zmq_context, void *socket)
{
	static atomic_uint number;
	const int zero = 0;
	char url[64];
	void *watch;

	snprintf(url, sizeof(url), "inproc://od-handshake-%u", atomic_fetch_add(&number, 1));
	if (zmq_socket_monitor(socket, url, EVENTS) != 0)
		return NULL;
	watch = zmq_socket(zmq_context, ZMQ_PAIR);
	if (watch == NULL) {
		zmq_socket_monitor(socket, NULL, 0);
		return NULL;
	}
	if (zmq_setsockopt(watch, ZMQ_LINGER, &zero, sizeof(zero)) != 0 ||
	    zmq_setsockopt(watch, ZMQ_RCVHWM, &zero, sizeof(zero)) != 0 || zmq_connect(watch, url) != 0) {
		od_handshake_end(watch, socket);
		return NULL;
	}
	return watch;
}

void od_handshake_end(void *watch, void *socket)
{
	if (watch == NULL)
		return;
	zmq_socket_monitor(socket, NULL, 0);
	zmq_close(watch);
}

static enum od_handshake kind_of(uint16_t event, uint32_t value)
{
	switch (event) {
	case ZMQ_EVENT_CLOSED: return OD_HANDSHAKE_UNREACHED; /* an attempt to connect has failed */
	case ZMQ_EVENT_DISCONNECTED: return OD_HANDSHAKE_ENDED; /* after a failed handshake, too */
	case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return OD_HANDSHAKE_REFUSED;
	case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: /* an error of the socket; if time ran out, that of the last look or wait */
		return value == EAGAIN || value == EINTR ? OD_HANDSHAKE_SILENT : OD_HANDSHAKE_BROKEN;
	case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
		return value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? OD_HANDSHAKE_UNLIKE : OD_HANDSHAKE_BROKEN;
	default: return OD_HANDSHAKE_OPEN; /* the monitor ends */
	}
}

enum od_handshake od_handshake_why(void *watch)
{
	enum od_handshake found = OD_HANDSHAKE_OPEN;
	uint8_t head[6];
	char endpoint[256];

	while (watch != NULL && zmq_recv(watch, head, sizeof(head), ZMQ_DONTWAIT) == (int)sizeof(head)) {
		enum od_handshake kind;
		uint16_t event;
		uint32_t value;

		if (zmq_recv(watch, endpoint, sizeof(endpoint), ZMQ_DONTWAIT) < 0)
			break;
		memcpy(&event, head, sizeof(event));
		memcpy(&value, head + sizeof(event), sizeof(value));
		kind = kind_of(event, value);
		if (kind > OD_HANDSHAKE_ENDED || kind > found)
			found = kind;
	}
	return found;
}
