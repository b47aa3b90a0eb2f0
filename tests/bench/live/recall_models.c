#include "tests/bench/live/recall_models.h"

#include "common/base/args.h"
#include "common/base/mem.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"

#include <stdlib.h>

/* The true model, which is the first, and one of each kind that a configuration asks for. */
struct recall_models {
	struct od_device *device;
	struct od_shadow_choice choice[RECALL_CONFIGS_MAX + 1];
	struct od_shadow_store *store[RECALL_CONFIGS_MAX + 1];
	size_t n;
};

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	char name[OD_SHADOW_CHOICE_CHARS], a[32], b[32];

	fprintf(stderr, "\rloading the %s model: %s of %s\033[K%s", od_shadow_choice_text(arg, name),
		od_format_bytes(done, a, sizeof(a)), od_format_bytes(all, b, sizeof(b)), done == all ? "\r\033[K" : "");
}

static bool same(const struct od_shadow_choice *a, const struct od_shadow_choice *b)
{
	return a->experts == b->experts && a->dense == b->dense && a->act == b->act;
}

/* m->n: not planned yet. */
static size_t find(const struct recall_models *m, const struct od_shadow_choice *choice)
{
	size_t i = 0;

	while (i < m->n && !same(&m->choice[i], choice))
		i++;
	return i;
}

static void plan(struct recall_models *m, const struct recall_configs *configs)
{
	m->choice[m->n++] = (struct od_shadow_choice){ .experts = OD_PRECISION_BF16, .dense = OD_PRECISION_BF16 };
	for (size_t i = 0; i < configs->n; i++) {
		const struct recall_config *c = &configs->config[i];

		if (c->predictor == NULL && find(m, &c->choice) == m->n)
			m->choice[m->n++] = c->choice;
	}
}

int recall_models_fit(const struct od_pack *p, const struct od_shadow_choice *wanted, size_t n, uint64_t extra_bytes,
		      const char *advice, struct od_err *err)
{
	uint64_t sum = extra_bytes, bytes, have = od_available_ram_bytes();
	char need_text[32], have_text[32];

	for (size_t i = 0; i < n; i++) {
		int rc = od_shadow_need_bytes(p, &wanted[i], &bytes, err);

		if (rc != OD_OK)
			return rc;
		if (!od_add(sum, bytes, &sum))
			sum = UINT64_MAX;
	}
	if (have == 0 || sum <= have)
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM, "%zu models%s need %s, %s are available: %s", n,
		       extra_bytes > 0 ? " and what is kept of the prompts" : "",
		       od_format_bytes(sum, need_text, sizeof(need_text)),
		       od_format_bytes(have, have_text, sizeof(have_text)), advice);
}

int recall_models_open(struct recall_models **out, const struct od_pack *p, const struct recall_configs *configs,
		       const char *device, unsigned n_threads, uint64_t extra_bytes, bool progress, struct od_err *err)
{
	struct recall_models *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "models");
	plan(m, configs);
	rc = recall_models_fit(p, m->choice, m->n, extra_bytes, "try fewer precisions at a time, or fewer --threads",
			       err);
	if (rc == OD_OK)
		rc = od_device_open(&m->device, device, OD_CPU_AUTO, 1, "od-recall", err);
	if (rc == OD_OK && od_device_cards(m->device) > 1)
		rc = od_fail(err, OD_ERR_ARG, "--device: without a cluster it is one card, found %s",
			     od_device_name(m->device));
	for (size_t i = 0; rc == OD_OK && i < m->n; i++)
		rc = od_shadow_load(&m->store[i], p, m->device, &m->choice[i], n_threads,
				    progress ? show_progress : NULL, &m->choice[i], err);
	if (rc == OD_OK)
		*out = m;
	else
		recall_models_close(m);
	return rc;
}

void recall_models_close(struct recall_models *m)
{
	if (m == NULL)
		return;
	for (size_t i = 0; i < m->n; i++)
		od_shadow_free(m->store[i]);
	od_device_free(m->device);
	free(m);
}

static const struct od_shadow_store *store_of(const struct recall_models *m, const struct recall_config *c)
{
	return m->store[c != NULL ? find(m, &c->choice) : 0];
}

const struct od_dense *recall_models_dense(const struct recall_models *m, const struct recall_config *c)
{
	return od_shadow_dense(store_of(m, c));
}

const struct od_expert *recall_models_experts(const struct recall_models *m, const struct recall_config *c)
{
	return od_shadow_experts(store_of(m, c));
}
