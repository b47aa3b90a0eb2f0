/* bench_load.c - od-bench load: loads experts through the worker's readers, schedule and inflaters, from several
 * sources. */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_list.h"
#include "tests/bench/bench_draw.h"
#include "tests/bench/live/load_run.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"
#include "common/residency/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define MAX_ROUNDS 1000
#define MAX_BUFS OD_MAX_SLOTS

struct load_options {
	const char *packs, *sources, *paces, *forms, *load_threads, *device;
	uint64_t read_threads, experts, slots, rounds, seed;
	bool json, help;
};

struct load_bench_source {
	enum load_kind kind;
	double bytes_per_ns;
	char name[64];
};

struct load_model {
	struct od_pack *pack;
	struct load_expert *expert; /* [experts] */
};

/* One line of the table: medians over rounds. */
struct load_line {
	const struct load_bench_source *source;
	const struct load_model *model;
	enum od_form form;
	unsigned n_inflaters;
	double *raw_gbps, *gbps, *ratio, *reading, *inflating; /* [rounds] */
};

struct load_bench {
	struct load_options opt;
	struct load_model model[OD_LIST_MAX];
	struct load_bench_source source[OD_LIST_MAX + OD_LIST_MAX]; /* paced ones, others */
	uint64_t n_inflaters[OD_LIST_MAX];
	int form[OD_LIST_MAX];
	size_t n_models, n_sources, n_threads, n_forms, n_lines;
	struct load_line *line;
	struct od_device *device; /* where the buffers lie */
	struct od_expert_bufs *bufs[OD_N_FORMS];
	double *room; /* [rounds], to sort in */
};

/* ---- The command line ---- */

static int add_paces(struct load_bench *b, struct od_err *err)
{
	struct od_list list;
	int rc = od_list_split(&list, "pace", b->opt.paces, err);

	for (size_t i = 0; rc == OD_OK && i < list.n; i++) {
		struct load_bench_source *s = &b->source[b->n_sources++];
		char *item = list.item[i];
		size_t len = strlen(item);
		uint64_t bytes;

		*s = (struct load_bench_source){ .kind = LOAD_PACED };
		snprintf(s->name, sizeof(s->name), "%s", item);
		if (len > 2 && strcmp(item + len - 2, "/s") == 0)
			item[len - 2] = '\0';
		if (od_parse_size(item, &bytes, err) != OD_OK || bytes == 0)
			return od_fail(err, OD_ERR_ARG, "--pace: expected a rate like 3.5GB/s, found \"%s\"", s->name);
		s->bytes_per_ns = (double)bytes / OD_NS_PER_S;
	}
	return rc;
}

static int plan_sources(struct load_bench *b, struct od_err *err)
{
	int kind[OD_LIST_MAX];
	size_t n;
	int rc = od_list_choices("source", b->opt.sources, load_kind_names, kind, &n, err);

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		if (kind[i] == LOAD_PACED) {
			rc = add_paces(b, err);
			continue;
		}
		b->source[b->n_sources].kind = (enum load_kind)kind[i];
		snprintf(b->source[b->n_sources++].name, sizeof(b->source[0].name), "%s", load_kind_names[kind[i]]);
	}
	return rc;
}

/* ---- Packs ---- */

/* Different ones, so that none is in the page cache because another load has just read it. */
static int draw_experts(const struct load_bench *b, struct load_model *m, struct od_err *err)
{
	const struct od_config *cfg = od_pack_config(m->pack);
	const uint64_t n = (uint64_t)cfg->n_moe * cfg->n_experts;
	uint64_t state = b->opt.seed, *id;

	if (b->opt.experts > n)
		return od_fail(err, OD_ERR_ARG, "--experts: expected at most the %" PRIu64 " of %s, found %" PRIu64, n,
			       od_pack_dir(m->pack), b->opt.experts);
	id = calloc(n, sizeof(*id));
	m->expert = calloc(b->opt.experts, sizeof(*m->expert));
	if (id == NULL || m->expert == NULL) {
		free(id);
		return od_fail(err, OD_ERR_NOMEM, "%" PRIu64 " experts", n);
	}
	for (uint64_t i = 0; i < n; i++)
		id[i] = i;
	for (uint64_t i = 0; i < b->opt.experts; i++) {
		uint64_t j = i + od_draw(&state) % (n - i), t = id[j];

		id[j] = id[i];
		m->expert[i] = (struct load_expert){ .m = (uint32_t)(t / cfg->n_experts),
						     .expert = (uint32_t)(t % cfg->n_experts) };
	}
	free(id);
	return OD_OK;
}

static int open_packs(struct load_bench *b, struct od_err *err)
{
	struct od_list list;
	int rc = od_list_split(&list, "pack", b->opt.packs != NULL ? b->opt.packs : "", err);

	for (size_t k = 0; rc == OD_OK && k < list.n; k++) {
		struct load_model *m = &b->model[b->n_models++];

		rc = od_pack_open(&m->pack, list.item[k][0] != '\0' ? list.item[k] : NULL, err);
		if (rc == OD_OK)
			rc = draw_experts(b, m, err);
		for (size_t i = 0; rc == OD_OK && i < b->n_sources; i++)
			if (b->source[i].kind == LOAD_PACED)
				rc = load_experts_read(m->pack, b->device, m->expert, b->opt.experts, err);
	}
	return rc;
}

/* Loads take slots; reading alone takes one for each reader. */
static unsigned slots_of(const struct load_bench *b)
{
	return (unsigned)(b->opt.slots > b->opt.read_threads ? b->opt.slots : b->opt.read_threads);
}
_Static_assert(OD_MAX_LOADERS <= OD_MAX_SLOTS, "MAX_BUFS are enough for either");

/* Each buffer that the host writes is written once: a page that is not there yet costs more than reading it. */
static int touch_slots(struct load_bench *b, enum od_form form, const uint64_t bytes[OD_N_EXPERT_BUFS],
		       struct od_err *err)
{
	struct od_expert_mem mem[MAX_BUFS] = { 0 };
	int rc = OD_OK;

	for (unsigned i = 0; i < slots_of(b); i++) {
		od_expert_bufs_fill(b->bufs[form], 0, &mem[i]);
		for (unsigned k = 0; k < OD_N_EXPERT_BUFS && rc == OD_OK; k++) {
			if (mem[i].at[k].buf == NULL)
				continue;
			rc = od_ref_commit(mem[i].at[k], bytes[k] + OD_PAD_BYTES, "an expert", err);
			if (od_ref_map(mem[i].at[k]) != NULL)
				memset(od_ref_map(mem[i].at[k]), 1, bytes[k]);
		}
	}
	for (unsigned i = 0; i < slots_of(b); i++)
		od_expert_bufs_put(b->bufs[form], 0, &mem[i]);
	return rc;
}

/* One set of slots for all lines of a form. */
static int make_slots(struct load_bench *b, enum od_form form, struct od_err *err)
{
	const unsigned slot = od_form_bufs(form);
	struct od_expert_bufs_opts o = { .device = b->device, .slot = slot };
	int rc;

	for (unsigned k = 0; k < OD_N_EXPERT_BUFS; k++) {
		for (size_t i = 0; i < b->n_lines; i++) {
			const uint64_t bytes = od_pack_buf_bytes(b->line[i].model->pack, (enum od_expert_buf)k);

			if ((slot & 1u << k) == 0 || b->line[i].form != form)
				continue;
			o.n = slots_of(b);
			o.bytes[k] = bytes > o.bytes[k] ? bytes : o.bytes[k];
		}
	}
	rc = od_expert_bufs_new(&b->bufs[form], &o, err);
	if (rc == OD_OK && o.n > 0)
		rc = touch_slots(b, form, o.bytes, err);
	return rc;
}

/* ---- Measuring ---- */

static int alloc_line(struct load_bench *b, struct load_line *l, struct od_err *err)
{
	double *all = calloc(5 * b->opt.rounds, sizeof(*all));

	if (all == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%" PRIu64 " rounds", b->opt.rounds);
	l->raw_gbps = all;
	l->gbps = all + b->opt.rounds;
	l->ratio = all + 2 * b->opt.rounds;
	l->reading = all + 3 * b->opt.rounds;
	l->inflating = all + 4 * b->opt.rounds;
	return OD_OK;
}

/* Every source with every pack in every form it can have with every number of inflaters. */
static int plan_lines(struct load_bench *b, struct od_err *err)
{
	const size_t most = b->n_sources * b->n_models * b->n_forms * b->n_threads;
	int rc = OD_OK;

	b->line = calloc(most > 0 ? most : 1, sizeof(*b->line));
	if (b->line == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu lines", most);
	for (size_t i = 0; rc == OD_OK && i < most; i++) {
		const struct load_line l = { .source = &b->source[i / b->n_threads / b->n_forms / b->n_models],
					     .model = &b->model[i / b->n_threads / b->n_forms % b->n_models],
					     .form = (enum od_form)b->form[i / b->n_threads % b->n_forms],
					     .n_inflaters = (unsigned)b->n_inflaters[i % b->n_threads] };

		if (od_pack_can_form(l.model->pack, l.form, NULL) != OD_OK)
			continue;
		if (l.source->kind == LOAD_DIRECT && !od_pack_as_bytes(l.model->pack) &&
		    (l.form != OD_FORM_PLANES || !od_device_shares(b->device)))
			continue; /* they are read through the page cache all the same */
		b->line[b->n_lines] = l;
		rc = alloc_line(b, &b->line[b->n_lines++], err);
	}
	return rc == OD_OK && b->n_lines == 0 ?
		       od_fail(err, OD_ERR_ARG,
			       "nothing to measure: no pack has experts in these forms, or the "
			       "only source is direct, which needs planes, and no GPU with memory of its own") :
		       rc;
}

static struct load_case case_of(const struct load_bench *b, const struct load_line *l, struct load_source *source)
{
	*source = (struct load_source){ .kind = l->source->kind,
					.pack = l->model->pack,
					.form = l->form,
					.expert = l->model->expert,
					.n = b->opt.experts,
					.pace.bytes_per_ns = l->source->bytes_per_ns };
	load_source_init(source);
	return (struct load_case){ .source = source,
				   .device = b->device,
				   .bufs = b->bufs[l->form],
				   .n_slots = (unsigned)b->opt.slots,
				   .n_readers = (unsigned)b->opt.read_threads,
				   .n_inflaters = l->n_inflaters };
}

/* The source alone, then the loads. */
static int measure(struct load_bench *b, struct load_line *l, size_t round, struct od_err *err)
{
	struct load_source source;
	const struct load_case c = case_of(b, l, &source);
	struct load_time raw, t;
	int rc = load_raw(&c, &raw, err);

	if (rc == OD_OK)
		rc = load_run(&c, &t, err);
	if (rc != OD_OK)
		return rc;
	l->raw_gbps[round] = (double)raw.read_bytes / (double)raw.ns;
	l->gbps[round] = (double)t.weight_bytes / (double)t.ns;
	l->ratio[round] = l->gbps[round] / l->raw_gbps[round];
	l->reading[round] = 100 * (double)t.read_ns / (double)t.ns / c.n_readers;
	l->inflating[round] = 100 * (double)t.finish_ns / (double)t.ns / c.n_inflaters;
	return OD_OK;
}

/* ---- Telling ---- */

static double median(const struct load_bench *b, const double *x)
{
	return od_stats_median(x, b->opt.rounds, b->room);
}

static void report_line(const struct load_bench *b, const struct load_line *l, struct od_table *t)
{
	const struct od_pack *p = l->model->pack;
	const double inflating = median(b, l->inflating);
	const struct od_cell cells[] = {
		OD_TEXT(l->source->name),
		OD_TEXT(od_codec_names[od_pack_codec(p)]),
		OD_TEXT(od_form_names[l->form]),
		OD_INT(l->n_inflaters),
		OD_REAL(median(b, l->raw_gbps)),
		OD_REAL(median(b, l->gbps)),
		OD_REAL(median(b, l->ratio)),
		OD_REAL((double)od_pack_expert_raw_bytes(p) / (double)od_pack_expert_stored_bytes(p)),
		OD_REAL(median(b, l->reading)),
		OD_REAL(inflating),
		OD_REAL(100 - inflating),
	};

	od_table_row(t, cells);
}

static int report(const struct load_bench *b, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "source", "source", 0 },	 { "codec", "codec", 0 },
		{ "form", "form", 0 },		 { "load_threads", "L", 0 },
		{ "raw_gbps", "raw", 2 },	 { "published_gbps", "published", 2 },
		{ "ratio", "x raw", 2 },	 { "ratio_limit", "at most", 2 },
		{ "read_percent", "read %", 0 }, { "inflate_percent", "inflate %", 0 },
		{ "wait_percent", "wait %", 0 },
	};
	struct od_report *r;
	struct od_table *t;
	int rc = od_report_new(&r, "Loading experts", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "expert_bytes", "an expert", OD_BYTES(od_pack_expert_raw_bytes(b->model[0].pack)), 0, NULL);
	od_report_fact(r, "experts", "experts in a run", OD_INT(b->opt.experts), 0, NULL);
	od_report_fact(r, "rounds", "rounds", OD_INT(b->opt.rounds), 0, NULL);
	od_report_fact(r, "slots", "slots", OD_INT(b->opt.slots), 0, NULL);
	od_report_fact(r, "read_threads", "read threads", OD_INT(b->opt.read_threads), 0, NULL);
	od_report_fact(r, "cpus", "CPUs", OD_INT(od_cpu_count()), 0, NULL);
	od_report_fact(r, "device", "device", OD_TEXT(od_device_name(b->device)), 0, NULL);
	t = od_report_table(r, "loads",
			    "GB/s: raw of bytes as stored, published of the same experts' as published; % of read "
			    "threads' and load threads' time",
			    columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < b->n_lines; i++)
		report_line(b, &b->line[i], t);
	rc = od_report_print(r, stdout, b->opt.json, err);
	od_report_free(r);
	return rc;
}

/* ---- The whole ---- */

static int measure_all(struct load_bench *b, struct od_err *err)
{
	int rc = OD_OK;

	b->room = calloc(b->opt.rounds, sizeof(*b->room));
	if (b->room == NULL)
		return od_fail(err, OD_ERR_NOMEM, "rounds");
	for (size_t round = 0; rc == OD_OK && round < b->opt.rounds; round++)
		for (size_t i = 0; rc == OD_OK && i < b->n_lines; i++)
			rc = measure(b, &b->line[i], round, err);
	return rc == OD_OK ? report(b, err) : rc;
}

static int run(struct load_bench *b, struct od_err *err)
{
	int rc = plan_sources(b, err);

	if (rc == OD_OK)
		rc = od_list_numbers("load-threads", b->opt.load_threads, 1, OD_MAX_LOADERS, b->n_inflaters,
				     &b->n_threads, err);
	if (rc == OD_OK)
		rc = od_list_choices("form", b->opt.forms, od_form_names, b->form, &b->n_forms, err);
	if (rc == OD_OK)
		rc = od_device_open(&b->device, b->opt.device, OD_CPU_AUTO, 1, "od-bench", err);
	if (rc == OD_OK && od_device_cards(b->device) > 1)
		rc = od_fail(err, OD_ERR_ARG, "%s: a worker uses one card", od_device_name(b->device));
	if (rc == OD_OK)
		rc = open_packs(b, err);
	if (rc == OD_OK)
		rc = plan_lines(b, err);
	if (rc == OD_OK)
		rc = make_slots(b, OD_FORM_PLAIN, err);
	if (rc == OD_OK)
		rc = make_slots(b, OD_FORM_PLANES, err);
	return rc == OD_OK ? measure_all(b, err) : rc;
}

static void close_bench(struct load_bench *b)
{
	for (size_t i = 0; i < b->n_models; i++) {
		load_experts_free(b->model[i].expert, b->opt.experts);
		free(b->model[i].expert);
		od_pack_close(b->model[i].pack);
	}
	for (size_t i = 0; i < b->n_lines; i++)
		free(b->line[i].raw_gbps);
	free(b->line);
	free(b->room);
	od_expert_bufs_free(b->bufs[OD_FORM_PLAIN]);
	od_expert_bufs_free(b->bufs[OD_FORM_PLANES]);
	od_device_free(b->device);
}

int od_bench_load(int argc, char **argv, struct od_err *err)
{
	struct load_bench b = { .opt = { .sources = "cache,disk,paced",
					 .paces = "1GB/s,3.5GB/s,7GB/s,25GB/s",
					 .forms = "bf16,planes",
					 .load_threads = "2",
					 .read_threads = 4,
					 .experts = 4,
					 .slots = 2,
					 .rounds = 5,
					 .seed = 1,
					 .device = "cpu" } }; /* whatever $OD_DEVICE says */
	struct load_options *o = &b.opt;
	const struct od_arg table[] = {
		{ "pack", OD_ARG_STRING, &o->packs, "LIST",
		  "comma-separated packs, e.g. one per codec; default: $OD_PACK", 0, 0, NULL },
		{ "source", OD_ARG_STRING, &o->sources, "LIST",
		  "of cache (page cache), disk (not in it), direct (O_DIRECT; planes, and no GPU with memory of its own, or experts that are stored as bytes), paced; default: cache,disk,paced",
		  0, 0, NULL },
		{ "pace", OD_ARG_STRING, &o->paces, "LIST",
		  "rates of paced sources; default 1GB/s,3.5GB/s,7GB/s,25GB/s", 0, 0, NULL },
		{ "form", OD_ARG_STRING, &o->forms, "LIST", "of bf16, planes, where a pack allows it; default: both", 0,
		  0, NULL },
		{ "load-threads", OD_ARG_STRING, &o->load_threads, "LIST", "numbers of inflate threads; default 2", 0,
		  0, NULL },
		{ "read-threads", OD_ARG_UINT, &o->read_threads, "N", "read threads; default 4", 1, OD_MAX_LOADERS,
		  NULL },
		{ "experts", OD_ARG_UINT, &o->experts, "N", "random experts per run; default 4", 1, 4096, NULL },
		{ "slots", OD_ARG_UINT, &o->slots, "N", "slots of the worker; default 2", 1, OD_MAX_SLOTS - 1, NULL },
		{ "rounds", OD_ARG_UINT, &o->rounds, "N", "rounds; medians are shown; default 5", 1, MAX_ROUNDS, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of the choice of experts; default 1", 0, 0, NULL },
		{ "device", OD_ARG_STRING, &o->device, "NAME",
		  "where experts are loaded to: cpu (default), cuda or cuda:N (a GPU)", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};
	int rc = od_bench_options(
		table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help, "load [OPTIONS]",
		"Loads random experts through a worker's readers, schedule and inflaters: published "
		"bytes per second,\nand for comparison the same readers on the same source without inflaters. "
		"A paced source is memory\nthat a clock releases at a fixed rate, one request after another, "
		"without a copy.",
		err);

	if (rc != OD_OK || o->help)
		return rc;
	(void)prctl(PR_SET_TIMERSLACK, 1UL); /* readers of a paced source wake when their bytes are there */
	rc = run(&b, err);
	close_bench(&b);
	return rc;
}
