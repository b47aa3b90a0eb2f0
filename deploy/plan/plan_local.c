#include "deploy/plan/plan_local.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/compute/ops.h"
#include "common/pack/load/expert_load.h"

#include <stdlib.h>
#include <string.h>

#define N_IN 2048u
#define N_OUT 16384u /* 64 MiB of BF16: more than caches hold */
#define MANY_ROWS 64u
#define TRIALS 5
#define READ_NS 500000000ull /* loads are measured for so long */
#define READ_TRIALS 64

struct timed_product {
	struct od_device *device;
	struct od_buf *weights, *x, *y;
	enum od_profile profile;
};

static int product_open(struct timed_product *p, struct od_device *d, enum od_profile profile, struct od_err *err)
{
	int rc;

	*p = (struct timed_product){ .device = d, .profile = profile };
	rc = od_buf_new(&p->weights, d, (uint64_t)N_OUT * N_IN * sizeof(uint16_t), "weights to measure", err);
	if (rc == OD_OK)
		rc = od_buf_new(&p->x, d, MANY_ROWS * N_IN * sizeof(float), "rows to measure", err);
	if (rc == OD_OK)
		rc = od_buf_new(&p->y, d, (uint64_t)MANY_ROWS * N_OUT * sizeof(float), "rows to measure", err);
	if (rc == OD_OK && od_ref_map(od_buf_ref(p->weights, 0)) != NULL) /* pages of their own, not the zero page */
		memset(od_ref_map(od_buf_ref(p->weights, 0)), 0x3c, (size_t)N_OUT * N_IN * sizeof(uint16_t));
	return rc;
}

static void product_close(struct timed_product *p)
{
	od_buf_free(p->weights);
	od_buf_free(p->x);
	od_buf_free(p->y);
}

/* The shortest of some trials. */
static int time_product(const struct timed_product *p, uint32_t rows, double *ns, struct od_err *err)
{
	const struct od_weight w = {
		.dtype = OD_BF16, .n_out = N_OUT, .n_in = N_IN, .data = od_buf_ref(p->weights, 0)
	};
	const struct od_op op = { .kind = OD_OP_LINEAR,
				  .profile = p->profile,
				  .n_rows = rows,
				  .linear = { .w = { &w }, .x = od_buf_ref(p->x, 0), .y = { od_buf_ref(p->y, 0) } } };
	int rc = OD_OK;

	*ns = 0;
	for (int i = 0; rc == OD_OK && i < TRIALS; i++) {
		const uint64_t begin = od_now_ns();
		double took;

		od_device_run(p->device, OD_QUEUE_COMPUTE, &op);
		rc = od_device_wait(p->device, OD_QUEUE_COMPUTE, od_device_ticket(p->device, OD_QUEUE_COMPUTE), err);
		took = (double)(od_now_ns() - begin);
		*ns = *ns > 0 && *ns < took ? *ns : took;
	}
	return rc;
}

static int measure_products(struct odp_machine *out, struct od_device *d, enum od_profile profile, struct od_err *err)
{
	const double weights = (double)N_OUT * N_IN;
	struct timed_product p;
	double one, many;
	int rc = product_open(&p, d, profile, err);

	if (rc == OD_OK)
		rc = time_product(&p, 1, &one, err);
	if (rc == OD_OK)
		rc = time_product(&p, MANY_ROWS, &many, err);
	if (rc == OD_OK) {
		out->speed = weights / one * 1e9;
		out->many = weights * MANY_ROWS / many * 1e9;
	}
	product_close(&p);
	return rc;
}

/* ---- loads ---- */

/* Any order that repeats late. */
static void expert_at(const struct odp_model *m, unsigned i, uint32_t *layer, uint32_t *expert)
{
	*layer = (i * 7u) % m->config->n_moe;
	*expert = (i * 13u + i / m->config->n_moe) % m->config->n_experts;
}

static int load_some(double *rate, const struct odp_model *m, struct od_inflater *inf, const struct od_expert_mem *mem,
		     struct od_err *err)
{
	const uint64_t begin = od_now_ns();
	struct od_load_stats stats = { 0 };
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < READ_TRIALS && od_now_ns() - begin < READ_NS; i++) {
		uint32_t layer, expert;

		expert_at(m, i, &layer, &expert);
		for (uint32_t s = 0; rc == OD_OK && s < od_pack_expert(m->pack, layer, expert)->n_shards; s++)
			rc = od_inflater_load(inf, layer, expert, s, mem, &stats, err);
	}
	if (rc == OD_OK)
		*rate = (double)stats.read_bytes / (double)(od_now_ns() - begin) * 1e9;
	return rc;
}

static int measure_loads(struct odp_machine *out, const struct odp_model *m, struct od_device *d, struct od_err *err)
{
	struct od_inflater *inf = NULL;
	struct od_buf *slot = NULL;
	struct od_expert_mem mem;
	enum od_form form;
	int rc = od_pack_choose_form(m->pack, d, OD_FORM_AUTO, &form, err);

	if (rc == OD_OK)
		rc = od_inflater_new(&inf, m->pack, d, form, err);
	if (rc == OD_OK)
		rc = od_buf_new_shared(&slot, d, od_pack_slot_bytes(m->pack, form) + OD_PAD_BYTES, "an expert", err);
	if (rc == OD_OK) {
		(void)od_pack_read_direct(m->pack, true);
		mem = od_pack_slot_mem(m->pack, form, od_buf_ref(slot, 0));
		rc = load_some(&out->read_rate, m, inf, &mem, err);
	}
	od_buf_free(slot);
	od_inflater_free(inf);
	return rc;
}

int odp_measure_here(struct odp_machine *out, const struct odp_model *m, struct od_device *d, struct od_err *err)
{
	int rc;

	*out = (struct odp_machine){ .name = "this machine", .memory_bytes = (double)od_device_free_bytes(d) };
	rc = measure_products(out, d, m->profile, err);
	return rc == OD_OK && m->source == OD_SHAPE_PACK ? measure_loads(out, m, d, err) : rc;
}
