/* connections.h - the clients' sockets: whether a client speaks HTTP, and how long its request may take to come.
 *
 * libmicrohttpd reads and writes the sockets. Here they are looked at (MSG_PEEK) and shut down.
 * Thread: the HTTP thread. Owner: the HTTP server, which contains the table. */
#ifndef ODM_CONNECTIONS_H
#define ODM_CONNECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct odm_exchange;

/* One client's socket. */
struct odm_connection {
	int fd;
	uint64_t deadline_ns; /* 0: none */
	uint64_t body_seen; /* bytes of the exchange's body when the deadline was set */
	bool heard; /* its first byte has been looked at */
	struct odm_exchange *exchange; /* NULL: between requests */
	struct odm_connection *prev, *next;
};

struct odm_connections {
	bool tls;
	uint64_t header_ns; /* as in odm_http_opts */
	struct odm_connection *first;
	size_t n, n_unheard;
};

/* libmicrohttpd begins with fd, whose first byte is looked at if it is there. NULL: out of memory. */
struct odm_connection *odm_connections_add(struct odm_connections *s, int fd);
void odm_connections_remove(struct odm_connections *s, struct odm_connection *c); /* fd is about to be closed */
/* A request begins, and its answer is complete. */
void odm_connections_begin(struct odm_connections *s, struct odm_connection *c, struct odm_exchange *x);
void odm_connections_end(struct odm_connection *c);

/* Looks at what came since, and refuses clients whose first byte belongs to another protocol: libmicrohttpd would wait
 * for the rest of a request until the limit. So call this before libmicrohttpd reads. */
void odm_connections_look(struct odm_connections *s);
/* Ends connections whose request comes too slowly, and those that were idle for long or whose client has hung up. */
void odm_connections_expire(struct odm_connections *s, uint64_t now_ns);

#endif
