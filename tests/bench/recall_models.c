#include "tests/bench/recall_models.h"

#include "common/base/args.h"
#include "common/base/mem.h"

#include <stdlib.h>

/* The true model and one of each kind that a configuration asks for. */
struct copy {
	struct od_shadow_choice choice;
	struct od_shadow_store *store;
};

struct recall_models {
	struct copy copy[RECALL_CONFIGS_MAX + 1]; /* the first is the true model */
	size_t n;
};

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	const struct copy *c = arg;
	char name[OD_SHADOW_CHOICE_CHARS], a[32], b[32];

	fprintf(stderr, "\rloading the %s model: %s of %s\033[K%s", od_shadow_choice_text(&c->choice, name),
		od_format_bytes(done, a, sizeof(a)), od_format_bytes(all, b, sizeof(b)), done == all ? "\r\033[K" : "");
}

static bool same(const struct od_shadow_choice *a, const struct od_shadow_choice *b)
{
	return a->experts == b->experts && a->dense == b->dense && a->act == b->act;
}

/* NULL: not planned yet. */
static const struct copy *find(const struct recall_models *m, const struct od_shadow_choice *choice)
{
	for (size_t i = 0; i < m->n; i++) {
		if (same(&m->copy[i].choice, choice))
			return &m->copy[i];
	}
	return NULL;
}

/* What is to be loaded, and that it fits. */
static int plan(struct recall_models *m, const struct od_pack *p, const struct recall_configs *configs,
		uint64_t extra_bytes, struct od_err *err)
{
	uint64_t sum = extra_bytes, bytes, have = od_available_ram_bytes();
	char a[32], b[32];

	m->copy[m->n++].choice = (struct od_shadow_choice){ OD_PRECISION_BF16, OD_PRECISION_BF16, OD_ACT_F32 };
	for (size_t i = 0; i < configs->n; i++) {
		const struct recall_config *c = &configs->config[i];

		if (c->predictor == NULL && find(m, &c->choice) == NULL)
			m->copy[m->n++].choice = c->choice;
	}
	for (size_t i = 0; i < m->n; i++) {
		int rc = od_shadow_need_bytes(p, &m->copy[i].choice, &bytes, err);

		if (rc != OD_OK)
			return rc;
		if (!od_add(sum, bytes, &sum))
			sum = UINT64_MAX;
	}
	if (have == 0 || sum <= have)
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM, "%zu models and what is kept of the prompts need %s, %s are available: try fewer "
		       "precisions at a time, or fewer --threads", m->n, od_format_bytes(sum, a, sizeof(a)),
		       od_format_bytes(have, b, sizeof(b)));
}

int recall_models_open(struct recall_models **out, const struct od_pack *p, const struct recall_configs *configs,
		       unsigned n_threads, uint64_t extra_bytes, bool progress, struct od_err *err)
{
	struct recall_models *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "models");
	rc = plan(m, p, configs, extra_bytes, err);
	for (size_t i = 0; rc == OD_OK && i < m->n; i++)
		rc = od_shadow_load(&m->copy[i].store, p, &m->copy[i].choice, n_threads,
				    progress ? show_progress : NULL, &m->copy[i], err);
	if (rc == OD_OK)
		*out = m;
	else
		recall_models_close(m);
	return rc;
}

void recall_models_close(struct recall_models *m)
{
	for (size_t i = 0; m != NULL && i < m->n; i++)
		od_shadow_free(m->copy[i].store);
	free(m);
}

static const struct od_shadow_store *store_of(const struct recall_models *m, const struct recall_config *c)
{
	return (c != NULL ? find(m, &c->choice) : &m->copy[0])->store;
}

const struct od_dense *recall_models_dense(const struct recall_models *m, const struct recall_config *c)
{
	return od_shadow_dense(store_of(m, c));
}

const struct od_expert *recall_models_experts(const struct recall_models *m, const struct recall_config *c)
{
	return od_shadow_experts(store_of(m, c));
}
