/* Main's checks of a WELCOME: the daemon should have refused HELLO, and did not. */
#include "main-node/cluster/welcome_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define N_LAYERS 6

static const struct od_config config = { .n_layers = N_LAYERS };

static struct odm_cluster_opts opts(bool mixed)
{
	return (struct odm_cluster_opts){ .config = &config, .kernel_class = "fma8", .mixed = mixed };
}

static Od__Welcome welcome(enum od_node_kind role)
{
	Od__Welcome w = OD__WELCOME__INIT;

	w.session = 1;
	w.data_port = 5801;
	w.role = (char *)od_node_names[role];
	w.kernel_class = (char *)"fma8";
	w.slots = role == OD_NODE_WORKER ? 1 : 0;
	return w;
}

/* says: of the refusal; NULL: it is taken. */
static void check(const Od__Welcome *w, enum od_node_kind role, bool mixed, int code, const char *says)
{
	const struct odm_cluster_opts o = opts(mixed);
	struct od_err err = { 0 };

	assert_int_equal(odm_check_welcome(w, role, &o, &err), code);
	if (says != NULL && strstr(err.msg, says) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

/* A good one with one thing spoiled. */
#define BAD(role, code, says, ...) \
	do { \
		Od__Welcome w = welcome(role); \
\
		__VA_ARGS__; \
		check(&w, role, false, code, says); \
	} while (0)

static void good_ones_are_taken(void **state)
{
	Od__Welcome worker = welcome(OD_NODE_WORKER), shadow = welcome(OD_NODE_SHADOW);

	(void)state;
	check(&worker, OD_NODE_WORKER, false, OD_OK, NULL);
	check(&shadow, OD_NODE_SHADOW, false, OD_OK, NULL);
	worker.slots = 1024;
	worker.data_port = 65535;
	check(&worker, OD_NODE_WORKER, false, OD_OK, NULL);
	shadow.first_layer = N_LAYERS - 1; /* end_layer 0: to the end */
	check(&shadow, OD_NODE_SHADOW, false, OD_OK, NULL);
	shadow.first_layer = 2;
	shadow.end_layer = 3;
	check(&shadow, OD_NODE_SHADOW, false, OD_OK, NULL);
}

static void another_class_needs_mixed(void **state)
{
	Od__Welcome worker = welcome(OD_NODE_WORKER), shadow = welcome(OD_NODE_SHADOW);

	(void)state;
	BAD(OD_NODE_WORKER, OD_ERR_MISMATCH, "kernel_class: expected fma8, found fma16",
	    w.kernel_class = (char *)"fma16");
	BAD(OD_NODE_WORKER, OD_ERR_MISMATCH, "--mixed", w.kernel_class = (char *)"fma");
	BAD(OD_NODE_WORKER, OD_ERR_MISMATCH, "kernel_class", w.kernel_class = (char *)"\033[2Jfma8");
	worker.kernel_class = shadow.kernel_class = (char *)"fma16";
	check(&worker, OD_NODE_WORKER, true, OD_OK, NULL);
	check(&shadow, OD_NODE_SHADOW, false, OD_OK, NULL);
	worker.kernel_class = (char *)""; /* as asked for */
	check(&worker, OD_NODE_WORKER, false, OD_OK, NULL);
}

static void numbers_are_in_range(void **state)
{
	(void)state;
	BAD(OD_NODE_WORKER, OD_ERR_PROTOCOL, "session 0", w.session = 0);
	BAD(OD_NODE_WORKER, OD_ERR_PROTOCOL, "data port 0", w.data_port = 0);
	BAD(OD_NODE_SHADOW, OD_ERR_PROTOCOL, "data port 65536", w.data_port = 65536);
	BAD(OD_NODE_WORKER, OD_ERR_PROTOCOL, "found 1025", w.slots = 1025);
	BAD(OD_NODE_WORKER, OD_ERR_PROTOCOL, "found 4294967295", w.slots = UINT32_MAX);
	BAD(OD_NODE_SHADOW, OD_ERR_PROTOCOL, "found [0, 7)", w.end_layer = N_LAYERS + 1);
	BAD(OD_NODE_SHADOW, OD_ERR_PROTOCOL, "found [3, 3)", w.first_layer = w.end_layer = 3);
	BAD(OD_NODE_SHADOW, OD_ERR_PROTOCOL, "found [4294967295, 6)", w.first_layer = UINT32_MAX);
	BAD(OD_NODE_SHADOW, OD_ERR_PROTOCOL, "found [0, 4294967295)", w.end_layer = UINT32_MAX);
}

static void roles_are_those_of_the_hosts_file(void **state)
{
	(void)state;
	BAD(OD_NODE_WORKER, OD_ERR_MISMATCH, "role: expected worker, found \"shadow\"", w.role = (char *)"shadow");
	BAD(OD_NODE_SHADOW, OD_ERR_MISMATCH, "role: expected shadow, found \"worker\"", w.role = (char *)"worker");
	BAD(OD_NODE_WORKER, OD_ERR_MISMATCH, "role: expected worker, found \"\"", w.role = (char *)"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_ones_are_taken),
		cmocka_unit_test(another_class_needs_mixed),
		cmocka_unit_test(numbers_are_in_range),
		cmocka_unit_test(roles_are_those_of_the_hosts_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
