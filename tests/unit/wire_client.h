/* wire_client.h - what the tests of common/net share: waiting without depending on time (the bound only trips when
 * something hangs), a plain DEALER that can also send what od_wire_send never would, and TCP that is no ZeroMQ. */
#ifndef OD_TESTS_WIRE_CLIENT_H
#define OD_TESTS_WIRE_CLIENT_H

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/endpoint.h"
#include "common/net/wire.h"

#define HANG_MS 300000 /* only trips on hangs */

#define assert_ok(call, err) assert_ok_((call), (err), #call)
static inline void assert_ok_(int rc, const struct od_err *err, const char *call)
{
	if (rc != OD_OK)
		fail_msg("%s: %d %s", call, rc, err->msg);
}

static inline void assert_says(const char *text, const char *wanted)
{
	if (strstr(text, wanted) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", text, wanted);
}

static inline void await(void *socket, short events)
{
	zmq_pollitem_t item = { .socket = socket, .events = events };

	assert_int_equal(zmq_poll(&item, 1, HANG_MS), 1);
}

static inline void *connect_to(void *context, uint16_t port)
{
	struct od_err err;
	void *s;

	assert_ok(od_connect_dealer(context, "127.0.0.1", port, NULL, &s, &err), &err);
	await(s, ZMQ_POLLOUT);
	return s;
}

static inline void get_msg(void *socket, bool is_router, struct od_msg *m)
{
	struct od_err err = { 0 };
	int rc;

	do {
		await(socket, ZMQ_POLLIN);
		rc = od_wire_recv(socket, is_router, m, &err);
	} while (rc == OD_ERR_BUSY);
	assert_ok(rc, &err);
}

static inline void get_kind(void *socket, struct od_msg *m, Od__Header__BodyCase kind)
{
	get_msg(socket, false, m);
	if (m->header->body_case != kind)
		fail_msg("expected %s, found %s", od_body_name(kind), od_body_name(m->header->body_case));
}

/* A frame as it is. */
static inline void put_raw(void *socket, const void *bytes, size_t len, bool more)
{
	await(socket, ZMQ_POLLOUT);
	assert_int_equal(zmq_send(socket, bytes, len, more ? ZMQ_SNDMORE : 0), (int)len);
}

/* A header with the version that it has. */
static inline void put_any_version(void *socket, const Od__Header *h)
{
	uint8_t buf[4096];

	assert_true(od__header__get_packed_size(h) <= sizeof(buf));
	put_raw(socket, buf, od__header__pack(h, buf), false);
}

/* Numbers that look random and are the same in every run. */
static inline uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

/* Everything a stranger may send: frames of wrong number and size, random bytes, and truncated protobuf. */
static inline void put_garbage(void *context, uint16_t port)
{
	static uint8_t huge[OD_MAX_HEADER_BYTES + 1];
	void *s = connect_to(context, port);
	Od__Header h = OD__HEADER__INIT;
	Od__Bye bye = OD__BYE__INIT;
	uint8_t bytes[512], packed[128];
	uint64_t state = 1;
	size_t len;

	put_raw(s, "", 0, false);
	for (int i = 0; i < 50; i++)
		put_raw(s, "frame", 5, i < 49);
	for (int i = 0; i < 50; i++)
		put_raw(s, "", 0, i < 49);
	memset(huge, 0x0a, sizeof(huge));
	put_raw(s, huge, sizeof(huge), false);
	for (int i = 0; i < 300; i++) {
		len = next_random(&state) % sizeof(bytes);
		for (size_t j = 0; j < len; j++)
			bytes[j] = (uint8_t)next_random(&state);
		put_raw(s, bytes, len, false);
	}
	bye.reason = (char *)"a reason of some length";
	h.version = OD_PROTOCOL_VERSION;
	h.body_case = OD__HEADER__BODY_BYE;
	h.bye = &bye;
	len = od__header__pack(&h, packed);
	for (size_t i = 0; i < len; i++)
		put_raw(s, packed, i, false);
	od_close_socket(s);
}

/* Bytes of other protocols, whole and followed by noise. */
static inline void put_junk_tcp(uint16_t port)
{
	static const char *const junk[] = { "GET / HTTP/1.0\r\n\r\n", "\xff",
					    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x03", "\x01",
					    "\xff\x01\x01\x01\x01\x01\x01\x01\x01\x7f\x03\x01NULL" };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	uint64_t state = 7;
	char bytes[4096];

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (size_t i = 0; i < 2 * sizeof(junk) / sizeof(junk[0]); i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		assert_true(fd >= 0);
		assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
		for (size_t j = 0; j < sizeof(bytes); j++)
			bytes[j] = (char)next_random(&state);
		(void)!send(fd, junk[i / 2], strlen(junk[i / 2]), MSG_NOSIGNAL);
		if (i % 2 == 1)
			(void)!send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		close(fd);
	}
}

#endif
