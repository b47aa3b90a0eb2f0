/* The forward pass's interface: calls that fail and are repeated, what is fetched and how often that waits, what a step
 * leaves in its sequences, and what is refused. test_forward.c has the numbers. */
#include "common/compute/formats/format.h"
#include "common/compute/cpu/cpu.h"
#include "tests/unit/forward_world.h"

static const uint32_t first_row = 0;

/* A runner that fails at first in every layer, in submit and in collect, having scribbled over what it must fill. */
struct flaky {
	struct od_expert_runner runner;
	struct od_expert_runner *real; /* works where runner does */
	struct od_device *device;
	unsigned calls, fails;
	size_t y_floats;
};

static int flaky_submit(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct flaky *f = (struct flaky *)runner;
	float *bad;

	assert_int_equal(call->step, 7);
	assert_int_equal(call->x == NULL, f->runner.on_device);
	assert_int_equal(call->expert == NULL, f->runner.on_device);
	assert_int_equal(call->y == NULL, f->runner.on_device);
	if (f->calls++ % 3 == 2)
		return f->real->submit(f->real, call, err);
	f->fails++;
	bad = od_alloc_array(f->y_floats, sizeof(*bad));
	for (size_t i = 0; i < f->y_floats; i++)
		bad[i] = 1e30f;
	if (f->runner.on_device)
		put_at(f->device, call->y_at, bad, f->y_floats * sizeof(*bad));
	else
		memcpy(call->y, bad, f->y_floats * sizeof(*bad));
	od_free(bad);
	return f->calls % 3 == 2 ? OD_OK : od_fail(err, OD_ERR_UNREACHABLE, "no worker is left");
}

static int flaky_collect(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct flaky *f = (struct flaky *)runner;

	if (f->calls % 3 == 2)
		return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left");
	return f->real->collect != NULL ? f->real->collect(f->real, call, err) : OD_OK;
}

static void retry(const struct tiny_model *t, struct engine *e, struct flaky *flaky, struct result *again)
{
	struct od_seq_state *seq = new_seq(e);
	struct od_row rows[MAX_ROWS];

	flaky->device = e->device;
	flaky->y_floats = t->n_prompt * t->cfg.top_k * t->cfg.hidden;
	for (size_t i = 0; i < t->n_prompt; i++)
		rows[i] = (struct od_row){ seq, (uint32_t)i, t->prompt[i] };
	assert_int_equal(od_forward_begin(e->forward, 7, rows, t->n_prompt, NULL), OD_OK);
	while (!od_forward_done(e->forward)) {
		uint32_t layer = od_forward_layer(e->forward);
		struct od_err err;

		od_forward_attention(e->forward);
		assert_int_equal(od_forward_fetch(e->forward, OD_FETCH_ROUTES, NULL), OD_OK);
		for (size_t i = 0; i < t->n_prompt; i++)
			note_routes(e, i, i, again);
		while (od_forward_experts(e->forward, &flaky->runner, &err) != OD_OK) {
			assert_string_equal(err.msg, "no worker is left");
			assert_int_equal(od_forward_layer(e->forward), layer);
			assert_false(od_forward_done(e->forward));
		}
		assert_int_equal(od_forward_layer(e->forward), layer + 1);
	}
	assert_int_equal(flaky->fails, 2 * t->cfg.n_layers);
	for (size_t i = 0; i < t->n_prompt; i++)
		note_logits(e, i, i, again);
	assert_int_equal(od_seq_state_length(seq), 0); /* nothing is committed by itself */
	od_seq_state_free(seq);
}

static void test_error_then_retry(void **state)
{
	(void)state;
	for (int on_device = 0; on_device < 2; on_device++) {
		struct tiny_model t;
		struct result whole, again;
		struct elsewhere w;
		struct engine e;
		struct flaky flaky = {
			.runner = { .on_device = on_device, .submit = flaky_submit, .collect = flaky_collect }
		};

		tiny_load_named(&t, "grouped_queries");
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		flaky.real = on_device ? e.resident : &w.runner;
		result_new(&again, &t);
		retry(&t, &e, &flaky, &again);
		same(&t, &whole, &again, "retry");
		elsewhere_close(&w);
		engine_close(&e);
		result_free(&whole);
		result_free(&again);
		tiny_unload(&t);
	}
}

/* Counts what the forward pass gives its device between submit and collect. */
struct between {
	struct od_expert_runner runner;
	struct elsewhere *real;
	struct od_device *device; /* the forward pass's */
	uint64_t submitted; /* its ticket then */
	unsigned layers, queued; /* with and without such work */
};

static int between_submit(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct between *b = (struct between *)runner;

	assert_true(call->probability == NULL && call->residual == NULL); /* not fetched */
	b->submitted = od_device_ticket(b->device, OD_QUEUE_COMPUTE);
	return submit_elsewhere(&b->real->runner, call, err);
}

static int between_collect(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct between *b = (struct between *)runner;

	b->layers++;
	b->queued += od_device_ticket(b->device, OD_QUEUE_COMPUTE) > b->submitted;
	return collect_elsewhere(&b->real->runner, call, err);
}

/* Each layer's first expert is its shared one, too. */
static void add_shared(struct tiny_model *t, struct tiny_weights *w)
{
	for (uint32_t i = 0; i < t->cfg.n_kinds; i++)
		t->cfg.kind[i].shared_intermediate = t->cfg.intermediate;
	for (uint32_t l = 0; l < t->cfg.n_layers; l++)
		for (int i = 0; i < OD_N_EXPERT_MATS; i++)
			w->dense.layer[l].w[OD_ROLE_SHARED_GATE + i] = w->experts[l * t->cfg.n_experts].mat[i];
}

static void test_shared_experts_run_meanwhile(void **state)
{
	(void)state;
	for (int shared = 0; shared < 2; shared++) {
		struct tiny_model t;
		struct result resident, other;
		struct elsewhere w;
		struct engine e;
		struct between b = { .runner = { .submit = between_submit, .collect = between_collect }, .real = &w };
		struct od_seq_state *seq;

		tiny_load_named(&t, "grouped_queries");
		e = (struct engine){ .t = &t, .device = b.device = device_new(OD_CPU_AUTO, 1) };
		tiny_put(&e.weights, &t, e.device);
		if (shared)
			add_shared(&t, &e.weights);
		open_forward_pass(&e, &e.weights, CTX);
		elsewhere_open(&w, &t);
		result_new(&resident, &t);
		result_new(&other, &t);
		seq = new_seq(&e);
		run_chunks(&e, seq, 0, 50, &resident);
		od_seq_state_set_length(seq, 0);
		e.runner = &b.runner;
		run_chunks(&e, seq, 0, 50, &other);
		same(&t, &resident, &other, "shared experts");
		assert_true(b.layers >= t.cfg.n_layers);
		assert_int_equal(b.queued, shared ? b.layers : 0);
		od_seq_state_free(seq);
		elsewhere_close(&w);
		engine_close(&e);
		result_free(&resident);
		result_free(&other);
		tiny_unload(&t);
	}
}

/* Compares a layer's outputs with what is made of them: probabilities give the weights, residuals the rows of the
 * experts. */
struct check_rows {
	struct od_expert_runner runner;
	struct elsewhere *real;
	struct engine *e;
	const struct od_backend *be;
};

static int check_and_submit(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	const struct check_rows *k = (struct check_rows *)runner;
	const struct od_config *c = &k->e->t->cfg;
	const struct od_router_spec *router = &od_config_moe_layer(c, call->m)->router;
	const bool plain = router->score == OD_SCORE_SOFTMAX && !router->bias;
	const struct od_forward *f = k->e->forward;
	const struct od_weight *w = k->e->weights.dense.layer[c->layer_of[call->m]].w;
	float *norm = copy_at(k->e->device, w[OD_ROLE_FFN_NORM].data, c->hidden * sizeof(*norm));
	float *bias = c->norm == OD_NORM_RMS ?
			      NULL :
			      copy_at(k->e->device, w[OD_ROLE_FFN_NORM_BIAS].data, c->hidden * sizeof(*bias));
	float *factor = router->factors ?
				copy_at(k->e->device, w[OD_ROLE_ROUTER_FACTORS].data, c->n_experts * sizeof(*factor)) :
				NULL;
	float *want = od_alloc_array(c->hidden, sizeof(*want));

	for (size_t r = 0; r < call->n_rows; r++) {
		const float *p = od_forward_probabilities_of(f, r);
		const uint16_t *expert = od_forward_experts_of(f, r);
		float sum = 0, all = 0;

		for (size_t i = 0; i < c->n_experts; i++)
			all += p[i];
		assert_true(router->n_groups > 0 && plain ? all < 1 : fabsf(all - 1) < 1e-5f);
		for (size_t i = 0; i < c->top_k; i++)
			sum += p[expert[i]];
		for (size_t i = 0; plain && i < c->top_k; i++)
			assert_true(od_forward_weights_of(f, r)[i] == p[expert[i]] / (router->renormalise ? sum : 1) *
									      router->scale *
									      (factor != NULL ? factor[expert[i]] : 1));
		assert_memory_equal(call->expert + r * c->top_k, expert, c->top_k * sizeof(*expert));
		assert_memory_equal(call->weight + r * c->top_k, od_forward_weights_of(f, r), c->top_k * sizeof(float));
		assert_memory_equal(call->probability + r * c->n_experts, p, c->n_experts * sizeof(*p));
		assert_memory_equal(call->residual + r * c->hidden, od_forward_residual_of(f, r),
				    c->hidden * sizeof(float));
		if (bias != NULL)
			k->be->layernorm(want, od_forward_residual_of(f, r), norm, bias, c->hidden, c->rms_eps);
		else
			k->be->rmsnorm(want, od_forward_residual_of(f, r), norm, c->hidden, c->rms_eps);
		if (k->e->t->profile == OD_PROFILE_BF16)
			k->be->round_bf16(want, c->hidden);
		assert_memory_equal(call->x + r * c->hidden, want, c->hidden * sizeof(*want));
	}
	free(norm);
	free(bias);
	free(factor);
	od_free(want);
	return submit_elsewhere(&k->real->runner, call, err);
}

static int collect_checked(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	return collect_elsewhere(&((struct check_rows *)runner)->real->runner, call, err);
}

static void test_fetch(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct elsewhere w;
		struct engine e;
		struct od_row rows[20];
		struct check_rows check = { .runner = { .submit = check_and_submit, .collect = collect_checked },
					    .real = &w,
					    .e = &e };
		struct od_seq_state *seq;

		load_case(&t, i);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		assert_int_equal(od_backend_cpu(&check.be, OD_CPU_AUTO, t.profile, NULL), OD_OK);
		seq = new_seq(&e);
		for (size_t r = 0; r < 20; r++)
			rows[r] = (struct od_row){ seq, (uint32_t)r, t.prompt[r % t.n_prompt] };
		assert_int_equal(od_forward_begin(e.forward, 7, rows, 20, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			if (!od_forward_routed(e.forward))
				continue;
			assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS, NULL),
					 OD_OK);
			assert_int_equal(od_forward_experts(e.forward, &check.runner, NULL), OD_OK);
		}
		od_seq_state_free(seq);
		elsewhere_close(&w);
		engine_close(&e);
		tiny_unload(&t);
	}
}

/* A wait is a round trip to the device: a resident step has one, for its logits; with experts elsewhere each layer has
 * one more; what is on the host already costs none. */
static void test_waits(void **state)
{
	static const unsigned all = OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS | OD_FETCH_ROWS;
	struct tiny_model t;
	struct elsewhere w;
	struct engine e;
	struct od_seq_state *seq;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 2, OD_CPU_AUTO);
	elsewhere_open(&w, &t);
	seq = new_seq(&e);
	for (uint32_t position = 0; position < 6; position++) {
		const struct od_row row = { seq, position, t.prompt[position] };
		const bool resident = position < 3, fetch = position % 3 == 1, fetch_more = position % 3 == 2;
		uint64_t before = od_device_waits(e.device);
		float *logits;

		assert_int_equal(od_forward_begin(e.forward, 7, &row, 1, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			for (int again = 0; fetch && again < 2; again++)
				assert_int_equal(od_forward_fetch(e.forward, all, NULL), OD_OK);
			if (fetch_more) {
				assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_ROUTES, NULL), OD_OK);
				assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_ROUTES | OD_FETCH_ROWS, NULL),
						 OD_OK);
			}
			assert_int_equal(od_forward_experts(e.forward, resident ? e.resident : &w.runner, NULL), OD_OK);
		}
		assert_int_equal(od_forward_logits(e.forward, &first_row, 1, &logits, NULL), OD_OK);
		assert_int_equal(od_forward_end(e.forward, NULL, NULL), OD_OK);
		assert_int_equal(od_device_waits(e.device) - before,
				 1 + (fetch_more ? 2u : fetch || !resident) * t.cfg.n_layers);
	}
	/* Without logits the end waits, so that what it makes part of the sequence is there. */
	for (uint32_t position = 6; position < 9; position++) {
		const struct od_row row = { seq, position, t.prompt[position] };
		uint64_t before = od_device_waits(e.device);

		assert_int_equal(od_forward_begin(e.forward, 7, &row, 1, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			assert_int_equal(od_forward_experts(e.forward, e.resident, NULL), OD_OK);
		}
		assert_int_equal(od_forward_end(e.forward, NULL, NULL), OD_OK);
		assert_int_equal(od_device_waits(e.device) - before, 1);
	}
	od_seq_state_free(seq);
	elsewhere_close(&w);
	engine_close(&e);
	tiny_unload(&t);
}

/* Truncated and fed again after other tokens stood there, the sequence is as new. */
static void test_truncate(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t, u;
		struct result whole, other, again;
		struct od_seq_state *seq;
		struct engine e;
		size_t keep = 5;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		u = t;
		u.prompt = od_alloc_array(t.n_prompt, sizeof(*u.prompt));
		for (size_t p = 0; p < t.n_prompt; p++)
			u.prompt[p] = p < keep ? t.prompt[p] : other_token(&t, p);
		result_new(&other, &t);
		result_new(&again, &t);
		memcpy(again.logits, whole.logits, keep * t.cfg.vocab * sizeof(float));
		engine_open(&e, &u, 1, OD_CPU_AUTO);
		seq = new_seq(&e);
		run_chunks(&e, seq, 0, MAX_ROWS, &other);
		e.t = &t;
		od_seq_state_set_length(seq, (uint32_t)keep);
		run_chunks(&e, seq, keep, MAX_ROWS, &again);
		assert_memory_equal(again.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		assert_memory_not_equal(other.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		od_seq_state_free(seq);
		engine_close(&e);
		result_free(&whole);
		result_free(&other);
		result_free(&again);
		od_free(u.prompt);
		tiny_unload(&t);
	}
}

/* Rows of a step that are not kept leave nothing behind, in steps of any size and in both sequences. */
static void test_keeps_in_part(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result whole, kept_rows, ignored, *r[MAX_ROWS];
		struct od_row rows[MAX_ROWS];
		struct od_seq_state *seq[2];
		struct engine e;
		uint32_t kept[2] = { 0 };

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		result_new(&kept_rows, &t);
		result_new(&ignored, &t);
		seq[0] = new_seq(&e);
		seq[1] = new_seq(&e);
		for (uint32_t round = 0, n; od_seq_state_length(seq[0]) < t.n_prompt; round++) {
			const uint32_t first = od_seq_state_length(seq[0]), left = (uint32_t)t.n_prompt - first;
			const uint32_t other = od_seq_state_length(seq[1]),
				       n_other = round % 3 < t.n_prompt - other ? round % 3 : 0;
			struct od_err err = { 0 };

			n = 1 + round * 5 % 23 < left ? 1 + round * 5 % 23 : left;
			kept[0] = round % (n + 1);
			for (uint32_t k = 0; k < n + n_other; k++) {
				const uint32_t at = k < n ? first + k : other + k - n;

				rows[k] = (struct od_row){ seq[k >= n], at,
							   k < kept[0] ? t.prompt[at] : other_token(&t, at) };
				r[k] = k < kept[0] ? &kept_rows : &ignored;
			}
			kept[1] = n_other / 2;
			run_step_to(&e, rows, n + n_other, r);
			must(od_forward_end(e.forward, kept, &err), &err);
			assert_int_equal(od_seq_state_length(seq[0]), first + kept[0]);
			assert_int_equal(od_seq_state_length(seq[1]), other + kept[1]);
		}
		same(&t, &whole, &kept_rows, "kept in part");
		od_seq_state_free(seq[0]);
		od_seq_state_free(seq[1]);
		engine_close(&e);
		result_free(&whole);
		result_free(&kept_rows);
		result_free(&ignored);
		tiny_unload(&t);
	}
}

/* Asks the device for an expert that there is not. */
struct forward_steps_broken {
	struct od_expert_runner runner; /* first */
	struct engine *e;
};

static int submit_broken(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct engine *e = ((struct forward_steps_broken *)runner)->e;
	const uint16_t none = 999;

	put_at(e->device, call->expert_at, &none, sizeof(none));
	return e->resident->submit(e->resident, call, err);
}

/* An error on the device shows at the end of the step, or at its logits, and nothing becomes part of a sequence. */
static void test_failed_step(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct forward_steps_broken broken = { .runner = { .on_device = true, .submit = submit_broken }, .e = &e };
	struct od_seq_state *seq;
	struct od_err err = { 0 };

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	seq = new_seq(&e);
	for (uint32_t i = 0; i < 4; i++) {
		const struct od_row row = { seq, i / 2, t.prompt[i / 2] };
		float *logits;

		for (int fails = 1; fails >= 0; fails--) {
			must(od_forward_begin(e.forward, 7, &row, 1, &err), &err);
			while (!od_forward_done(e.forward)) {
				const bool last = od_forward_layer(e.forward) == t.cfg.n_layers - 1;

				od_forward_attention(e.forward);
				must(od_forward_experts(e.forward, fails && last ? &broken.runner : e.resident, &err),
				     &err);
			}
			if (i % 2) {
				assert_int_equal(od_forward_end(e.forward, NULL, &err), fails ? OD_ERR_RANGE : OD_OK);
				assert_int_equal(od_seq_state_length(seq), i / 2 + !fails);
			} else {
				assert_int_equal(od_forward_logits(e.forward, &first_row, 1, &logits, &err),
						 fails ? OD_ERR_RANGE : OD_OK);
				assert_int_equal(od_seq_state_length(seq), i / 2);
			}
			assert_true(!fails || strstr(err.msg, "found 999") != NULL);
			if (fails && i % 2 == 0) { /* it has been said, and still is so */
				assert_int_equal(od_forward_end(e.forward, NULL, &err), OD_ERR_RANGE);
				assert_non_null(strstr(err.msg, "the step failed: "));
				assert_int_equal(od_seq_state_length(seq), i / 2);
			}
		}
	}
	od_seq_state_free(seq);
	engine_close(&e);
	tiny_unload(&t);
}

static void refuse(struct engine *e, const struct od_row *rows, size_t n, int code, const char *text)
{
	struct od_err err = { 0 };

	assert_int_equal(od_forward_begin(e->forward, 1, rows, n, &err), code);
	if (strstr(err.msg, text) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
}

static void test_begin_checks(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct od_state_pool *pool;
	struct od_seq_state *seq, *other;
	struct od_row *rows;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open_ctx(&e, &t, 1, OD_CPU_AUTO, 8);
	seq = new_seq(&e);
	assert_int_equal(od_state_pool_new(&pool, e.device, &t.cfg, t.profile, 8, 1, 1, NULL), OD_OK);
	assert_int_equal(od_seq_state_new(&other, pool, NULL), OD_OK);
	rows = od_alloc_array(MAX_ROWS + 1, sizeof(*rows));
	refuse(&e, rows, 0, OD_ERR_RANGE, "1 to 512, found 0");
	refuse(&e, rows, MAX_ROWS + 1, OD_ERR_RANGE, "found 513");
	for (uint32_t i = 0; i < 9; i++)
		rows[i] = (struct od_row){ seq, i, (int32_t)i };
	refuse(&e, rows, 9, OD_ERR_RANGE, "position 8 is outside the context of 8");
	rows[3].token = 48;
	refuse(&e, rows, 8, OD_ERR_RANGE, "row 3: token: expected 0 to 47, found 48");
	rows[3].token = -1;
	refuse(&e, rows, 8, OD_ERR_RANGE, "found -1");
	rows[3].token = 3;
	refuse(&e, rows + 1, 3, OD_ERR_RANGE, "row 0: position: expected 0, found 1");
	rows[5].position = 6;
	refuse(&e, rows, 6, OD_ERR_RANGE, "row 5: position: expected 5, found 6");
	rows[5].position = 4;
	refuse(&e, rows, 6, OD_ERR_RANGE, "row 5: position: expected 5, found 4");
	rows[1] = (struct od_row){ other, 0, 1 };
	refuse(&e, rows, 2, OD_ERR_MISMATCH, "row 1: its sequence state belongs to another forward pass");
	od_seq_state_set_length(seq, 8);
	refuse(&e, rows, 1, OD_ERR_RANGE, "row 0: position: expected 8, found 0");
	od_free(rows);
	od_seq_state_free(seq);
	od_seq_state_free(other);
	od_state_pool_free(pool);
	engine_close(&e);
	tiny_unload(&t);
}

static int read_zeros(void *arg, uint32_t row, void *to, struct od_err *err)
{
	(void)arg;
	(void)row;
	(void)to;
	(void)err;
	return OD_OK;
}

static void test_new_checks(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct od_forward *f;
	struct od_expert_runner *runner;
	struct od_forward_opts opts;
	struct od_dense dense;
	struct od_err err;
	uint64_t one, few, logits, tables;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	opts = e.opts;
	opts.max_rows = 1;
	one = od_forward_bytes(&opts);
	/* A row has at least: residual, normed, k outputs (f32 each), queries, attention, keys, values. */
	assert_true(one >= (4 * 40 + 2 * 40 + 2 * 20) * sizeof(float));
	opts.max_rows = 101;
	assert_true(od_forward_bytes(&opts) > 100 * (4 * 40 + 2 * 40 + 2 * 20) * sizeof(float));
	assert_true(od_forward_bytes(&opts) < 101 * one);
	opts.max_rows = 1;
	opts.max_logits = 1; /* as 0 */
	assert_int_equal(od_forward_bytes(&opts), one);
	opts.max_logits = 2;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	assert_null(f);
	assert_non_null(strstr(err.msg, "at most 1 (rows of a step), found 2"));
	opts.max_rows = 101;
	opts.max_logits = 0;
	few = od_forward_bytes(&opts);
	opts.max_logits = 101;
	logits = od_staged_bytes(opts.device, 100 * t.cfg.vocab * sizeof(float));
	assert_in_range(od_forward_bytes(&opts) - few, logits - 64, logits + 64);
	opts.max_logits = 0;
	opts.max_rows = 1;
	opts.state = NULL;
	tables = 2 * SEQUENCES * od_state_pages(CTX) * sizeof(uint32_t);
	assert_true(od_forward_bytes(&opts) + tables <= one + 64 && od_forward_bytes(&opts) + tables >= one - 64);
	opts.state = e.state;
	opts.max_rows = SIZE_MAX;
	assert_true(od_forward_bytes(&opts) == UINT64_MAX);
	opts.max_rows = 1;
	opts.max_logits = SIZE_MAX;
	assert_true(od_forward_bytes(&opts) == UINT64_MAX);
	opts.max_logits = 0;
	opts.max_rows = SIZE_MAX;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	assert_null(f);
	assert_int_equal(od_resident_new(&runner, &opts, e.weights.experts, &err), OD_ERR_RANGE);
	assert_null(runner);
	opts.max_rows = 0;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	opts.max_rows = 1;
	dense = e.weights.dense;
	dense.head.n_out--;
	opts.dense = &dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	assert_null(f);
	for (enum od_dtype small = OD_INT8; small <= OD_F8_E8M0; small++) { /* its rows are read one by one */
		dense = e.weights.dense;
		dense.embed.dtype = small;
		assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	}
	dense = e.weights.dense;
	opts.embed_row_bytes = od_row_bytes(dense.embed.dtype, t.cfg.hidden); /* but it is in memory */
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense.embed_reader.read = read_zeros;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense.embed.data.buf = NULL;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
	od_forward_free(f);
	opts.embed_row_bytes--;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	opts.embed_row_bytes = 0;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense = e.weights.dense;
	dense.final_norm.buf = NULL;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense = e.weights.dense;
	dense.final_norm_bias = dense.final_norm; /* the model has none */
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense = e.weights.dense;
	dense.head_bias = dense.final_norm;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense = e.weights.dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
	od_forward_free(f);
	od_forward_free(NULL);
	od_resident_free(NULL);
	engine_close(&e);
	tiny_unload(&t);
}

/* GQA's streams, and fixed state that nothing here knows. */
static void keep_more(const struct od_mixer *mix, struct od_state_spec *out)
{
	od_mixer_gqa.state(mix, out);
	out->fixed_bytes = 8;
}

static const struct od_mixer_ops keeps_more = { .name = "more", .state = keep_more };

/* Keys and values are stored as the profile has them, in rows of this model. */
static void test_state_of_another_kind(void **state)
{
	struct tiny_model t, other;
	struct engine e;
	struct od_forward_opts opts;
	struct od_forward *f;
	struct od_state_pool *pool;
	struct od_err err;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	opts = e.opts;
	opts.profile = OD_PROFILE_BF16;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_MISMATCH);
	assert_non_null(strstr(err.msg, "expected BF16, found F32"));
	assert_null(f);
	for (int i = 0; i < 7; i++) {
		const struct od_mixer *mix = &t.cfg.kind[0].mix;

		other = t;
		opts = e.opts;
		switch (i) {
		case 0: other.cfg.n_layers++; break;
		case 1: other.cfg.n_layers--; break;
		case 2: other.cfg.kind[0].mix.k_dim += 2; break;
		case 3: other.cfg.kind[0].mix.v_dim -= 2; break;
		case 4: /* one stream of the same width as the keys' */
			other.cfg.kind[0].mixer = &od_mixer_mla;
			other.cfg.kind[0].mix.kv_rank = mix->n_kv_heads * mix->k_dim - 2;
			other.cfg.kind[0].mix.nope_dim = mix->k_dim - 2;
			break;
		case 5: other.cfg.kind[0].mixer = &keeps_more; break;
		case 6: break;
		}
		assert_int_equal(
			od_state_pool_new(&pool, e.device, &other.cfg, t.profile, CTX, 1, od_state_pages(CTX), &err),
			OD_OK);
		opts.state = pool;
		if (i < 6) {
			assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_MISMATCH);
			assert_null(f);
		} else {
			assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
			od_forward_free(f);
		}
		od_state_pool_free(pool);
	}
	engine_close(&e);
	tiny_unload(&t);
}

static int close_file(void **state)
{
	(void)state;
	tiny_close();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error_then_retry),
		cmocka_unit_test(test_shared_experts_run_meanwhile),
		cmocka_unit_test(test_fetch),
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_keeps_in_part),
		cmocka_unit_test(test_failed_step),
		cmocka_unit_test(test_begin_checks),
		cmocka_unit_test(test_new_checks),
		cmocka_unit_test(test_state_of_another_kind),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
