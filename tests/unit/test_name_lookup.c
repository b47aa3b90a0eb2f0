/* The addresses of a name: all of them, those of IPv4 first, or why there are none. The resolver is played here. */
#include "main-node/cluster/name_lookup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netdb.h>
#include <unistd.h>

#define MAX_PLAYED 20

static struct played {
	struct addrinfo info;
	struct sockaddr_storage address;
} played[MAX_PLAYED];
static size_t n_played;
static int status;

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	(void)service, (void)hints;
	assert_string_equal(name, "worker.test");
	*list = status == 0 && n_played > 0 ? &played[0].info : NULL;
	return status;
}

void __wrap_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list)
{
	assert_ptr_equal(list, &played[0].info);
}

static void play(const char *text)
{
	struct played *p = &played[n_played];
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&p->address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&p->address;
	const bool is_v6 = strchr(text, ':') != NULL;

	assert_true(n_played < MAX_PLAYED);
	memset(p, 0, sizeof(*p));
	p->info.ai_family = p->address.ss_family = is_v6 ? AF_INET6 : AF_INET;
	assert_int_equal(inet_pton(p->info.ai_family, text, is_v6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr), 1);
	p->info.ai_addr = (struct sockaddr *)(void *)&p->address;
	p->info.ai_addrlen = is_v6 ? sizeof(*v6) : sizeof(*v4);
	if (n_played > 0)
		played[n_played - 1].info.ai_next = &p->info;
	n_played++;
}

/* Why there is none. */
static const char *look_up(struct odm_addresses *found)
{
	struct odm_name_lookup *l = odm_name_lookup_begin("worker.test");
	const char *why = NULL;

	assert_non_null(l);
	while (!odm_name_lookup_done(l, found, &why))
		usleep(1000);
	odm_name_lookup_end(l);
	n_played = 0;
	return why;
}

static void ipv4_comes_first(void **state)
{
	static const char *const expected[] = { "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2" };
	struct odm_addresses found;

	(void)state;
	play("fd00::1");
	play("10.0.0.1");
	play("fd00::2");
	play("10.0.0.2");
	assert_null(look_up(&found));
	assert_int_equal(found.n, 4);
	for (size_t i = 0; i < 4; i++)
		assert_string_equal(found.at[i], expected[i]);
}

static void more_than_fit_are_left_out(void **state)
{
	struct odm_addresses found;
	char text[20];

	(void)state;
	for (int i = 0; i < MAX_PLAYED; i++) {
		snprintf(text, sizeof(text), "10.0.0.%d", i);
		play(text);
	}
	assert_null(look_up(&found));
	assert_int_equal(found.n, ODM_MAX_ADDRESSES);
	assert_string_equal(found.at[ODM_MAX_ADDRESSES - 1], "10.0.0.15");
}

static void a_name_without_addresses_says_why(void **state)
{
	struct odm_addresses found;

	(void)state;
	status = EAI_NONAME;
	assert_string_equal(look_up(&found), gai_strerror(EAI_NONAME));
	assert_int_equal(found.n, 0);
	status = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ipv4_comes_first),
		cmocka_unit_test(more_than_fit_are_left_out),
		cmocka_unit_test(a_name_without_addresses_says_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
