#include "common/model/resident.h"

#include "common/base/mem.h"
#include "common/compute/cards.h"
#include "common/compute/scratch.h"

#include <stdlib.h>

struct resident {
	struct od_expert_runner runner; /* first: od_expert_runner * is this struct's address */
	struct od_forward_opts o;
	const struct od_expert *experts; /* [n_moe][n_experts] */
	struct od_buf *scratch[OD_MAX_CARDS];
};

/* Scratch of the card that has the rows. */
static struct od_buf *scratch_beside(const struct resident *r, struct od_ref x)
{
	unsigned i = 0;

	while (od_buf_device(r->scratch[i]) != od_buf_device(x.buf))
		i++;
	return r->scratch[i];
}

void od_resident_run(const struct od_forward_opts *o, const struct od_moe_call *call, const struct od_expert *expert,
		     struct od_ref choice, struct od_ref scratch)
{
	const struct od_config *c = o->config;
	const struct od_op op = { .kind = OD_OP_EXPERTS,
				  .profile = o->profile,
				  .n_rows = (uint32_t)call->n_rows,
				  .experts = { .expert = expert,
					       .x = call->x_at,
					       .choice = choice,
					       .y = call->y_at,
					       .scratch = scratch,
					       .n_experts = c->n_experts,
					       .top_k = c->top_k,
					       .hidden = c->hidden,
					       .act = c->act } };

	od_device_run(o->device, OD_QUEUE_COMPUTE, &op);
}

static int submit(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct resident *r = (struct resident *)runner;
	const struct od_config *c = r->o.config;

	if (call->n_rows > r->o.max_rows || call->m >= c->n_moe)
		return od_fail(err, OD_ERR_RANGE, "layer %u, %zu rows: expected below %u and at most %zu", call->m,
			       call->n_rows, c->n_moe, r->o.max_rows);
	od_resident_run(&r->o, call, r->experts + (size_t)call->m * c->n_experts, call->expert_at,
			od_buf_ref(scratch_beside(r, call->x_at), 0));
	return OD_OK;
}

static uint64_t scratch_bytes(const struct od_forward_opts *o)
{
	const struct od_config *c = o->config;

	return od_experts_scratch_bytes(c->hidden, c->intermediate, c->n_experts, c->top_k, o->max_rows);
}

uint64_t od_resident_bytes(const struct od_forward_opts *opts)
{
	return sizeof(struct resident) + scratch_bytes(opts);
}

int od_resident_new(struct od_expert_runner **out, const struct od_forward_opts *opts, const struct od_expert *experts,
		    struct od_err *err)
{
	struct resident *r;
	uint64_t pairs;
	int rc;

	*out = NULL;
	/* OD_OP_EXPERTS numbers them in 32 bits. */
	if (!od_mul(opts->max_rows, opts->config->top_k, &pairs) || pairs > UINT32_MAX)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: %zu is too many", opts->max_rows);
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		return od_fail(err, OD_ERR_NOMEM, "resident experts");
	r->runner = (struct od_expert_runner){ .on_device = true, .submit = submit };
	r->o = *opts;
	r->experts = experts;
	rc = OD_OK;
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(opts->device); i++)
		rc = od_buf_new(&r->scratch[i], od_device_card(opts->device, i), scratch_bytes(opts),
				"the rows of resident experts", err);
	if (rc != OD_OK) {
		od_resident_free(&r->runner);
		return rc;
	}
	*out = &r->runner;
	return OD_OK;
}

void od_resident_free(struct od_expert_runner *runner)
{
	struct resident *r = (struct resident *)runner;

	if (r == NULL)
		return;
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		od_buf_free(r->scratch[i]);
	free(r);
}
