#include "main-node/serve/ops/health.h"

#include "common/base/clock.h"
#include "main-node/serve/app.h"
#include "main-node/serve/http/http.h"
#include "main-node/serve/jobs/engine_thread.h"

#include <stdlib.h>

#define RECENT_NS (30 * OD_NS_PER_S)
#define PATIENCE_NS (2 * OD_NS_PER_S)

struct odm_health {
	struct odm_job *test; /* under way; NULL: none */
};

/* A request that waits for the self-test. */
struct waiting {
	uint64_t since_ns;
};

struct odm_health *odm_health_new(void)
{
	return calloc(1, sizeof(struct odm_health));
}

void odm_health_free(struct odm_health *h)
{
	if (h != NULL)
		odm_job_unref(h->test);
	free(h);
}

static void unready(struct odm_exchange *x, const char *status, const char *reason)
{
	struct odm_api_error e;
	json_t *o;

	odm_api_fail(&e, 503, NULL, OD_ERR_UNREACHABLE, "%s", reason);
	o = odm_api_error_json(&e);
	json_object_set_new(o, "status", json_string(status));
	odm_exchange_reply_json(x, 503, o);
}

/* The engine's errors name other machines' addresses: those are for holders of a key. */
static void failed(struct odm_exchange *x, const char *reason)
{
	unready(x, "failed",
		odm_exchange_trusted(x) ? reason :
					  "no text can be written now; the reason is in the log, and in the "
					  "answer to a request with an API key");
}

static bool recent(uint64_t ns, uint64_t now)
{
	return ns > 0 && now < ns + RECENT_NS;
}

static bool is_ready(const struct odm_engine_activity *a, uint64_t now)
{
	return a->last_error.code == OD_OK &&
	       (recent(a->last_token_ns, now) || (a->running > 0 && recent(a->last_step_ns, now)));
}

static void wake(void *arg)
{
	odm_exchange_wake(arg);
}

static void release(void *arg)
{
	odm_exchange_unref(arg);
}

/* The self-test generates one token behind a prompt of one token, greedily. */
static int begin_test(struct odm_health *h, struct odm_exchange *x, struct od_err *err)
{
	static const int32_t token = 0;
	struct odm_job_spec spec = {
		.req = { .prompt = &token, .n_prompt = 1, .max_tokens = 1, .ignore_eos = true, .logprobs = -1 },
		.wake = wake,
		.release = release,
		.arg = x,
	};
	int rc;

	od_sampler_defaults(&spec.req.sampling);
	h->test = odm_job_new(&spec);
	if (h->test == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a self-test");
	odm_exchange_ref(x);
	rc = odm_engine_thread_submit(odm_app_of(x)->thread, &h->test, 1, true, err);
	if (rc == OD_OK)
		return rc;
	odm_exchange_unref(x);
	odm_job_unref(h->test);
	h->test = NULL;
	return rc;
}

static bool test_done(struct odm_health *h)
{
	struct odm_news news;

	if (h->test != NULL && odm_job_take_news(h->test, &news)) {
		odm_news_fini(&news);
		if (news.done) {
			odm_job_unref(h->test);
			h->test = NULL;
		}
	}
	return h->test == NULL;
}

/* Answers if the answer is known without waiting. False: it is not. */
static bool answer_now(struct odm_exchange *x)
{
	struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_engine_activity a;
	struct od_err why;

	if (odm_http_draining(app->http)) {
		unready(x, "draining", "the server is ending");
		return true;
	}
	switch (odm_engine_thread_state(app->thread, &why)) {
	case ODM_SERVE_LOADING: unready(x, "loading", "the model is being loaded, or workers are awaited"); return true;
	case ODM_SERVE_FAILED: failed(x, why.msg); return true;
	case ODM_SERVE_READY: break;
	}
	engine = odm_engine_thread_engine(app->thread);
	/* recent tokens say nothing about the present: ask the engine first */
	if (engine != NULL && odm_engine_ready(engine, &why) != OD_OK) {
		failed(x, why.msg);
		return true;
	}
	odm_engine_thread_activity(app->thread, &a);
	if (!is_ready(&a, od_now_ns()))
		return false;
	odm_exchange_reply_json(x, 200,
				json_pack("{s:s, s:I, s:I}", "status", "ok", "running", (json_int_t)a.running,
					  "waiting", (json_int_t)a.waiting));
	return true;
}

/* Answers if the self-test is done, for this request or another one, or if it takes too long. */
static void look(struct odm_exchange *x, uint64_t now_ns)
{
	struct odm_health *h = odm_app_of(x)->health;
	const struct waiting *w = odm_exchange_state(x);
	const bool done = test_done(h);
	struct odm_engine_activity a;

	if (odm_exchange_replied(x) || answer_now(x))
		return;
	odm_engine_thread_activity(odm_app_of(x)->thread, &a);
	if (done)
		failed(x, a.last_error.code != OD_OK ? a.last_error.msg : "the self-test gave no token");
	else if (now_ns >= w->since_ns + PATIENCE_NS)
		failed(x, a.last_error.code != OD_OK ? a.last_error.msg : "the self-test is not through after 2 s");
}

static void start(struct odm_exchange *x)
{
	struct odm_health *h = odm_app_of(x)->health;
	struct waiting *w;
	struct od_err err;

	if (answer_now(x))
		return;
	w = malloc(sizeof(*w));
	odm_exchange_set_state(x, w);
	if (w == NULL) {
		failed(x, "out of memory");
		return;
	}
	w->since_ns = od_now_ns();
	if (test_done(h) && begin_test(h, x, &err) != OD_OK)
		failed(x, err.msg);
	else
		look(x, w->since_ns); /* takes the test's first news, so that its end wakes this exchange */
}

static void news(struct odm_exchange *x)
{
	look(x, od_now_ns());
}

const struct odm_endpoint odm_health_endpoint = {
	.method = "GET",
	.path = "/health",
	.flags = ODM_ENDPOINT_OPEN | ODM_ENDPOINT_DRAINING | ODM_ENDPOINT_PROBE,
	.start = start,
	.news = news,
	.tick = look,
	.free_state = free,
};
