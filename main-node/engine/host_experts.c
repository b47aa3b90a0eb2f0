#include "main-node/engine/host_experts.h"

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/compute/ops.h"
#include "common/compute/scratch.h"
#include "main-node/engine/host_rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct odm_host_experts {
	const struct od_host_tier *tier;
	struct od_device *cpu;
	struct od_forward_opts o; /* the card's */
	struct odm_host_rates rates;
	struct od_expert *expert; /* [n_experts] */
	bool *taken; /* [n_experts]: the layer under way has these */
	size_t n_taken, n_rows; /* their number and their rows */
	struct {
		size_t n; /* loads that had not begun before the RUN */
		uint64_t begin_ns, bytes, served; /* bytes counts all loads; the tier had served that many */
	} loads; /* for the layer under way */
	uint16_t *asked; /* [n_experts], by item, as the following */
	double *gain;
	struct odm_host_candidate *candidate;
	size_t *item_of; /* [n_experts]: by candidate */
	struct od_buf *x, *choice, *scratch; /* for ODM_HOST_ROWS rows, on the CPUs */
	uint64_t y_bytes;
	void *results; /* [ODM_HOST_ROWS][top_k][hidden], for transfers to the card */
	struct od_buf *y; /* over results */
};

bool odm_host_experts_may(const struct odm_host_experts *h, size_t n_rows)
{
	return h != NULL && n_rows <= ODM_HOST_ROWS;
}

/* ---- Which ---- */

/* Lists the items that are here and not on the card, and returns their number. *n_loads: other ones that the card
 * lacks. */
static size_t list_candidates(struct odm_host_experts *h, uint32_t m, const struct od_schedule_item *item, size_t n,
			      size_t *n_loads)
{
	size_t n_candidates = 0;

	*n_loads = 0;
	for (size_t i = 0; i < n; i++) {
		if (h->gain[i] == INFINITY)
			continue;
		if (!od_host_tier_expert(h->tier, m, item[i].expert, &h->expert[item[i].expert])) {
			++*n_loads;
			continue;
		}
		h->candidate[n_candidates] =
			(struct odm_host_candidate){ .n_rows = item[i].n_rows, .gain = h->gain[i] };
		h->item_of[n_candidates++] = i;
	}
	return n_candidates;
}

static void put_behind(struct od_schedule_item *item, size_t n, const bool *taken)
{
	for (size_t i = 0, end = n; i < end;) {
		const struct od_schedule_item one = item[i];

		if (!taken[one.expert]) {
			i++;
			continue;
		}
		item[i] = item[--end];
		item[end] = one;
	}
	for (size_t i = 0; i < n; i++)
		item[i].rank = (uint32_t)i;
}

size_t odm_host_experts_take(struct odm_host_experts *h, struct od_schedule *s, const struct od_moe_call *call,
			     struct od_schedule_item *item, size_t n)
{
	size_t n_candidates, n_loads;

	h->loads.n = h->loads.bytes = 0;
	h->loads.begin_ns = od_now_ns();
	h->loads.served = od_host_tier_served_bytes(h->tier);
	memset(h->taken, 0, h->o.config->n_experts * sizeof(*h->taken));
	h->n_taken = h->n_rows = 0;
	for (size_t i = 0; i < n; i++)
		h->asked[i] = (uint16_t)item[i].expert;
	od_schedule_gains(s, call->m, h->asked, n, h->gain);
	n_candidates = list_candidates(h, call->m, item, n, &n_loads);
	if (odm_host_rates_choose(&h->rates, h->candidate, n_candidates, n_loads) == 0)
		return 0;
	for (size_t i = 0; i < n_candidates; i++) {
		const struct od_schedule_item *one = &item[h->item_of[i]];

		if (!h->candidate[i].on_host)
			continue;
		h->taken[one->expert] = true;
		h->asked[h->n_taken++] = (uint16_t)one->expert;
		h->n_rows += one->n_rows;
	}
	od_schedule_used_elsewhere(s, call->step, call->m, h->asked, h->n_taken);
	put_behind(item, n, h->taken);
	return h->n_taken;
}

/* ---- Computing ---- */

/* Results that lie one behind the other go together. */
static void send_results(struct odm_host_experts *h, const struct od_moe_call *call)
{
	const size_t n = call->n_rows * h->o.config->top_k, row = h->o.config->hidden * sizeof(float);

	for (size_t i = 0, end; i < n; i = end) {
		for (end = i; end < n && h->taken[call->expert[end]]; end++)
			;
		if (end > i)
			od_device_put(h->o.device, OD_QUEUE_COMPUTE, od_ref_at(call->y_at, i * row),
				      (char *)h->results + i * row, (end - i) * row);
		else
			end = i + 1;
	}
}

int odm_host_experts_run(struct odm_host_experts *h, const struct od_moe_call *call, struct od_err *err)
{
	const struct od_config *c = h->o.config;
	const size_t n = call->n_rows * c->top_k;
	const uint64_t begin_ns = od_now_ns();
	const struct od_op op = { .kind = OD_OP_EXPERTS,
				  .profile = h->o.profile,
				  .n_rows = (uint32_t)call->n_rows,
				  .experts = { .expert = h->expert,
					       .x = od_buf_ref(h->x, 0),
					       .choice = od_buf_ref(h->choice, 0),
					       .y = od_buf_ref(h->y, 0),
					       .scratch = od_buf_ref(h->scratch, 0),
					       .n_experts = c->n_experts,
					       .top_k = c->top_k,
					       .hidden = c->hidden,
					       .act = c->act } };
	uint16_t *choice = od_ref_map(op.experts.choice);
	int rc;

	memcpy(od_ref_map(op.experts.x), call->x, call->n_rows * c->hidden * sizeof(*call->x));
	for (size_t i = 0; i < n; i++)
		choice[i] = h->taken[call->expert[i]] ? call->expert[i] : OD_NO_EXPERT;
	od_device_run(h->cpu, OD_QUEUE_COMPUTE, &op);
	rc = od_device_wait(h->cpu, OD_QUEUE_COMPUTE, od_device_ticket(h->cpu, OD_QUEUE_COMPUTE), err);
	if (rc == OD_OK)
		send_results(h, call);
	odm_host_rates_computed(&h->rates, h->n_taken, h->n_rows, od_now_ns() - begin_ns);
	od_trace_end("experts on the host", begin_ns, (int64_t)call->step, call->m, -1);
	return rc;
}

/* ---- Loads ---- */

void odm_host_experts_note(struct odm_host_experts *h, const struct od_schedule_item *item)
{
	h->loads.n += item->loaded_bytes > 0 && !item->ready;
	h->loads.bytes += item->loaded_bytes;
}

/* How long they take is learnt from loads that found all they needed in host memory. */
void odm_host_experts_end(struct odm_host_experts *h, uint64_t ready_ns)
{
	const uint64_t served = od_host_tier_served_bytes(h->tier) - h->loads.served;

	if (h->loads.n > 0 && served >= h->loads.bytes && ready_ns > h->loads.begin_ns)
		odm_host_rates_loaded(&h->rates, h->loads.n, ready_ns - h->loads.begin_ns);
}

/* ---- Open and free ---- */

/* Operations read the shapes of experts that no row has chosen, but not their weights. */
static void bind_shapes(struct odm_host_experts *h, const struct od_pack *p)
{
	struct od_expert_mem anywhere = { 0 };

	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		if ((od_form_bufs((enum od_form)od_host_tier_form(h->tier)) & 1u << i) != 0)
			anywhere.at[i] = od_buf_ref(h->choice, 0);
	for (uint32_t i = 0; i < h->o.config->n_experts; i++)
		od_pack_bind(p, 0, i, &anywhere, &h->expert[i]);
}

static int allocate(struct odm_host_experts *h, struct od_err *err)
{
	const struct od_config *c = h->o.config;
	const uint64_t row = c->hidden * sizeof(float);
	const char *what = "rows of experts on the host";
	int rc;

	h->expert = calloc(c->n_experts, sizeof(*h->expert));
	h->taken = calloc(c->n_experts, sizeof(*h->taken));
	h->asked = calloc(c->n_experts, sizeof(*h->asked));
	h->gain = calloc(c->n_experts, sizeof(*h->gain));
	h->candidate = calloc(c->n_experts, sizeof(*h->candidate));
	h->item_of = calloc(c->n_experts, sizeof(*h->item_of));
	h->y_bytes = ODM_HOST_ROWS * c->top_k * row;
	h->results = od_host_new(h->o.device, h->y_bytes);
	if (h->expert == NULL || h->taken == NULL || h->asked == NULL || h->gain == NULL || h->candidate == NULL ||
	    h->item_of == NULL || h->results == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s", what);
	rc = od_buf_new_over(&h->y, h->cpu, h->results, h->y_bytes, err);
	if (rc == OD_OK)
		rc = od_buf_new(&h->x, h->cpu, ODM_HOST_ROWS * row, what, err);
	if (rc == OD_OK)
		rc = od_buf_new(&h->choice, h->cpu, ODM_HOST_ROWS * c->top_k * sizeof(uint16_t), what, err);
	if (rc == OD_OK)
		rc = od_buf_new(
			&h->scratch, h->cpu,
			od_experts_scratch_bytes(c->hidden, c->intermediate, c->n_experts, c->top_k, ODM_HOST_ROWS),
			what, err);
	return rc;
}

void odm_host_experts_free(struct odm_host_experts *h)
{
	if (h == NULL)
		return;
	od_buf_free(h->y);
	od_buf_free(h->x);
	od_buf_free(h->choice);
	od_buf_free(h->scratch);
	if (h->results != NULL)
		od_host_free(h->o.device, h->results, h->y_bytes);
	free(h->expert);
	free(h->taken);
	free(h->asked);
	free(h->gain);
	free(h->candidate);
	free(h->item_of);
	free(h);
}

int odm_host_experts_new(struct odm_host_experts **out, const struct od_host_tier *tier, struct od_device *cpu,
			 const struct od_pack *p, const struct od_forward_opts *o, struct od_err *err)
{
	struct odm_host_experts *h = calloc(1, sizeof(*h));
	int rc;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "experts on the host");
	h->tier = tier;
	h->cpu = cpu;
	h->o = *o;
	rc = allocate(h, err);
	if (rc != OD_OK) {
		odm_host_experts_free(h);
		return rc;
	}
	bind_shapes(h, p);
	*out = h;
	return OD_OK;
}
