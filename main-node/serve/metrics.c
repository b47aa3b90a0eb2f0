#include "main-node/serve/metrics.h"

#include "common/base/clock.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUCKETS 16
#define N_FINISHES (ODM_FINISH_ERROR + 1)

struct histogram {
	const char *name, *help;
	double le[MAX_BUCKETS]; /* upper bounds in seconds; ends with 0 */
	uint64_t count[MAX_BUCKETS], all;
	double sum;
};

enum { TTFT, TPOT, QUEUE, N_HISTOGRAMS };

static const struct histogram empty[N_HISTOGRAMS] = {
	[TTFT] = { .name = "od_time_to_first_token_seconds", .help = "From a text's arrival to its first token.",
		   .le = { 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300 } },
	[TPOT] = { .name = "od_time_per_output_token_seconds", .help = "Mean time per token behind the first, of each text.",
		   .le = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5 } },
	[QUEUE] = { .name = "od_queue_time_seconds", .help = "From a text's arrival to its first step.",
		    .le = { 0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300 } },
};

struct odm_metrics {
	pthread_mutex_t lock;
	struct histogram histogram[N_HISTOGRAMS];
	uint64_t finished[N_FINISHES];
	uint64_t c[OD_N_COUNTERS];
	struct odm_figures nodes; /* only its nodes: by their last report */
};

struct odm_metrics *odm_metrics_new(void)
{
	struct odm_metrics *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	memcpy(m->histogram, empty, sizeof(empty));
	return m;
}

void odm_metrics_free(struct odm_metrics *m)
{
	if (m == NULL)
		return;
	odm_figures_fini(&m->nodes);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* ---- Counting ---- */

static void observe(struct histogram *h, double seconds)
{
	for (size_t i = 0; h->le[i] > 0; i++)
		h->count[i] += seconds <= h->le[i];
	h->all++;
	h->sum += seconds;
}

static void keep_node(struct odm_metrics *m, const struct odm_node_figures *n)
{
	struct odm_node_figures *to = NULL;

	for (size_t i = 0; i < m->nodes.n_nodes; i++)
		if (strcmp(m->nodes.node[i].name, n->name) == 0)
			to = &m->nodes.node[i];
	if (to == NULL)
		to = odm_figures_add_node(&m->nodes, n->name, n->alive);
	if (to != NULL)
		*to = *n;
}

static void observe_ns(struct odm_metrics *m, unsigned histogram, uint64_t ns)
{
	pthread_mutex_lock(&m->lock);
	observe(&m->histogram[histogram], od_seconds(ns));
	pthread_mutex_unlock(&m->lock);
}

void odm_metrics_begun(struct odm_metrics *m, uint64_t ns)
{
	observe_ns(m, QUEUE, ns);
}

void odm_metrics_first_token(struct odm_metrics *m, uint64_t ns)
{
	observe_ns(m, TTFT, ns);
}

void odm_metrics_ended(struct odm_metrics *m, const struct odm_result *r, int rc)
{
	const struct odm_figures *f = &r->figures;

	pthread_mutex_lock(&m->lock);
	m->finished[rc == OD_OK || rc == OD_ERR_CANCELLED ? r->finish : ODM_FINISH_ERROR]++;
	od_counters_add(m->c, f->c);
	for (size_t i = 0; i < f->n_nodes; i++)
		keep_node(m, &f->node[i]);
	if (rc == OD_OK && r->n_tokens > 1)
		observe(&m->histogram[TPOT], od_seconds(f->c[OD_C_DECODE_NS]) / (double)(r->n_tokens - 1));
	pthread_mutex_unlock(&m->lock);
}

/* ---- Writing ---- */

const char *odm_metrics_name(enum od_counter c, unsigned of, char *buf, size_t size)
{
	const struct od_counter_info *t = &od_counter_info[c];
	const char *who = of == OD_OF_WORKER ? "worker" : of == OD_OF_SHADOW ? "shadow" : "main";
	const bool seconds = strcmp(t->unit, "ns") == 0;
	const char *name = t->name;
	size_t len;

	if (of != OD_OF_REQUEST && strncmp(name, who, strlen(who)) == 0 && name[strlen(who)] == '_')
		name += strlen(who) + 1; /* not od_shadow_shadow_steps */
	len = strlen(name);
	if (seconds && len > 2 && strcmp(name + len - 2, "_s") == 0)
		len -= 2;
	snprintf(buf, size, "od_%s_%.*s%s%s", who, (int)len, name, seconds ? "_seconds" : "",
		 t->kind == OD_COUNTER ? "_total" : "");
	return buf;
}

static void write_head(struct od_strbuf *out, const char *name, const char *help, const char *type)
{
	od_strbuf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_value(struct od_strbuf *out, enum od_counter c, uint64_t v)
{
	if (strcmp(od_counter_info[c].unit, "ns") == 0)
		od_strbuf_printf(out, " %.9g\n", od_seconds(v));
	else
		od_strbuf_printf(out, " %" PRIu64 "\n", v);
}

void odm_metrics_gauge(struct od_strbuf *out, const char *name, const char *help, double value)
{
	write_head(out, name, help, "gauge");
	od_strbuf_printf(out, "%s %.9g\n", name, value);
}

/* In a label, backslash and quote are escaped; node names have neither newlines nor other control characters. */
static void write_label(struct od_strbuf *out, const char *text)
{
	for (; *text != '\0'; text++) {
		if (*text == '\\' || *text == '"')
			od_strbuf_append(out, "\\", 1);
		od_strbuf_append(out, text, 1);
	}
}

static bool is_of(const struct odm_node_figures *n, unsigned of)
{
	return strncmp(n->name, of == OD_OF_WORKER ? "worker" : "shadow", 6) == 0;
}

static void write_nodes(const struct odm_metrics *m, struct od_strbuf *out, enum od_counter c, unsigned of)
{
	const struct od_counter_info *t = &od_counter_info[c];
	bool head = false;
	char name[128];

	odm_metrics_name(c, of, name, sizeof(name));
	for (size_t i = 0; i < m->nodes.n_nodes; i++) {
		const struct odm_node_figures *n = &m->nodes.node[i];

		if (!is_of(n, of))
			continue;
		if (!head)
			write_head(out, name, t->meaning, t->kind == OD_COUNTER ? "counter" : "gauge");
		head = true;
		od_strbuf_printf(out, "%s{node=\"", name);
		write_label(out, n->name);
		od_strbuf_append(out, "\"}", 2);
		write_value(out, c, n->c[c]);
	}
}

static void write_counters(const struct odm_metrics *m, struct od_strbuf *out)
{
	char name[128];

	for (int c = 0; c < OD_N_COUNTERS; c++) {
		const struct od_counter_info *t = &od_counter_info[c];

		if (t->of & OD_OF_REQUEST) {
			odm_metrics_name((enum od_counter)c, OD_OF_REQUEST, name, sizeof(name));
			write_head(out, name, t->meaning, t->kind == OD_COUNTER ? "counter" : "gauge");
			od_strbuf_append(out, name, strlen(name));
			write_value(out, (enum od_counter)c, m->c[c]);
		}
		if (t->of & OD_OF_WORKER)
			write_nodes(m, out, (enum od_counter)c, OD_OF_WORKER);
		if (t->of & OD_OF_SHADOW)
			write_nodes(m, out, (enum od_counter)c, OD_OF_SHADOW);
	}
}

static void write_alive(const struct odm_metrics *m, struct od_strbuf *out)
{
	bool head = false;

	for (size_t i = 0; i < m->nodes.n_nodes; i++) {
		const struct odm_node_figures *n = &m->nodes.node[i];

		if (!is_of(n, OD_OF_WORKER) && !is_of(n, OD_OF_SHADOW))
			continue;
		if (!head)
			write_head(out, "od_node_up", "1 if the daemon was connected when the last text ended.", "gauge");
		head = true;
		od_strbuf_append(out, "od_node_up{node=\"", strlen("od_node_up{node=\""));
		write_label(out, n->name);
		od_strbuf_printf(out, "\"} %d\n", n->alive);
	}
}

static void write_histogram(const struct histogram *h, struct od_strbuf *out)
{
	write_head(out, h->name, h->help, "histogram");
	for (size_t i = 0; h->le[i] > 0; i++)
		od_strbuf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", h->name, h->le[i], h->count[i]);
	od_strbuf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9g\n%s_count %" PRIu64 "\n", h->name, h->all,
			 h->name, h->sum, h->name, h->all);
}

void odm_metrics_write(struct odm_metrics *m, struct od_strbuf *out)
{
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < N_HISTOGRAMS; i++)
		write_histogram(&m->histogram[i], out);
	write_head(out, "od_texts_total", "Texts that have ended, by how.", "counter");
	for (int i = 0; i < N_FINISHES; i++)
		od_strbuf_printf(out, "od_texts_total{finish=\"%s\"} %" PRIu64 "\n", odm_finish_name((enum odm_finish)i),
				 m->finished[i]);
	write_counters(m, out);
	write_alive(m, out);
	pthread_mutex_unlock(&m->lock);
}
