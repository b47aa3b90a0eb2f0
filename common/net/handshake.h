/* handshake.h - says why a connection that this process makes does not come about, for one that keys do not match, and
 * that it has ended.
 *
 * Thread: the one that owns the socket. Owner: the caller ends a watch before it closes the socket. */
#ifndef OD_NET_HANDSHAKE_H
#define OD_NET_HANDSHAKE_H

/* Before the socket connects. NULL: it cannot be watched, and od_handshake_why(NULL) is OD_HANDSHAKE_OPEN. */
void *od_handshake_watch(void *zmq_context, void *socket);
/* NULL watch ok. If a monitor's receiver is closed first, ZeroMQ's I/O thread blocks, and so does every connection. */
void od_handshake_end(void *watch, void *socket);

enum od_handshake {
	OD_HANDSHAKE_OPEN, /* nothing has failed */
	OD_HANDSHAKE_UNREACHED, /* nothing accepts the connection */
	OD_HANDSHAKE_ENDED, /* the connection was there, and has ended */
	OD_HANDSHAKE_REFUSED, /* the other side does not know our key */
	OD_HANDSHAKE_SILENT, /* the other side is connected and says nothing */
	OD_HANDSHAKE_BROKEN, /* the other side hung up: its key is not the one that we expect */
	OD_HANDSHAKE_UNLIKE, /* one side uses keys, the other does not */
};
/* Returns what happened since the last call: the last failure of a handshake, else whether the connection has ended,
 * else whether one could not be made. A refusal is final, for ZeroMQ then stops to reconnect. */
enum od_handshake od_handshake_why(void *watch);

#endif
