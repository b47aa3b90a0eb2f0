/* Drafts: whatever a drafter says, right, wrong or now right and now wrong, the tokens are those of plain decoding,
 * with every way of sampling and with stop strings; resident and on three workers. For Mixtral, for DeepSeek-V2, whose
 * state is a latent, and for layers whose state is fixed and must be replayed (sum_pack.h).
 *
 * Three workers and a shadow are the real daemons, which the Makefile puts beside this program. */
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
#include "common/pack/shadow/shadow_load.h"
#include "main-node/engine/engine_internal.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/random.h"
#include "tests/unit/sum_pack.h"
#include "tests/unit/temp_dir.h"

#define PROMPT 9
#define TOKENS 48

/* ---- Drafters ---- */

enum draft_way { PLAIN, RIGHT, WRONG, MIXED };

struct drafter {
	enum draft_way way;
	uint64_t seed;
	size_t at_most; /* tokens of a draft; 0: any number */
	const int32_t *tokens; /* result of plain decoding, */
	size_t n_tokens; /* and the end of them */
	unsigned drafts, rows;
};

static size_t draft(void *arg, const int32_t *text, size_t n, int32_t *out, size_t max)
{
	struct drafter *d = arg;
	const size_t done = n - PROMPT; /* tokens that are there */
	size_t want = d->at_most > 0 ? d->at_most : random_below(&d->seed, ODM_MAX_DRAFT + 1);

	(void)text;
	want = want < max ? want : max;
	for (size_t i = 0; i < want; i++) {
		const int32_t right = done + i < d->n_tokens ? d->tokens[done + i] : 1;
		const bool wrong = d->way == WRONG || (d->way == MIXED && random_below(&d->seed, 100) < 30);

		out[i] = wrong ? (right + 1 + (int32_t)random_below(&d->seed, 50)) % 200 : right;
	}
	d->drafts++;
	d->rows += (unsigned)want;
	return want;
}

/* ---- Generating ---- */

struct draft_setting {
	double temperature, repetition_penalty;
	const char *stop;
	uint64_t max_tokens; /* 0: TOKENS */
	bool eos; /* the end-of-text token ends it */
	uint64_t seed;
	bool rare; /* DRY, XTC, typical, dynamic temperature */
};

static void generate(struct odm_engine *e, const struct draft_setting *s, struct drafter *d, struct odm_result *r)
{
	static const int32_t prompt[PROMPT] = { 1, 5, 9, 2, 70, 33, 4, 4, 18 };
	struct odm_request req = { .prompt = prompt,
				   .n_prompt = PROMPT,
				   .max_tokens = TOKENS,
				   .ignore_eos = true,
				   .stop = s->stop != NULL ? &s->stop : NULL,
				   .n_stop = s->stop != NULL };
	struct od_err err;

	if (s->max_tokens > 0)
		req.max_tokens = s->max_tokens;
	req.ignore_eos = !s->eos;
	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = s->temperature;
	req.sampling.repetition_penalty = s->repetition_penalty;
	req.sampling.seed = s->seed;
	if (s->rare) {
		req.sampling.dry.multiplier = 1;
		req.sampling.dry.allowed_length = 1;
		req.sampling.xtc_probability = 0.5;
		req.sampling.xtc_threshold = 0.01;
		req.sampling.typical_p = 0.95;
		req.sampling.dynatemp_range = 0.4;
	}
	if (d != NULL)
		req.drafter = (struct odm_drafter){ .draft = draft, .arg = d };
	if (odm_generate(e, &req, r, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void assert_same(const struct odm_result *a, const struct odm_result *b, enum draft_way way, size_t at_most)
{
	if (a->n_tokens != b->n_tokens || memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) != 0 ||
	    a->finish != b->finish || a->text_len != b->text_len || memcmp(a->text, b->text, a->text_len) != 0)
		fail_msg("drafts of way %d, at most %zu: %zu tokens, %s, \"%s\"; plain %zu, %s, \"%s\"", way, at_most,
			 b->n_tokens, odm_finish_name(b->finish), b->text, a->n_tokens, odm_finish_name(a->finish),
			 a->text);
}

/* Every drafter gives what plain decoding gives; one that is right saves steps. */
static void try_setting(struct odm_engine *e, const struct draft_setting *s, struct odm_result *plain)
{
	generate(e, s, NULL, plain);
	for (enum draft_way way = RIGHT; way <= MIXED; way++) {
		for (size_t at_most = 0; at_most <= ODM_MAX_DRAFT; at_most += way == MIXED ? 1 : 7) {
			struct drafter d = { .way = way,
					     .seed = 3 + at_most,
					     .at_most = at_most,
					     .tokens = plain->tokens,
					     .n_tokens = plain->n_tokens };
			const uint64_t steps = e->last_step;
			struct odm_result r;

			generate(e, s, &d, &r);
			assert_same(plain, &r, way, at_most);
			assert_true(d.drafts > 0 && d.rows > 0);
			/* 17 tokens a step; 2: the prompt's, and what is only numbered */
			if (way == RIGHT && at_most == ODM_MAX_DRAFT)
				assert_true(e->last_step - steps <=
					    2 + (r.n_tokens + ODM_MAX_DRAFT) / (ODM_MAX_DRAFT + 1));
			odm_result_fini(&r);
		}
	}
}

static struct odm_engine *open_engine(const char *pack, enum od_profile profile, bool cluster, const char *predictor)
{
	struct odm_main_opts o;
	struct odm_engine *e;
	struct od_err err;

	odm_main_opts_defaults(&o);
	o.engine.pack = pack;
	o.mode = cluster ? ODM_LOCAL : ODM_RESIDENT;
	o.local.workers = 3;
	o.engine.profile = profile;
	o.engine.threads = 1;
	o.engine.draft = ODM_DRAFT_LOOKUP;
	o.engine.quiet = true;
	for (int i = 0; odm_predictor_names[i] != NULL; i++)
		if (strcmp(odm_predictor_names[i], predictor) == 0)
			o.cluster.predictor = i;
	if (opened_engine_open(&e, &o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return e;
}

static bool is_plain(char c)
{
	return c > ' ' && c < 127;
}

static void try_engine(struct odm_engine *e)
{
	struct draft_setting s[] = { { 0, 1, NULL, 0, false, 0, false },
				     { 1.2, 1.3, NULL, 0, false, 11, false },
				     { 1.2, 1, NULL, 0, false, 12, true },
				     { 1.2, 1, NULL, 0, false, 11, false } };
	char stop[4] = "";
	struct odm_result r;

	for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++) {
		try_setting(e, &s[i], &r);
		assert_int_equal(r.n_tokens, TOKENS);
		for (size_t at = r.text_len / 3; at + 1 < r.text_len; at++) /* in the middle of the last one's text */
			if (stop[0] == '\0' && is_plain(r.text[at]) && is_plain(r.text[at + 1]))
				memcpy(stop, r.text + at, 2);
		if (i + 1 < sizeof(s) / sizeof(s[0]))
			stop[0] = '\0';
		odm_result_fini(&r);
	}
	assert_true(stop[0] != '\0');
	s[3].stop = stop;
	try_setting(e, &s[3], &r);
	assert_int_equal(r.finish, ODM_FINISH_STOP);
	odm_result_fini(&r);
}

/* ---- The models ---- */

static void make_pack(const char *family, char pack[128])
{
	char checkpoint[128];
	struct od_err err;

	snprintf(checkpoint, sizeof(checkpoint), "tests/golden/families/%s", family);
	snprintf(pack, 128, "%s/%s", temp_dir, family);
	const struct od_pack_job job = { .checkpoint = checkpoint,
					 .pack = pack,
					 .codec = OD_CODEC_PLANES,
					 .n_threads = 1,
					 .shadows = OD_SHADOW_BIT(OD_PRECISION_INT8) };

	if (access(pack, F_OK) != 0 && od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void try_model(const char *family, bool sum)
{
	char pack[128];

	make_pack(family, pack);
	for (int cluster = 0; cluster < 2; cluster++) {
		for (enum od_profile profile = OD_PROFILE_F32; profile <= OD_PROFILE_BF16; profile++) {
			struct odm_engine *e;

			if (cluster && profile != OD_PROFILE_F32)
				continue;
			sum_pack_on = sum;
			e = open_engine(pack, profile, cluster, sum ? "none" : "shadow");
			assert_int_equal(od_state_pool_fixed_bytes(e->model->state) > 0, sum);
			try_engine(e);
			assert_int_equal(opened_engine_close(e), OD_OK);
			sum_pack_on = false;
		}
	}
}

static void mixtral(void **state)
{
	(void)state;
	try_model("mixtral_top3", false);
}

static void latent_attention(void **state)
{
	(void)state;
	try_model("deepseek_v2_lite", false);
}

static void fixed_state(void **state)
{
	(void)state;
	try_model("mixtral_top3", true);
}

/* ---- Ends in the middle of a draft ---- */

/* With a draft of full length that is right, and with one of 16 tokens of which some are wrong. Returns how many tokens
 * plain decoding gives. */
static size_t try_end(struct odm_engine *e, const struct draft_setting *s, const struct odm_result *all,
		      enum odm_finish finish)
{
	struct odm_result plain, r;
	size_t n;

	generate(e, s, NULL, &plain);
	assert_int_equal(plain.finish, finish);
	for (enum draft_way way = RIGHT; way <= MIXED; way++) {
		struct drafter d = { .way = way,
				     .seed = 7,
				     .at_most = ODM_MAX_DRAFT,
				     .tokens = all->tokens,
				     .n_tokens = all->n_tokens };

		generate(e, s, &d, &r);
		assert_same(&plain, &r, way, ODM_MAX_DRAFT);
		odm_result_fini(&r);
	}
	n = plain.n_tokens;
	odm_result_fini(&plain);
	return n;
}

static bool is_new(const struct odm_result *r, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (r->tokens[i] == r->tokens[at])
			return false;
	return true;
}

static bool all_seen(const bool seen[ODM_MAX_DRAFT + 3])
{
	size_t n = 2;

	while (n < ODM_MAX_DRAFT + 3 && seen[n])
		n++;
	return n == ODM_MAX_DRAFT + 3;
}

static void assert_all_seen(const bool seen[ODM_MAX_DRAFT + 3], const char *what)
{
	for (size_t n = 2; n < ODM_MAX_DRAFT + 3; n++) /* the first step gives tokens 2 to ODM_MAX_DRAFT + 2 */
		if (!seen[n])
			fail_msg("no text of %zu tokens ended by %s", n, what);
}

static void ends(void **state)
{
	bool by_limit[ODM_MAX_DRAFT + 3] = { false }, by_eos[ODM_MAX_DRAFT + 3] = { false },
				      by_stop[ODM_MAX_DRAFT + 3] = { false };
	struct odm_engine *e;
	struct od_config *config;
	char pack[128];

	(void)state;
	make_pack("mixtral_top3", pack);
	e = open_engine(pack, OD_PROFILE_F32, false, "shadow");
	config = (struct od_config *)e->model->config;
	for (uint64_t text = 0; text < 50 && !(all_seen(by_stop) && all_seen(by_eos)); text++) {
		const struct draft_setting free = { 1.3, 1.1, NULL, 0, false, text, false };
		struct odm_result all;

		generate(e, &free, NULL, &all);
		for (size_t n = 2; n < ODM_MAX_DRAFT + 3; n++) {
			struct draft_setting s = free;

			s.max_tokens = n;
			by_limit[try_end(e, &s, &all, ODM_FINISH_LENGTH)] = true;
			if (by_eos[n] || !is_new(&all, n - 1))
				continue;
			s = free;
			s.eos = true;
			config->eos[0] = all.tokens[n - 1];
			config->n_eos = 1;
			by_eos[try_end(e, &s, &all, ODM_FINISH_EOS)] = true;
		}
		for (size_t at = 0; at + 2 < all.text_len; at++) {
			char stop[3] = { all.text[at], all.text[at + 1], '\0' };
			struct draft_setting s = free;
			size_t n;

			if (!is_plain(stop[0]) || !is_plain(stop[1]))
				continue;
			s.stop = stop;
			n = try_end(e, &s, &all, ODM_FINISH_STOP);
			if (n >= ODM_MAX_DRAFT + 3)
				break;
			by_stop[n] = true;
		}
		odm_result_fini(&all);
	}
	assert_all_seen(by_limit, "the limit");
	assert_all_seen(by_eos, "the end-of-text token");
	assert_all_seen(by_stop, "a stop string");
	assert_int_equal(opened_engine_close(e), OD_OK);
}

/* ---- What the service is told ---- */

static void watch_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	(void)part;
	if (step->phase == ODM_DECODE)
		*(struct odm_outlook *)arg = step->outlook;
}

static void each_step_has_an_outlook(void **state)
{
	static const int32_t prompt[PROMPT] = { 1, 5, 9, 2, 70, 33, 4, 4, 18 };
	struct odm_outlook seen = { 0 };
	struct odm_engine *e;
	struct odm_result r;
	char pack[128];
	struct odm_request req = { .prompt = prompt,
				   .n_prompt = PROMPT,
				   .max_tokens = 2,
				   .ignore_eos = true,
				   .observer = { .arg = &seen, .step = watch_step } };
	struct od_err err;

	(void)state;
	make_pack("mixtral_top3", pack);
	e = open_engine(pack, OD_PROFILE_F32, false, "none");
	od_sampler_defaults(&req.sampling);
	e->batch.policy.right[0] = -0.75;
	e->batch.policy.right[1] = 0.25;
	assert_int_equal(odm_generate(e, &req, &r, &err), OD_OK);
	assert_true(seen.right[0] == -0.75 && seen.right[1] == 0.25 && seen.least > 0);
	odm_result_fini(&r);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_step_has_an_outlook), cmocka_unit_test(ends),	   cmocka_unit_test(mixtral),
		cmocka_unit_test(latent_attention),	    cmocka_unit_test(fixed_state),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
