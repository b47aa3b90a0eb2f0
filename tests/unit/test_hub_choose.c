/* Listings of a hub, which are hostile, and the choice from them. Names are as repositories of GGUF files have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/hub/hub_choose.h"

#define GIT "\"oid\":\"0123456789abcdef0123456789abcdef01234567\""
#define SHA "\"oid\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\""

/* ---- listings ---- */

static int add(struct odp_listing *l, const char *json, struct od_err *err)
{
	return odp_listing_add(l, json, strlen(json), "hf://a/b", err);
}

static void test_a_listing(void **state)
{
	struct odp_listing l = { 0 };
	struct od_err err = { 0 };
	const struct odp_hub_file *f;

	(void)state;
	assert_int_equal(add(&l,
			     "[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"b.json\"},"
			     "{\"type\":\"directory\"," GIT ",\"size\":0,\"path\":\"d\"}]",
			     &err),
			 OD_OK);
	assert_int_equal(add(&l,
			     "[{\"type\":\"file\"," GIT ",\"size\":70,\"path\":\"d/a.gguf\",\"xetHash\":\"x\","
			     "\"lfs\":{" SHA ",\"size\":70,\"pointerSize\":134}}]",
			     &err),
			 OD_OK);
	assert_int_equal(odp_listing_finish(&l, "hf://a/b", &err), OD_OK);
	assert_int_equal(l.n, 2);
	f = odp_listing_find(&l, "b.json");
	assert_true(f != NULL && f->bytes == 5 && f->sum.kind == ODP_SUM_GIT && f->sum.bytes[19] == 0x67);
	f = odp_listing_find(&l, "d/a.gguf");
	assert_true(f != NULL && f->bytes == 70 && f->sum.kind == ODP_SUM_SHA256 && f->sum.bytes[31] == 0xef);
	assert_null(odp_listing_find(&l, "d"));
	assert_int_equal(add(&l, "[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"b.json\"}]", &err), OD_OK);
	assert_int_equal(odp_listing_finish(&l, "hf://a/b", &err), OD_ERR_FORMAT);
	assert_non_null(strstr(err.msg, "b.json is listed twice"));
	odp_listing_fini(&l);
}

static void test_listings_that_are_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"{}",
		"[",
		"[1]",
		"[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"../b\"}]",
		"[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"a\\u0000b\"}]",
		"[{\"type\":\"file\"," GIT ",\"size\":-1,\"path\":\"b\"}]",
		"[{\"type\":\"file\"," GIT ",\"size\":1e99,\"path\":\"b\"}]",
		"[{\"type\":\"file\"," GIT ",\"size\":9223372036854775808,\"path\":\"b\"}]",
		"[{\"type\":\"file\",\"oid\":\"0123\",\"size\":5,\"path\":\"b\"}]",
		"[{\"type\":\"file\"," GIT ",\"size\":5}]",
		"[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"b\",\"lfs\":{" GIT ",\"size\":5}}]",
		"[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"b\",\"lfs\":{" SHA ",\"size\":6}}]",
		"[{\"type\":\"file\"," GIT ",\"size\":5,\"path\":\"b\",\"path\":\"c\"}]",
	};
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct odp_listing l = { 0 };

		if (add(&l, bad[i], &err) == OD_OK)
			fail_msg("%s is taken", bad[i]);
		assert_int_equal(l.n, 0);
		odp_listing_fini(&l);
	}
}

/* ---- choices ---- */

struct listed_file {
	const char *path;
	uint64_t bytes;
};

static void list(struct odp_listing *l, const struct listed_file *f, size_t n)
{
	struct od_err err = { 0 };
	char json[1024];

	*l = (struct odp_listing){ 0 };
	for (size_t i = 0; i < n; i++) {
		snprintf(json, sizeof(json), "[{\"type\":\"file\"," GIT ",\"size\":%llu,\"path\":\"%s\"}]",
			 (unsigned long long)f[i].bytes, f[i].path);
		assert_int_equal(add(l, json, &err), OD_OK);
	}
	assert_int_equal(odp_listing_finish(l, "hf://a/b", &err), OD_OK);
}

#define LIST(l, files) list(l, files, sizeof(files) / sizeof((files)[0]))

static void test_labels(void **state)
{
	static const struct {
		const char *path, *label;
	} cases[] = {
		{ "Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M" },
		{ "Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL" },
		{ "mixtral-8x7b-instruct-v0.1.Q5_0.gguf", "Q5_0" },
		{ "ggml-model-q4_k_m.gguf", "q4_k_m" },
		{ "gpt-oss-20b-mxfp4.gguf", "mxfp4" },
		{ "gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE" },
		{ "Qwen3-30B-A3B-UD-IQ2_XXS.gguf", "UD-IQ2_XXS" },
		{ "Qwen3-30B-A3B-BF16-00001-of-00001.gguf", "BF16" },
		{ "Q3_K_S/model-00001-of-00001.gguf", "Q3_K_S" },
		{ "x/TQ1_0/DeepSeek-R1-00001-of-00001.gguf", "TQ1_0" },
		{ "Qwen3-30B-A3B.gguf", "" },
		{ "Q4things.gguf", "" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct listed_file f = { cases[i].path, 10 };
		struct odp_listing l;
		struct odp_variants v;
		struct od_err err = { 0 };

		list(&l, &f, 1);
		assert_int_equal(odp_variants_find(&v, &l, &err), OD_OK);
		assert_int_equal(v.n, 1);
		assert_string_equal(v.v[0].label, cases[i].label);
		odp_variants_fini(&v);
		odp_listing_fini(&l);
	}
}

static const struct listed_file repo[] = {
	{ "README.md", 1 },
	{ "M-Q2_K.gguf", 200 },
	{ "M-Q4_K_M.gguf", 400 },
	{ "M-UD-Q4_K_M.gguf", 410 },
	{ "M-Q4_0_4_4.gguf", 420 },
	{ "Q8_0/M-Q8_0-00001-of-00002.gguf", 500 },
	{ "Q8_0/M-Q8_0-00002-of-00002.gguf", 300 },
	{ "BF16/M-BF16-00001-of-00003.gguf", 900 },
	{ "BF16/M-BF16-00003-of-00003.gguf", 700 },
	{ "F16/M-F16-00002-of-00002.gguf", 700 },
	{ "mmproj-F16.gguf", 5 },
	{ "M.imatrix.gguf", 5 },
};

static void expect_choice(const char *quant, uint64_t memory, int rc, const char *says)
{
	const struct odp_variant *chosen;
	struct odp_listing l;
	struct odp_variants v;
	struct od_err err = { 0 };

	LIST(&l, repo);
	assert_int_equal(odp_variants_find(&v, &l, &err), OD_OK);
	assert_int_equal(v.n, 6); /* F16 has no first file */
	if (odp_variants_choose(&v, quant, memory, "hf://a/b", &chosen, &err) != rc)
		fail_msg("%s: %s", quant, err.msg);
	if (rc == OD_OK && strcmp(chosen->stem, says) != 0)
		fail_msg("%s, %llu: %s is chosen instead of %s", quant, (unsigned long long)memory, chosen->stem, says);
	if (rc != OD_OK && strstr(err.msg, says) == NULL)
		fail_msg("%s: \"%s\" is not in \"%s\"", quant, says, err.msg);
	odp_variants_fini(&v);
	odp_listing_fini(&l);
}

static void test_choices(void **state)
{
	(void)state;
	expect_choice("q4_k_m", 0, OD_OK, "M-Q4_K_M");
	expect_choice("UD-Q4_K_M", 0, OD_OK, "M-UD-Q4_K_M");
	expect_choice("m-q4_k_m.gguf", 0, OD_OK, "M-Q4_K_M");
	expect_choice("Q8_0", 0, OD_OK, "Q8_0/M-Q8_0");
	expect_choice("BF16", 0, OD_ERR_MISSING, "files of M-BF16 are missing");
	expect_choice("Q5_K_M", 0, OD_ERR_MISSING, "there are: Q8_0, Q4_0_4_4, UD-Q4_K_M, Q4_K_M, Q2_K");
	/* Nine tenths of the memory; BF16 is not whole, Q4_0_4_4 is not read. */
	expect_choice("", 10000, OD_OK, "Q8_0/M-Q8_0");
	expect_choice("", 890, OD_OK, "Q8_0/M-Q8_0");
	expect_choice("", 880, OD_OK, "M-UD-Q4_K_M");
	expect_choice("", 450, OD_OK, "M-Q4_K_M");
	expect_choice("", 300, OD_OK, "M-Q2_K");
	expect_choice("", 10, OD_OK, "M-Q2_K");
}

static void test_two_files_of_one_quantisation(void **state)
{
	static const struct listed_file two[] = { { "A-Q8_0.gguf", 1 }, { "B-Q8_0.gguf", 2 } };
	const struct odp_variant *chosen;
	struct odp_listing l;
	struct odp_variants v;
	struct od_err err = { 0 };

	(void)state;
	LIST(&l, two);
	assert_int_equal(odp_variants_find(&v, &l, &err), OD_OK);
	assert_int_equal(odp_variants_choose(&v, "Q8_0", 0, "hf://a/b", &chosen, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "B-Q8_0, A-Q8_0"));
	assert_int_equal(odp_variants_choose(&v, "A-Q8_0", 0, "hf://a/b", &chosen, &err), OD_OK);
	assert_string_equal(chosen->stem, "A-Q8_0");
	odp_variants_fini(&v);
	odp_listing_fini(&l);
}

static void test_explained_with_sizes(void **state)
{
	const struct odp_variant *chosen;
	struct odp_listing l;
	struct odp_variants v;
	struct od_strbuf b = { 0 };
	struct od_err err = { 0 };

	(void)state;
	LIST(&l, repo);
	assert_int_equal(odp_variants_find(&v, &l, &err), OD_OK);
	assert_int_equal(odp_variants_choose(&v, "", 10, "hf://a/b", &chosen, &err), OD_OK);
	odp_variants_explain(&v, chosen, 10, &b);
	assert_non_null(strstr(b.text, "Q2_K"));
	assert_non_null(strstr(b.text, "<- chosen"));
	assert_non_null(strstr(b.text, "files are missing"));
	assert_non_null(strstr(b.text, "not read by od-moe"));
	assert_non_null(strstr(b.text, "None fits the 10 B of memory"));
	od_strbuf_fini(&b);
	odp_variants_fini(&v);
	odp_listing_fini(&l);
}

static void test_checkpoints(void **state)
{
	static const struct listed_file good[] = { { "config.json", 1 }, { "model-00001-of-00002.safetensors", 1 } };
	static const struct listed_file bare[] = { { "model.safetensors", 1 } };
	static const struct listed_file mistral[] = { { "config.json", 1 }, { "consolidated.safetensors", 1 } };
	static const struct listed_file below[] = { { "config.json", 1 }, { "original/model.safetensors", 1 } };
	static const char *const wanted[] = {
		"config.json",	  "model.safetensors",	 "model.safetensors.index.json",
		"tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
	};
	static const char *const others[] = {
		"README.md",	 "pytorch_model.bin",	 "original/a.safetensors", "consolidated.safetensors",
		"x/config.json", "model.safetensors.bak"
	};
	struct odp_listing l;
	struct od_err err;

	(void)state;
	LIST(&l, good);
	assert_true(odp_is_checkpoint(&l));
	odp_listing_fini(&l);
	LIST(&l, bare);
	assert_false(odp_is_checkpoint(&l));
	assert_int_equal(odp_refuse_listing(&l, "hf://a/b", &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "there is no config.json"));
	odp_listing_fini(&l);
	LIST(&l, mistral);
	assert_false(odp_is_checkpoint(&l));
	odp_listing_fini(&l);
	LIST(&l, below);
	assert_false(odp_is_checkpoint(&l));
	odp_listing_fini(&l);
	LIST(&l, good);
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		assert_true(odp_checkpoint_wants(&l, wanted[i]));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_false(odp_checkpoint_wants(&l, others[i]));
	odp_listing_fini(&l);
}

/* ---- repositories as they are published ---- */

/* Sizes in MB. */
#define SPLIT_2(stem, size) \
	{ stem "-00001-of-00002.gguf", size }, \
	{ \
		stem "-00002-of-00002.gguf", 10 \
	}

static const struct listed_file unsloth_qwen3[] = {
	{ ".gitattributes", 1 },
	{ "README.md", 1 },
	{ "config.json", 1 },
	{ "imatrix_unsloth.dat", 60 },
	{ "imatrix_unsloth.gguf_file", 60 },
	SPLIT_2("BF16/Qwen3-30B-A3B-BF16", 61000),
	{ "Qwen3-30B-A3B-IQ4_NL.gguf", 17310 },
	{ "Qwen3-30B-A3B-IQ4_XS.gguf", 16380 },
	{ "Qwen3-30B-A3B-Q2_K.gguf", 11260 },
	{ "Qwen3-30B-A3B-Q2_K_L.gguf", 11330 },
	{ "Qwen3-30B-A3B-Q4_K_M.gguf", 18560 },
	{ "Qwen3-30B-A3B-Q8_0.gguf", 32480 },
	{ "Qwen3-30B-A3B-UD-IQ1_S.gguf", 9050 },
	{ "Qwen3-30B-A3B-UD-Q4_K_XL.gguf", 17720 },
	{ "Qwen3-30B-A3B-UD-Q8_K_XL.gguf", 35990 },
	{ "Qwen3-30B-A3B-UD-TQ1_0.gguf", 8000 },
};

static const struct listed_file unsloth_large[] = {
	SPLIT_2("BF16/Model-BF16", 800000),
	SPLIT_2("MXFP4_MOE/Model-MXFP4_MOE", 220000),
	SPLIT_2("UD-Q4_K_M/Model-UD-Q4_K_M", 240000),
	SPLIT_2("UD-Q4_K_XL/Model-UD-Q4_K_XL", 250000),
	{ "mmproj-BF16.gguf", 900 },
	{ "mmproj-F32.gguf", 1800 },
	{ "Model-UD-Q2_K_XL.gguf", 40000 },
};

static const struct listed_file bartowski[] = {
	{ "Qwen_Qwen3-30B-A3B-IQ4_XS.gguf", 16500 },
	{ "Qwen_Qwen3-30B-A3B-Q4_0.gguf", 17700 },
	{ "Qwen_Qwen3-30B-A3B-Q4_K_L.gguf", 18800 },
	{ "Qwen_Qwen3-30B-A3B-Q4_K_M.gguf", 18600 },
	{ "Qwen_Qwen3-30B-A3B-Q3_K_XL.gguf", 14900 },
	{ "Qwen_Qwen3-30B-A3B-imatrix.gguf", 120 },
	SPLIT_2("Qwen_Qwen3-30B-A3B-bf16/Qwen_Qwen3-30B-A3B-bf16", 61000),
	{ "mmproj-Qwen_Qwen3-30B-A3B-f16.gguf", 900 },
};

static const struct listed_file mradermacher[] = {
	{ "Phi-3.5-MoE-instruct.i1-Q4_K_M.gguf", 25000 },     { "Phi-3.5-MoE-instruct.i1-IQ2_M.gguf", 13000 },
	{ "Phi-3.5-MoE-instruct.imatrix.gguf", 90 },	      { "Phi-3.5-MoE-instruct.mmproj-Q8_0.gguf", 90 },
	{ "Phi-3.5-MoE-instruct.Q8_0.gguf.part1of2", 20000 },
};

static const struct listed_file ggml_org[] = { { "gpt-oss-20b-mxfp4.gguf", 12110 }, { "README.md", 1 } };

static const struct listed_file forked[] = {
	SPLIT_2("IQ4_KSS/Model-IQ4_KSS", 110000), SPLIT_2("Model-smol-IQ2_KS", 60000), { "Model-IQ5_K_R4.gguf", 50000 },
	{ "Model-Q4_K_R4.gguf", 49000 },	  { "Model-Q8_KV.gguf", 48000 },       { "Model-Q4_0.gguf", 45000 },
	{ "Model-IQ4_NL.gguf", 44000 },
};

static const struct listed_file with_imatrix[] = { { "Model-imatrix-Q4_K_M.gguf", 18000 },
						   { "Model-Q4_K_S.gguf", 17000 } };

static const struct listed_file two_folders[] = { { "chat/model-Q4_K_M.gguf", 18000 },
						  { "code/model-Q4_K_M.gguf", 18000 } };

static const struct listed_file unlabelled[] = {
	{ "Step-APEX-Balanced.gguf", 30000 },
	{ "Step-APEX-I-Compact.gguf", 20000 },
	{ "Step-APEX-Compact.gguf", 19000 },
};

static const struct {
	const struct listed_file *file;
	size_t n;
	const char *quant;
	uint64_t memory;
	const char *stem; /* the choice, or part of the refusal */
	int rc;
} published[] = {
#define OF(files) files, sizeof(files) / sizeof((files)[0])
	{ OF(unsloth_qwen3), "", 1000000, "BF16/Qwen3-30B-A3B-BF16", OD_OK },
	{ OF(unsloth_qwen3), "", 64000, "Qwen3-30B-A3B-UD-Q8_K_XL", OD_OK },
	{ OF(unsloth_qwen3), "", 20000, "Qwen3-30B-A3B-UD-Q4_K_XL", OD_OK },
	{ OF(unsloth_qwen3), "", 4000, "Qwen3-30B-A3B-UD-TQ1_0", OD_OK },
	{ OF(unsloth_qwen3), "Q4_K_M", 0, "Qwen3-30B-A3B-Q4_K_M", OD_OK },
	{ OF(unsloth_qwen3), "ud-q4_k_xl", 0, "Qwen3-30B-A3B-UD-Q4_K_XL", OD_OK },
	{ OF(unsloth_qwen3), "Q4_K_XL", 0, "Qwen3-30B-A3B-UD-Q4_K_XL", OD_OK },
	{ OF(unsloth_qwen3), "Q2_K", 0, "Qwen3-30B-A3B-Q2_K", OD_OK },
	{ OF(unsloth_qwen3), "Q4_K", 0, "no GGUF file of the quantisation Q4_K; there are: BF16, UD-Q8_K_XL",
	  OD_ERR_MISSING },
	{ OF(unsloth_large), "Q4_K_M", 0, "UD-Q4_K_M/Model-UD-Q4_K_M", OD_OK },
	{ OF(unsloth_large), "MXFP4_MOE", 0, "MXFP4_MOE/Model-MXFP4_MOE", OD_OK },
	{ OF(unsloth_large), "", 256000, "MXFP4_MOE/Model-MXFP4_MOE", OD_OK },
	{ OF(unsloth_large), "", 1000, "Model-UD-Q2_K_XL", OD_OK },
	{ OF(unsloth_large), "F32", 0, "there are: BF16, UD-Q4_K_XL, UD-Q4_K_M, MXFP4_MOE, UD-Q2_K_XL",
	  OD_ERR_MISSING },
	{ OF(bartowski), "Q4_K_L", 0, "Qwen_Qwen3-30B-A3B-Q4_K_L", OD_OK },
	{ OF(bartowski), "BF16", 0, "Qwen_Qwen3-30B-A3B-bf16/Qwen_Qwen3-30B-A3B-bf16", OD_OK },
	{ OF(bartowski), "", 100, "Qwen_Qwen3-30B-A3B-Q3_K_XL", OD_OK },
	{ OF(mradermacher), "q4_k_m", 0, "Phi-3.5-MoE-instruct.i1-Q4_K_M", OD_OK },
	{ OF(mradermacher), "", 100, "Phi-3.5-MoE-instruct.i1-IQ2_M", OD_OK },
	{ OF(mradermacher), "Q8_0", 0, "there are: Q4_K_M, IQ2_M", OD_ERR_MISSING },
	{ OF(ggml_org), "", 100, "gpt-oss-20b-mxfp4", OD_OK },
	{ OF(ggml_org), "MXFP4", 0, "gpt-oss-20b-mxfp4", OD_OK },
	{ OF(forked), "", 1000000, "Model-Q4_0", OD_OK },
	{ OF(forked), "IQ4_KSS", 0, "IQ4_KSS is not read by od-moe", OD_ERR_UNSUPPORTED },
	{ OF(forked), "IQ4_NL", 0, "Model-IQ4_NL", OD_OK },
	{ OF(with_imatrix), "Q4_K_M", 0, "Model-imatrix-Q4_K_M", OD_OK },
	{ OF(two_folders), "Q4_K_M", 0, "chat/model-Q4_K_M, code/model-Q4_K_M", OD_ERR_ARG },
	{ OF(two_folders), "code", 0, "code/model-Q4_K_M", OD_OK },
	{ OF(unlabelled), "Step-APEX-Compact", 0, "Step-APEX-Compact", OD_OK },
	{ OF(unlabelled), "Compact", 0, "there are: Step-APEX-Balanced, Step-APEX-I-Compact, Step-APEX-Compact",
	  OD_ERR_MISSING },
#undef OF
};

static void test_published_gguf_files(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
		const struct odp_variant *chosen;
		struct odp_listing l;
		struct odp_variants v;
		struct od_err err = { 0 };
		int rc;

		list(&l, published[i].file, published[i].n);
		assert_int_equal(odp_variants_find(&v, &l, &err), OD_OK);
		rc = odp_variants_choose(&v, published[i].quant, published[i].memory, "hf://a/b", &chosen, &err);
		if (rc != published[i].rc)
			fail_msg("case %zu, %s: %d, %s", i, published[i].quant, rc,
				 rc == OD_OK ? chosen->stem : err.msg);
		if (rc == OD_OK)
			assert_string_equal(chosen->stem, published[i].stem);
		else if (strstr(err.msg, published[i].stem) == NULL)
			fail_msg("case %zu: \"%s\" is not in \"%s\"", i, published[i].stem, err.msg);
		odp_variants_fini(&v);
		odp_listing_fini(&l);
	}
}

/* Compares what is fetched of a checkpoint: names with spaces between. */
static void expect_wanted(const struct listed_file *file, size_t n, const char *expected)
{
	struct odp_listing l;
	char text[1024] = "";

	list(&l, file, n);
	assert_true(odp_is_checkpoint(&l));
	for (size_t i = 0; i < l.n; i++)
		if (odp_checkpoint_wants(&l, l.file[i].path))
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", text[0] != '\0' ? " " : "",
				 l.file[i].path);
	assert_string_equal(text, expected);
	odp_listing_fini(&l);
}

#define EXPECT_WANTED(files, expected) expect_wanted(files, sizeof(files) / sizeof((files)[0]), expected)

static void test_published_checkpoints(void **state)
{
	static const struct listed_file gpt_oss[] = {
		{ "USAGE_POLICY", 1 },
		{ "chat_template.jinja", 1 },
		{ "config.json", 1 },
		{ "metal/model.bin", 1 },
		{ "model-00000-of-00002.safetensors", 1 },
		{ "model-00001-of-00002.safetensors", 1 },
		{ "model.safetensors.index.json", 1 },
		{ "original/config.json", 1 },
		{ "original/model.safetensors", 1 },
		{ "special_tokens_map.json", 1 },
		{ "tokenizer.json", 1 },
	};
	static const struct listed_file mixtral[] = {
		{ "config.json", 1 },
		{ "consolidated.00.pt", 1 },
		{ "consolidated.safetensors.index.json", 1 },
		{ "consolidated-00001-of-00002.safetensors", 1 },
		{ "generation_config.json", 1 },
		{ "model-00001-of-00001.safetensors", 1 },
		{ "model.safetensors.index.json", 1 },
		{ "params.json", 1 },
		{ "tokenizer.model", 1 },
		{ "tokenizer.model.v3", 1 },
	};
	static const struct listed_file kimi[] = {
		{ "config.json", 1 },
		{ "configuration_deepseek.py", 1 },
		{ "model-1-of-1.safetensors", 1 },
		{ "modeling_deepseek.py", 1 },
		{ "tiktoken.model", 1 },
		{ "tokenization_kimi.py", 1 },
	};
	static const struct listed_file both[] = {
		{ "config.json", 1 },		{ "Model-Q4_K_M.gguf", 1 }, { "model.safetensors", 1 },
		{ "model-fp8.safetensors", 1 }, { "onnx/model.onnx", 1 },   { "pytorch_model.bin", 1 },
		{ "tokenizer.json", 1 },
	};

	(void)state;
	EXPECT_WANTED(
		gpt_oss,
		"chat_template.jinja config.json model-00000-of-00002.safetensors model-00001-of-00002.safetensors "
		"model.safetensors.index.json special_tokens_map.json tokenizer.json");
	EXPECT_WANTED(
		mixtral,
		"config.json generation_config.json model-00001-of-00001.safetensors model.safetensors.index.json "
		"tokenizer.model");
	EXPECT_WANTED(kimi, "config.json model-1-of-1.safetensors tiktoken.model");
	EXPECT_WANTED(both, "config.json model.safetensors tokenizer.json");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_listing),
		cmocka_unit_test(test_listings_that_are_refused),
		cmocka_unit_test(test_labels),
		cmocka_unit_test(test_choices),
		cmocka_unit_test(test_two_files_of_one_quantisation),
		cmocka_unit_test(test_explained_with_sizes),
		cmocka_unit_test(test_checkpoints),
		cmocka_unit_test(test_published_gguf_files),
		cmocka_unit_test(test_published_checkpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
