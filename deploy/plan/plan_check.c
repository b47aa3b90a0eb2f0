#include "deploy/plan/plan_check.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/device.h"
#include "common/net/members_file.h"
#include "deploy/plan/check_findings.h"
#include "deploy/plan/check_guesses.h"
#include "deploy/plan/check_hosts.h"
#include "deploy/plan/check_main.h"
#include "deploy/plan/check_report.h"
#include "deploy/plan/check_shadow.h"
#include "deploy/plan/check_steps.h"
#include "deploy/plan/check_words.h"
#include "deploy/plan/check_worker.h"
#include "deploy/plan/disk_rate.h"
#include "main-node/cluster/wire_rows.h"
#include "main-node/engine/pass_size.h"
#include "main-node/node/node_keys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_NS (5 * OD_NS_PER_S) /* for hosts that do not answer */
#define MAIN_NS (5 * OD_NS_PER_S)
#define STEPS_NS (5 * OD_NS_PER_S)
#define GUESSES_NS (15 * OD_NS_PER_S)
/* Time to measure all hosts together, and each. */
#define HOSTS_NS (45 * OD_NS_PER_S)
#define MOST_NS (6 * OD_NS_PER_S)
#define LEAST_NS (OD_NS_PER_S * 7 / 10)

struct plan_check {
	const struct odp_check_opts *o;
	struct odm_node_keys keys;
	struct odm_model *model;
	struct odm_cluster_opts cluster;
	struct odp_meeting *meeting;
	struct odp_expected expected;
	struct odp_checked main;
	struct odp_checked *host; /* [n_hosts], as in the hosts file */
	size_t n_hosts;
	struct odm_view view;
};

/* ---- This machine, and the cluster as main opens it ---- */

static int load_model(struct plan_check *p, struct od_err *err)
{
	struct odm_engine_opts e = p->o->engine;
	int rc = odm_model_open(&p->model, e.pack, err);

	if (rc != OD_OK)
		return rc;
	if (e.ctx_tokens == 0)
		e.ctx_tokens = od_config_least_ctx(p->model->config);
	e.quiet = true;
	e.prefix_cache_mib = 0;
	return odm_model_load(p->model, &e, err);
}

static void fill_cluster(struct plan_check *p)
{
	const struct odm_model *m = p->model;
	const uint32_t parallel = (uint32_t)m->opts.parallel;

	p->cluster = (struct odm_cluster_opts){
		.config = m->config,
		.profile = m->opts.profile,
		.kernel_class = od_device_kernel_class(m->device, m->opts.profile),
		.mixed = m->opts.mixed,
		.ctx_tokens = (uint32_t)m->opts.ctx_tokens,
		.max_rows = odm_wire_rows_most(m->config, m->opts.profile),
		.decode_rows = odm_pass_size_rows(m->config, parallel),
		.max_sequences = parallel,
		.hosts = &p->keys.hosts,
		.own_keys = p->keys.keys != NULL ? &p->keys.keys->own : NULL,
		.looks = true,
	};
	od_pack_fingerprint_bytes(m->pack, p->cluster.fingerprint);
	p->expected = (struct odp_expected){
		.config = m->config,
		.kernel_class = p->cluster.kernel_class,
		.stored_bytes = od_pack_expert_stored_bytes(m->pack),
		.slot_bytes = od_pack_expert_raw_bytes(m->pack),
	};
}

static double expert_weights(const struct od_config *c)
{
	return (double)OD_N_EXPERT_MATS * c->hidden * c->intermediate;
}

static int open_all(struct plan_check *p, struct od_err *err)
{
	int rc;

	p->keys = (struct odm_node_keys){ .hosts_path = p->o->hosts_path, .args = p->o->keys };
	snprintf(p->main.name, sizeof(p->main.name), "main");
	od_boot_id(p->main.facts.told.boot_id);
	rc = odm_node_keys_open(&p->keys, err); /* a mistake in the file shows before the model is read */
	if (rc == OD_OK)
		rc = load_model(p, err);
	if (rc != OD_OK)
		return rc;
	fill_cluster(p);
	p->n_hosts = p->keys.hosts.n;
	p->host = calloc(p->n_hosts, sizeof(*p->host));
	p->view.worker = calloc(OD_MAX_HOSTS, sizeof(*p->view.worker));
	if (p->host == NULL || p->view.worker == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu hosts", p->n_hosts);
	return odp_meeting_open(&p->meeting, &p->cluster, err);
}

static void close_all(struct plan_check *p)
{
	odp_meeting_close(p->meeting);
	odm_node_keys_fini(&p->keys);
	odm_model_close(p->model);
	free(p->host);
	free(p->view.worker);
}

/* ---- Asking ---- */

static void name_host(struct odp_checked *c, const struct od_host *h)
{
	snprintf(c->name, sizeof(c->name), strchr(h->host, ':') != NULL ? "%s [%s]:%u" : "%s %s:%u",
		 od_node_names[h->role], h->host, h->port);
	c->line = h->line;
}

static bool is_any_served(const struct plan_check *p)
{
	for (size_t i = 0; i < p->n_hosts; i++)
		if (!p->host[i].asked && p->host[i].facts.refused_code == OD_ERR_BUSY)
			return true;
	return false;
}

static void judge_shadows(struct plan_check *p)
{
	for (size_t i = 0; !p->view.has_shadow && i < p->n_hosts; i++) {
		struct odp_checked *c = &p->host[i];
		const struct odm_member *m = &c->facts.member;

		if (c->asked && m->role == OD_NODE_SHADOW)
			odp_find(c, ODP_WRONG, "layers",
				 "give the shadows of the hosts file all layers, each one once (od-shadow --layers)",
				 "it holds layers %u-%u of 0-%u, and no other shadow that is connected completes them",
				 m->first_layer, m->end_layer - 1, p->cluster.config->n_layers - 1);
	}
}

static void ask(struct plan_check *p)
{
	struct odm_members *ms = odp_meeting_members(p->meeting);
	struct od_err err;

	odp_meeting_wait(p->meeting, WAIT_NS);
	odm_members_view(ms, &p->view);
	for (size_t i = 0; i < p->n_hosts; i++) {
		name_host(&p->host[i], &p->keys.hosts.host[i]);
		if (odm_members_facts(ms, (uint32_t)i, &p->host[i].facts))
			odp_judge(&p->host[i], &p->expected);
	}
	odp_judge_memory(p->host, p->n_hosts, &p->expected);
	odp_judge_machines(&p->main, p->host, p->n_hosts);
	judge_shadows(p);
	if (p->view.n_workers > 0 && !is_any_served(p) && odm_members_ready(ms, &err) != OD_OK)
		odp_find(&p->main, ODP_WRONG, "experts", "start what is missing, or give the workers the whole pack",
			 "the workers that answer do not hold every expert: %s", err.msg);
}

/* ---- Measuring ---- */

static struct odp_checked *find_member(struct plan_check *p, uint32_t id)
{
	for (size_t i = 0; i < p->n_hosts; i++)
		if (p->host[i].asked && p->host[i].facts.member.id == id)
			return &p->host[i];
	return NULL;
}

static uint64_t budget_ns(const struct plan_check *p)
{
	const uint64_t each = HOSTS_NS / (p->n_hosts > 0 ? p->n_hosts : 1);

	return each > MOST_NS ? MOST_NS : each < LEAST_NS ? LEAST_NS : each;
}

static void measure_shadow(struct plan_check *p)
{
	const struct od_config *cfg = p->cluster.config;
	const struct odp_shadow_check so = { .meeting = p->meeting,
					     .cluster = &p->cluster,
					     .dense_weights = odp_dense_weights(p->model).layers / cfg->n_layers,
					     .expert_weights = expert_weights(cfg),
					     .budget_ns = budget_ns(p) };
	struct odp_checked *first, *part[OD_MAX_SHADOWS];
	bool all;

	if (!p->view.has_shadow)
		return;
	first = find_member(p, p->view.shadow.id);
	all = first != NULL;
	for (uint32_t i = 0; i < p->view.n_parts; i++) {
		part[i] = find_member(p, p->view.part[i].id);
		all = all && part[i] != NULL;
	}
	if (all)
		odp_check_shadow(first, part, &p->view, &so);
}

/* One host after the other: they may be daemons of one machine, and share main's port. */
static void measure(struct plan_check *p)
{
	const struct odp_worker_check wo = { .meeting = p->meeting,
					     .cluster = &p->cluster,
					     .expert_weights = expert_weights(p->cluster.config),
					     .budget_ns = budget_ns(p) };
	struct odp_checked *worker[OD_MAX_HOSTS];
	size_t n_workers = 0;
	struct od_err err;
	double gbps;

	if (odp_check_main(&p->main.rates, p->model, MAIN_NS, &err) == OD_OK)
		p->main.measured = true;
	else
		odp_find(&p->main, ODP_WRONG, "work", "", "main's part could not be measured: %s", err.msg);
	if (odp_disk_rate(od_pack_dir(p->model->pack), &gbps, &err) == OD_OK && gbps > 0)
		p->main.rates.read_rate = gbps * 1e9;
	for (size_t i = 0; i < p->n_hosts; i++)
		if (p->host[i].asked && p->host[i].facts.member.role == OD_NODE_WORKER) {
			odp_check_worker(&p->host[i], &wo);
			worker[n_workers++] = &p->host[i];
		}
	p->main.rates.link_rate = odp_check_main_link(worker, n_workers, &wo);
	measure_shadow(p);
}

/* The measured hosts of a role, behind those that are there. */
static void add_measured(struct plan_check *p, enum od_node_kind role, struct odp_text_hosts *to,
			 struct odp_checked **checked)
{
	for (size_t i = 0; i < p->n_hosts; i++)
		if (p->host[i].measured && p->host[i].facts.member.role == role) {
			checked[to->n] = &p->host[i];
			to->host[to->n++] = p->keys.hosts.host[i];
		}
}

/* Main's own time, and how well the shadow predicts. The meeting is over: the daemons serve one main at a time. */
static void measure_texts(struct plan_check *p)
{
	struct odp_checked *checked[OD_MAX_HOSTS];
	struct odp_text_hosts hosts = { .model = p->model,
					.cluster = &p->cluster,
					.host = calloc(p->n_hosts, sizeof(*hosts.host)) };
	struct odp_steps_check o = { .worker = checked,
				     .row_bytes = (double)odm_wire_rows_each(p->cluster.config, p->cluster.profile),
				     .budget_ns = STEPS_NS };
	struct odp_rates guesses = { 0 };
	struct od_err err = { 0 };
	size_t n_workers;

	odp_meeting_close(p->meeting);
	p->meeting = NULL;
	if (hosts.host == NULL)
		return;
	add_measured(p, OD_NODE_WORKER, &hosts, checked);
	n_workers = hosts.n;
	o.hosts = hosts;
	if (n_workers > 0 && p->main.measured && odp_check_steps(&p->main.rates, &o, &err) != OD_OK)
		odp_find(&p->main, ODP_NOTE, "steps", "",
			 "the time of steps beside the forward pass could not be measured, and is left out: %s",
			 err.msg);
	add_measured(p, OD_NODE_SHADOW, &hosts, checked);
	if (n_workers > 0 && hosts.n > n_workers && odp_check_guesses(&guesses, &hosts, GUESSES_NS, &err) != OD_OK)
		odp_find(checked[n_workers], ODP_NOTE, "predictions", "",
			 "how well it predicts could not be measured, and is left out: %s", err.msg);
	else if (hosts.n > n_workers && n_workers > 0 && !(guesses.recall > 0 && guesses.accept > 0))
		odp_find(
			checked[n_workers], ODP_NOTE, "predictions", "",
			"texts showed too few predictions to tell how good they are: od-plan takes them as those of other copies");
	for (size_t i = n_workers; i < hosts.n; i++) {
		checked[i]->rates.recall = guesses.recall;
		checked[i]->rates.accept = guesses.accept;
	}
	free(hosts.host);
}

/* ---- The hosts file ---- */

/* Main may have what it has now, and what others leave. */
static struct od_host_words main_words(const struct plan_check *p)
{
	struct od_device *d = p->model->device;
	const uint64_t bytes =
		od_device_has_memory(d) ?
			od_device_free_bytes(d) :
			odp_memory_left(&p->main, p->host, p->n_hosts, od_available_ram_bytes()) + od_rss_bytes();

	return odp_words_of(&p->main.rates, (double)bytes, 1);
}

static struct od_host_words host_words(const struct plan_check *p, size_t i)
{
	const struct odp_checked *c = &p->host[i];
	const struct od_config *cfg = p->cluster.config;
	const double experts = expert_weights(cfg) * cfg->top_k * cfg->n_moe;
	const double share = experts / (experts + odp_dense_weights(p->model).layers);

	return odp_words_of(&c->rates, (double)odp_memory_of(p->host, p->n_hosts, i),
			    c->facts.member.role == OD_NODE_SHADOW ? odp_byte_share(c->facts.precision, share) : 1);
}

/* Words are for od-plan, which needs main's and a worker's. */
static bool has_words(struct plan_check *p)
{
	bool worker = false;

	for (size_t i = 0; i < p->n_hosts; i++)
		worker = worker || (p->host[i].measured && p->host[i].facts.member.role == OD_NODE_WORKER);
	if (p->main.measured && worker)
		return true;
	odp_find(&p->main, ODP_WRONG, "write", "", "nothing is written into %s: %s", p->o->hosts_path,
		 worker ? "main could not be measured" : "no worker could be measured");
	return false;
}

static int write_words(struct plan_check *p, struct od_err *err)
{
	const struct od_hosts *hosts = &p->keys.hosts;
	struct od_host here = { .is_main = true };
	struct od_host_words words;
	int rc = OD_OK;

	if (hosts->has_main)
		here = hosts->main;
	else if (gethostname(here.host, sizeof(here.host) - 1) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot ask for this machine's name");
	words = main_words(p);
	rc = od_hosts_set_words(p->o->hosts_path, &here, &words, err);
	for (size_t i = 0; rc == OD_OK && i < p->n_hosts; i++) {
		if (!p->host[i].asked)
			continue;
		words = host_words(p, i);
		rc = od_hosts_set_words(p->o->hosts_path, &hosts->host[i], &words, err);
	}
	return rc;
}

/* ---- All ---- */

static int report(struct plan_check *p, FILE *out, bool *good, struct od_err *err)
{
	struct odp_check_report r = {
		.hosts_path = p->o->hosts_path,
		.model = od_pack_dir(p->model->pack),
		.fingerprint = od_pack_fingerprint(p->model->pack),
		.profile = od_profile_names[p->cluster.profile - 1],
		.kernel_class = p->cluster.kernel_class,
		.memory_bytes = (double)od_available_ram_bytes(),
		.n_experts = (uint64_t)p->cluster.config->n_moe * p->cluster.config->n_experts,
		.main = &p->main,
		.host = p->host,
		.n_hosts = p->n_hosts,
	};

	*good = !odp_is_wrong(&p->main);
	for (size_t i = 0; i < p->n_hosts; i++)
		*good = *good && !odp_is_wrong(&p->host[i]);
	r.good = *good;
	if (!p->o->json)
		odp_check_print(out, &r);
	else if (!odp_check_print_json(out, &r))
		return od_fail(err, OD_ERR_NOMEM, "no memory for the report");
	return OD_OK;
}

int odp_check(const struct odp_check_opts *o, FILE *out, bool *good, struct od_err *err)
{
	struct plan_check *p = calloc(1, sizeof(*p));
	bool writes = false;
	int rc;

	*good = false;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "check");
	p->o = o;
	rc = open_all(p, err);
	if (rc == OD_OK) {
		ask(p);
		measure(p);
		measure_texts(p);
		writes = o->write && has_words(p);
		rc = report(p, out, good, err);
	}
	if (rc == OD_OK && writes)
		rc = write_words(p, err);
	close_all(p);
	free(p);
	return rc;
}
