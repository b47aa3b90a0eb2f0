/* A part of the experts in memory: whatever of it fits, whatever reads fail for a while, and whatever other processes
 * take and give back meanwhile, every text is the one that its prompt gets with all experts in memory. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_internal.h"
#include "common/pack/write/pack_write.h"
#include "common/residency/residency.h"
#include "main-node/engine/host_rates.h"
#include "main-node/engine/tier_plan.h"
#include "tests/unit/device_util.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define N 6 /* texts */
#define MAX_PROMPT 40
#define TOKENS 24
#define VOCAB 296
#define MOST_EXPERTS 4096

struct tiered_text {
	int32_t prompt[MAX_PROMPT];
	struct odm_request req;
	struct odm_result alone, r;
	struct odm_sequence *sequence;
};

static uint64_t seed = 1;

/* ---- What goes wrong ---- */

static struct {
	/* twice in a row, of every five loads of an expert; a load is tried three times */
	_Atomic bool sometimes;
	_Atomic bool always;
	_Atomic unsigned n, n_reads, loads[MOST_EXPERTS]; /* failures; all; loads of each expert */
	/* rows of embeddings, which are read like that, too: those that failed, and all */
	unsigned n_rows, row_reads;
	bool rows_always;
} trouble;

/* Load threads may look meanwhile. */
static void end_trouble(void)
{
	trouble.sometimes = trouble.always = trouble.rows_always = false;
	trouble.n = trouble.n_reads = trouble.n_rows = trouble.row_reads = 0;
	for (size_t i = 0; i < MOST_EXPERTS; i++)
		trouble.loads[i] = 0;
}

int __real_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
			  struct od_err *err);
int __wrap_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
			  struct od_err *err);
int __wrap_od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
			  struct od_err *err)
{
	const uint32_t i = m * od_pack_config(p)->n_experts + expert;
	const int rc = __real_od_shards_read(p, m, expert, first, n, mem, staging, b, err);

	trouble.n_reads++;
	if (rc != OD_OK || first != 0)
		return rc;
	assert_true(i < MOST_EXPERTS);
	if (trouble.sometimes) {
		const unsigned turn = trouble.loads[i]++ % 5;

		trouble.n += turn == 1 || turn == 2;
		if (turn == 1) /* a bit is another one: the checksum finds it */
			*(uint8_t *)od_ref_stage(b[0].e) ^= 4;
		if (turn != 2)
			return rc;
	} else if (!trouble.always) {
		return rc;
	}
	return od_fail(err, OD_ERR_IO, "expert (%u, %u): a disk error of the test", m, expert);
}

int __real_od_dense_read(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
			 uint8_t *to, struct od_err *err);
int __wrap_od_dense_read(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
			 uint8_t *to, struct od_err *err);
int __wrap_od_dense_read(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
			 uint8_t *to, struct od_err *err)
{
	const int rc = __real_od_dense_read(p, t, row, n, to, err);
	unsigned turn = 0;

	assert_int_equal(rc, OD_OK);
	if (n > 1) /* the whole table, when it is opened */
		return OD_OK;
	trouble.row_reads++;
	if (trouble.sometimes)
		turn = trouble.row_reads % 5;
	else if (trouble.rows_always)
		turn = 2;
	trouble.n_rows += turn == 1 || turn == 2;
	if (turn == 1)
		to[row % 3] ^= 4;
	return turn == 2 ? od_fail(err, OD_ERR_IO, "a disk error of the test") : OD_OK;
}

static _Atomic uint64_t free_bytes; /* 0: as it is */

uint64_t __real_od_available_ram_bytes(void);
uint64_t __wrap_od_available_ram_bytes(void);
uint64_t __wrap_od_available_ram_bytes(void)
{
	const uint64_t bytes = free_bytes;

	return bytes > 0 ? bytes : __real_od_available_ram_bytes();
}

static _Atomic unsigned n_refused; /* commits for which the card had too little memory */

int __real_od_ref_commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err);
int __wrap_od_ref_commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err);
int __wrap_od_ref_commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err)
{
	const int rc = __real_od_ref_commit(from, n, what, err);

	n_refused += rc == OD_ERR_NOMEM;
	return rc;
}

/* ---- What the host computes ---- */

/* Most tests count loads, which depend on time when the host chooses. */
static enum { BY_TIME, NOTHING, ALL_IT_CAN, AT_RANDOM } host_computes = NOTHING;

size_t __real_odm_host_rates_choose(struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads);
size_t __wrap_odm_host_rates_choose(struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads);
size_t __wrap_odm_host_rates_choose(struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads)
{
	size_t n_host = 0;

	if (host_computes == BY_TIME)
		return __real_odm_host_rates_choose(r, c, n, n_loads);
	for (size_t i = 0; i < n; i++) {
		c[i].on_host =
			host_computes == ALL_IT_CAN || (host_computes == AT_RANDOM && random_below(&seed, 2) == 0);
		n_host += c[i].on_host;
	}
	return n_host;
}

/* ---- Engines ---- */

static void make_coded_pack(const char *family, enum od_codec codec, char pack[128])
{
	char checkpoint[128];
	struct od_err err;

	snprintf(checkpoint, sizeof(checkpoint), "tests/golden/families/%s", family);
	snprintf(pack, 128, "%s/%s", temp_dir, family);
	const struct od_pack_job job = { .checkpoint = checkpoint, .pack = pack, .codec = codec, .n_threads = 1 };

	if (access(pack, F_OK) != 0 && od_pack_write(&job, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void make_pack(const char *family, char pack[128])
{
	make_coded_pack(family, OD_CODEC_PLANES, pack);
}

static struct odm_main_opts options(const char *pack, enum odm_mode mode)
{
	struct odm_main_opts o;

	odm_main_opts_defaults(&o);
	o.mode = mode;
	o.engine.pack = pack;
	o.engine.parallel = 3;
	o.engine.threads = 2;
	o.engine.quiet = true;
	return o;
}

static struct odm_engine *open_engine(const struct odm_main_opts *o)
{
	struct odm_engine *e;
	struct od_err err;

	if (opened_engine_open(&e, o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return e;
}

static void make_texts(struct tiered_text t[N])
{
	memset(t, 0, N * sizeof(*t));
	for (size_t i = 0; i < N; i++) {
		const size_t n = 1 + random_below(&seed, MAX_PROMPT);

		for (size_t k = 0; k < n; k++)
			t[i].prompt[k] = (int32_t)(3 + random_below(&seed, VOCAB - 3));
		t[i].req = (struct odm_request){
			.prompt = t[i].prompt, .n_prompt = n, .max_tokens = TOKENS, .ignore_eos = true
		};
		od_sampler_defaults(&t[i].req.sampling);
		t[i].req.sampling.temperature = i % 2 ? 0.9 : 0;
		t[i].req.sampling.seed = i;
	}
}

static void run_alone(struct tiered_text t[N], const char *pack)
{
	const struct odm_main_opts o = options(pack, ODM_RESIDENT);
	struct odm_engine *e = open_engine(&o);
	struct od_err err;

	for (size_t i = 0; i < N; i++)
		if (odm_generate(e, &t[i].req, &t[i].alone, &err) != OD_OK)
			fail_msg("%s", err.msg);
	opened_engine_close(e);
}

/* All at once; other processes take memory and give it back between the steps. */
static void run_together(struct tiered_text t[N], struct odm_engine *e, bool pressed)
{
	struct od_err err;

	for (size_t i = 0; i < N; i++)
		assert_int_equal(odm_engine_submit(e, &t[i].req, &t[i].sequence, &err), OD_OK);
	while (odm_engine_work(e)) {
		if (!pressed)
			continue;
		free_bytes = random_below(&seed, 3) == 0 ? 1 : (1ull << 40);
		usleep(20000); /* it looks ten times a second */
	}
	for (size_t i = 0; i < N; i++) {
		if (odm_sequence_take(t[i].sequence, &t[i].r, &err) != OD_OK)
			fail_msg("text %zu: %s", i, err.msg);
		assert_int_equal(t[i].r.n_tokens, t[i].alone.n_tokens);
		assert_memory_equal(t[i].r.tokens, t[i].alone.tokens, t[i].r.n_tokens * sizeof(*t[i].r.tokens));
		odm_result_fini(&t[i].r);
	}
}

static void free_texts(struct tiered_text t[N])
{
	for (size_t i = 0; i < N; i++)
		odm_result_fini(&t[i].alone);
}

/* ---- Tests ---- */

static const char *const families[] = { "mixtral_top3", "qwen3_moe_plain", "deepseek_v2_groups", "gemma4_own_v" };
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

static void texts_are_those_of_all_experts(void **state)
{
	static struct tiered_text t[N];
	size_t n_failed = 0, n_rows = 0;

	(void)state;
	host_computes = BY_TIME;
	for (size_t i = 0; i < N_FAMILIES; i++) {
		char pack[128];

		make_pack(families[i], pack);
		make_texts(t);
		run_alone(t, pack);
		for (int how = 0; how < 6; how++) {
			struct odm_main_opts o = options(pack, ODM_TIERED);
			struct odm_engine *e;

			o.engine.expert_bytes = how % 3 == 0 ? 1 : how % 3 == 1 ? 30000 : 0;
			o.engine.prefill_rows = how < 3 ? 256 : 5;
			o.engine.form = how < 3 ? OD_FORM_AUTO : OD_FORM_PLAIN;
			o.cluster.predictor =
				how < 3 ? ODM_PREDICTOR_AUTO : ODM_PREDICT_OWN + (int)(i % OD_N_PREDICTORS);
			e = open_engine(&o);
			trouble.sometimes = how % 3 != 2;
			run_together(t, e, how % 3 == 2 || how == 4);
			n_failed += trouble.n;
			n_rows += trouble.n_rows;
			/* In memory where all experts fit. */
			assert_true((trouble.row_reads > 0) == (how % 3 != 2));
			end_trouble();
			free_bytes = 0;
			opened_engine_close(e);
		}
		free_texts(t);
	}
	host_computes = NOTHING;
	printf("# %zu loads failed, and %zu reads of an embedding\n", n_failed, n_rows);
	assert_true(n_failed > 1000 && n_rows > 1000);
}

/* ---- A card ---- */

/* The first n texts; they become short, because the emulated GPU is slow. */
static void run_on_card(struct tiered_text *t, size_t n, const char *pack, enum od_profile profile)
{
	struct odm_main_opts o = options(pack, ODM_RESIDENT);
	struct odm_engine *e;
	struct od_err err;

	o.engine.device = "cuda";
	o.engine.profile = profile;
	e = open_engine(&o);
	for (size_t i = 0; i < n; i++) {
		t[i].req.max_tokens = 6;
		t[i].req.n_prompt = 1 + t[i].req.n_prompt % 8;
		if (odm_generate(e, &t[i].req, &t[i].alone, &err) != OD_OK)
			fail_msg("%s", err.msg);
	}
	opened_engine_close(e);
}

/* The first n texts at once, as they are alone. Returns how many of their experts the host computed. */
static uint64_t run_some(struct tiered_text *t, size_t n, struct odm_engine *e)
{
	uint64_t n_host = 0;
	struct od_err err;

	for (size_t i = 0; i < n; i++)
		assert_int_equal(odm_engine_submit(e, &t[i].req, &t[i].sequence, &err), OD_OK);
	while (odm_engine_work(e))
		;
	for (size_t i = 0; i < n; i++) {
		if (odm_sequence_take(t[i].sequence, &t[i].r, &err) != OD_OK)
			fail_msg("text %zu: %s", i, err.msg);
		assert_int_equal(t[i].r.n_tokens, t[i].alone.n_tokens);
		assert_memory_equal(t[i].r.tokens, t[i].alone.tokens, t[i].r.n_tokens * sizeof(*t[i].r.tokens));
		n_host += t[i].r.figures.c[OD_C_HOST_EXPERTS];
		odm_result_fini(&t[i].r);
	}
	return n_host;
}

static uint64_t host_bytes_of(struct odm_engine *e, const struct tiered_text *t)
{
	struct odm_result r;
	struct od_err err;
	uint64_t bytes;

	if (odm_generate(e, &t->req, &r, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(r.n_tokens, t->alone.n_tokens);
	assert_memory_equal(r.tokens, t->alone.tokens, r.n_tokens * sizeof(*r.tokens));
	assert_true(r.figures.c[OD_C_LOADED_BYTES] > 0);
	bytes = r.figures.c[OD_C_HOST_BYTES];
	odm_result_fini(&r);
	return bytes;
}

/* The emulated GPU's plugin, until end_card. Returns what the environment had. */
static char *begin_card(void)
{
	const char *b = getenv("B"), *given = getenv("OD_CUDA_PLUGIN");
	char plugin[512], *before = given != NULL ? strdup(given) : NULL;

	snprintf(plugin, sizeof(plugin), "%s/lib/libod_gpu_host.so", b != NULL ? b : "build");
	setenv("OD_CUDA_PLUGIN", plugin, 1);
	return before;
}

static void end_card(char *before)
{
	unsetenv("OD_CUDA_PLUGIN");
	if (before != NULL) /* the other tests' */
		setenv("OD_CUDA_PLUGIN", before, 1);
	free(before);
}

/* Host memory beside the emulated GPU has all experts as they are stored, or a part of them, or may not be pinned: the
 * texts are the same, and with all of them nothing is read from the file twice. */
static void stored_experts_in_host_memory(void **state)
{
	enum { ALL, PART, REFUSED, N_HOWS };
	static struct tiered_text t[N];
	char pack[128], *before = begin_card();

	(void)state;
	make_pack("qwen3_moe_plain", pack);
	make_texts(t);
	run_on_card(t, 1, pack, OD_PROFILE_F32);
	for (int how = 0; how < 2 * N_HOWS; how++) {
		struct odm_main_opts o = options(pack, ODM_TIERED);
		const int memory = how / 2;
		struct odm_engine *e;

		o.engine.device = "cuda";
		o.engine.form = how % 2 ? OD_FORM_PLANES : OD_FORM_PLAIN;
		o.engine.expert_bytes = 1;
		o.cluster.predictor = ODM_PREDICT_NONE; /* loads do not depend on time */
		/* Less the reserve: a part of the experts. */
		free_bytes = memory == PART ? (280ull << 20) + 60000 : 0;
		if (memory == REFUSED)
			setenv("OD_GPU_PINNED_BYTES", "0x2000000", 1);
		e = open_engine(&o);
		unsetenv("OD_GPU_PINNED_BYTES");
		trouble.sometimes = memory == PART;
		(void)host_bytes_of(e, &t[0]);
		assert_true((trouble.n > 0) == (memory == PART));
		end_trouble();
		assert_true((host_bytes_of(e, &t[0]) > 0) == (memory != REFUSED));
		assert_true((trouble.n_reads > 0) == (memory != ALL));
		free_bytes = 0;
		opened_engine_close(e);
	}
	free_texts(t);
	end_card(before);
}

/* Experts that the card lacks are computed in host memory, with its bits: all, some, or as times decide, in every form
 * and alone or not, with the first loads failing now and then. */
static void experts_in_host_memory_are_computed_there(void **state)
{
	static const struct {
		const char *family;
		enum od_codec codec;
		enum od_form form;
		enum od_profile profile;
	} of[] = { { "qwen3_moe_plain", OD_CODEC_PLANES, OD_FORM_PLAIN, OD_PROFILE_F32 },
		   { "qwen3_moe_plain", OD_CODEC_PLANES, OD_FORM_PLANES, OD_PROFILE_BF16 },
		   { "gpt_oss_bf16", OD_CODEC_PLANES, OD_FORM_PLAIN, OD_PROFILE_F32 },
		   { "gpt_oss_mxfp4", OD_CODEC_RAW, OD_FORM_PLAIN, OD_PROFILE_BF16 } };
	static struct tiered_text t[N];
	char *before = begin_card();

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		char pack[128];

		make_coded_pack(of[i].family, of[i].codec, pack);
		make_texts(t);
		run_on_card(t, 2, pack, of[i].profile);
		for (host_computes = BY_TIME; host_computes <= AT_RANDOM; host_computes++) {
			struct odm_main_opts o = options(pack, ODM_TIERED);
			struct odm_engine *e;
			uint64_t n = 0;

			o.engine.device = "cuda";
			o.engine.form = (int)of[i].form;
			o.engine.profile = of[i].profile;
			o.engine.expert_bytes = host_computes == AT_RANDOM ? 20000 : 1; /* a few experts */
			e = open_engine(&o);
			trouble.sometimes = true;
			run_some(t, 2, e);
			end_trouble();
			n = run_some(t, 2, e);
			assert_true(host_computes == BY_TIME || (n > 0) == (host_computes != NOTHING));
			opened_engine_close(e);
		}
		free_texts(t);
	}
	host_computes = NOTHING;
	end_card(before);
}

/* ---- Memory that moves ---- */

/* All experts and n pages. */
static uint64_t bytes_of_all(const char *pack, uint64_t n_pages)
{
	struct odm_main_opts o = options(pack, ODM_TIERED);
	struct od_residency_sizes sizes;
	const struct od_config *c;
	struct odm_engine *e;
	uint64_t bytes;
	struct od_err err;

	o.engine.expert_bytes = 1;
	o.engine.form = OD_FORM_PLAIN;
	e = open_engine(&o);
	c = od_pack_config(odm_engine_pack(e));
	bytes = n_pages * od_state_page_bytes(c, OD_PROFILE_F32, odm_engine_device(e));
	assert_int_equal(od_residency_measure(&sizes, odm_engine_pack(e), odm_engine_device(e), OD_FORM_PLAIN, &err),
			 OD_OK);
	for (uint32_t m = 0; m < c->n_moe; m++)
		bytes += c->n_experts * sizes.slot_bytes[m];
	od_residency_sizes_fini(&sizes);
	opened_engine_close(e);
	return bytes;
}

/* Loads of its decode steps. */
static uint64_t loads_of(struct odm_engine *e, const struct tiered_text *t, uint64_t tokens)
{
	struct odm_request req = t->req;
	struct odm_result r;
	struct od_err err;
	uint64_t loads;

	req.max_tokens = tokens;
	if (odm_generate(e, &req, &r, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(r.n_tokens, tokens);
	assert_memory_equal(r.tokens, t->alone.tokens, TOKENS * sizeof(*r.tokens));
	loads = r.figures.c[OD_C_DECODE_LOADS];
	odm_result_fini(&r);
	return loads;
}

/* Until all experts are back. */
static void settle(struct odm_engine *e, const struct tiered_text *t)
{
	int n = 0;

	while (loads_of(e, t, TOKENS) > 0)
		assert_true(++n < 100);
}

/* Experts lend to a long text what it needs, and have it back when it has ended. */
static void memory_moves(void **state)
{
	static struct tiered_text t[N];
	char pack[128];

	(void)state;
	for (size_t i = 0; i < N_FAMILIES; i++) {
		struct odm_main_opts o;
		struct odm_engine *e;

		make_pack(families[i], pack);
		make_texts(t);
		run_alone(t, pack);
		o = options(pack, ODM_TIERED);
		o.engine.form = OD_FORM_PLAIN;
		o.engine.prefix_cache_mib = 0;
		o.engine.shared_bytes = bytes_of_all(pack, 1);
		e = open_engine(&o);
		if (!od_device_lends(odm_engine_device(e), UINT64_MAX)) {
			opened_engine_close(e);
			free_texts(t);
			continue;
		}
		assert_int_equal(loads_of(e, &t[0], TOKENS), 0);
		assert_true(loads_of(e, &t[0], 80) > 0); /* two pages */
		settle(e, &t[0]);
		/* Little memory for many: some wait for others. */
		run_together(t, e, false);
		trouble.sometimes = true;
		run_together(t, e, true);
		end_trouble();
		free_bytes = 0;
		opened_engine_close(e);
		free_texts(t);
	}
}

/* Experts give way to texts and to each other. Where no more than slots are left, a text ends with an error, and the
 * next one is as it should be. */
static void another_program_takes_the_cards_memory(void **state)
{
	static struct tiered_text t[N];
	struct odm_main_opts o;
	struct od_device *other;
	struct od_buf *taken;
	struct odm_engine *e;
	struct odm_result r;
	struct od_err err;
	uint64_t page;
	char pack[128];

	(void)state;
	if (!on_emulated())
		skip();
	setenv("OD_GPU_BYTES", "0x10000000", 1);
	make_pack("qwen3_moe_plain", pack);
	make_texts(t);
	run_alone(t, pack);
	o = options(pack, ODM_TIERED);
	o.engine.form = OD_FORM_PLAIN;
	o.engine.prefix_cache_mib = 0;
	o.engine.shared_bytes = bytes_of_all(pack, 2);
	e = open_engine(&o);
	page = od_state_page_bytes(od_pack_config(odm_engine_pack(e)), OD_PROFILE_F32, odm_engine_device(e));
	for (int i = 0; i < 3; i++) /* the device makes its tables for experts that come and go */
		run_together(t, e, false);
	settle(e, &t[0]);
	assert_int_equal(loads_of(e, &t[0], 80), 0); /* two pages */
	taken = take_all_but(page / 2, &other);
	assert_true(loads_of(e, &t[0], 80) > 0);
	/* Pages come and go, but it is known what is missing. */
	n_refused = 0;
	for (int i = 0; i < 4; i++) {
		assert_true(loads_of(e, &t[0], 80) > 0);
		run_together(t, e, false);
	}
	assert_in_range(n_refused, 0, 4);
	od_buf_free(taken);
	settle(e, &t[0]);
	opened_engine_close(e);
	od_device_free(other);

	o.engine.shared_bytes = 0;
	o.engine.expert_bytes = 1; /* none is kept */
	e = open_engine(&o);
	taken = take_all_but(page / 2, &other);
	assert_int_equal(odm_generate(e, &t[0].req, &r, &err), OD_ERR_NOMEM);
	odm_result_fini(&r);
	if (strstr(err.msg, "no memory for keys and values: ") == NULL ||
	    strstr(err.msg, "another program has taken memory") == NULL)
		fail_msg("%s", err.msg);
	od_buf_free(taken);
	od_device_free(other);
	run_together(t, e, false);
	opened_engine_close(e);
	free_texts(t);
	unsetenv("OD_GPU_BYTES");
}

/* A load thread has let all kept experts go, and has not given their memory back yet: a text gets it. */
static void memory_of_no_kept_expert_is_given_back(void **state)
{
	enum { SLOTS = 2, SPARE = 3 };
	struct od_expert_mem mem[SLOTS + SPARE] = { 0 };
	struct od_residency_sizes sizes;
	struct od_residency_opts o = {
		.form = OD_FORM_PLAIN, .sizes = &sizes, .n_slots = SLOTS, .n_readers = 1, .n_inflaters = 1
	};
	struct od_residency *r;
	struct od_err err;
	char pack[128];

	(void)state;
	make_pack("qwen3_moe_plain", pack);
	assert_int_equal(od_pack_open(&o.pack, pack, &err), OD_OK);
	assert_int_equal(od_device_open(&o.device, NULL, OD_CPU_AUTO, 1, "test", &err), OD_OK);
	assert_int_equal(od_residency_measure(&sizes, o.pack, o.device, o.form, &err), OD_OK);
	o.slots_bytes = SLOTS * sizes.most_bytes;
	o.cache_bytes = SPARE * sizes.most_bytes;
	assert_int_equal(od_residency_new(&r, &o, &err), OD_OK);
	for (size_t i = 0; i < SLOTS + SPARE; i++)
		od_expert_bufs_fill(od_residency_bufs(r), 0, &mem[i]);
	for (size_t i = 0; i < SLOTS + SPARE; i++)
		od_expert_bufs_put(od_residency_bufs(r), 0, &mem[i]);
	for (uint64_t i = SPARE; i-- > 0 && sizes.lends;) {
		assert_true(od_residency_give_way(r, 1));
		assert_int_equal(od_expert_bufs_taken(od_residency_bufs(r)), (SLOTS + i) * sizes.most_bytes);
	}
	assert_false(od_residency_give_way(r, 1));
	od_residency_free(r);
	od_residency_sizes_fini(&sizes);
	od_device_free(o.device);
	od_pack_close(o.pack);
}

/* ---- A store of experts by hand ---- */

struct hand_store {
	struct od_residency_sizes sizes;
	struct od_residency_opts o;
	struct od_residency *r;
	uint64_t load_bytes; /* taken of the device's memory by the load threads */
	uint64_t step;
	sem_t ready;
};

static void wake(void *arg)
{
	sem_post(&((struct hand_store *)arg)->ready);
}

/* So many slots, and room for all experts. */
static void open_store(struct hand_store *h, const char *pack, enum od_form form, unsigned n_slots)
{
	const struct od_residency_calls calls = { .wake = wake, .wake_arg = h };
	const struct od_share whole = { .n_workers = 1, .worker = 0, .n_groups = 1 };
	const struct od_config *c;
	struct od_err err = { 0 };

	*h = (struct hand_store){
		.o = { .form = form, .sizes = &h->sizes, .n_slots = n_slots, .n_readers = 1, .n_inflaters = 1 }
	};
	sem_init(&h->ready, 0, 0);
	must(od_pack_open(&h->o.pack, pack, &err), &err);
	must(od_device_open(&h->o.device, NULL, OD_CPU_AUTO, 1, "test", &err), &err);
	must(od_residency_measure(&h->sizes, h->o.pack, h->o.device, h->o.form, &err), &err);
	c = od_pack_config(h->o.pack);
	h->o.slots_bytes = n_slots * h->sizes.most_bytes;
	h->o.cache_bytes = (uint64_t)c->n_moe * c->n_experts * h->sizes.most_bytes;
	must(od_residency_new(&h->r, &h->o, &err), &err);
	od_schedule_begin(od_residency_schedule(h->r), 1);
	od_schedule_place(od_residency_schedule(h->r), &whole);
	h->load_bytes = atomic_load(&h->o.device->buffer_bytes);
	must(od_residency_start(h->r, &calls, &err), &err);
	h->load_bytes = atomic_load(&h->o.device->buffer_bytes) - h->load_bytes;
}

static void close_store(struct hand_store *h)
{
	od_residency_free(h->r);
	od_residency_sizes_fini(&h->sizes);
	od_device_free(h->o.device);
	od_pack_close(h->o.pack);
	sem_destroy(&h->ready);
}

static void use_expert(struct hand_store *h, uint32_t m, uint32_t expert)
{
	struct od_schedule_item item = { .expert = expert, .n_rows = 1, .last = true }, *found;
	struct od_schedule *s = od_residency_schedule(h->r);

	assert_int_equal(od_schedule_run(s, 1, h->step, m, true, &item, 1), OD_OK);
	while ((found = od_schedule_take(s)) == NULL)
		sem_wait(&h->ready);
	assert_ptr_equal(found, &item);
	if (item.code != OD_OK)
		fail_msg("%s", item.reason);
	od_schedule_done(s, &item);
}

/* n experts of each layer; returns how many are kept then. */
static uint64_t use_experts(struct hand_store *h, uint32_t n)
{
	const struct od_config *c = od_pack_config(h->o.pack);
	uint64_t n_kept = 0;

	h->step++;
	for (uint32_t m = 0; m < c->n_moe; m++)
		for (uint32_t i = 0; i < n; i++)
			use_expert(h, m, i);
	for (uint32_t m = 0; m < c->n_moe; m++) {
		for (uint16_t i = 0; i < c->n_experts; i++) {
			bool keeps;

			od_schedule_keeps(od_residency_schedule(h->r), m, &i, 1, &keeps);
			n_kept += keeps;
		}
	}
	return n_kept;
}

/* Without pages, whose changes would divide memory anew. */
static void experts_get_memory_back_when_a_program_ends(void **state)
{
	const struct od_config *c;
	struct od_device *other;
	struct hand_store h;
	struct od_buf *taken;
	uint64_t n_all, n_some;
	char pack[128];
	int rounds = 0;

	(void)state;
	if (!on_emulated())
		skip();
	setenv("OD_GPU_BYTES", "0x10000000", 1);
	make_pack("qwen3_moe_plain", pack);
	open_store(&h, pack, OD_FORM_PLAIN, 2);
	c = od_pack_config(h.o.pack);
	n_all = (uint64_t)c->n_moe * c->n_experts;
	n_some = use_experts(&h, 2);
	assert_int_equal(n_some, 2 * c->n_moe);
	taken = take_all_but(3 * h.sizes.most_bytes, &other);
	n_refused = 0;
	for (int i = 0; i < 30; i++)
		assert_in_range(use_experts(&h, c->n_experts), n_some + 1, n_some + 3);
	assert_true(od_residency_lack_bytes(h.r) > 0);
	assert_in_range(n_refused, 1, 4);
	od_buf_free(taken);
	while (use_experts(&h, c->n_experts) < n_all)
		assert_true(++rounds < 100);
	assert_int_equal(od_residency_lack_bytes(h.r), 0);
	assert_int_equal(use_experts(&h, c->n_experts), n_all);
	close_store(&h);
	od_device_free(other);
	unsetenv("OD_GPU_BYTES");
}

/* A card's budget has only those buffers of the load threads that lie there. */
static void load_threads_take_the_memory_that_was_planned(void **state)
{
	char pack[128];

	(void)state;
	make_pack("qwen3_moe_plain", pack);
	for (enum od_form form = OD_FORM_PLAIN; form <= OD_FORM_PLANES; form++) {
		struct odm_tier_plan p = { .n_readers = 0 };
		struct od_loader_memory m;
		struct hand_store h;
		struct od_err err = { 0 };
		bool card;

		open_store(&h, pack, form, 2);
		card = !od_device_shares(h.o.device);
		must(od_loader_bytes(&m, h.o.pack, h.o.device, form, 1, 1, &err), &err);
		if (card)
			assert_in_range(m.card_bytes, h.load_bytes, h.load_bytes + 2 * OD_PAGE_BYTES);
		assert_int_equal(m.card_bytes > 0, card && form == OD_FORM_PLAIN);
		assert_true(card ? m.bytes > 2 * h.load_bytes : m.bytes >= h.load_bytes);
		must(odm_tier_plan_open(&p, h.o.pack, h.o.device, form, 0, &err), &err);
		must(od_loader_bytes(&m, h.o.pack, h.o.device, form, p.n_readers, p.n_inflaters, &err), &err);
		assert_int_equal(p.load_bytes, od_device_has_memory(h.o.device) ? m.card_bytes : m.bytes);
		odm_tier_plan_close(&p);
		close_store(&h);
	}
}

/* A row of the embedding that cannot be read ends its text, and no other. */
static void a_row_that_cannot_be_read_is_named(void **state)
{
	static struct tiered_text t[N];
	struct odm_main_opts o;
	struct odm_engine *e;
	struct od_err err;
	char pack[128], row[64];

	(void)state;
	make_pack("mixtral_top3", pack);
	make_texts(t);
	run_alone(t, pack);
	o = options(pack, ODM_TIERED);
	o.engine.expert_bytes = 1;
	e = open_engine(&o);
	snprintf(row, sizeof(row), "tensor embed, row %d: ", t[0].prompt[0]);
	for (int round = 0; round < 3; round++) {
		end_trouble();
		trouble.rows_always = true;
		assert_int_equal(odm_generate(e, &t[0].req, &t[0].r, &err), OD_ERR_IO);
		odm_result_fini(&t[0].r);
		assert_non_null(strstr(err.msg, row));
		assert_non_null(strstr(err.msg, "a disk error of the test (tried 3 times)"));
		assert_int_equal(trouble.row_reads, 3);
		end_trouble();
		run_together(t, e, false);
		end_trouble();
	}
	opened_engine_close(e);
	free_texts(t);
}

/* A text that needs the expert ends with an error that names it; others are not concerned, nor is the next one. */
static void an_expert_that_cannot_be_read_is_named(void **state)
{
	static struct tiered_text t[N];
	struct odm_main_opts o;
	struct odm_engine *e;
	struct od_err err;
	char pack[128];

	(void)state;
	make_pack("mixtral_top3", pack);
	make_texts(t);
	run_alone(t, pack);
	o = options(pack, ODM_TIERED);
	o.engine.expert_bytes = 1;
	e = open_engine(&o);
	for (int round = 0; round < 3; round++) {
		end_trouble();
		trouble.always = true;
		assert_int_equal(odm_generate(e, &t[0].req, &t[0].r, &err), OD_ERR_IO);
		odm_result_fini(&t[0].r);
		assert_non_null(strstr(err.msg, "a disk error of the test (tried 3 times)"));
		assert_non_null(strstr(err.msg, "of MoE layer 0: "));
		end_trouble();
		run_together(t, e, false);
	}
	opened_engine_close(e);
	free_texts(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stored_experts_in_host_memory),
		cmocka_unit_test(experts_in_host_memory_are_computed_there),
		cmocka_unit_test(texts_are_those_of_all_experts),
		cmocka_unit_test(memory_moves),
		cmocka_unit_test(another_program_takes_the_cards_memory),
		cmocka_unit_test(memory_of_no_kept_expert_is_given_back),
		cmocka_unit_test(load_threads_take_the_memory_that_was_planned),
		cmocka_unit_test(experts_get_memory_back_when_a_program_ends),
		cmocka_unit_test(an_expert_that_cannot_be_read_is_named),
		cmocka_unit_test(a_row_that_cannot_be_read_is_named),
	};

	if (on_emulated()) /* it takes long */
		cmocka_set_test_filter("*memory*");
	return cmocka_run_group_tests_name("tiered", tests, temp_dir_make, temp_dir_remove);
}
