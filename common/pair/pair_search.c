#include "common/pair/pair_search.h"

#include "common/base/clock.h"
#include "common/net/hosts.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASK_NS (500 * OD_NS_PER_MS)
#define OTHERS_NS OD_NS_PER_S /* another main has this long to answer, too */
#define MAX_TARGETS 64
#define MAX_MAINS 8
#define AT_ONCE 64 /* datagrams, before the time is looked at */

struct search {
	struct sockaddr_storage target[MAX_TARGETS];
	unsigned n_targets;
	int fd[2]; /* IPv4, IPv6; -1: there is none */
	struct od_pair_main found[MAX_MAINS];
	unsigned n_found;
	bool all; /* everybody is asked */
	struct od_err other; /* a main has another version */
};

static socklen_t length_of(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void add_target(struct search *s, const struct sockaddr_storage *a)
{
	for (unsigned i = 0; i < s->n_targets; i++) {
		if (memcmp(&s->target[i], a, sizeof(*a)) == 0)
			return;
	}
	if (s->n_targets < MAX_TARGETS)
		s->target[s->n_targets++] = *a;
}

/* The broadcast address of a network, from its mask, since an interface may have none set; on IPv6 all nodes of a link,
 * ff02::1. */
static void add_interface(struct search *s, const struct ifaddrs *i)
{
	struct sockaddr_storage a = { 0 };

	if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
		return;
	if (i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_BROADCAST) != 0 && i->ifa_netmask != NULL) {
		struct sockaddr_in *to = (struct sockaddr_in *)&a;

		memcpy(to, i->ifa_addr, sizeof(*to));
		to->sin_addr.s_addr |= ~((const struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr;
		to->sin_port = htons(OD_PAIR_PORT);
		add_target(s, &a);
	} else if (i->ifa_addr->sa_family == AF_INET6 && (i->ifa_flags & IFF_MULTICAST) != 0) {
		struct sockaddr_in6 *to = (struct sockaddr_in6 *)&a;

		*to = (struct sockaddr_in6){ .sin6_family = AF_INET6,
					     .sin6_port = htons(OD_PAIR_PORT),
					     .sin6_scope_id = if_nametoindex(i->ifa_name) };
		to->sin6_addr.s6_addr[0] = 0xff;
		to->sin6_addr.s6_addr[1] = 0x02;
		to->sin6_addr.s6_addr[15] = 0x01;
		add_target(s, &a);
	}
}

static int add_everybody(struct search *s, struct od_err *err)
{
	struct ifaddrs *list;

	if (getifaddrs(&list) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot list this machine's networks");
	for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
		add_interface(s, i);
	freeifaddrs(list);
	s->all = true;
	return s->n_targets > 0 ?
		       OD_OK :
		       od_fail(err, OD_ERR_UNREACHABLE,
			       "this machine has no network to look for main in: connect it, or put main's address behind "
			       "the words");
}

static int add_address(struct search *s, const char *where, struct od_err *err)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_DGRAM };
	struct addrinfo *list = NULL;
	struct od_host h;
	char port[8];
	int rc = od_host_parse(&h, where, OD_PAIR_PORT, err);

	if (rc != OD_OK)
		return od_fail_within(err, "main's address");
	snprintf(port, sizeof(port), "%u", (unsigned)h.port);
	rc = getaddrinfo(h.host, port, &hints, &list);
	if (rc != 0)
		return od_fail(err, OD_ERR_UNREACHABLE, "main's address, \"%s\": %s", h.host,
			       rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	for (const struct addrinfo *i = list; i != NULL; i = i->ai_next) {
		struct sockaddr_storage a = { 0 };

		memcpy(&a, i->ai_addr, i->ai_addrlen);
		add_target(s, &a);
	}
	freeaddrinfo(list);
	return OD_OK;
}

static int open_sockets(struct search *s, struct od_err *err)
{
	const int on = 1;

	s->fd[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	s->fd[1] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd[0] >= 0 && setsockopt(s->fd[0], SOL_SOCKET, SO_BROADCAST, &on, sizeof(on)) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot ask the network");
	if (s->fd[0] < 0 && s->fd[1] < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open a UDP socket");
	return OD_OK;
}

/* A network that is down does not matter if another one is not. */
static void ask(struct search *s)
{
	uint8_t padding[OD_PAIR_MAX_BYTES - 32] = { 0 }, bytes[OD_PAIR_MAX_BYTES];
	Od__Pair__Message m = OD__PAIR__MESSAGE__INIT;
	Od__Pair__Question q = OD__PAIR__QUESTION__INIT;
	size_t len;

	q.padding = (ProtobufCBinaryData){ sizeof(padding), padding };
	m.body_case = OD__PAIR__MESSAGE__BODY_QUESTION;
	m.question = &q;
	len = od_pair_pack(&m, bytes);
	for (unsigned i = 0; i < s->n_targets; i++) {
		const struct sockaddr_storage *to = &s->target[i];

		(void)!sendto(s->fd[to->ss_family == AF_INET6], bytes, len, 0, (const struct sockaddr *)to,
			      length_of(to));
	}
}

static bool was_asked(const struct search *s, const struct sockaddr_storage *from)
{
	for (unsigned i = 0; i < s->n_targets && !s->all; i++) {
		const struct sockaddr_storage *to = &s->target[i];

		if (from->ss_family == AF_INET6 && to->ss_family == AF_INET6 &&
		    memcmp(&((const struct sockaddr_in6 *)from)->sin6_addr,
			   &((const struct sockaddr_in6 *)to)->sin6_addr, sizeof(struct in6_addr)) == 0)
			return true;
		if (from->ss_family == AF_INET && to->ss_family == AF_INET &&
		    ((const struct sockaddr_in *)from)->sin_addr.s_addr ==
			    ((const struct sockaddr_in *)to)->sin_addr.s_addr)
			return true;
	}
	return s->all;
}

/* One main may answer by several networks: IPv4 is preferred, because daemons listen on it by default. */
static void remember(struct search *s, const Od__Pair__Answer *a, const char *address, bool ipv4)
{
	struct od_pair_main *to = NULL;

	for (unsigned i = 0; i < s->n_found && to == NULL; i++) {
		if (memcmp(s->found[i].salt, a->salt.data, OD_PAIR_SALT_BYTES) == 0)
			to = &s->found[i];
	}
	if (to == NULL && s->n_found == MAX_MAINS)
		return;
	if (to != NULL && (!ipv4 || strchr(to->address, ':') == NULL))
		return;
	if (to == NULL)
		to = &s->found[s->n_found++];
	snprintf(to->address, sizeof(to->address), "%s", address);
	od_pair_plain_name(a->host_name, to->name);
	memcpy(to->salt, a->salt.data, OD_PAIR_SALT_BYTES);
	to->port = (uint16_t)a->port;
	to->tries = a->tries;
}

/* Some of what has arrived: whoever floods this machine does not keep the caller from its end. */
static void take(struct search *s, int fd)
{
	uint8_t bytes[OD_PAIR_MAX_BYTES + 1];
	struct sockaddr_storage from = { 0 };
	socklen_t size = sizeof(from);
	Od__Pair__Message *m;
	struct od_err err;
	char address[100];
	ssize_t len;

	for (int i = 0; i < AT_ONCE; i++, size = sizeof(from)) {
		len = recvfrom(fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, &size);
		if (len < 0)
			break;
		if (getnameinfo((struct sockaddr *)&from, size, address, sizeof(address), NULL, 0, NI_NUMERICHOST) != 0)
			continue;
		if (!was_asked(s, &from))
			continue;
		if (od_pair_unpack(&m, bytes, (size_t)len, &err) == OD_OK) {
			if (m->body_case == OD__PAIR__MESSAGE__BODY_ANSWER)
				remember(s, m->answer, address, from.ss_family == AF_INET);
			od_pair_free(m);
		} else if (err.code == OD_ERR_MISMATCH) {
			od_fail_within(&err, "%s pairs, but", address);
			s->other = err;
		}
	}
}

static void listen_for_answers(struct search *s, uint64_t limit_ns)
{
	struct pollfd p[2] = { { .fd = s->fd[0], .events = POLLIN }, { .fd = s->fd[1], .events = POLLIN } };
	uint64_t now = od_now_ns(), end = now + limit_ns, next = now;
	bool found = false;

	while (now < end) {
		if (now >= next) {
			ask(s);
			next = now + ASK_NS;
		}
		poll(p, 2, (int)(((next < end ? next : end) - now) / OD_NS_PER_MS) + 1);
		take(s, s->fd[0]);
		take(s, s->fd[1]);
		now = od_now_ns();
		if (s->n_found == 0 || found)
			continue;
		found = true;
		if (!s->all || now + OTHERS_NS < end)
			end = s->all ? now + OTHERS_NS : now;
	}
}

static int choose(const struct search *s, struct od_pair_main *out, const char *where, struct od_err *err)
{
	if (s->n_found > 1)
		return od_fail(
			err, OD_ERR_ARG,
			"several mains pair in this network: %s (%s) and %s (%s); put the address of the one that "
			"shows your words behind the words",
			s->found[0].address, s->found[0].name, s->found[1].address, s->found[1].name);
	if (s->n_found == 1) {
		*out = s->found[0];
		return OD_OK;
	}
	if (s->other.code != OD_OK) {
		*err = s->other;
		return err->code;
	}
	if (where != NULL)
		return od_fail(
			err, OD_ERR_TIMEOUT,
			"nothing answers at %s, UDP port %u: does od-main pair run there now, and does a firewall "
			"let UDP and TCP port %u in?",
			where, OD_PAIR_PORT, OD_PAIR_PORT);
	return od_fail(
		err, OD_ERR_TIMEOUT,
		"no main answers in this machine's networks: does od-main pair run there now, in the same network, "
		"and does a firewall let UDP and TCP port %u in? In another network, put main's address behind the "
		"words",
		OD_PAIR_PORT);
}

int od_pair_search(struct od_pair_main *out, const char *where, unsigned limit_ms, struct od_err *err)
{
	struct search s = { .fd = { -1, -1 } };
	int rc = where != NULL ? add_address(&s, where, err) : add_everybody(&s, err);

	memset(out, 0, sizeof(*out));
	if (rc == OD_OK)
		rc = open_sockets(&s, err);
	if (rc == OD_OK) {
		listen_for_answers(&s, limit_ms * (uint64_t)OD_NS_PER_MS);
		rc = choose(&s, out, where, err);
	}
	for (unsigned i = 0; i < 2; i++) {
		if (s.fd[i] >= 0)
			close(s.fd[i]);
	}
	return rc;
}
