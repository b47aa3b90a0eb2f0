#include "main-node/serve/http/access_log.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "main-node/serve/http/exchange_internal.h"

#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#define CLIENT_GONE 499 /* nginx logs this number too when no answer was sent */
#define MAX_FIELDS 13

static const char *address_text(const struct sockaddr *a, char *buf, size_t size)
{
	char host[64], port[8];

	buf[0] = '\0';
	if (a != NULL &&
	    getnameinfo(a, a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), host,
			sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(buf, size, a->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
	return buf;
}

static const char *client_of(const struct odm_exchange *x, char *buf, size_t size)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	return address_text(info != NULL ? info->client_addr : NULL, buf, size);
}

static int status_of(const struct odm_exchange *x)
{
	if (x->expired)
		return 408;
	if (!x->queued)
		return CLIENT_GONE;
	return x->streaming ? 200 : x->status;
}

/* Strangers can cause these lines without limit. */
static bool is_limited(const struct odm_exchange *x, int status)
{
	return x->endpoint == NULL || status == 401 || status == 403 || status == 408 || status == CLIENT_GONE;
}

void odm_access_log(const struct odm_exchange *x, bool whole)
{
	static struct od_log_limit limit = OD_LOG_LIMIT_INIT;
	const struct odm_work *w = &x->work;
	const int status = status_of(x);
	const bool probe = x->endpoint != NULL && (x->endpoint->flags & ODM_ENDPOINT_PROBE);
	const bool good = status == 200 || status == 304;
	struct od_log_field f[MAX_FIELDS + 1] = { 0 };
	unsigned left_out = 0;
	char client[80];
	size_t n = 0;

	if ((is_limited(x, status) || (probe && !good)) && !od_log_permit(&limit, &left_out))
		return;
	f[n++] = od_log_text("request", x->id);
	f[n++] = od_log_text("method", x->method);
	f[n++] = od_log_text("path", x->path);
	f[n++] = od_log_number("status", status);
	f[n++] = od_log_text("client", client_of(x, client, sizeof(client)));
	if (w->texts > 0) {
		f[n++] = od_log_number("tokens", (double)w->tokens);
		f[n++] = od_log_number("queue_seconds", od_seconds(w->queue_ns));
		f[n++] = od_log_number("ttft_seconds", od_seconds(w->first_token_ns));
	}
	f[n++] = od_log_number("total_seconds", od_seconds(od_now_ns() - x->begun_ns));
	if (!whole && status != CLIENT_GONE)
		f[n++] = od_log_text("complete", "false");
	if (x->no_memory || status == CLIENT_GONE)
		f[n++] = od_log_text("reason", x->no_memory ? "out of memory" : "the client has gone");
	if (left_out > 0)
		f[n++] = od_log_number("left_out", left_out);
	od_log_event(probe && good ? OD_LOG_DEBUG : OD_LOG_INFO, "answered", f);
}

void odm_access_log_stranger(int fd, const char *why)
{
	static struct od_log_limit limit = OD_LOG_LIMIT_INIT;
	struct sockaddr_storage a = { 0 };
	socklen_t len = sizeof(a);
	struct od_log_field f[3 + 1] = { 0 };
	unsigned left_out = 0;
	char client[80];
	size_t n = 0;

	if (!od_log_permit(&limit, &left_out))
		return;
	if (getpeername(fd, (struct sockaddr *)&a, &len) != 0)
		a.ss_family = AF_UNSPEC;
	f[n++] = od_log_text("client", address_text((const struct sockaddr *)&a, client, sizeof(client)));
	f[n++] = od_log_text("reason", why);
	if (left_out > 0)
		f[n++] = od_log_number("left_out", left_out);
	od_log_event(OD_LOG_WARN, "hung up", f);
}
