/* The engine's thread: jobs of several threads are the texts that each prompt gets alone; cancelled, unread and refused
 * ones disturb no other; and the end is orderly whatever is open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/pack/write/pack_write.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/jobs/job_internal.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define FAMILY "qwen3_moe_step"
#define VOCAB 296
#define CTX 128
#define N 40 /* jobs of a thread */
#define THREADS 4
#define MAX_PROMPT 40

/* One who waits for news. */
struct engine_thread_reader {
	pthread_mutex_t lock;
	pthread_cond_t news;
	bool any, holds; /* holds: wake does not return, and the engine's thread gets no further */
	unsigned wakes, releases;
};

static void reader_init(struct engine_thread_reader *r)
{
	*r = (struct engine_thread_reader){ 0 };
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->news, NULL);
}

static void wake(void *arg)
{
	struct engine_thread_reader *r = arg;

	pthread_mutex_lock(&r->lock);
	r->any = true;
	r->wakes++;
	pthread_cond_signal(&r->news);
	while (r->holds)
		pthread_cond_wait(&r->news, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

static void let_go(struct engine_thread_reader *r)
{
	pthread_mutex_lock(&r->lock);
	r->holds = false;
	pthread_cond_broadcast(&r->news);
	pthread_mutex_unlock(&r->lock);
}

static void release(void *arg)
{
	struct engine_thread_reader *r = arg;

	pthread_mutex_lock(&r->lock);
	r->releases++;
	pthread_cond_signal(&r->news);
	pthread_mutex_unlock(&r->lock);
}

static void wait_for_news(struct engine_thread_reader *r)
{
	pthread_mutex_lock(&r->lock);
	while (!r->any)
		pthread_cond_wait(&r->news, &r->lock);
	r->any = false;
	pthread_mutex_unlock(&r->lock);
}

static void reader_fini(struct engine_thread_reader *r)
{
	pthread_mutex_lock(&r->lock);
	while (r->releases == 0) /* it comes behind the last wake */
		pthread_cond_wait(&r->news, &r->lock);
	pthread_mutex_unlock(&r->lock);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->news);
}

/* ---- Engines ---- */

static struct odm_main_opts engine_opts(uint64_t parallel)
{
	static char pack[128];
	struct odm_main_opts o;
	struct od_err err;
	const struct od_pack_job job = {
		.checkpoint = "tests/golden/families/" FAMILY, .pack = pack, .codec = OD_CODEC_PLANES, .n_threads = 1
	};

	snprintf(pack, sizeof(pack), "%s/" FAMILY, temp_dir);
	if (access(pack, F_OK) != 0 && od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
	odm_main_opts_defaults(&o);
	o.mode = ODM_RESIDENT;
	o.engine.pack = pack;
	o.engine.parallel = parallel;
	o.engine.threads = 1;
	o.engine.quiet = true;
	return o;
}

static struct odm_engine_thread *start(uint64_t parallel, size_t queue, size_t max_unread_bytes)
{
	const struct odm_engine_thread_opts o = { .node = engine_opts(parallel),
						  .queue = queue,
						  .max_unread_bytes = max_unread_bytes };
	struct odm_engine_thread *t;
	struct od_err err;

	if (odm_engine_thread_start(&t, &o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	while (odm_engine_thread_state(t, &err) == ODM_SERVE_LOADING)
		usleep(1000);
	if (odm_engine_thread_engine(t) == NULL)
		fail_msg("%s", err.msg);
	return t;
}

static void end(struct odm_engine_thread *t)
{
	assert_int_equal(odm_engine_thread_stop(t), OD_OK);
	odm_engine_thread_free(t);
}

static struct odm_job *job_of(const int32_t *prompt, size_t n, uint64_t tokens, struct engine_thread_reader *r)
{
	static const char *const stop[] = { "never to be seen" };
	struct odm_job_spec spec = { .req = { .prompt = prompt,
					      .n_prompt = n,
					      .max_tokens = tokens,
					      .ignore_eos = true,
					      .stop = stop,
					      .n_stop = 1,
					      .logprobs = -1 },
				     .wake = wake,
				     .release = release,
				     .arg = r };
	struct odm_job *j;

	od_sampler_defaults(&spec.req.sampling);
	spec.req.sampling.temperature = 1;
	j = odm_job_new(&spec);
	assert_non_null(j);
	return j;
}

/* Reads until a job that was submitted is done; text (od_strbuf_fini it) is all of it. */
static struct odm_news read_all(struct odm_job *j, struct engine_thread_reader *r, struct od_strbuf *text)
{
	struct odm_news news = { 0 };

	while (!news.done) {
		if (!odm_job_take_news(j, &news)) {
			wait_for_news(r);
			continue;
		}
		od_strbuf_append(text, news.text.text != NULL ? news.text.text : "", news.text.len);
		odm_news_fini(&news);
	}
	return news;
}

/* ---- Many at once ---- */

struct engine_thread_task {
	struct odm_engine_thread *thread;
	uint64_t seed;
	pthread_t id;
	int32_t prompt[N][MAX_PROMPT];
	size_t n_prompt[N], n_tokens[N];
	bool cancelled[N];
	struct od_strbuf text[N];
	unsigned wrong;
};

static void draw_prompts(struct engine_thread_task *k)
{
	for (size_t i = 0; i < N; i++) {
		k->n_prompt[i] = 1 + random_below(&k->seed, MAX_PROMPT);
		k->n_tokens[i] = 1 + random_below(&k->seed, 20);
		for (size_t p = 0; p < k->n_prompt[i]; p++)
			k->prompt[i][p] = (int32_t)random_below(&k->seed, VOCAB);
	}
}

/* Two jobs as one request; one in four is cancelled at some time. */
static void run_pair(struct engine_thread_task *k, size_t i)
{
	struct engine_thread_reader r[2];
	struct odm_job *j[2];
	struct od_err err;
	int rc;

	for (size_t p = 0; p < 2; p++) {
		reader_init(&r[p]);
		j[p] = job_of(k->prompt[i + p], k->n_prompt[i + p], k->n_tokens[i + p], &r[p]);
	}
	while ((rc = odm_engine_thread_submit(k->thread, j, 2, false, &err)) == OD_ERR_BUSY)
		usleep(500);
	k->wrong += rc != OD_OK;
	for (size_t p = 0; p < 2; p++) {
		struct odm_news news;

		k->cancelled[i + p] = random_below(&k->seed, 4) == 0;
		if (k->cancelled[i + p]) {
			if (random_below(&k->seed, 2) > 0) /* else at once: no engine is fast enough for all of those */
				usleep((useconds_t)random_below(&k->seed, 3000));
			odm_engine_thread_cancel(j[p]);
		}
		news = read_all(j[p], &r[p], &k->text[i + p]);
		k->wrong += news.err.code != OD_OK && (news.err.code != OD_ERR_CANCELLED || !k->cancelled[i + p]);
		k->wrong += news.err.code == OD_OK && news.n_tokens != k->n_tokens[i + p];
		k->cancelled[i + p] = news.err.code != OD_OK; /* it may have been too late */
		reader_fini(&r[p]);
		odm_job_unref(j[p]);
	}
}

static void *run_task(void *arg)
{
	struct engine_thread_task *k = arg;

	for (size_t i = 0; i < N; i += 2)
		run_pair(k, i);
	return NULL;
}

static void assert_alone(struct odm_engine *e, const struct engine_thread_task *k, size_t i)
{
	struct odm_request req = { .logprobs = -1,
				   .prompt = k->prompt[i],
				   .n_prompt = k->n_prompt[i],
				   .max_tokens = k->n_tokens[i],
				   .ignore_eos = true };
	struct odm_result r;
	struct od_err err;

	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = 1;
	assert_int_equal(odm_generate(e, &req, &r, &err), OD_OK);
	if (k->text[i].len > r.text_len || (!k->cancelled[i] && k->text[i].len != r.text_len) ||
	    memcmp(k->text[i].len > 0 ? k->text[i].text : "", r.text, k->text[i].len) != 0)
		fail_msg("job %zu: \"%s\", alone \"%s\"", i, k->text[i].text, r.text);
	odm_result_fini(&r);
}

static void jobs_of_many_threads_are_as_alone(void **state)
{
	static struct engine_thread_task task[THREADS];
	struct odm_main_opts o = engine_opts(1);
	struct odm_engine_activity a;
	struct odm_engine_thread *t = start(3, 1, 0); /* queue: some are refused */
	struct odm_engine *e;
	struct od_err err;
	size_t cancelled = 0;

	(void)state;
	for (size_t i = 0; i < THREADS; i++) {
		task[i] = (struct engine_thread_task){ .thread = t, .seed = i + 1 };
		draw_prompts(&task[i]);
		assert_int_equal(pthread_create(&task[i].id, NULL, run_task, &task[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(task[i].id, NULL);
	odm_engine_thread_activity(t, &a);
	assert_int_equal(a.open_requests + a.running + a.waiting, 0);
	assert_true(a.last_token_ns > 0 && a.last_step_ns > 0);
	end(t);
	assert_int_equal(opened_engine_open(&e, &o, &err), OD_OK);
	for (size_t i = 0; i < THREADS; i++) {
		assert_int_equal(task[i].wrong, 0);
		for (size_t k = 0; k < N; k++) {
			assert_alone(e, &task[i], k);
			cancelled += task[i].cancelled[k];
			od_strbuf_fini(&task[i].text[k]);
		}
	}
	assert_true(cancelled > 0 && cancelled < THREADS * N / 2);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* ---- The end of a text ---- */

/* A token of `end` ends the text as EOS does; the job has its own copies of this list and of the prompt. */
static void tokens_that_end_a_text(void **state)
{
	static const int32_t prompt[] = { 5, 6, 7 };
	struct odm_request req = {
		.prompt = prompt, .n_prompt = 3, .max_tokens = 20, .ignore_eos = true, .logprobs = -1
	};
	struct odm_main_opts o = engine_opts(1);
	struct odm_engine *e;
	struct odm_result r;
	struct od_err err;
	size_t first = 0;

	(void)state;
	od_sampler_defaults(&req.sampling);
	assert_int_equal(opened_engine_open(&e, &o, &err), OD_OK);
	assert_int_equal(odm_generate(e, &req, &r, &err), OD_OK);
	while (r.tokens[first] != r.tokens[9])
		first++;
	assert_int_equal(opened_engine_close(e), OD_OK);
	for (int ignore = 0; ignore < 2; ignore++) {
		int32_t last[] = { VOCAB, r.tokens[9] }, begin[] = { 5, 6, 7 };
		struct odm_engine_thread *t = start(1, 1, 0);
		struct engine_thread_reader reader;
		struct odm_job_spec spec = { .req = req, .wake = wake, .release = release, .arg = &reader };
		struct od_strbuf text = { 0 };
		struct odm_news news;
		struct odm_job *j;

		spec.req.prompt = begin;
		spec.req.end = last;
		spec.req.n_ends = 2;
		spec.req.ignore_eos = ignore;
		reader_init(&reader);
		j = odm_job_new(&spec);
		last[1] = begin[0] = VOCAB;
		assert_int_equal(odm_engine_thread_submit(t, &j, 1, false, &err), OD_OK);
		news = read_all(j, &reader, &text);
		assert_int_equal(news.n_tokens, ignore ? 20 : first + 1);
		assert_int_equal(news.finish, ignore ? ODM_FINISH_LENGTH : ODM_FINISH_EOS);
		reader_fini(&reader);
		odm_job_unref(j);
		od_strbuf_fini(&text);
		end(t);
	}
	odm_result_fini(&r);
}

/* ---- Limits ---- */

/* Submits two jobs as one request, and returns when the engine's thread is held: it tells news of the first one. */
static void submit_held(struct odm_engine_thread *t, struct odm_job **j, struct engine_thread_reader *r)
{
	static const int32_t prompt[] = { 5, 6, 7 };
	struct odm_news news;
	struct od_err err;

	for (;;) {
		for (size_t i = 0; i < 2; i++) {
			reader_init(&r[i]);
			j[i] = job_of(prompt, 3, CTX, &r[i]);
		}
		r[0].holds = true;
		assert_int_equal(odm_engine_thread_submit(t, j, 2, false, &err), OD_OK);
		assert_true(odm_job_take_news(j[0], &news)); /* only then the next ones are told */
		if (!news.done)
			break;
		for (size_t i = 0; i < 2; i++) { /* this thread was late, and there are none */
			odm_engine_thread_cancel(j[i]);
			reader_fini(&r[i]);
			odm_job_unref(j[i]);
		}
	}
	wait_for_news(&r[0]);
}

static void requests_beyond_the_limit_are_refused(void **state)
{
	static const int32_t prompt[] = { 5, 6, 7 };
	struct odm_engine_thread *t = start(1, 1, 0);
	struct engine_thread_reader r[4];
	struct odm_job *j[4];
	struct odm_news news;
	struct od_err err;

	(void)state;
	for (size_t i = 2; i < 4; i++) {
		reader_init(&r[i]);
		j[i] = job_of(prompt, 3, CTX, &r[i]);
	}
	submit_held(t, j, r);
	assert_int_equal(odm_engine_thread_submit(t, &j[2], 1, false, &err), OD_OK);
	assert_true(odm_job_take_news(j[2], &news));
	assert_true(!news.begun && !news.done && news.position == 2);
	assert_int_equal(odm_engine_thread_submit(t, &j[3], 1, false, &err), OD_ERR_BUSY);
	odm_engine_thread_cancel(j[2]); /* it waits: there is room at once */
	assert_true(odm_job_take_news(j[2], &news));
	assert_true(news.done && news.err.code == OD_ERR_CANCELLED && news.finish == ODM_FINISH_CANCELLED);
	assert_int_equal(odm_engine_thread_submit(t, &j[3], 1, false, &err), OD_OK);
	odm_engine_thread_cancel(j[2]); /* no harm */
	let_go(&r[0]);
	end(t);
	for (size_t i = 0; i < 4; i++) {
		reader_fini(&r[i]);
		odm_job_unref(j[i]);
	}
}

static unsigned releases_of(struct engine_thread_reader *r)
{
	unsigned n;

	pthread_mutex_lock(&r->lock);
	n = r->releases;
	pthread_mutex_unlock(&r->lock);
	return n;
}

/* The engine's thread stands in the wake that tells job 2 its new position, and is about to tell job 3. Both are
 * cancelled meanwhile. */
static void no_wake_comes_after_release(void **state)
{
	static const int32_t prompt[] = { 5, 6, 7 };
	struct odm_engine_thread *t = start(1, 4, 0);
	struct engine_thread_reader r[4];
	struct odm_job *j[4];
	struct odm_news news;
	struct od_err err;

	(void)state;
	submit_held(t, j, r);
	for (size_t i = 2; i < 4; i++) {
		reader_init(&r[i]);
		j[i] = job_of(prompt, 3, CTX, &r[i]);
		assert_int_equal(odm_engine_thread_submit(t, &j[i], 1, false, &err), OD_OK);
		assert_true(odm_job_take_news(j[i], &news));
		assert_int_equal(news.position, i);
	}
	r[2].holds = true;
	odm_engine_thread_cancel(j[1]); /* jobs behind it move up */
	let_go(&r[0]);
	wait_for_news(&r[2]);

	odm_engine_thread_cancel(j[2]);
	assert_int_equal(releases_of(&r[2]), 0);
	odm_engine_thread_cancel(j[3]);
	assert_int_equal(releases_of(&r[3]), 0);
	assert_true(odm_job_take_news(j[3], &news));
	assert_true(news.done && news.err.code == OD_ERR_CANCELLED);
	let_go(&r[2]);
	for (size_t i = 2; i < 4; i++) {
		reader_fini(&r[i]);
		assert_int_equal(r[i].wakes, 1);
	}
	assert_true(odm_job_take_news(j[2], &news));
	assert_true(news.done && news.err.code == OD_ERR_CANCELLED);
	assert_false(odm_job_take_news(j[3], &news)); /* no position after the end */
	end(t);
	for (size_t i = 0; i < 2; i++)
		reader_fini(&r[i]);
	for (size_t i = 0; i < 4; i++)
		odm_job_unref(j[i]);
}

static void what_never_fits_is_refused_at_once(void **state)
{
	static const int32_t prompt[CTX + 1], stranger[] = { VOCAB };
	struct odm_engine_thread *t = start(1, 1, 0);
	struct engine_thread_reader r;
	struct odm_job *j[2];
	struct od_err err;

	(void)state;
	reader_init(&r);
	j[0] = job_of(stranger, 1, 5, &r);
	j[1] = job_of(prompt, CTX + 1, 5, &r);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(odm_engine_thread_submit(t, &j[i], 1, false, &err), OD_ERR_RANGE);
		odm_engine_thread_cancel(j[i]); /* as a caller does that gives up */
		odm_job_unref(j[i]);
	}
	assert_int_equal(r.wakes + r.releases, 0);
	end(t);
}

static void who_does_not_read_is_cancelled(void **state)
{
	static const int32_t prompt[] = { 5, 6, 7 };
	struct odm_engine_thread *t = start(2, 1, 40);
	struct od_strbuf text = { 0 };
	struct engine_thread_reader r[2];
	struct odm_job *j[2];
	struct odm_news news;
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		reader_init(&r[i]);
		j[i] = job_of(prompt, 3, 100, &r[i]);
	}
	assert_int_equal(odm_engine_thread_submit(t, j, 2, false, &err), OD_OK);
	news = read_all(j[1], &r[1], &text);
	pthread_mutex_lock(&r[0].lock);
	while (r[0].releases == 0)
		pthread_cond_wait(&r[0].news, &r[0].lock);
	pthread_mutex_unlock(&r[0].lock);
	assert_int_equal(r[0].wakes, 0); /* all its news are one with those that it had when it was submitted */
	assert_true(odm_job_take_news(j[0], &news));
	assert_true(news.done && news.finish == ODM_FINISH_CANCELLED);
	assert_true(news.text.len <= 40 && news.text.len > 20 && news.n_tokens < 100);
	odm_news_fini(&news);
	od_strbuf_fini(&text);
	end(t);
	for (size_t i = 0; i < 2; i++) {
		reader_fini(&r[i]);
		odm_job_unref(j[i]);
	}
}

static void an_engine_that_does_not_open(void **state)
{
	struct odm_engine_thread_opts o = { .node = engine_opts(1) };
	struct odm_engine_thread *t;
	struct odm_job *j;
	struct engine_thread_reader r;
	struct od_err err;
	int32_t token = 1;

	(void)state;
	o.node.engine.pack = "/nowhere";
	assert_int_equal(odm_engine_thread_start(&t, &o, &err), OD_OK);
	while (odm_engine_thread_state(t, &err) == ODM_SERVE_LOADING)
		usleep(1000);
	assert_int_equal(odm_engine_thread_state(t, &err), ODM_SERVE_FAILED);
	assert_non_null(strstr(err.msg, "/nowhere"));
	reader_init(&r);
	j = job_of(&token, 1, 1, &r);
	assert_int_equal(odm_engine_thread_submit(t, &j, 1, false, &err), OD_ERR_UNREACHABLE);
	odm_job_unref(j);
	end(t);
	odm_engine_thread_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(jobs_of_many_threads_are_as_alone),
		cmocka_unit_test(tokens_that_end_a_text),
		cmocka_unit_test(requests_beyond_the_limit_are_refused),
		cmocka_unit_test(no_wake_comes_after_release),
		cmocka_unit_test(what_never_fits_is_refused_at_once),
		cmocka_unit_test(who_does_not_read_is_cancelled),
		cmocka_unit_test(an_engine_that_does_not_open),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
