/* recall_config.h - the configurations that od-bench recall compares, made from the lists on its command line.
 *
 * Thread: plain data. */
#ifndef OD_BENCH_RECALL_CONFIG_H
#define OD_BENCH_RECALL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/pack/shadow/shadow_load.h"
#include "tests/bench/bench_list.h"

#define RECALL_CONFIGS_MAX 256
#define RECALL_PERIOD_MAX 1000000

/* Alignment periods in steps (OD-MoE section 3.2); 0: never. */
struct recall_align {
	uint32_t token, kv;
};

struct recall_config {
	char name[64]; /* "nf4+bf16 T1_KV4", "next-gate" */
	char group[32]; /* "nf4+bf16"; "rivals" */
	const char *predictor; /* one of rival_kinds; NULL: the shadow, with the fields below */
	struct od_shadow_choice choice;
	struct recall_align align;
};

struct recall_configs {
	struct recall_config config[RECALL_CONFIGS_MAX];
	size_t n;
};

/* "T1_KV1,T1_KV4,T0_KV0" */
OD_MUST_CHECK int recall_parse_align(const char *option, const char *text, struct recall_align out[OD_LIST_MAX],
				     size_t *n, struct od_err *err);

/* Appends a configuration unless the list has it already. */
OD_MUST_CHECK int recall_add_shadow(struct recall_configs *c, const struct od_shadow_choice *choice,
				    struct recall_align align, struct od_err *err);
OD_MUST_CHECK int recall_add_predictor(struct recall_configs *c, const char *kind, struct od_err *err);
/* Index of the configuration, or -1. */
int recall_find(const struct recall_configs *c, const char *name);
/* recall_find for a shadow with this group's name. */
int recall_find_shadow(const struct recall_configs *c, const char *group, struct recall_align align);

#endif
