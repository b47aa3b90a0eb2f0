#include "main-node/serve/http/connections.h"

#include "common/base/clock.h"
#include "main-node/serve/http/access_log.h"
#include "main-node/serve/http/exchange_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define IDLE_NS (60 * OD_NS_PER_S) /* limit of the time between two requests */
#define LEAST_BODY_BYTES (16u << 10) /* must come within header_ns */

/* ---- Other protocols ---- */

#define TLS_HANDSHAKE 0x16 /* the first byte of a TLS client */

/* Writes a whole answer past libmicrohttpd: nothing else has been sent on this socket, and nothing will be. */
static void send_last(int fd, const char *status, const char *message)
{
	char body[256], all[512];
	const int n = snprintf(body, sizeof(body),
			       "{\"error\": {\"message\": \"%s\", \"type\": \"invalid_request_error\", "
			       "\"param\": null, \"code\": null}}\n",
			       message);
	const int len = snprintf(all, sizeof(all),
				 "HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
				 "Content-Length: %d\r\n\r\n%s",
				 status, n, body);

	(void)!send(fd, all, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* NULL: it may be a request. libmicrohttpd would wait for the rest of it until the limit. */
static const char *why_no_request(unsigned char first, bool tls)
{
	if (tls)
		return first != TLS_HANDSHAKE ? "this server speaks HTTPS only: use https://" : NULL;
	if (first == TLS_HANDSHAKE)
		return "this server has no --tls-cert and does not speak TLS: use http://";
	return (first < ' ' && first != '\r' && first != '\n') || first > '~' ? "this is not HTTP" : NULL;
}

static void set_heard(struct odm_connections *s, struct odm_connection *c)
{
	s->n_unheard -= !c->heard;
	c->heard = true;
}

static void look_at_first_byte(struct odm_connections *s, struct odm_connection *c)
{
	unsigned char first;
	const char *why;

	if (c->heard || recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
		return;
	set_heard(s, c);
	why = why_no_request(first, s->tls);
	if (why == NULL)
		return;
	odm_access_log_stranger(c->fd, why);
	send_last(c->fd, "400 Bad Request", why);
	shutdown(c->fd, SHUT_RDWR);
}

void odm_connections_look(struct odm_connections *s)
{
	for (struct odm_connection *c = s->first; c != NULL && s->n_unheard > 0; c = c->next)
		look_at_first_byte(s, c);
}

/* ---- Begin and end ---- */

struct odm_connection *odm_connections_add(struct odm_connections *s, int fd)
{
	struct odm_connection *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->fd = fd;
	c->deadline_ns = od_now_ns() + s->header_ns;
	c->next = s->first;
	if (c->next != NULL)
		c->next->prev = c;
	s->first = c;
	s->n++;
	s->n_unheard++;
	look_at_first_byte(s, c);
	return c;
}

void odm_connections_remove(struct odm_connections *s, struct odm_connection *c)
{
	set_heard(s, c);
	*(c->prev != NULL ? &c->prev->next : &s->first) = c->next;
	if (c->next != NULL)
		c->next->prev = c->prev;
	s->n--;
	free(c);
}

void odm_connections_begin(struct odm_connections *s, struct odm_connection *c, struct odm_exchange *x)
{
	c->exchange = x;
	c->deadline_ns = od_now_ns() + s->header_ns;
	c->body_seen = 0;
	set_heard(s, c);
}

void odm_connections_end(struct odm_connection *c)
{
	c->exchange = NULL;
	c->deadline_ns = od_now_ns() + IDLE_NS;
}

/* ---- Time limits ---- */

/* The client has closed its side between two requests. libmicrohttpd misses this if it happens while an answer is
 * sent. */
static bool hung_up(const struct odm_connection *c)
{
	char byte;

	return c->exchange == NULL && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* libmicrohttpd knows no limit for a header or body that comes byte by byte. Nothing of an answer has been sent yet. */
static void expire(const struct odm_connections *s, struct odm_connection *c)
{
	if (c->exchange != NULL && !s->tls)
		send_last(c->fd, "408 Request Timeout", "the request came too slowly");
	if (c->exchange != NULL)
		c->exchange->expired = true;
	c->deadline_ns = 0;
	shutdown(c->fd, SHUT_RDWR);
}

void odm_connections_expire(struct odm_connections *s, uint64_t now_ns)
{
	for (struct odm_connection *c = s->first; c != NULL; c = c->next) {
		const struct odm_exchange *x = c->exchange;

		if (c->deadline_ns == 0 || (now_ns < c->deadline_ns && !hung_up(c)))
			continue;
		if (x != NULL && x->body_seen >= c->body_seen + LEAST_BODY_BYTES) {
			c->body_seen = x->body_seen;
			c->deadline_ns = now_ns + s->header_ns;
		} else {
			expire(s, c);
		}
	}
}
