#include "deploy/plan/check_findings.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "main-node/cluster/members_machine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOCK_LIMIT_NS OD_NS_PER_S /* logs of two machines are read side by side */
#define FIXED_BYTES (128ull << 20) /* a worker beside its slots and its cache */
#define NO_CONNECTION "no connection"
#define NAMED 3 /* daemons of one machine that a finding names */

void odp_find(struct odp_checked *c, enum odp_grade grade, const char *step, const char *remedy, const char *fmt, ...)
{
	struct odp_finding *f = &c->finding[c->n_findings];
	va_list args;

	if (c->n_findings == ODP_MAX_FINDINGS)
		return;
	c->n_findings++;
	f->grade = grade;
	f->step = step;
	snprintf(f->remedy, sizeof(f->remedy), "%s", remedy);
	va_start(args, fmt);
	vsnprintf(f->what, sizeof(f->what), fmt, args);
	va_end(args);
}

bool odp_is_wrong(const struct odp_checked *c)
{
	for (size_t i = 0; i < c->n_findings; i++)
		if (c->finding[i].grade == ODP_WRONG)
			return true;
	return false;
}

const char *odp_span_text(uint64_t ns, char *buf, size_t size)
{
	const uint64_t s = ns / OD_NS_PER_S;

	if (s < 120)
		snprintf(buf, size, "%" PRIu64 " s", s);
	else if (s < 7200)
		snprintf(buf, size, "%" PRIu64 " min", s / 60);
	else
		snprintf(buf, size, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
	return buf;
}

/* ---- Not connected ---- */

static void judge_busy(struct odp_checked *c)
{
	const struct odm_told_facts *t = &c->facts.told;
	const time_t begun = time(NULL) - (time_t)(t->served_ns / OD_NS_PER_S);
	char since[40], span[40];
	struct tm tm;

	if (t->main_name[0] == '\0') {
		odp_find(c, ODP_NOTE, "session", "", "%s; it was not disturbed, and not measured", c->facts.why);
		return;
	}
	localtime_r(&begun, &tm);
	strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S", &tm);
	odp_find(c, ODP_NOTE, "session", "",
		 "it serves main \"%s\" since %s (%s); it was not disturbed, and not measured", t->main_name, since,
		 odp_span_text(t->served_ns, span, sizeof(span)));
}

/* Main's log says in one line what to do as well; here that follows. */
static size_t facts_of(const char *why)
{
	const char *advice = strstr(why, "; check that");

	return advice != NULL && strstr(advice, "its key is") == NULL ? (size_t)(advice - why) : strlen(why);
}

static void judge_missing(struct odp_checked *c)
{
	const struct odm_member_facts *f = &c->facts;
	const char *why = f->why[0] != '\0' ? f->why : NO_CONNECTION;
	char problem[300];

	if (f->refused_code == OD_ERR_BUSY)
		judge_busy(c);
	else
		odp_find(c, ODP_WRONG, odm_member_step(why), odm_member_remedy(why, problem, sizeof(problem)), "%.*s",
			 (int)facts_of(why), why);
}

/* ---- Connected ---- */

static void judge_version(struct odp_checked *c)
{
	const char *theirs = c->facts.told.program_version;

	if (theirs[0] == '\0')
		odp_find(c, ODP_NOTE, "version", "install " OD_VERSION " there",
			 "its program is older than this one (" OD_VERSION
			 "): it does not tell its version, clock, memory and disk");
	else if (strcmp(theirs, OD_VERSION) != 0)
		odp_find(c, ODP_NOTE, "version", "install the same version on all machines",
			 "version: expected " OD_VERSION ", as here, found %s", theirs);
}

static void judge_kernels(struct odp_checked *c, const struct odp_expected *x)
{
	const char *theirs = c->facts.told.kernel_class;

	if (theirs[0] != '\0' && strcmp(theirs, x->kernel_class) != 0)
		odp_find(c, ODP_NOTE, "kernels", "",
			 "kernel class %s, here %s: with od-main's --mixed, last bits depend on who computes", theirs,
			 x->kernel_class);
}

static void judge_clock(struct odp_checked *c)
{
	const struct odm_told_facts *t = &c->facts.told;
	const uint64_t off_ns = t->clock_ns < 0 ? (uint64_t)-t->clock_ns : (uint64_t)t->clock_ns;

	if (t->has_clock && off_ns > CLOCK_LIMIT_NS + t->clock_error_ns)
		odp_find(c, ODP_NOTE, "clock", "set both clocks by NTP (timedatectl set-ntp true)",
			 "its clock is %.1f s %s this machine's: times of logs do not fit together", od_seconds(off_ns),
			 t->clock_ns < 0 ? "behind" : "ahead of");
}

static void judge_slots(struct odp_checked *c, const struct odp_expected *x)
{
	const struct odm_member_facts *f = &c->facts;
	char remedy[120], bytes[32];

	if (f->member.slots >= 2)
		return;
	snprintf(remedy, sizeof(remedy), "start it with --slots 2, and --memory-limit %s if that is too little",
		 od_format_bytes(f->told.memory_bytes + x->slot_bytes, bytes, sizeof(bytes)));
	odp_find(c, ODP_NOTE, "memory", remedy,
		 "slots: expected at least 2, found %u: the next expert is loaded only when the one before is computed",
		 f->member.slots);
}

static void judge_disk(struct odp_checked *c, const struct odp_expected *x)
{
	const struct odm_member_facts *f = &c->facts;
	const uint64_t goal = f->c[OD_C_SPOOL_GOAL_BYTES], whole = f->c[OD_C_SPOOL_BYTES];
	const uint64_t need = goal > whole ? goal - whole : x->stored_bytes, have = f->told.free_disk_bytes;
	char a[32], b[32], lacks[32], remedy[160];

	if (!f->member.spool || f->member.sealed || f->told.program_version[0] == '\0' || have >= need)
		return;
	if (f->told_held && f->n_held == (uint64_t)x->config->n_moe * x->config->n_experts)
		return;
	snprintf(remedy, sizeof(remedy),
		 "free %s there, or give it a --spool on a larger disk; a --spool-limit lets others hold the rest",
		 od_format_bytes(need - have, lacks, sizeof(lacks)));
	odp_find(c, ODP_WRONG, "disk", remedy, "the disk of its spool: expected %s more for %s, found %s free",
		 od_format_bytes(need, a, sizeof(a)), goal > whole ? "its share" : "one expert",
		 od_format_bytes(have, b, sizeof(b)));
}

static void judge_held(struct odp_checked *c, const struct odp_expected *x)
{
	const struct odm_member_facts *f = &c->facts;
	const uint64_t all = (uint64_t)x->config->n_moe * x->config->n_experts;

	if (!f->member.spool || !f->told_held || f->n_held == all)
		return;
	odp_find(c, ODP_NOTE, "experts",
		 f->member.sealed ? "" : "it pulls its share from od-main --serve-store while od-main runs",
		 "it holds %" PRIu64 " of %" PRIu64 " experts%s", f->n_held, all,
		 f->member.sealed ? ", and gets no others" : "");
}

void odp_judge(struct odp_checked *c, const struct odp_expected *x)
{
	c->asked = c->facts.member.session != 0;
	if (!c->asked) {
		judge_missing(c);
		return;
	}
	judge_version(c);
	judge_clock(c);
	judge_kernels(c, x);
	if (c->facts.member.role == OD_NODE_SHADOW)
		return;
	judge_slots(c, x);
	judge_disk(c, x);
	judge_held(c, x);
}

/* ---- Machines ---- */

uint64_t odp_memory_need(const struct odp_checked *c, const struct odp_expected *x)
{
	const struct odm_told_facts *t = &c->facts.told;
	const uint64_t slots = c->facts.member.slots * x->slot_bytes + t->cache_bytes + FIXED_BYTES;

	return c->facts.member.role == OD_NODE_WORKER && slots < t->memory_bytes ? slots : t->memory_bytes;
}

/* With memory of its own a GPU's slots are not the host's. */
static bool is_on_host(const struct odp_checked *c)
{
	const struct odm_told_facts *t = &c->facts.told;

	return c->asked && t->ram_bytes > 0 && strncmp(t->backend, "cpu", 3) == 0;
}

static bool is_same_machine(const struct odp_checked *a, const struct odp_checked *b)
{
	const char *boot = a->facts.told.boot_id, *other = b->facts.told.boot_id;

	if (boot[0] != '\0' && other[0] != '\0')
		return strcmp(boot, other) == 0;
	return a->facts.host_name[0] != '\0' && strcmp(a->facts.host_name, b->facts.host_name) == 0 &&
	       a->facts.told.ram_bytes == b->facts.told.ram_bytes;
}

void odp_judge_memory(struct odp_checked *c, size_t n, const struct odp_expected *x)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t have = c[i].facts.told.free_ram_bytes;
		uint64_t more = 0, n_daemons = 0;
		char a[32], b[32], lacks[32], remedy[160], who[48] = "its memory limit";
		bool first = is_on_host(&c[i]);

		for (size_t j = 0; first && j < n; j++) {
			const uint64_t need = odp_memory_need(&c[j], x), has = c[j].facts.c[OD_C_RSS_BYTES];

			if (!is_on_host(&c[j]) || !is_same_machine(&c[i], &c[j]))
				continue;
			first = j >= i;
			n_daemons++;
			more += need > has ? need - has : 0;
		}
		if (!first || more <= have)
			continue;
		if (n_daemons > 1)
			snprintf(who, sizeof(who), "the %" PRIu64 " daemons of this machine", n_daemons);
		snprintf(remedy, sizeof(remedy), "lower --memory-limit there by %s, or free as much",
			 od_format_bytes(more - have, lacks, sizeof(lacks)));
		odp_find(&c[i], ODP_WRONG, "memory", remedy, "%s may take %s more, and %s are free there", who,
			 od_format_bytes(more, a, sizeof(a)), od_format_bytes(have, b, sizeof(b)));
	}
}

/* ", worker 10.0.0.2:5701 and 3 others": those of c [n] on this one's machine, of which `others` are not named. */
static size_t name_others(const struct odp_checked *of, const struct odp_checked *c, size_t n, char *text, size_t size)
{
	size_t found = 0, others = 0, len = 0;

	text[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		if (!c[i].asked || !is_same_machine(of, &c[i]))
			continue;
		found++;
		if (found <= NAMED)
			len += (size_t)snprintf(text + len, size - len, "%s%.60s", found > 1 ? ", " : "", c[i].name);
		else
			others++;
	}
	if (others > 0)
		snprintf(text + len, size - len, " and %zu more", others);
	return found;
}

void odp_judge_machines(struct odp_checked *here, struct odp_checked *c, size_t n)
{
	for (size_t i = 0; i <= n; i++) {
		struct odp_checked *first = i == 0 ? here : &c[i - 1];
		char others[320], before[320];

		if (i > 0 && (!first->asked || is_same_machine(here, first) ||
			      name_others(first, c, i - 1, before, sizeof(before)) > 0))
			continue; /* it is among those of an earlier one */
		if (name_others(first, c + i, n - i, others, sizeof(others)) > 0)
			odp_find(first, ODP_NOTE, "machine", "",
				 "it is one machine with %s: each was measured alone, and together they share its "
				 "processors, disk and network port",
				 others);
	}
}

static uint64_t more_of(const struct odp_checked *c, uint64_t bytes)
{
	const uint64_t has = c->facts.c[OD_C_RSS_BYTES];

	return bytes > has ? bytes - has : 0;
}

uint64_t odp_memory_of(const struct odp_checked *c, size_t n, size_t i)
{
	const struct odm_told_facts *t = &c[i].facts.told;
	const uint64_t mine = more_of(&c[i], t->memory_bytes);
	double all = 0;

	for (size_t j = 0; is_on_host(&c[i]) && j < n; j++)
		if (is_on_host(&c[j]) && is_same_machine(&c[i], &c[j]))
			all += (double)more_of(&c[j], c[j].facts.told.memory_bytes);
	if (all <= (double)t->free_ram_bytes)
		return t->memory_bytes;
	return t->memory_bytes - mine + (uint64_t)((double)mine * (double)t->free_ram_bytes / all);
}

uint64_t odp_memory_left(const struct odp_checked *here, const struct odp_checked *c, size_t n, uint64_t free_bytes)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t more =
			is_on_host(&c[i]) && is_same_machine(here, &c[i]) ? more_of(&c[i], odp_memory_of(c, n, i)) : 0;

		free_bytes -= more < free_bytes ? more : free_bytes;
	}
	return free_bytes;
}
