#include "main-node/serve/ops/cluster_state.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/version.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "main-node/engine/engine.h"
#include "main-node/serve/http/http.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/ops/metric_table.h"

#include <string.h>
#include <unistd.h>

#define MAIN_ID (-1)

/* Why no request would be served now. */
struct trouble {
	const char *problem, *remedy; /* "": there is none */
};

static struct trouble find_trouble(const struct odm_app *app, const struct odm_engine *e)
{
	const enum odm_serve_state state = odm_engine_thread_state(app->thread, NULL);
	struct od_err why;

	if (odm_http_draining(app->http))
		return (struct trouble){ "the server is ending", "" };
	if (state == ODM_SERVE_LOADING)
		return (struct trouble){ "the model is being loaded, or workers are awaited",
					 "if it takes long, main's log says which workers are missing" };
	if (state == ODM_SERVE_FAILED || e == NULL)
		return (struct trouble){ "the model could not be loaded", "main's log says why" };
	if (odm_engine_failed(e, &why) != OD_OK)
		return (struct trouble){ "its device is lost, or all workers have ended", "restart od-main" };
	if (odm_engine_ready(e, &why) != OD_OK)
		return (struct trouble){ "some experts are on no machine that is connected",
					 "bring back the machines that are not connected" };
	return (struct trouble){ "", "" };
}

/* ---- Counters ---- */

struct named_counter {
	const char *name;
	enum od_counter counter;
};

static json_t *value_json(enum od_counter counter, uint64_t value)
{
	return strcmp(od_counter_info[counter].unit, "ns") == 0 ? json_real(od_seconds(value)) :
								  json_integer((json_int_t)value);
}

static json_t *named_json(const struct named_counter *t, size_t n, const uint64_t *c)
{
	json_t *o = json_object();

	for (size_t i = 0; i < n; i++)
		json_object_set_new(o, t[i].name, value_json(t[i].counter, c[t[i].counter]));
	return o;
}

static json_t *counters_json(const struct odm_report *r)
{
	static const struct named_counter table[] = {
		{ "tokens", OD_C_TOKENS },
		{ "prompt_tokens", OD_C_PROMPT_TOKENS },
		{ "expert_uses", OD_C_EXPERT_USES },
		{ "predicted_uses", OD_C_PREDICTED_USES },
		{ "recalled_uses", OD_C_RECALLED_USES },
		{ "ready_uses", OD_C_SERVED_IN_TIME },
		{ "drafted_tokens", OD_C_DRAFTED },
		{ "accepted_tokens", OD_C_ACCEPTED },
		{ "stall_seconds", OD_C_STALL_NS },
		{ "loads", OD_C_LOADS },
		{ "load_seconds", OD_C_LOAD_NS },
		{ "loaded_bytes", OD_C_LOADED_BYTES },
	};
	json_t *o = named_json(table, sizeof(table) / sizeof(table[0]), r->c);
	uint64_t steps = 0;

	for (unsigned i = 0; i < ODM_BATCH_BUCKETS; i++)
		steps += r->batch[i];
	json_object_set_new(o, "decode_steps", json_integer((json_int_t)steps));
	return o;
}

static bool stands_apart(enum od_counter c)
{
	return c == OD_C_RSS_BYTES || c == OD_C_PEAK_RSS_BYTES || c == OD_C_SLOTS;
}

/* A daemon's counters have the names of /metrics without "od_worker_" and "_total". */
static json_t *daemon_counters_json(const struct odm_machine *m, bool alive)
{
	const unsigned of = m->is_shadow ? OD_OF_SHADOW : OD_OF_WORKER;
	const size_t skip = strlen(m->is_shadow ? "od_shadow_" : "od_worker_");
	json_t *o = json_object();

	for (const struct odm_metric *t = odm_metric_table; t->name != NULL; t++) {
		const bool counter = od_counter_info[t->counter].kind == OD_COUNTER;
		const size_t len = strlen(t->name) - strlen(counter ? "_total" : "");
		char name[64] = "";

		if (t->of != of || t->label != NULL || stands_apart(t->counter) || (!counter && !alive) ||
		    len - skip >= sizeof(name))
			continue;
		memcpy(name, t->name + skip, len - skip);
		json_object_set_new(o, name, value_json(t->counter, m->c[t->counter]));
	}
	return o;
}

/* ---- Machines ---- */

static json_t *known(bool is_known, int64_t value)
{
	return is_known ? json_integer(value) : json_null();
}

static json_t *holds_json(int64_t experts, int64_t cached, int64_t slots)
{
	return json_pack("{s:o, s:o, s:o}", "experts", known(experts >= 0, experts), "cached",
			 known(cached >= 0, cached), "slots", known(slots >= 0, slots));
}

static const char *state_name(enum odm_machine_state s)
{
	switch (s) {
	case ODM_MACHINE_SERVING: return "serving";
	case ODM_MACHINE_IDLE: return "idle by choice";
	case ODM_MACHINE_CONNECTING: return "connecting";
	case ODM_MACHINE_LOST: return "lost";
	case ODM_MACHINE_REFUSED: return "refused";
	case ODM_MACHINE_DISTRUSTED: return "distrusted";
	}
	return "";
}

static json_t *main_json(const struct odm_app *app, const struct odm_engine *e, const struct odm_report *r,
			 const struct trouble *t)
{
	static const struct named_counter table[] = {
		{ "loads", OD_C_LOADS },
		{ "load_seconds", OD_C_LOAD_NS },
		{ "loaded_bytes", OD_C_LOADED_BYTES },
		{ "compute_seconds", OD_C_WORKER_COMPUTE_NS },
	};
	const struct od_config *c = e != NULL ? od_pack_config(odm_engine_pack(e)) : NULL;
	const int64_t experts = c != NULL ? (int64_t)c->n_moe * c->n_experts : -1;
	const bool loads = strcmp(app->mode, "cluster") != 0; /* else main's counters are sums over the workers */
	const bool keeps = e != NULL && loads;
	char host[64] = "";

	gethostname(host, sizeof(host) - 1);
	return json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:o, s:n, s:s, s:o, s:s, s:s}", "id", MAIN_ID, "role",
			 "main", "name", "", "host", host, "state",
			 e != NULL && t->problem[0] == '\0' ? "serving" : "connecting", "memory_bytes",
			 (json_int_t)od_rss_bytes(), "memory_peak_bytes", (json_int_t)od_peak_rss_bytes(), "holds",
			 holds_json(experts, keeps ? (int64_t)odm_engine_kept_experts(e) : -1, -1), "layers",
			 "precision", "", "counters",
			 loads ? named_json(table, sizeof(table) / sizeof(table[0]), r->c) : json_object(), "problem",
			 t->problem, "remedy", t->remedy);
}

static json_t *daemon_json(const struct odm_machine *m)
{
	const bool alive = m->state == ODM_MACHINE_SERVING || m->state == ODM_MACHINE_IDLE;
	json_t *layers = m->is_shadow && m->end_layer > 0 ?
				 json_pack("[i, i]", (int)m->first_layer, (int)m->end_layer) :
				 json_null();

	return json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:s, s:s}", "id", (int)m->id, "role",
			 m->is_shadow ? "shadow" : "worker", "name", m->name, "host", m->host, "state",
			 state_name(m->state), "memory_bytes", known(alive, (int64_t)m->c[OD_C_RSS_BYTES]),
			 "memory_peak_bytes", known(alive, (int64_t)m->c[OD_C_PEAK_RSS_BYTES]), "holds",
			 holds_json(m->experts, m->cached, m->is_shadow ? -1 : (int64_t)m->slots), "layers", layers,
			 "precision", m->precision, "counters", daemon_counters_json(m, alive), "problem", m->problem,
			 "remedy", m->remedy);
}

static json_t *machines_json(const struct odm_app *app, const struct odm_engine *e, const struct odm_report *r,
			     const struct trouble *t)
{
	struct odm_machines list = { 0 };
	json_t *a = json_array();

	json_array_append_new(a, main_json(app, e, r, t));
	if (e != NULL)
		odm_engine_get_machines(e, &list);
	for (size_t i = 0; i < list.n; i++)
		json_array_append_new(a, daemon_json(&list.v[i]));
	odm_machines_fini(&list);
	return a;
}

/* ---- All of it ---- */

static json_t *model_json(const struct odm_app *app, const struct odm_engine *e)
{
	const struct od_config *c = e != NULL ? od_pack_config(odm_engine_pack(e)) : NULL;

	if (c == NULL)
		return json_pack("{s:s, s:s}", "name", app->model, "profile", app->profile);
	return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:s}", "name", app->model, "family", c->family->name, "layers",
			 (int)c->n_layers, "moe_layers", (int)c->n_moe, "experts", (int)c->n_experts, "top_k",
			 (int)c->top_k, "profile", app->profile);
}

static json_t *queue_json(const struct odm_app *app)
{
	struct odm_engine_activity a;

	odm_engine_thread_activity(app->thread, &a);
	return json_pack("{s:I, s:I, s:I, s:I}", "running", (json_int_t)a.running, "waiting", (json_int_t)a.waiting,
			 "limit", (json_int_t)app->queue, "parallel", (json_int_t)app->parallel);
}

json_t *odm_cluster_state(const struct odm_app *app)
{
	const struct odm_engine *e = odm_engine_thread_engine(app->thread);
	const struct trouble t = find_trouble(app, e);
	struct odm_report r = { 0 };

	if (e != NULL)
		odm_engine_get_report(e, &r);
	return json_pack("{s:o, s:s, s:f, s:b, s:s, s:s, s:s, s:o, s:o, s:o}", "model", model_json(app, e), "version",
			 OD_VERSION, "uptime_seconds", od_seconds(od_now_ns() - app->begun_ns), "ready",
			 t.problem[0] == '\0', "problem", t.problem, "remedy", t.remedy, "mode", app->mode, "queue",
			 queue_json(app), "counters", counters_json(&r), "machines", machines_json(app, e, &r, &t));
}

static void start(struct odm_exchange *x)
{
	odm_exchange_reply_json(x, 200, odm_cluster_state(odm_app_of(x)));
}

const struct odm_endpoint odm_cluster_endpoint = {
	.method = "GET",
	.path = "/cluster",
	.flags = ODM_ENDPOINT_DRAINING | ODM_ENDPOINT_PROBE,
	.start = start,
};
