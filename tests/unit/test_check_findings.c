/* od-plan --check judges hosts by what they have told. */
#include "deploy/plan/check_findings.h"

#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GIB (1ull << 30)
#define MIB (1ull << 20)

static const struct od_config config = { .n_moe = 4, .n_experts = 8, .top_k = 2 };
static const struct odp_expected expected = {
	.config = &config, .kernel_class = "fma16-2", .stored_bytes = 100 * MIB, .slot_bytes = 150 * MIB
};

/* A worker with which all is well. */
static struct odp_checked good_worker(void)
{
	return (struct odp_checked){
		.name = "worker box1:5701",
		.line = 3,
		.facts = { .member = { .role = OD_NODE_WORKER, .session = 7, .slots = 8 },
			   .told = { .program_version = OD_VERSION,
				     .kernel_class = "fma16-2",
				     .backend = "cpu avx2",
				     .threads = 4,
				     .memory_bytes = 4 * GIB,
				     .ram_bytes = 16 * GIB,
				     .free_ram_bytes = 8 * GIB,
				     .free_disk_bytes = 50 * GIB,
				     .has_clock = true,
				     .welcomed = true },
			   .host_name = "box1",
			   .n_held = 32,
			   .told_held = true },
	};
}

static void expect_only(const struct odp_checked *c, enum odp_grade grade, const char *step, const char *what,
			const char *remedy)
{
	const struct odp_finding *f = &c->finding[0];

	if (c->n_findings != 1)
		fail_msg("%s: found %zu findings, the first: %s", what, c->n_findings, f->what);
	if (f->grade != grade || strcmp(f->step, step) != 0 || strstr(f->what, what) == NULL ||
	    strstr(f->remedy, remedy) == NULL)
		fail_msg("expected %s: %s; %s, found %s: %s; %s", step, what, remedy, f->step, f->what, f->remedy);
	assert_int_equal(odp_is_wrong(c), grade == ODP_WRONG);
}

static void nothing_is_wrong(void **state)
{
	struct odp_checked c = good_worker();

	(void)state;
	odp_judge(&c, &expected);
	odp_judge_memory(&c, 1, &expected);
	assert_int_equal(c.n_findings, 0);
	assert_true(c.asked);
}

static void who_does_not_come(void **state)
{
	static const struct {
		const char *why, *step, *what, *remedy;
	} cases[] = {
		{ "", "port", "no connection", "it runs there" },
		{ "cannot connect; check that it runs there, and its address and port", "port", "cannot connect",
		  "it runs there" },
		{ "cannot resolve its name: no such host", "name", "cannot resolve its name", "correct the name" },
		{ "refused: fingerprint: expected 1a, found 2b: the packs are of different models", "model",
		  "expected 1a, found 2b", "packs of one checkpoint" },
		{ "refused: role: expected shadow, found \"worker\"", "role", "expected shadow", "hosts file" },
		{ "refused: protocol version: expected 5, found 9", "protocol", "expected 5, found 9",
		  "the same version" },
		{ "it runs without keys: start it with --key", "key", "it runs without keys", "--key" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct odp_checked c = { .name = "worker box1:5701" };

		snprintf(c.facts.why, sizeof(c.facts.why), "%s", cases[i].why);
		odp_judge(&c, &expected);
		expect_only(&c, ODP_WRONG, cases[i].step, cases[i].what, cases[i].remedy);
		assert_null(strstr(c.finding[0].what, "check that it runs"));
	}
}

static void who_serves_another_main(void **state)
{
	struct odp_checked c = { .facts = { .refused_code = OD_ERR_BUSY,
					    .told = { .main_name = "box0", .served_ns = 7500 * OD_NS_PER_S } } };
	struct odp_checked old = { .facts = { .refused_code = OD_ERR_BUSY,
					      .why = "refused: in use by main \"box0\"" } };

	(void)state;
	odp_judge(&c, &expected);
	expect_only(&c, ODP_NOTE, "session", "it serves main \"box0\" since ", "");
	assert_non_null(strstr(c.finding[0].what, "(2 h 5 min)"));
	odp_judge(&old, &expected);
	expect_only(&old, ODP_NOTE, "session", "in use by main \"box0\"", "");
}

static void versions_clocks_and_kernels(void **state)
{
	struct odp_checked old = good_worker(), other = good_worker(), late = good_worker(), near = good_worker(),
			   mixed = good_worker();

	(void)state;
	old.facts.told.program_version[0] = '\0';
	old.facts.told.has_clock = false;
	odp_judge(&old, &expected);
	expect_only(&old, ODP_NOTE, "version", "older than this one", OD_VERSION);
	snprintf(other.facts.told.program_version, sizeof(other.facts.told.program_version), "99.1");
	odp_judge(&other, &expected);
	expect_only(&other, ODP_NOTE, "version", "expected " OD_VERSION ", as here, found 99.1", "the same version");
	late.facts.told.clock_ns = -(int64_t)(7500 * OD_NS_PER_MS);
	odp_judge(&late, &expected);
	expect_only(&late, ODP_NOTE, "clock", "7.5 s behind", "NTP");
	near.facts.told.clock_ns = (int64_t)(2500 * OD_NS_PER_MS);
	near.facts.told.clock_error_ns = 2 * OD_NS_PER_S; /* the answer took as long */
	odp_judge(&near, &expected);
	assert_int_equal(near.n_findings, 0);
	snprintf(mixed.facts.told.kernel_class, sizeof(mixed.facts.told.kernel_class), "other");
	odp_judge(&mixed, &expected);
	expect_only(&mixed, ODP_NOTE, "kernels", "kernel class other, here fma16-2", "");
}

static void slots_and_disks(void **state)
{
	struct odp_checked one = good_worker(), full = good_worker(), share = good_worker(), pulling = good_worker();

	(void)state;
	one.facts.member.slots = 1;
	odp_judge(&one, &expected);
	expect_only(&one, ODP_NOTE, "memory", "expected at least 2, found 1", "--memory-limit 4.1 GiB");
	full.facts.member.spool = share.facts.member.spool = pulling.facts.member.spool = true;
	full.facts.n_held = share.facts.n_held = pulling.facts.n_held = 5;
	full.facts.told.free_disk_bytes = 40 * MIB;
	odp_judge(&full, &expected);
	assert_int_equal(full.n_findings, 2);
	assert_string_equal(full.finding[0].step, "disk");
	assert_non_null(strstr(full.finding[0].what, "expected 100.0 MiB more for one expert, found 40.0 MiB free"));
	assert_non_null(strstr(full.finding[0].remedy, "free 60.0 MiB there"));
	assert_true(odp_is_wrong(&full));
	assert_non_null(strstr(full.finding[1].what, "it holds 5 of 32 experts"));
	share.facts.c[OD_C_SPOOL_GOAL_BYTES] = 60 * GIB;
	share.facts.c[OD_C_SPOOL_BYTES] = 4 * GIB;
	odp_judge(&share, &expected);
	assert_non_null(strstr(share.finding[0].what, "expected 56.0 GiB more for its share, found 50.0 GiB free"));
	odp_judge(&pulling, &expected);
	expect_only(&pulling, ODP_NOTE, "experts", "it holds 5 of 32 experts", "--serve-store");
}

/* Two daemons of one machine, and one of another: 8 slots of 150 MiB and 128 MiB beside them are 1328 MiB each. */
static void memory_of_machines(void **state)
{
	struct odp_checked c[3] = { good_worker(), good_worker(), good_worker() };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		c[i].facts.told.free_ram_bytes = 2 * GIB;
		odp_judge(&c[i], &expected);
	}
	snprintf(c[2].facts.host_name, sizeof(c[2].facts.host_name), "box2");
	odp_judge_memory(c, 3, &expected);
	assert_int_equal(c[1].n_findings + c[2].n_findings, 0);
	expect_only(&c[0], ODP_WRONG, "memory",
		    "the 2 daemons of this machine may take 2.6 GiB more, and 2.0 GiB are free there", "by 608.0 MiB");
	c[0].n_findings = 0;
	c[1].facts.c[OD_C_RSS_BYTES] = GIB; /* it has that already */
	odp_judge_memory(c, 3, &expected);
	assert_int_equal(c[0].n_findings + c[1].n_findings, 0);
	c[2].facts.told.memory_bytes = 4 * GIB;
	c[2].facts.member.slots = 64; /* its limit binds */
	odp_judge_memory(c, 3, &expected);
	expect_only(&c[2], ODP_WRONG, "memory", "its memory limit may take 4.0 GiB more, and 2.0 GiB are free there",
		    "by 2.0 GiB");
}

/* 6 GiB are free: two daemons there may take 3.5 and 8.5 GiB more, so each gets half of that. */
static void memory_is_counted_once(void **state)
{
	struct odp_checked c[3] = { good_worker(), good_worker(), good_worker() }, main = { .name = "main" };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		odp_judge(&c[i], &expected);
		c[i].facts.c[OD_C_RSS_BYTES] = GIB / 2;
		c[i].facts.told.free_ram_bytes = 6 * GIB;
		snprintf(c[i].facts.told.boot_id, sizeof(c[i].facts.told.boot_id), i < 2 ? "first" : "second");
	}
	c[1].facts.told.memory_bytes = 9 * GIB;
	assert_int_equal(odp_memory_of(c, 3, 0), GIB / 2 + 7 * GIB / 4);
	assert_int_equal(odp_memory_of(c, 3, 1), GIB / 2 + 17 * GIB / 4);
	assert_int_equal(odp_memory_of(c, 3, 2), 4 * GIB);
	odp_judge_machines(&main, c, 3);
	assert_int_equal(main.n_findings + c[1].n_findings + c[2].n_findings, 0);
	expect_only(&c[0], ODP_NOTE, "machine", "it is one machine with worker box1:5701: each", "");
	assert_int_equal(odp_memory_left(&main, c, 3, 5 * GIB), 5 * GIB);
	snprintf(main.facts.told.boot_id, sizeof(main.facts.told.boot_id), "second");
	assert_int_equal(odp_memory_left(&main, c, 3, 5 * GIB), 3 * GIB / 2);
	odp_judge_machines(&main, c, 3);
	expect_only(&main, ODP_NOTE, "machine", "it is one machine with worker box1:5701: each", "");
	assert_int_equal(c[2].n_findings, 0);
}

static void spans(void **state)
{
	char text[40];

	(void)state;
	assert_string_equal(odp_span_text(59 * OD_NS_PER_S, text, sizeof(text)), "59 s");
	assert_string_equal(odp_span_text(3599 * OD_NS_PER_S, text, sizeof(text)), "59 min");
	assert_string_equal(odp_span_text(90061 * OD_NS_PER_S, text, sizeof(text)), "25 h 1 min");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_wrong),	   cmocka_unit_test(who_does_not_come),
		cmocka_unit_test(who_serves_another_main), cmocka_unit_test(versions_clocks_and_kernels),
		cmocka_unit_test(slots_and_disks),	   cmocka_unit_test(memory_of_machines),
		cmocka_unit_test(memory_is_counted_once),  cmocka_unit_test(spans),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
