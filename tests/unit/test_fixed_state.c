/* The forward pass of models some of whose layers keep fixed state, by sums (sum_mixer.h) or by gated delta rules:
 * steps of any size give the same bits, what is not kept of a step has left nothing behind, and neither has a step that
 * was given up. A snapshot has the bits that a text of its length has. */
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/model/resident.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/state_util.h"
#include "tests/unit/sum_mixer.h"
#include "tests/unit/tiny_model.h"

enum { PROMPT = 130, CTX = 200, MAX_ROWS = 150, SEQUENCES = 2, DRAFT = 8, VOCAB = 48, LAYERS = 5 };

static bool delta_rule; /* one of the two mixers */

/* As sum_mixer_config, with other numbers of heads, taps and layouts in its two kinds of recurrent layers. */
static struct od_config delta_config(void)
{
	struct od_config c = sum_mixer_config(VOCAB, CTX);

	for (uint32_t i = 0; i < c.n_kinds; i++) {
		struct od_layer_spec *l = &c.kind[i];
		const bool second = l->ffn == OD_FFN_MOE && i + 1 == c.n_kinds;

		l->mix.gated = l->mixer == &od_mixer_gqa;
		if (l->mixer != &sum_mixer)
			continue;
		l->mixer = &od_mixer_delta;
		l->mix = (struct od_mixer){ .n_heads = second ? 4 : 6,
					    .n_kv_heads = second ? 4 : 2,
					    .k_dim = second ? 9 : 16,
					    .v_dim = second ? 19 : 80,
					    .conv = second ? 2 : 5,
					    .by_key_head = !second,
					    .norm_eps = 1e-5f,
					    .rope = UINT32_MAX };
	}
	return c;
}

struct fixed_state_engine {
	struct tiny_model t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *state;
	struct od_forward *forward;
	struct od_expert_runner *runner;
};

static void engine_open(struct fixed_state_engine *e, enum od_profile profile, enum od_cpu cpu, unsigned threads)
{
	const struct od_config cfg = delta_rule ? delta_config() : sum_mixer_config(VOCAB, CTX);
	struct od_forward_opts opts;
	struct od_err err = { 0 };

	assert_int_equal(cfg.n_layers, LAYERS);
	tiny_make(&e->t, "fixed state", &cfg, 11, PROMPT);
	e->t.profile = profile;
	e->device = device_new(cpu, threads);
	tiny_put(&e->weights, &e->t, e->device);
	must(od_state_pool_new(&e->state, e->device, &e->t.cfg, profile, CTX, SEQUENCES,
			       SEQUENCES * od_state_pages(CTX), &err),
	     &err);
	opts = (struct od_forward_opts){ .config = &e->t.cfg,
					 .dense = &e->weights.dense,
					 .device = e->device,
					 .state = e->state,
					 .profile = profile,
					 .max_rows = MAX_ROWS };
	must(od_forward_new(&e->forward, &opts, &err), &err);
	must(od_resident_new(&e->runner, &opts, e->weights.experts, &err), &err);
}

static void engine_close(struct fixed_state_engine *e)
{
	od_resident_free(e->runner);
	od_forward_free(e->forward);
	od_state_pool_free(e->state);
	tiny_weights_free(&e->weights);
	od_device_free(e->device);
	tiny_unload(&e->t);
}

static struct od_seq_state *new_seq(const struct fixed_state_engine *e)
{
	return open_seq(e->state);
}

static void begin(struct fixed_state_engine *e, const struct od_row *rows, size_t n)
{
	struct od_err err = { 0 };

	must(od_forward_begin(e->forward, 1, rows, n, &err), &err);
}

/* Through the next layer, or to its experts. */
static void advance(struct fixed_state_engine *e)
{
	struct od_err err = { 0 };

	if (od_forward_routed(e->forward))
		must(od_forward_experts(e->forward, e->runner, &err), &err);
	else
		od_forward_attention(e->forward);
}

static void run_layers(struct fixed_state_engine *e)
{
	while (!od_forward_done(e->forward))
		advance(e);
}

static void end(struct fixed_state_engine *e, const uint32_t *kept)
{
	struct od_err err = { 0 };

	must(od_forward_end(e->forward, kept, &err), &err);
}

/* Logits of a row are those of this position of a text that was decoded token by token. */
static void check_logits(struct fixed_state_engine *e, uint32_t row, const float *expected, uint32_t position,
			 const char *what)
{
	struct od_err err = { 0 };
	float *logits;

	must(od_forward_logits(e->forward, &row, 1, &logits, &err), &err);
	if (memcmp(logits, expected + (size_t)position * VOCAB, VOCAB * sizeof(*logits)) != 0)
		fail_msg("%s: logits of position %u differ", what, position);
}

/* Runs all positions of a text, by steps of up to chunk rows. */
static void run_text(struct fixed_state_engine *e, struct od_seq_state *seq, const int32_t *token, uint32_t n,
		     uint32_t chunk, float *out)
{
	struct od_err err = { 0 };
	struct od_row rows[MAX_ROWS];

	for (uint32_t first = 0; first < n; first += chunk) {
		const uint32_t size = n - first < chunk ? n - first : chunk;

		for (uint32_t i = 0; i < size; i++)
			rows[i] = (struct od_row){ seq, first + i, token[first + i] };
		begin(e, rows, size);
		run_layers(e);
		for (uint32_t i = 0; i < size; i++) {
			float *logits;

			must(od_forward_logits(e->forward, &i, 1, &logits, &err), &err);
			memcpy(out + (size_t)(first + i) * VOCAB, logits, VOCAB * sizeof(*logits));
		}
		end(e, NULL);
		assert_int_equal(od_seq_state_length(seq), first + size);
	}
}

static float *new_logits(void)
{
	float *p = od_alloc_array(PROMPT * VOCAB, sizeof(*p));

	assert_non_null(p);
	return p;
}

/* The prompt, token by token, in a sequence of its own. */
static float *decode(struct fixed_state_engine *e, const int32_t *token)
{
	struct od_seq_state *seq = new_seq(e);
	float *logits = new_logits();

	run_text(e, seq, token, PROMPT, 1, logits);
	od_seq_state_free(seq);
	return logits;
}

static int32_t other_than(int32_t token)
{
	return (token + 17) % VOCAB;
}

/* A token still counts where attention no longer sees it, and so does the order. */
static void test_state_counts(void **state)
{
	struct fixed_state_engine e;
	float *plain, *other;
	int32_t *token, second;
	uint32_t at = PROMPT - 12;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	token = e.t.prompt;
	while (token[at] == token[at - 1])
		at--;
	plain = decode(&e, token);
	second = token[at];
	token[at] = other_than(second);
	other = decode(&e, token);
	assert_memory_equal(plain, other, at * VOCAB * sizeof(*plain));
	for (size_t p = at; p < PROMPT; p++)
		assert_memory_not_equal(plain + p * VOCAB, other + p * VOCAB, VOCAB * sizeof(*plain));
	od_free(other);
	token[at] = token[at - 1]; /* the two change places */
	token[at - 1] = second;
	other = decode(&e, token);
	assert_memory_not_equal(plain + (PROMPT - 1) * VOCAB, other + (PROMPT - 1) * VOCAB, VOCAB * sizeof(*plain));
	od_free(other);
	od_free(plain);
	engine_close(&e);
}

/* One step, chunks, token by token; some threads; any CPU. */
static void test_chunks(void **state)
{
	static const uint32_t chunks[] = { PROMPT, 64, 17, 16, 7, 3, 2 };

	(void)state;
	for (enum od_profile profile = OD_PROFILE_F32; profile <= OD_PROFILE_BF16; profile++) {
		float *plain, *logits = new_logits();
		struct fixed_state_engine e;

		engine_open(&e, profile, OD_CPU_AUTO, 1);
		plain = decode(&e, e.t.prompt);
		engine_close(&e);
		engine_open(&e, profile, OD_CPU_AUTO, 2);
		for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
			struct od_seq_state *seq = new_seq(&e);

			memset(logits, 0, PROMPT * VOCAB * sizeof(*logits));
			run_text(&e, seq, e.t.prompt, PROMPT, chunks[i], logits);
			if (memcmp(plain, logits, PROMPT * VOCAB * sizeof(*logits)) != 0)
				fail_msg("chunks of %u: logits differ", chunks[i]);
			od_seq_state_free(seq);
		}
		engine_close(&e);
		od_free(plain);
		od_free(logits);
	}
}

static void test_kernels(void **state)
{
	float *scalar;
	struct fixed_state_engine e;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_SCALAR, 1);
	scalar = decode(&e, e.t.prompt);
	engine_close(&e);
	for (int cpu = OD_CPU_AVX2; cpu <= OD_CPU_NEON; cpu++) {
		const struct od_backend *be;
		float *logits;

		if (od_backend_cpu(&be, (enum od_cpu)cpu, OD_PROFILE_F32, NULL) != OD_OK)
			continue; /* this machine has no such instructions */
		engine_open(&e, OD_PROFILE_F32, (enum od_cpu)cpu, 1);
		logits = decode(&e, e.t.prompt);
		assert_memory_equal(scalar, logits, PROMPT * VOCAB * sizeof(*logits));
		od_free(logits);
		engine_close(&e);
	}
	od_free(scalar);
}

/* n rows of a sequence's prompt from its length on. Of the first right tokens, and behind them right and wrong ones. */
static void draft(struct od_row *rows, struct od_seq_state *seq, const int32_t *token, uint32_t n, uint32_t right,
		  uint64_t *seed)
{
	const uint32_t first = od_seq_state_length(seq);

	for (uint32_t i = 0; i < n; i++) {
		const int32_t next = token[first + i];

		rows[i] = (struct od_row){ seq, first + i,
					   i < right || random_below(seed, 3) == 0 ? next : other_than(next) };
	}
}

/* Rows that only right tokens stand before, and that are right themselves. */
static uint32_t right_rows(const struct od_row *rows, const int32_t *token, uint32_t n)
{
	uint32_t right = 0;

	while (right < n && rows[right].token == token[rows[right].position])
		right++;
	return right;
}

/* Steps of 1 to 8 rows, of which 0 to all are kept. */
static void check_drafts(struct fixed_state_engine *e, const float *plain, uint64_t seed, bool with_logits)
{
	struct od_seq_state *seq = new_seq(e);
	struct od_row rows[DRAFT];

	for (uint32_t n = 1; n <= DRAFT; n++) {
		for (uint32_t kept = 0; kept <= n; kept++) {
			const uint32_t first = od_seq_state_length(seq);

			draft(rows, seq, e->t.prompt, n, kept, &seed);
			begin(e, rows, n);
			run_layers(e);
			for (uint32_t i = 0; with_logits && i < right_rows(rows, e->t.prompt, n); i++)
				check_logits(e, i, plain, first + i, "a draft");
			end(e, &kept);
			assert_int_equal(od_seq_state_length(seq), first + kept);
		}
	}
	assert_in_range(od_seq_state_length(seq), 100, PROMPT - 1);
	draft(rows, seq, e->t.prompt, 1, 1, &seed);
	begin(e, rows, 1);
	run_layers(e);
	check_logits(e, 0, plain, rows[0].position, "after drafts");
	end(e, NULL);
	od_seq_state_free(seq);
}

static void test_drafts(void **state)
{
	(void)state;
	for (enum od_profile profile = OD_PROFILE_F32; profile <= OD_PROFILE_BF16; profile++) {
		struct fixed_state_engine e;
		float *plain;

		engine_open(&e, profile, OD_CPU_AUTO, 1);
		plain = decode(&e, e.t.prompt);
		for (uint64_t seed = 1; seed <= 6; seed++)
			check_drafts(&e, plain, seed, seed % 2 == 0);
		od_free(plain);
		engine_close(&e);
	}
}

/* As many rows as are saved, and more: those are kept whole or not at all. */
static void test_keep_rows(void **state)
{
	struct od_seq_state *seq;
	struct od_row rows[OD_KEEP_ROWS + 1];
	char rows_text[32];
	struct od_err err = { 0 };
	uint32_t kept = 5;
	struct fixed_state_engine e;
	uint64_t seed = 3;
	float *plain;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	plain = decode(&e, e.t.prompt);
	seq = new_seq(&e);
	draft(rows, seq, e.t.prompt, OD_KEEP_ROWS, kept, &seed);
	begin(&e, rows, OD_KEEP_ROWS);
	run_layers(&e);
	end(&e, &kept);
	assert_int_equal(od_seq_state_length(seq), 5);
	draft(rows, seq, e.t.prompt, OD_KEEP_ROWS + 1, OD_KEEP_ROWS + 1, &seed);
	begin(&e, rows, OD_KEEP_ROWS + 1);
	run_layers(&e);
	check_logits(&e, OD_KEEP_ROWS, plain, 5 + OD_KEEP_ROWS, "a long step");
	assert_int_equal(od_forward_end(e.forward, &kept, &err), OD_ERR_UNSUPPORTED);
	snprintf(rows_text, sizeof(rows_text), "%d rows", OD_KEEP_ROWS + 1);
	assert_non_null(strstr(err.msg, rows_text));
	assert_int_equal(od_seq_state_length(seq), 5);
	kept = OD_KEEP_ROWS + 1; /* all of them, said otherwise */
	end(&e, &kept);
	assert_int_equal(od_seq_state_length(seq), 5 + OD_KEEP_ROWS + 1);
	draft(rows, seq, e.t.prompt, 2, 2, &seed);
	begin(&e, rows, 2);
	run_layers(&e);
	check_logits(&e, 1, plain, 5 + OD_KEEP_ROWS + 2, "after a long step");
	od_seq_state_free(seq);
	od_free(plain);
	engine_close(&e);
}

/* All committed fixed state of a sequence; malloc'd. */
static char *committed(const struct fixed_state_engine *e, const struct od_seq_state *seq)
{
	return copy_at(e->device, od_seq_state_fixed(seq, 0).committed, od_state_pool_fixed_bytes(e->state));
}

/* A step that ends nowhere, after each number of moves through its layers; the last one has only not been ended. */
static void test_given_up(void **state)
{
	const uint32_t moves = LAYERS + 4; /* a MoE layer takes two */
	struct od_seq_state *seq;
	struct od_row rows[DRAFT];
	struct fixed_state_engine e;
	uint64_t seed = 4;
	float *plain;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	plain = decode(&e, e.t.prompt);
	seq = new_seq(&e);
	for (uint32_t round = 0; round < 3 * (moves + 1); round++) {
		const uint32_t first = od_seq_state_length(seq), n = 1 + round % DRAFT;
		char *before = committed(&e, seq), *after;

		draft(rows, seq, e.t.prompt, n, 0, &seed);
		begin(&e, rows, n);
		for (uint32_t i = 0; i < round % (moves + 1); i++)
			advance(&e);
		assert_int_equal(od_forward_done(e.forward), round % (moves + 1) == moves);
		after = committed(&e, seq);
		if (first > 0) /* a new text had no state before */
			assert_memory_equal(before, after, od_state_pool_fixed_bytes(e.state));
		assert_int_equal(od_seq_state_length(seq), first);
		free(before);
		free(after);
		draft(rows, seq, e.t.prompt, 2, 2, &seed);
		begin(&e, rows, 2);
		run_layers(&e);
		check_logits(&e, 0, plain, first, "after a step that was given up");
		check_logits(&e, 1, plain, first + 1, "after a step that was given up");
		end(&e, NULL);
	}
	od_seq_state_free(seq);
	od_free(plain);
	engine_close(&e);
}

/* Asks for an expert that there is not. */
struct fixed_state_broken {
	struct od_expert_runner runner; /* first */
	struct fixed_state_engine *e;
};

static int fail_later(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	struct fixed_state_engine *e = ((struct fixed_state_broken *)r)->e;
	const uint16_t none = 999;

	put_at(e->device, call->expert_at, &none, sizeof(none));
	return e->runner->submit(e->runner, call, err);
}

/* An error on the device shows at the end of a step, which then has changed nothing. */
static void test_failed_step(void **state)
{
	struct fixed_state_engine engine, *e = &engine;
	struct fixed_state_broken b = { .runner = { .on_device = true, .submit = fail_later }, .e = e };
	struct od_seq_state *seq;
	struct od_row rows[3];
	struct od_err err = { 0 };
	uint64_t seed = 5;
	float *plain;

	(void)state;
	engine_open(e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	plain = decode(e, e->t.prompt);
	seq = new_seq(e);
	for (uint32_t round = 0; round < 12; round++) {
		const uint32_t first = od_seq_state_length(seq), kept = round % 4;
		char *before = committed(e, seq), *after;

		draft(rows, seq, e->t.prompt, 3, 3, &seed);
		begin(e, rows, 3);
		while (!od_forward_done(e->forward)) {
			if (od_forward_routed(e->forward) && od_forward_m(e->forward) == round % 3)
				assert_int_equal(od_forward_experts(e->forward, &b.runner, &err), OD_OK);
			else
				advance(e);
		}
		assert_int_equal(od_forward_end(e->forward, round % 2 ? NULL : &kept, &err), OD_ERR_RANGE);
		assert_non_null(strstr(err.msg, "found 999"));
		assert_int_equal(od_seq_state_length(seq), first);
		after = committed(e, seq);
		if (first > 0)
			assert_memory_equal(before, after, od_state_pool_fixed_bytes(e->state));
		free(before);
		free(after);
		begin(e, rows, 3);
		run_layers(e);
		check_logits(e, 2, plain, first + 2, "after a step that failed");
		end(e, NULL);
	}
	od_seq_state_free(seq);
	od_free(plain);
	engine_close(e);
}

/* Rows of two sequences in any order among each other, of which each keeps as many as it likes. */
static void test_two_sequences(void **state)
{
	int32_t other[PROMPT];
	const int32_t *token[2];
	struct od_seq_state *seq[2];
	struct fixed_state_engine e;
	uint64_t seed = 6;
	float *plain[2];
	uint32_t joint = 0;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 2);
	for (uint32_t i = 0; i < PROMPT; i++)
		other[i] = other_than(e.t.prompt[PROMPT - 1 - i]);
	token[0] = e.t.prompt;
	token[1] = other;
	for (int q = 0; q < 2; q++)
		plain[q] = decode(&e, token[q]);
	assert_memory_not_equal(plain[0], plain[1], PROMPT * VOCAB * sizeof(float));
	for (int q = 0; q < 2; q++)
		seq[q] = new_seq(&e);
	for (int round = 0; round < 60; round++) {
		struct od_row drafted[2][DRAFT], rows[2 * DRAFT];
		uint32_t n[2], kept[2], used[2] = { 0 }, kept_by_row[2], first[2], count = 0, at[2 * DRAFT], table = 0;

		for (uint32_t q = 0; q < 2; q++) {
			const uint32_t left = PROMPT - od_seq_state_length(seq[q]);

			n[q] = (uint32_t)random_below(&seed, (left < DRAFT ? left : DRAFT) + 1);
			kept[q] = (uint32_t)random_below(&seed, n[q] + 1);
			first[q] = od_seq_state_length(seq[q]);
			draft(drafted[q], seq[q], token[q], n[q], kept[q], &seed);
		}
		if (n[0] + n[1] == 0)
			continue;
		while (count < n[0] + n[1]) {
			uint32_t q = (uint32_t)random_below(&seed, 2);

			q = used[q] == n[q] ? !q : q;
			if (used[q] == 0)
				/* counted in the order in which they stand among the rows */
				kept_by_row[table++] = kept[q];
			at[count] = q;
			rows[count++] = drafted[q][used[q]++];
		}
		joint += table == 2;
		begin(&e, rows, count);
		run_layers(&e);
		for (uint32_t i = 0; i < count; i++)
			if (rows[i].position - first[at[i]] < right_rows(drafted[at[i]], token[at[i]], n[at[i]]))
				check_logits(&e, i, plain[at[i]], rows[i].position, "one of two sequences");
		end(&e, kept_by_row);
		for (uint32_t q = 0; q < 2; q++)
			assert_int_equal(od_seq_state_length(seq[q]), first[q] + kept[q]);
	}
	assert_true(joint > 20);
	for (int q = 0; q < 2; q++) {
		assert_true(od_seq_state_length(seq[q]) > 60);
		od_seq_state_free(seq[q]);
		od_free(plain[q]);
	}
	engine_close(&e);
}

/* The fixed state after each number of the prompt's tokens, one after the other; [PROMPT + 1], malloc'd. */
static char **all_states(struct fixed_state_engine *e)
{
	struct od_seq_state *seq = new_seq(e);
	char **states = calloc(PROMPT + 1, sizeof(*states));

	assert_non_null(states);
	for (uint32_t i = 0; i < PROMPT; i++) {
		const struct od_row row = { seq, i, e->t.prompt[i] };

		begin(e, &row, 1);
		run_layers(e);
		end(e, NULL);
		states[i + 1] = committed(e, seq);
	}
	od_seq_state_free(seq);
	return states;
}

static void free_states(char **states)
{
	for (uint32_t i = 0; i <= PROMPT; i++)
		free(states[i]);
	free(states);
}

/* Marks of a step of n rows behind `first`: any, the one behind its last row often among them. */
static uint32_t draw_marks(struct od_seq_state *seq, uint32_t first, uint32_t n, uint32_t mark[OD_MAX_MARKS],
			   uint64_t *seed)
{
	uint32_t count = 0;

	for (uint32_t i = 1; i <= n && count < OD_MAX_MARKS; i++)
		if (random_below(seed, 3) == 0 || (i == n && random_below(seed, 2) == 0)) {
			mark[count] = first + i;
			od_seq_state_mark(seq, first + i, count);
			count++;
		}
	return count;
}

/* Steps of any size, of which some rows are kept: what marks got is the state there, as far as the tokens are right. */
static void check_marks(struct fixed_state_engine *e, const float *plain, char *const *states, uint32_t most,
			uint64_t seed)
{
	const uint64_t bytes = od_state_pool_fixed_bytes(e->state);
	struct od_seq_state *seq = new_seq(e);
	struct od_row rows[MAX_ROWS];
	uint32_t checked = 0;

	while (od_seq_state_length(seq) < PROMPT) {
		const uint32_t first = od_seq_state_length(seq), left = PROMPT - first;
		const uint32_t n = 1 + (uint32_t)random_below(&seed, left < most ? left : most);
		uint32_t kept = n <= OD_KEEP_ROWS ? (uint32_t)random_below(&seed, n + 1) : n, mark[OD_MAX_MARKS], right,
			 count;

		draft(rows, seq, e->t.prompt, n, kept, &seed);
		right = right_rows(rows, e->t.prompt, n);
		count = draw_marks(seq, first, n, mark, &seed);
		begin(e, rows, n);
		run_layers(e);
		if (right > 0)
			check_logits(e, right - 1, plain, first + right - 1, "a step with marks");
		end(e, &kept);
		od_seq_state_unmark(seq);
		for (uint32_t i = 0; i < count; i++) {
			char *got;

			if (mark[i] > first + right)
				continue;
			got = copy_at(e->device, od_state_pool_snapshot(e->state, 0, i), bytes);
			assert_memory_equal(got, states[mark[i]], bytes);
			free(got);
			checked++;
		}
	}
	assert_true(checked > (most > 20 ? 0 : 10));
	od_seq_state_free(seq);
}

static void test_marks(void **state)
{
	static const uint32_t most[] = { 1, 2, DRAFT, OD_KEEP_ROWS, 40, PROMPT };

	(void)state;
	for (enum od_profile profile = OD_PROFILE_F32; profile <= OD_PROFILE_BF16; profile++) {
		struct od_err err = { 0 };
		struct fixed_state_engine e;
		char **states;
		float *plain;

		engine_open(&e, profile, OD_CPU_AUTO, 2);
		must(od_state_pool_set_snapshots(e.state, e.device, OD_MAX_MARKS, &err), &err);
		plain = decode(&e, e.t.prompt);
		states = all_states(&e);
		for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++)
			for (uint64_t seed = 1; seed <= 4; seed++)
				check_marks(&e, plain, states, most[i], seed);
		free_states(states);
		od_free(plain);
		engine_close(&e);
	}
}

/* A sequence with another one's pages begins from a snapshot, and goes on as that one would, more than once. */
static void test_begin_from_snapshot(void **state)
{
	struct od_seq_state *seq, *from;
	struct od_err err = { 0 };
	struct fixed_state_engine e;
	float *plain, *logits = new_logits();

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	must(od_state_pool_set_snapshots(e.state, e.device, 3, &err), &err);
	plain = decode(&e, e.t.prompt);
	from = new_seq(&e);
	od_seq_state_mark(from, OD_KV_PAGE, 2);
	od_seq_state_mark(from, 2 * OD_KV_PAGE, 0);
	run_text(&e, from, e.t.prompt, PROMPT, PROMPT, logits);
	for (uint32_t round = 0; round < 6; round++) {
		const uint32_t pages = 1 + round % 2, first = pages * OD_KV_PAGE;
		struct od_row rows[MAX_ROWS];

		must(od_seq_state_new(&seq, e.state, &err), &err);
		od_seq_state_share(seq, from, pages);
		assert_int_equal(od_seq_state_promise(seq, CTX), OD_OK);
		od_seq_state_load(seq, pages == 1 ? 2 : 0);
		for (uint32_t i = first; i < PROMPT; i++)
			rows[i - first] = (struct od_row){ seq, i, e.t.prompt[i] };
		if (round >= 4) { /* a step that is given up leaves the state as it was */
			begin(&e, rows, 2);
			run_layers(&e);
		}
		begin(&e, rows, PROMPT - first);
		run_layers(&e);
		for (uint32_t i = first; i < PROMPT; i++)
			check_logits(&e, i - first, plain, i, "behind a snapshot");
		end(&e, NULL);
		od_seq_state_free(seq);
	}
	od_seq_state_free(from);
	od_free(plain);
	od_free(logits);
	engine_close(&e);
}

/* A sequence that has had another text, or whose place another sequence had, begins from nothing. */
static void test_new_text(void **state)
{
	struct fixed_state_engine e;
	float *plain, *logits = new_logits();
	struct od_seq_state *seq;

	(void)state;
	engine_open(&e, OD_PROFILE_F32, OD_CPU_AUTO, 1);
	plain = decode(&e, e.t.prompt);
	seq = new_seq(&e);
	for (uint32_t round = 0; round < 4; round++) {
		int32_t other[10];

		for (uint32_t i = 0; i < 10; i++)
			other[i] = other_than(e.t.prompt[i]);
		/* odd and even numbers of steps */
		run_text(&e, seq, other, 9 + round % 2, 1 + 4 * (round / 2), logits);
		od_seq_state_set_length(seq, 0);
		run_text(&e, seq, e.t.prompt, PROMPT, round % 2 ? 9 : PROMPT, logits);
		assert_memory_equal(plain, logits, PROMPT * VOCAB * sizeof(*logits));
		od_seq_state_set_length(seq, 0);
		if (round == 1) {
			od_seq_state_free(seq);
			seq = new_seq(&e);
		}
	}
	od_seq_state_free(seq);
	od_free(plain);
	od_free(logits);
	engine_close(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_state_counts),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_drafts),
		cmocka_unit_test(test_keep_rows),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_failed_step),
		cmocka_unit_test(test_two_sequences),
		cmocka_unit_test(test_new_text),
		cmocka_unit_test(test_marks),
		cmocka_unit_test(test_begin_from_snapshot),
	};

	int failed = cmocka_run_group_tests_name("sums", tests, NULL, NULL);

	delta_rule = true;
	return failed + cmocka_run_group_tests_name("gated delta rules", tests, NULL, NULL);
}
