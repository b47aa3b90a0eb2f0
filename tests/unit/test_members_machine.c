/* Reasons why a member cannot be used, as members.c and daemons write them, and what an operator is told: a problem of
 * main's own words, without keys, and a remedy. */
#include "main-node/cluster/members_machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define KEY "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"

static void every_reason_has_a_remedy(void **state)
{
	static const struct {
		const char *why, *problem, *remedy; /* pieces */
	} cases[] = {
		{ "no connection; check that it runs, and its address and port", "no connection", "it runs there" },
		{ "cannot connect; check that it runs there, and its address and port", "no connection",
		  "it runs there" },
		{ "at 10.0.0.2: cannot connect; check that it runs there, and its address and port", "no connection",
		  "it runs there" },
		{ "its connection has ended", "its connection has ended", "start it there again" },
		{ "no answer for 1.5 s", "no answer for 1.5 s", "network" },
		{ "it has work but made no progress for 3 s", "made no progress", "its log" },
		{ "it sent BYE (its process is at /home/me)", "it was stopped", "start it there again" },
		{ "it sent a malformed RESULT; it is used again in 5 s or later", "malformed RESULT", "restart" },
		{ "it is idle but does not answer its RUNs; it is used again in 5 s or later", "RUNs", "log" },
		{ "it loses RUNs again and again, and answers others", "RUNs", "log" },
		{ "it answers heartbeats, but not on its data port", "data port", "firewall" },
		{ "it refuses this node's key " KEY ": add it to the peers file there, and restart it or kill -HUP",
		  "it refuses main's key", "peers file" },
		{ "it ended the handshake; check that its key is " KEY ", as the hosts file or the peers file says",
		  "its key is not", "hosts file" },
		{ "it ends the handshake; check that it is an od-moe daemon, and that it runs without keys, as main does",
		  "it ends the handshake", "without keys" },
		{ "it runs without keys: start it with --key", "without keys", "--key" },
		{ "it runs with keys: leave out --insecure and give main its key (key= in the hosts file)", "with keys",
		  "hosts file" },
		{ "it takes the connection and says nothing; check that it is not stopped", "says nothing",
		  "not stopped" },
		{ "refused: fingerprint: expected aa, found bb: the packs are of different models", "another model",
		  "one checkpoint" },
		{ "refused: protocol version: expected 9, found 8", "version", "same version" },
		{ "refused: role: expected shadow, found \"worker\"", "another role", "hosts file" },
		{ "refused: profile: expected 1 (f32) or 2 (bf16), found 7", "profile", "--profile" },
		{ "refused: session: this worker is in use by main \"box\"", "another main", "hosts files" },
		{ "refused: session: main \"box\" uses this worker already, by another address: two lines of its hosts file "
		  "are the same daemon; remove one",
		  "two lines", "remove one" },
		{ "refused: memory: /home/me/secret is no answer for this", "it refuses to work", "log" },
		{ "kernel_class: expected fma, found neon: results would differ", "last bits", "--mixed" },
		{ "role: expected worker, found \"shadow\"; correct its line in the hosts file", "another role",
		  "hosts file" },
		{ "its WELCOME is malformed (session 0, data port 0)", "no sense", "version of main" },
		{ "cannot resolve its name (Name or service not known)", "its name", "hosts file" },
		{ "it is the same daemon as worker 10.0.0.2:5701: both have address 10.0.0.2", "two lines",
		  "remove one" },
		{ "it ended the connection before it answered HELLO", "does not answer", "address and port" },
		{ "connected, but no answer to HELLO; check that it is an od-moe daemon", "does not answer",
		  "address and port" },
		{ "its process 123 was ended by signal 9 (Killed), and is not started again", "its process 123",
		  "restart od-main" },
		{ "its copy of the GGUF file is another one, with the same fingerprint: tensor a, expert 1", "copy",
		  "sha256sum" },
		{ "something that nobody has thought of at /home/me", "it cannot be used", "log" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char problem[400];
		const char *remedy = odm_member_remedy(cases[i].why, problem, sizeof(problem));

		if (strstr(problem, cases[i].problem) == NULL || strstr(remedy, cases[i].remedy) == NULL)
			fail_msg("%s: %s; %s", cases[i].why, problem, remedy);
		assert_null(strstr(problem, KEY));
		assert_null(strstr(problem, "/home"));
		assert_null(strstr(problem, "\"")); /* nothing that the peer named */
	}
}

static void a_long_reason_is_cut(void **state)
{
	char problem[8];

	(void)state;
	(void)odm_member_remedy("no answer for 1.5 s", problem, sizeof(problem));
	assert_string_equal(problem, "no answ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_reason_has_a_remedy),
		cmocka_unit_test(a_long_reason_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
