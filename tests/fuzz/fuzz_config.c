/* Any config.json, changed from the published ones of every family: it is refused with a reason, or all numbers that
 * are computed from it hold together.
 * Input: json_mix.h's; or '{' and the rest of a config.json. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "tests/fuzz/json_mix.h"
#include "tests/fuzz/fuzz.h"

/* Read where run.sh stands. */
#define CONFIGS "tests/golden/configs/configs.json"

static struct json_mix *mix;

static void start(void)
{
	json_t *all, *docs, *entry;
	size_t i;

	if (mix != NULL)
		return;
	docs = json_array();
	all = json_load_file(CONFIGS, 0, NULL);
	check(all != NULL && docs != NULL);
	json_array_foreach(all, i, entry) check(json_array_append(docs, json_object_get(entry, "config")) == 0);
	json_decref(all);
	mix = json_mix_new(docs, NULL);
}

static void check_shapes(const struct od_config *c)
{
	uint64_t all = 0, n_out, n_in, n;
	char name[OD_NAME_BYTES];

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		check(c->kind_of[layer] < c->n_kinds);
		for (int r = 0; r < OD_N_ROLES; r++) {
			od_role_shape(c, (enum od_role)r, od_role_per_layer((enum od_role)r) ? layer : 0, &n_out,
				      &n_in);
			if (n_out == 0)
				continue;
			check(od_mul(n_out, n_in == 0 ? 1 : n_in, &n) && od_add(all, n, &all));
			od_dense_source_name(c, (enum od_role)r, layer, name);
			check(name[0] != '\0' && strlen(name) < OD_NAME_BYTES);
		}
	}
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		od_expert_mat_shape(c, (enum od_expert_mat)mat, &n_out, &n_in);
		check(n_out > 0 && n_in > 0 && od_mul(n_out, n_in, &n) && od_mul(n, c->n_experts, &n) &&
		      od_mul(n, c->n_moe, &n));
	}
	for (uint32_t m = 0; m < c->n_moe; m++)
		check(c->layer_of[m] < c->n_layers && c->m_of[c->layer_of[m]] == m);
}

static void check_config(const struct od_config *c)
{
	struct od_strbuf line = { 0 };
	struct od_err err = { 0 };
	int rc = od_config_canonical(c, &line, &err);

	check(rc == OD_OK || err.msg[0] != '\0');
	od_strbuf_fini(&line);
	check(c->family != NULL && c->n_layers > 0 && c->n_layers <= OD_MAX_LAYERS && c->n_moe <= c->n_layers);
	check(c->hidden > 0 && c->vocab > 0 && c->n_kinds > 0 && c->n_kinds <= OD_MAX_LAYER_KINDS &&
	      c->n_ropes <= OD_MAX_ROPES);
	check(c->n_moe == 0 || (c->top_k > 0 && c->top_k <= OD_MAX_TOP_K && c->top_k <= c->n_experts));
	check(c->bos >= -1 && c->bos < (int32_t)c->vocab && c->n_eos <= OD_MAX_EOS);
	for (uint32_t i = 0; i < c->n_eos; i++)
		check(c->eos[i] >= 0 && c->eos[i] < (int32_t)c->vocab);
	check_shapes(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct od_config c;
	struct od_err err = { 0 };
	json_t *root = NULL;

	start();
	if (size > 0 && data[0] == '{') {
		if (od_json_parse((const char *)data, size, "fuzz", &root, &err) != OD_OK)
			return 0;
	} else {
		root = json_mix_make(mix, &data, &size);
	}
	if (od_config_parse(&c, root, "fuzz", &err) != OD_OK)
		check(err.msg[0] != '\0');
	else
		check_config(&c);
	json_decref(root);
	return 0;
}
