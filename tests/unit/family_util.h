/* family_util.h - for the tests of families: the published config.json texts, and what a family makes of one. */
#ifndef OD_TESTS_FAMILY_UTIL_H
#define OD_TESTS_FAMILY_UTIL_H

#include "tests/unit/config_util.h"

/* As published, less what only training reads. */
extern const char mixtral_8x7b[], qwen3_30b_a3b[], qwen15_moe_a27b[], olmoe_1b_7b[], deepseek_v2[], deepseek_v2_lite[],
	deepseek_v3[], kimi_k2[], glm45[], glm45_air[], minimax_m2[], qwen3_next_80b[], qwen35_35b[], gpt_oss_20b[],
	gemma4_26b_a4b[];

struct family_text {
	const char *config;
	const char *numbers[12]; /* fields that it must have: whole numbers, at least 1 */
	const char *reads[8]; /* settings that most families refuse and this one has */
	bool no_norm_topk; /* does not read norm_topk_prob */
	const char *top_k; /* the family's name of num_experts_per_tok; NULL: that */
};

/* All of the above, each family once or more. */
extern const struct family_text family_published[];
extern const size_t n_family_published;

/* The published text with the fields of an object in place of its own; a null stays as one. */
void take(struct od_config *cfg, const char *text, const char *changes);
/* Refused with that code, and the reason names the file and holds both texts. */
void refuse(const char *text, const char *changes, int code, const char *text1, const char *text2);
void near(double found, double expected);

/* Gemma 4's two rotations: types with what follows them. */
#define GEMMA_ROPE(full, sliding) \
	"{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,\"rope_type\":" full "}," \
	"\"sliding_attention\":{\"rope_theta\":1e4,\"rope_type\":" sliding "}}}"

struct tensor {
	enum od_role role;
	uint32_t layer;
	const char *name;
	uint64_t n_out, n_in; /* n_in 0: a vector */
};

/* The tensors of one layer, or those that are not of a layer: these, and no others. */
void check_tensors(const struct od_config *c, const struct tensor *list, size_t n);
#define CHECK_TENSORS(c, list) check_tensors(c, list, sizeof(list) / sizeof((list)[0]))
void check_expert(const struct od_config *c, uint32_t m, uint32_t expert, const char *gate, const char *up,
		  const char *down);
/* Common to all: which layers have experts, from the first that does. */
void check_counts(const struct od_config *c, const char *family, uint32_t n_layers, uint32_t dense, uint32_t n_kinds);
void check_experts(const struct od_config *c, uint32_t n_experts, uint32_t top_k, uint32_t intermediate);
void check_plain_rope(const struct od_config *c, uint32_t dims, double theta);
void check_heads(const struct od_mixer *m, uint32_t n_heads, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim);

/* Changes that ask for YaRN. */
#define YARN(more) \
	"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768" more "}}"
/* m(s) = 0.1 s ln 8 + 1. */
#define DEEP(more) \
	"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":4096" more "}}"

#endif
