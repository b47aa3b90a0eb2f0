#include "deploy/plan/plan.h"

#include "common/base/args.h"
#include "common/base/pool.h"
#include "common/compute/open_device.h"
#include "common/pack/share.h"
#include "common/pack/shadow/shadow_load.h"
#include "deploy/plan/plan_local.h"
#include "deploy/plan/synthetic_routes.h"
#include "main-node/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT_SPEED 1e10 /* speed=1 */
#define MANY_OVER_SPEED 8 /* many= when it is not given */
#define USUAL_LATENCY_NS 2e5
#define RUN_NS 2e4 /* a RUN, or a layer, takes so much beside its products, if fixed= is not given */
#define USUAL_READ 1e9 /* bytes a second: read= is missing */
#define LONGEST_PROMPT 2048u
#define MOST_SLOTS 64u /* od-worker's, if it is not told how many */
#define OWN_WORTH 1.03 /* Main's own predictor makes a text faster by so much, or is left out. */
#define FEW_KEPT 4 /* Where less than a fourth of the experts is kept, slots may be worth more. */

const char *const odp_role_names[] = { "main", "shadow", "worker" };

static const uint32_t text_counts[] = { 1, 4, 16 };
#define N_TEXT_COUNTS (sizeof(text_counts) / sizeof(text_counts[0]))
static const uint32_t prompt_lengths[] = { 128, LONGEST_PROMPT };

struct planning {
	struct odp_plan *plan;
	const struct odp_model *model;
	const struct odp_plan_opts *o;
	struct od_device *device; /* counts memory and measures this machine */
	struct odp_speed_input speed;
	const struct od_host **of; /* [n]: the hosts file's, by the plan's */
	struct odp_machine *worker; /* [n_workers, at least 1]: speed.cluster's */
	struct odp_sim_block *block; /* [n_layers]: speed.model's, with what main reads in steps */
	struct odp_synthetic *routes; /* with a shadow as guessing */
	struct odp_guessing guessing;
	struct odp_streamed streamed; /* main's dense weights, if step_bytes is not 0 */
	bool slots_alone; /* workers keep no experts: all their memory is slots */
};

static void say_problem(struct odp_plan *p, const char *remedy, const char *fmt, ...) OD_PRINTF(3, 4);

static void say_problem(struct odp_plan *p, const char *remedy, const char *fmt, ...)
{
	struct odp_problem *problem = &p->problem[p->n_problems];
	va_list ap;

	if (p->n_problems == ODP_MAX_PROBLEMS) {
		p->n_more_problems++;
		return;
	}
	p->n_problems++;
	va_start(ap, fmt);
	vsnprintf(problem->what, sizeof(problem->what), fmt, ap);
	va_end(ap);
	snprintf(problem->remedy, sizeof(problem->remedy), "%s", remedy);
}

/* ---- hosts ---- */

/* ", read= and link=", of the words that a role needs. */
static size_t missing_words(const struct od_host_words *w, enum odp_role role, bool alone, char *text, size_t size)
{
	const struct {
		const char *name;
		bool given, needed;
	} words[] = {
		{ "memory=", w->memory_bytes > 0, true },
		{ "read=", w->read_rate > 0, role == ODP_WORKER || alone },
		{ "speed=", w->speed > 0, true },
		{ "link=", w->link_bits > 0, !alone },
	};
	size_t n = 0, len = 0;

	text[0] = '\0';
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (words[i].needed && !words[i].given && len < size) {
			len += (size_t)snprintf(text + len, size - len, "%s%s", n > 0 ? ", " : "", words[i].name);
			n++;
		}
	return n;
}

static enum odp_role role_of(const struct od_host *h)
{
	return h->is_main ? ODP_MAIN : h->role == OD_NODE_SHADOW ? ODP_SHADOW : ODP_WORKER;
}

/* 0: the one that its role has unless it is told another. */
static uint16_t own_port(const struct od_host *h)
{
	const uint16_t usual = h->role == OD_NODE_SHADOW ? OD_DEFAULT_SHADOW_PORT : OD_DEFAULT_WORKER_PORT;

	return h->is_main || h->port == usual ? 0 : h->port;
}

static int set_machine(struct odp_machine *m, const struct planning *g, const struct od_host *h, enum odp_role role,
		       struct od_err *err)
{
	const struct od_host_words *w = &h->words;
	char missing[80];

	if (missing_words(w, role, g->plan->alone, missing, sizeof(missing)) > 0)
		return od_fail(
			err, OD_ERR_ARG,
			"%s line %u: %s %s lacks %s: od-plan --check %s measures and writes them, or write them yourself, "
			"such as memory=12G read=2G speed=1 link=1G",
			g->o->hosts_path, h->line, odp_role_names[role], h->host, missing, g->o->hosts_path);
	*m = (struct odp_machine){ .memory_bytes = w->memory_bytes,
				   .read_rate = w->read_rate,
				   .speed = w->speed * UNIT_SPEED,
				   .many = (w->many > 0 ? w->many : MANY_OVER_SPEED * w->speed) * UNIT_SPEED,
				   .link_rate = w->link_bits / 8,
				   .latency_ns = w->latency_ms > 0 ? w->latency_ms * 1e6 : USUAL_LATENCY_NS,
				   .run_ns = w->fixed_ms > 0 ? w->fixed_ms * 1e6 : RUN_NS };
	if (own_port(h) == 0)
		snprintf(m->name, sizeof(m->name), "%.63s", h->host);
	else
		snprintf(m->name, sizeof(m->name), "%.57s:%u", h->host, (unsigned)h->port);
	return OD_OK;
}

static bool is_loopback(const char *host)
{
	return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* Loopback is main's machine. */
static size_t first_on(const struct planning *g, const struct od_host *h)
{
	const struct od_hosts *hosts = g->o->hosts;

	if (h->is_main || is_loopback(h->host) || strcmp(h->host, hosts->main.host) == 0)
		return 0;
	for (size_t i = 1; i < g->plan->n; i++)
		if (strcmp(g->of[i]->host, h->host) == 0)
			return i;
	return g->plan->n;
}

static int add_host(struct planning *g, const struct od_host *h, struct od_err *err)
{
	struct odp_host_plan *host = &g->plan->host[g->plan->n];

	g->of[g->plan->n] = h;
	*host = (struct odp_host_plan){ .role = role_of(h), .port = own_port(h), .on = first_on(g, h) };
	g->plan->n_workers += host->role == ODP_WORKER;
	g->plan->n_shadows += host->role == ODP_SHADOW;
	g->plan->n++;
	return set_machine(&host->machine, g, h, host->role, err);
}

static int check_roles(const struct planning *g, struct od_err *err)
{
	const struct od_hosts *hosts = g->o->hosts;
	size_t n_workers = 0;

	for (size_t i = 0; i < hosts->n; i++)
		n_workers += hosts->host[i].role == OD_NODE_WORKER;
	if (hosts->n > 0 && n_workers == 0)
		return od_fail(
			err, OD_ERR_ARG,
			"%s: a shadow, and no worker: a shadow only predicts; add a line \"worker HOST ...\", or leave "
			"the shadow out to plan for main alone",
			g->o->hosts_path);
	if (hosts->n > 0 && !hosts->has_main)
		return od_fail(
			err, OD_ERR_ARG,
			"%s: a line of role main is missing, which says what the machine of od-main offers: od-plan --check "
			"%s measures and writes it, or write \"main HOST memory=12G speed=1 link=1G\"",
			g->o->hosts_path, g->o->hosts_path);
	return OD_OK;
}

static int take_hosts(struct planning *g, struct od_err *err)
{
	const struct od_hosts *hosts = g->o->hosts;
	int rc = check_roles(g, err);

	g->plan->alone = hosts->n == 0;
	if (rc == OD_OK)
		rc = add_host(g, &hosts->main, err);
	for (int shadows = 1; shadows >= 0; shadows--)
		for (size_t i = 0; rc == OD_OK && i < hosts->n; i++)
			if ((hosts->host[i].role == OD_NODE_SHADOW) == (shadows == 1))
				rc = add_host(g, &hosts->host[i], err);
	return rc;
}

static int take_this_machine(struct planning *g, struct od_err *err)
{
	struct odp_host_plan *host = &g->plan->host[g->plan->n++];
	int rc = odp_measure_here(&host->machine, g->model, g->device, err);

	host->role = ODP_MAIN;
	host->machine.run_ns = RUN_NS;
	g->plan->alone = true;
	if (host->machine.read_rate <= 0) {
		host->machine.read_rate = USUAL_READ;
		g->plan->assumed = true;
	}
	return rc;
}

static struct odp_host_plan *first_of(const struct odp_plan *p, enum odp_role role)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == role)
			return &p->host[i];
	return NULL;
}

/* ---- memory ---- */

/* "12.3 GiB more", and what would have it. */
static void say_too_small(struct odp_plan *p, const struct odp_host_plan *h, const char *what, const char *otherwise)
{
	char need[32], have[32], missing[32], remedy[320];
	const struct odp_memory *m = &h->memory;
	const uint64_t mib = 1u << 20;

	snprintf(remedy, sizeof(remedy), "memory=%lluM would do%s",
		 (unsigned long long)((m->need_bytes + mib - 1) / mib), otherwise);
	say_problem(p, remedy, "%s %s: %s needs %s, and has %s: %s are missing", odp_role_names[h->role],
		    h->machine.name, what, od_format_bytes(m->need_bytes, need, sizeof(need)),
		    od_format_bytes(m->limit_bytes, have, sizeof(have)),
		    od_format_bytes(m->need_bytes - m->limit_bytes, missing, sizeof(missing)));
}

static uint64_t limit_of(const struct odp_host_plan *h)
{
	return (uint64_t)h->machine.memory_bytes;
}

static uint64_t usual_ctx(const struct odp_model *m)
{
	return od_config_least_ctx(m->config);
}

/* A text at a time. Its steps read the dense weights that have no room, unless that takes more memory than it saves. */
static int plan_streamed(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_host_plan *h = &p->host[0];
	int rc = odp_memory_streamed(&g->streamed, g->model, g->device, &p->texts, limit_of(h), err);

	if (rc != OD_OK)
		return rc;
	if (g->streamed.memory.need_bytes < h->memory.need_bytes)
		h->memory = g->streamed.memory;
	if (!odp_memory_fits(&h->memory)) {
		say_too_small(p, h, "od-main with one text",
			      "; a smaller --ctx-size needs less, and so does --profile bf16");
		return OD_OK;
	}
	if (!(h->machine.read_rate > 0))
		return od_fail(err, OD_ERR_ARG,
			       "%s: main %s has no memory for all dense weights, so each step reads some of them: its "
			       "line lacks read=, bytes of them that its disk gives in a second",
			       g->o->hosts_path, h->machine.name);
	p->streamed_bytes = g->streamed.step_bytes;
	return OD_OK;
}

/* As many texts at once as main has memory for. */
static int plan_main(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_host_plan *h = &p->host[0];
	int rc = OD_OK;

	h->disk_bytes = od_pack_disk_bytes(g->model->pack);
	for (size_t i = N_TEXT_COUNTS; rc == OD_OK && i-- > 0;) {
		p->texts.parallel = text_counts[i];
		rc = odp_memory_main(&h->memory, g->model, g->device, &p->texts, limit_of(h), err);
		if (rc == OD_OK && odp_memory_fits(&h->memory))
			return OD_OK;
	}
	if (rc == OD_OK)
		p->streams_below = h->memory.need_bytes;
	return rc == OD_OK ? plan_streamed(g, err) : rc;
}

static void take_alone(struct odp_host_plan *h, const struct odp_model *m, const struct odp_alone *a)
{
	h->memory = a->memory;
	h->form = a->form;
	h->machine.slots = a->n_slots;
	h->machine.cache_bytes = a->cache_bytes;
	h->kept_experts = a->holds_all ? (uint64_t)m->config->n_moe * m->config->n_experts :
					 a->cache_bytes / od_pack_slot_bytes(m->pack, a->form);
}

static int plan_alone(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_host_plan *h = &p->host[0];
	struct odp_alone a = { 0 }, next;
	int rc = OD_OK;

	h->disk_bytes = od_pack_disk_bytes(g->model->pack);
	p->texts.writing = 1;
	for (size_t i = N_TEXT_COUNTS; rc == OD_OK && i-- > 0 && !(a.memory.n > 0 && odp_memory_fits(&a.memory));) {
		p->texts.parallel = text_counts[i];
		rc = odp_memory_alone(&next, g->model, g->device, &p->texts, limit_of(h), err);
		if (a.memory.n == 0 || next.memory.need_bytes < a.memory.need_bytes)
			a = next;
	}
	if (rc != OD_OK)
		return rc;
	take_alone(h, g->model, &a);
	if (a.dense_bytes > 0 && odp_memory_fits(&a.memory)) {
		rc = odp_memory_reads(&g->streamed, g->model, a.dense_bytes, err);
		p->streamed_bytes = g->streamed.step_bytes;
		p->streams_below = a.all_bytes;
	}
	if (rc != OD_OK)
		return rc;
	if (!odp_memory_fits(&a.memory))
		say_too_small(p, h, "od-main with one text and the experts of one layer",
			      "; so would workers that have the experts");
	return OD_OK;
}

/* Slots for two layers' experts of one text, or all that fit. What is left keeps experts, each worker its part of
 * all. */
static int plan_worker(struct planning *g, struct odp_host_plan *h, uint32_t index, struct od_err *err)
{
	const struct od_config *c = g->model->config;
	const uint32_t group = g->plan->group_size < g->plan->n_workers ? g->plan->group_size : g->plan->n_workers;
	const unsigned slots = 2 * ((c->top_k + group - 1) / group);
	const uint64_t all = (uint64_t)c->n_moe * c->n_experts;
	const struct od_share share = { g->plan->n_workers, index,
					od_share_groups(g->plan->n_workers, g->plan->group_size, c->top_k) };
	struct odp_worker_plan w;
	uint64_t n = 0;
	int rc = odp_memory_worker(&w, g->model, g->device, g->slots_alone ? MOST_SLOTS : slots,
				   g->slots_alone ? 0 : all, g->plan->texts.prefill_rows, limit_of(h), err);

	if (rc != OD_OK)
		return rc;
	h->memory = w.memory;
	h->form = w.form;
	h->machine.slots = w.n_slots;
	h->machine.cache_bytes = w.cache_bytes;
	h->kept_experts = w.cache_bytes / od_pack_slot_bytes(g->model->pack, w.form);
	for (uint32_t m = 0; m < c->n_moe; m++)
		for (uint32_t e = 0; e < c->n_experts; e++)
			n += od_share_of(&share, m, e) != OD_SHARE_NONE;
	h->disk_bytes = n * g->model->expert_stored_bytes;
	if (w.n_slots == 0)
		say_too_small(g->plan, h, "a worker with one slot for an expert",
			      "; so would leaving this worker out, if others are left");
	return OD_OK;
}

/* Precisions from the best copy to the smallest, as far as they save something. */
static size_t precisions_of(const struct odp_model *m, enum od_precision out[2])
{
	const double published = od_shadow_expert_bits(m->pack, OD_PRECISION_BF16);
	const enum od_precision all[] = { OD_PRECISION_INT8, OD_PRECISION_NF4 };
	size_t n = 0;

	for (size_t i = 0; i < 2; i++)
		if (od_shadow_expert_bits(m->pack, all[i]) < published)
			out[n++] = all[i];
	if (n == 0)
		out[n++] = OD_PRECISION_BF16;
	return n;
}

struct shadow_fit {
	enum od_precision precision; /* 0: none fits */
	uint32_t n_texts; /* it has room for; with less memory od-shadow has room for fewer, as long as one fits */
	struct odp_memory memory; /* If none fits, it is that of the smallest. */
};

/* The first precision that fits into so much memory. */
static int fit_shadow(const struct planning *g, uint64_t limit, struct shadow_fit *fit, struct od_err *err)
{
	enum od_precision list[2];
	const size_t n = precisions_of(g->model, list);
	struct odp_texts texts = g->plan->texts;
	int rc = OD_OK;

	*fit = (struct shadow_fit){ 0 };
	for (size_t i = 0; rc == OD_OK && fit->precision == 0 && i < n; i++)
		for (uint32_t t = g->plan->texts.parallel; rc == OD_OK && fit->precision == 0 && t > 0; t /= 2) {
			texts.parallel = t;
			rc = odp_memory_shadow(&fit->memory, g->model, g->device, list[i], &texts, limit, err);
			if (rc == OD_OK && odp_memory_fits(&fit->memory)) {
				fit->precision = list[i];
				fit->n_texts = t;
			}
		}
	return rc;
}

/* Several shadows are the parts of one: their memory adds up, and each has the part that its memory allows. */
static int plan_shadow(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_host_plan *first = first_of(p, ODP_SHADOW);
	struct shadow_fit fit;
	uint64_t limit = 0;
	int rc;

	if (first == NULL)
		return OD_OK;
	for (uint32_t i = 0; i < p->n_shadows; i++)
		limit += limit_of(&first[i]);
	rc = fit_shadow(g, limit, &fit, err);
	if (rc != OD_OK)
		return rc;
	p->shadow = fit.precision;
	p->shadow_texts = fit.n_texts;
	for (uint32_t i = 0; i < p->n_shadows; i++) {
		const double part = (double)limit_of(&first[i]) / (double)limit;

		first[i].memory = fit.memory;
		first[i].memory.limit_bytes = limit_of(&first[i]);
		first[i].memory.need_bytes = (uint64_t)((double)fit.memory.need_bytes * part);
		for (size_t k = 0; k < fit.memory.n; k++)
			first[i].memory.share[k].bytes = (uint64_t)((double)fit.memory.share[k].bytes * part);
		first[i].disk_bytes = od_pack_disk_bytes(g->model->pack) +
				      (p->shadow > OD_PRECISION_BF16 ?
					       od_shadow_set_bytes(g->model->config, OD_SHADOW_BIT(p->shadow)) :
					       0);
	}
	if (p->shadow == 0)
		say_too_small(
			p, first,
			p->n_shadows > 1 ? "this part of the smallest copy of the model" :
					   "the smallest copy of the model",
			"; so would a second shadow with the rest of the layers, or none: od-main has a predictor "
			"of its own");
	return OD_OK;
}

static int plan_memory(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	uint32_t index = 0;
	int rc;

	if (p->alone)
		return plan_alone(g, err);
	rc = plan_main(g, err);
	if (rc == OD_OK)
		rc = plan_shadow(g, err);
	for (size_t i = 0; rc == OD_OK && i < p->n; i++)
		if (p->host[i].role == ODP_WORKER)
			rc = plan_worker(g, &p->host[i], index++, err);
	return rc;
}

static void count_kept(struct odp_plan *p)
{
	p->all_experts = (uint64_t)p->model->config->n_moe * p->model->config->n_experts;
	p->kept_experts = 0;
	for (size_t i = 0; i < p->n; i++)
		p->kept_experts += p->host[i].kept_experts;
	if (p->kept_experts > p->all_experts)
		p->kept_experts = p->all_experts;
}

/* ---- speed ---- */

/* Main alone is a cluster of main and a worker on the same machine, without a network between them. */
static void fill_alone(struct planning *g)
{
	struct odp_cluster *c = &g->speed.cluster;

	g->worker[0] = g->plan->host[0].machine;
	g->worker[0].link_rate = g->worker[0].latency_ns = 0;
	c->main = g->worker[0];
	c->n_workers = c->group_size = 1;
	c->one_disk = true;
}

static struct odp_machine shadow_machine(const struct odp_plan *p)
{
	struct odp_machine m = first_of(p, ODP_SHADOW)->machine;

	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == ODP_SHADOW && p->host[i].machine.speed < m.speed)
			m = p->host[i].machine; /* the slowest part; layers run one after the other */
	return m;
}

static void fill_cluster(struct planning *g)
{
	const struct odp_plan *p = g->plan;
	struct odp_cluster *c = &g->speed.cluster;

	c->main = p->host[0].machine;
	c->group_size = p->group_size;
	c->n_workers = 0;
	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == ODP_WORKER)
			g->worker[c->n_workers++] = p->host[i].machine;
	c->has_shadow = p->shadow != 0;
	if (c->has_shadow)
		c->shadow = shadow_machine(p);
}

static enum od_form workers_form(const struct odp_plan *p)
{
	const struct odp_host_plan *w = first_of(p, ODP_WORKER);

	return w != NULL ? w->form : p->host[0].form;
}

/* The simulator's model with what main reads in steps. */
static void take_blocks(const struct planning *g, struct odp_sim_model *model)
{
	model->block = g->block;
	if (g->plan->streamed_bytes > 0)
		model->head_stream_bytes = g->streamed.head_bytes;
}

/* How well a copy of this precision predicts: as the first shadow's line says, or as others of that precision do. */
static struct odp_guessing guessing_of(const struct planning *g, enum od_precision precision)
{
	struct odp_synthetic_opts usual;
	struct odp_guessing guessing;

	odp_synthetic_defaults(&usual, precision);
	guessing = (struct odp_guessing){ usual.recall, usual.draft_right };
	for (size_t i = g->plan->n; i-- > 0 && !g->plan->alone;)
		if (g->plan->host[i].role == ODP_SHADOW) {
			const struct od_host_words *w = &g->of[i]->words;

			guessing.recall = w->recall > 0 ? w->recall : guessing.recall;
			guessing.accept = w->accept > 0 ? w->accept : guessing.accept;
		}
	return guessing;
}

/* Makes g->routes those with a shadow of this precision. */
static int take_routes(struct planning *g, enum od_precision precision, struct od_err *err)
{
	const struct odp_sim_model m = odp_model_for_sim(g->model, OD_FORM_PLAIN, 0);
	const struct odp_guessing wanted = guessing_of(g, precision);

	if (g->routes != NULL && wanted.recall == g->guessing.recall && wanted.accept == g->guessing.accept)
		return OD_OK;
	odp_synthetic_free(g->routes);
	g->guessing = wanted;
	return odp_speed_routes(&g->routes, &m, &wanted, err);
}

static int fill_speed(struct planning *g, struct od_err *err)
{
	const struct odp_plan *p = g->plan;
	const int rc = take_routes(g, p->shadow, err);

	memcpy(g->block, g->model->block, g->model->config->n_layers * sizeof(*g->block));
	for (uint32_t i = 0; p->streamed_bytes > 0 && i < g->model->config->n_layers; i++)
		g->block[i].stream_bytes = g->streamed.layer_bytes[i];
	g->speed = (struct odp_speed_input){ .like = g->routes,
					     .model = odp_model_for_sim(g->model, workers_form(p), p->shadow),
					     .cluster.worker = g->worker,
					     .prefill_rows = p->texts.prefill_rows,
					     .alone = p->alone,
					     .next_gate = p->next_gate };
	take_blocks(g, &g->speed.model);
	if (p->alone)
		fill_alone(g);
	else
		fill_cluster(g);
	return rc;
}

static int text_speed(const struct odp_speed_input *in, bool drafts, double *value, struct od_err *err)
{
	struct odp_figure f = { .kind = ODP_DECODE, .texts = 1, .drafts = drafts };
	int rc = odp_speed(&f, in, err);

	*value = f.value;
	return rc;
}

/* One text's plain tokens a second without a shadow: with main's own predictor, if that makes it faster by so much that
 * it is worth an option; *next_gate says so. */
static int own_speed(const struct odp_speed_input *in, double *value, bool *next_gate, struct od_err *err)
{
	struct odp_speed_input ahead = *in;
	double with = 0;
	int rc;

	ahead.next_gate = true;
	ahead.cluster.has_shadow = false;
	rc = text_speed(&ahead, false, &with, err);
	ahead.next_gate = false;
	if (rc == OD_OK)
		rc = text_speed(&ahead, false, value, err);
	*next_gate = with > OWN_WORTH * *value;
	if (*next_gate)
		*value = with;
	return rc;
}

static int use_workers(struct planning *g, uint32_t group_size, bool slots_alone, struct od_err *err)
{
	int rc;

	g->plan->group_size = group_size;
	g->slots_alone = slots_alone;
	rc = plan_memory(g, err);
	if (rc != OD_OK)
		return rc;
	count_kept(g->plan);
	return fill_speed(g, err);
}

/* One text's tokens a second if workers are used as now: with a shadow the geometric mean of plain and drafts. */
static int workers_speed(struct planning *g, double *value, struct od_err *err)
{
	double drafts = 0;
	int rc;

	if (g->plan->shadow == 0)
		return own_speed(&g->speed, value, &g->plan->next_gate, err);
	rc = text_speed(&g->speed, false, value, err);
	if (rc == OD_OK)
		rc = text_speed(&g->speed, true, &drafts, err);
	*value = sqrt(*value * fmax(*value, drafts));
	return rc;
}

/* Workers in groups of top-k take layers in turns, so that one group loads while another computes; one group of all
 * shares each layer. A cache for few experts may be worth less than slots. */
static int choose_workers(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	const uint32_t usual = p->model->config->top_k < p->n_workers ? p->model->config->top_k : p->n_workers;
	uint32_t best_group = usual;
	bool best_slots = false, best_next_gate = false;
	double best = 0, value;
	int rc;

	p->group_size = usual;
	rc = plan_memory(g, err);
	if (rc != OD_OK || p->n_problems > 0)
		return rc;
	if (p->alone) { /* od-main tries by itself whether predictions pay */
		rc = fill_speed(g, err);
		return rc == OD_OK ? own_speed(&g->speed, &value, &p->next_gate, err) : rc;
	}
	for (int i = 0; rc == OD_OK && i < 4; i++) {
		const uint32_t group = i % 2 == 0 ? usual : p->n_workers;

		if ((i % 2 == 1 && group == usual) || (i >= 2 && p->kept_experts * FEW_KEPT >= p->all_experts))
			continue;
		rc = use_workers(g, group, i >= 2, err);
		if (rc == OD_OK)
			rc = workers_speed(g, &value, err);
		if (rc == OD_OK && value > best) {
			best = value;
			best_group = group;
			best_slots = i >= 2;
			best_next_gate = p->next_gate;
		}
	}
	p->next_gate = best_next_gate;
	return rc == OD_OK ? use_workers(g, best_group, best_slots, err) : rc;
}

/* Whether the shadow pays. */
static int judge_shadow(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	bool next_gate;
	int rc;

	if (p->shadow == 0)
		return OD_OK;
	rc = text_speed(&g->speed, false, &p->with_shadow, err);
	if (rc == OD_OK)
		rc = text_speed(&g->speed, true, &p->with_drafts, err);
	p->with_drafts = fmax(p->with_drafts, p->with_shadow); /* od-main uses them where they pay */
	return rc == OD_OK ? own_speed(&g->speed, &p->without_shadow, &next_gate, err) : rc;
}

/* The worker with most memory, as a shadow. */
static int try_other_shadow(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	const struct odp_host_plan *best = NULL;
	struct odp_speed_input with = g->speed;
	struct odp_machine *others;
	struct shadow_fit fit;
	double value = 0;
	uint32_t n = 0;
	int rc = OD_OK;

	if (p->shadow != 0 || p->alone || p->n_workers < 2)
		return OD_OK;
	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == ODP_WORKER && (best == NULL || limit_of(&p->host[i]) > limit_of(best)))
			best = &p->host[i];
	rc = text_speed(&g->speed, false, &p->without_shadow, err);
	if (rc == OD_OK)
		rc = fit_shadow(g, limit_of(best), &fit, err);
	if (rc != OD_OK || fit.precision == 0)
		return rc;
	others = calloc(p->n_workers, sizeof(*others));
	if (others == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u workers", p->n_workers);
	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == ODP_WORKER && &p->host[i] != best)
			others[n++] = p->host[i].machine;
	rc = take_routes(g, fit.precision, err);
	with.like = g->routes;
	with.model = odp_model_for_sim(g->model, workers_form(p), fit.precision);
	take_blocks(g, &with.model);
	with.cluster.worker = others;
	with.cluster.n_workers = n;
	with.cluster.group_size = p->group_size < n ? p->group_size : n;
	with.cluster.has_shadow = true;
	with.cluster.shadow = best->machine;
	if (rc == OD_OK)
		rc = text_speed(&with, true, &value, err);
	free(others);
	if (rc == OD_OK)
		rc = take_routes(g, p->shadow, err);
	g->speed.like = g->routes;
	if (rc == OD_OK && value > p->without_shadow) {
		p->better_shadow = best;
		p->better_precision = fit.precision;
		p->better_value = value;
	}
	return rc;
}

/* More texts leave less for experts. */
static int set_texts(struct planning *g, uint32_t writing, struct od_err *err)
{
	struct odp_texts texts = g->plan->texts;
	struct odp_alone a;
	int rc;

	texts.writing = writing;
	rc = odp_memory_alone(&a, g->model, g->device, &texts, limit_of(&g->plan->host[0]), err);
	if (rc == OD_OK && odp_memory_fits(&a.memory))
		g->worker[0].cache_bytes = a.cache_bytes;
	return rc;
}

static int add_figure(struct planning *g, struct odp_figure f, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	int rc = p->alone ? set_texts(g, f.texts, err) : OD_OK;

	if (rc != OD_OK)
		return rc;
	rc = odp_speed_limits(&f, &g->speed, err);
	/* od-main uses drafts where they pay. */
	for (size_t i = 0; rc == OD_OK && f.drafts && i < p->n_figures; i++)
		if (p->figure[i].texts == f.texts && !p->figure[i].drafts && p->figure[i].value > f.value) {
			f = p->figure[i];
			f.drafts = true;
		}
	p->figure[p->n_figures++] = f;
	return rc;
}

/* Bytes through each machine's port. */
static int count_links(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_figure f = { .kind = ODP_DECODE, .texts = 1 };
	struct odp_speed_input in = g->speed;
	uint32_t worker = 0;
	int rc;

	in.worker_bytes = calloc(p->n_workers, sizeof(double));
	if (in.worker_bytes == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u workers", p->n_workers);
	rc = odp_speed(&f, &in, err);
	for (size_t i = 0; rc == OD_OK && i < p->n; i++)
		switch (p->host[i].role) {
		case ODP_MAIN: p->host[i].link_bytes = f.up_bytes + f.down_bytes; break;
		case ODP_SHADOW: p->host[i].link_bytes = f.shadow_bytes / p->n_shadows; break;
		case ODP_WORKER: p->host[i].link_bytes = in.worker_bytes[worker++]; break;
		}
	free(in.worker_bytes);
	return rc;
}

static int make_figures(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	struct odp_figure traced = { .kind = ODP_DECODE, .texts = 1 };
	int rc = OD_OK;

	for (int drafts = 0; drafts <= (p->shadow != 0 ? 1 : 0); drafts++)
		for (size_t i = 0; rc == OD_OK && i < N_TEXT_COUNTS; i++)
			if (text_counts[i] <= p->texts.parallel)
				rc = add_figure(g,
						(struct odp_figure){ .kind = ODP_DECODE,
								     .texts = text_counts[i],
								     .drafts = drafts == 1 },
						err);
	for (size_t i = 0; rc == OD_OK && i < sizeof(prompt_lengths) / sizeof(prompt_lengths[0]); i++)
		if (prompt_lengths[i] < p->texts.ctx_tokens)
			rc = add_figure(g,
					(struct odp_figure){ .kind = ODP_FIRST_TOKEN,
							     .texts = 1,
							     .prompt_tokens = prompt_lengths[i] },
					err);
	if (rc == OD_OK && !p->alone)
		rc = count_links(g, err);
	g->speed.trace_path = g->o->trace_path;
	return rc == OD_OK && g->o->trace_path != NULL ? odp_speed(&traced, &g->speed, err) : rc;
}

/* ---- the whole ---- */

static int open_planning(struct planning *g, struct od_err *err)
{
	struct odp_plan *p = g->plan;
	const size_t n = 1 + (g->o->hosts != NULL ? g->o->hosts->n : 0);
	const uint32_t n_layers = g->model->config->n_layers;
	const uint64_t ctx = g->o->ctx_tokens > 0 ? g->o->ctx_tokens : usual_ctx(g->model);
	int rc = od_device_open(&g->device, "cpu", OD_CPU_AUTO, od_cpu_count(), "od-plan", err);

	if (rc != OD_OK)
		return rc;
	if (ctx > g->model->config->ctx_max)
		return od_fail(err, OD_ERR_ARG, "--ctx-size: expected at most %u (the model's context), found %llu",
			       g->model->config->ctx_max, (unsigned long long)ctx);
	p->texts = (struct odp_texts){ .prefill_rows = ODM_DEFAULT_PREFILL_ROWS, .ctx_tokens = ctx };
	p->host = calloc(n, sizeof(*p->host));
	g->of = calloc(n, sizeof(const struct od_host *));
	g->worker = calloc(n, sizeof(*g->worker));
	g->block = calloc(n_layers, sizeof(*g->block));
	g->streamed.layer_bytes = calloc(n_layers, sizeof(*g->streamed.layer_bytes));
	if (p->host == NULL || g->of == NULL || g->worker == NULL || g->block == NULL ||
	    g->streamed.layer_bytes == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu hosts", n);
	return g->o->hosts != NULL ? take_hosts(g, err) : take_this_machine(g, err);
}

int odp_plan_make(struct odp_plan *p, const struct odp_model *m, const struct odp_plan_opts *o, struct od_err *err)
{
	struct planning g = { .plan = p, .model = m, .o = o };
	int rc;

	*p = (struct odp_plan){ .model = m };
	rc = open_planning(&g, err);
	if (rc == OD_OK)
		rc = choose_workers(&g, err);
	if (rc == OD_OK)
		count_kept(p);
	if (rc == OD_OK && p->n_problems == 0) {
		rc = fill_speed(&g, err);
		if (rc == OD_OK)
			rc = judge_shadow(&g, err);
		if (rc == OD_OK)
			rc = try_other_shadow(&g, err);
		if (rc == OD_OK)
			rc = make_figures(&g, err);
	}
	od_device_free(g.device);
	odp_synthetic_free(g.routes);
	free(g.of);
	free(g.worker);
	free(g.block);
	free(g.streamed.layer_bytes);
	if (rc != OD_OK)
		odp_plan_fini(p);
	return rc;
}

void odp_plan_fini(struct odp_plan *p)
{
	free(p->host);
	*p = (struct odp_plan){ 0 };
}
