#include "main-node/serve/ops/metrics.h"

#include "common/base/clock.h"
#include "main-node/serve/ops/metric_table.h"

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
	[TTFT] = { .name = "od_time_to_first_token_seconds",
		   .help = "From a text's arrival to its first token.",
		   .le = { 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300 } },
	[TPOT] = { .name = "od_time_per_output_token_seconds",
		   .help = "Mean time per token behind the first, of each text.",
		   .le = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5 } },
	[QUEUE] = { .name = "od_queue_time_seconds",
		    .help = "From a text's arrival to its first step.",
		    .le = { 0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300 } },
};

struct odm_metrics {
	pthread_mutex_t lock;
	struct histogram histogram[N_HISTOGRAMS];
	uint64_t finished[N_FINISHES];
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
	if (rc == OD_OK && r->n_tokens > 1)
		observe(&m->histogram[TPOT], od_seconds(f->c[OD_C_DECODE_NS]) / (double)(r->n_tokens - 1));
	pthread_mutex_unlock(&m->lock);
}

/* ---- Writing ---- */

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

/* 17 digits: no counter of bytes may seem to stand still. */
static void write_single(struct od_strbuf *out, const char *name, const char *help, const char *type, double value)
{
	write_head(out, name, help, type);
	od_strbuf_printf(out, "%s %.17g\n", name, value);
}

void odm_metrics_gauge(struct od_strbuf *out, const char *name, const char *help, double value)
{
	write_single(out, name, help, "gauge", value);
}

void odm_metrics_counter(struct od_strbuf *out, const char *name, const char *help, double value)
{
	write_single(out, name, help, "counter", value);
}

/* The head before the first row of a name. */
static void write_table_head(struct od_strbuf *out, const struct odm_metric *t)
{
	if (t == odm_metric_table || strcmp(t[-1].name, t->name) != 0)
		write_head(out, t->name, t->help, od_counter_info[t->counter].kind == OD_COUNTER ? "counter" : "gauge");
}

/* ---- Daemons ---- */

/* In a label, backslash and quote are escaped; node names have neither newlines nor other control characters. */
static void write_label(struct od_strbuf *out, const char *text)
{
	for (; *text != '\0'; text++) {
		if (*text == '\\' || *text == '"')
			od_strbuf_append(out, "\\", 1);
		od_strbuf_append(out, text, 1);
	}
}

static const char *role_of(unsigned of)
{
	return of == OD_OF_WORKER ? "worker" : "shadow";
}

/* NULL: it is no such daemon. Else its host and port: "worker 10.0.0.2:5701". */
static const char *address_of(const struct odm_node_figures *n, unsigned of)
{
	const size_t len = strlen(role_of(of));

	return strncmp(n->name, role_of(of), len) == 0 && n->name[len] == ' ' ? n->name + len + 1 : NULL;
}

static void write_node(struct od_strbuf *out, const char *name, unsigned of, const char *address)
{
	od_strbuf_printf(out, "%s{%s=\"", name, role_of(of));
	write_label(out, address);
	od_strbuf_append(out, "\"}", 2);
}

static bool has_any(const struct odm_figures *f, unsigned of)
{
	for (size_t i = 0; i < f->n_nodes; i++)
		if (address_of(&f->node[i], of) != NULL)
			return true;
	return false;
}

static bool is_alive(const struct odm_node_figures *n)
{
	return n->alive;
}

static bool is_passed_over(const struct odm_node_figures *n)
{
	return n->passed_over;
}

static void write_flags(struct od_strbuf *out, const struct odm_figures *f, unsigned of, const char *name,
			const char *help, bool (*flag)(const struct odm_node_figures *))
{
	if (!has_any(f, of))
		return;
	write_head(out, name, help, "gauge");
	for (size_t i = 0; i < f->n_nodes; i++) {
		const char *address = address_of(&f->node[i], of);

		if (address == NULL)
			continue;
		write_node(out, name, of, address);
		od_strbuf_printf(out, " %d\n", flag(&f->node[i]));
	}
}

/* Counters of a lost daemon stay what they were; what it has now is not known. */
static void write_of_nodes(struct od_strbuf *out, const struct odm_figures *f, const struct odm_metric *t)
{
	const bool counter = od_counter_info[t->counter].kind == OD_COUNTER;

	for (size_t i = 0; i < f->n_nodes; i++) {
		const char *address = address_of(&f->node[i], t->of);

		if (address == NULL || (!counter && !f->node[i].alive))
			continue;
		write_node(out, t->name, t->of, address);
		write_value(out, t->counter, f->node[i].c[t->counter]);
	}
}

void odm_metrics_write_nodes(struct od_strbuf *out, const struct odm_figures *f)
{
	static const char connected[] = "1 while the daemon is connected.";

	write_flags(out, f, OD_OF_WORKER, "od_worker_up", connected, is_alive);
	write_flags(out, f, OD_OF_SHADOW, "od_shadow_up", connected, is_alive);
	write_flags(out, f, OD_OF_WORKER, "od_worker_passed_over",
		    "1 while the worker is connected and gets no experts, because layers end sooner without it.",
		    is_passed_over);
	for (const struct odm_metric *t = odm_metric_table; t->name != NULL; t++) {
		if (t->of == OD_OF_REQUEST || !has_any(f, t->of))
			continue;
		write_table_head(out, t);
		write_of_nodes(out, f, t);
	}
}

/* ---- Main ---- */

static void write_batch(struct od_strbuf *out, const struct odm_report *r)
{
	static const char name[] = "od_batch_texts";
	uint64_t n = 0;

	write_head(out, name, "Texts of a decode step.", "histogram");
	for (unsigned i = 0; i < ODM_BATCH_BUCKETS; i++) {
		n += r->batch[i];
		od_strbuf_printf(out, "%s_bucket{le=\"%u\"} %" PRIu64 "\n", name, 1u << i, n);
	}
	od_strbuf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %" PRIu64 "\n%s_count %" PRIu64 "\n", name, n,
			 name, r->decode_texts, name, n);
}

void odm_metrics_write_report(struct od_strbuf *out, const struct odm_report *r)
{
	write_batch(out, r);
	odm_metrics_gauge(out, "od_kv_cache_used_bytes", "KV cache that texts use or were promised.",
			  (double)(r->kv_bytes - r->kv_free_bytes));
	odm_metrics_gauge(out, "od_kv_cache_free_bytes", "KV cache that further texts can have.",
			  (double)r->kv_free_bytes);
	odm_metrics_gauge(out, "od_prefix_cache_bytes", "KV cache of ended texts, for texts that begin alike.",
			  (double)r->prefix_cache_bytes);
	odm_metrics_gauge(out, "od_snapshot_bytes", "Snapshots of recurrent state, for texts that begin alike.",
			  (double)r->snapshot_bytes);
	odm_metrics_counter(out, "od_snapshots_written_total", "Snapshots of recurrent state that were written.",
			    (double)r->snapshots_written);
	odm_metrics_counter(out, "od_snapshot_hits_total", "Texts that began from a snapshot.",
			    (double)r->snapshots_used);
	odm_metrics_counter(out, "od_snapshots_dropped_total", "Snapshots that were dropped for want of room.",
			    (double)r->snapshots_dropped);
	for (const struct odm_metric *t = odm_metric_table; t->name != NULL; t++) {
		if (t->of != OD_OF_REQUEST)
			continue;
		write_table_head(out, t);
		od_strbuf_append(out, t->name, strlen(t->name));
		if (t->label != NULL)
			od_strbuf_printf(out, "{%s}", t->label);
		write_value(out, t->counter, r->c[t->counter]);
	}
}

/* ---- Texts ---- */

static void write_histogram(const struct histogram *h, struct od_strbuf *out)
{
	write_head(out, h->name, h->help, "histogram");
	for (size_t i = 0; h->le[i] > 0; i++)
		od_strbuf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", h->name, h->le[i], h->count[i]);
	od_strbuf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9g\n%s_count %" PRIu64 "\n", h->name,
			 h->all, h->name, h->sum, h->name, h->all);
}

void odm_metrics_write(struct odm_metrics *m, struct od_strbuf *out)
{
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < N_HISTOGRAMS; i++)
		write_histogram(&m->histogram[i], out);
	write_head(out, "od_texts_total", "Texts that have ended, by how.", "counter");
	for (int i = 0; i < N_FINISHES; i++)
		od_strbuf_printf(out, "od_texts_total{finish=\"%s\"} %" PRIu64 "\n",
				 odm_finish_name((enum odm_finish)i), m->finished[i]);
	pthread_mutex_unlock(&m->lock);
}
