#include "tests/bench/live/route_record.h"

int route_record_open(struct route_record *r, const char *path, const struct od_pack *p, struct od_err *err)
{
	const struct od_config *c = od_pack_config(p);
	struct od_route_head head = { .n_moe = c->n_moe, .n_experts = c->n_experts, .top_k = c->top_k };

	_Static_assert(sizeof(head.fingerprint) == OD_FINGERPRINT_CHARS / 2, "a fingerprint");
	*r = (struct route_record){ 0 };
	od_pack_fingerprint_bytes(p, head.fingerprint);
	return od_route_open(&r->writer, path, &head, err);
}

static void on_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	struct route_record *r = arg;

	r->n_rows = step->n_rows;
	r->row = 0;
	od_route_step(r->writer, step->step, step->phase == ODM_PREFILL, (uint32_t)step->n_rows);
	for (size_t i = 0; i < step->n_rows; i++)
		od_route_row(r->writer, part->sequence, step->rows[i].position);
}

static void on_route(void *arg, enum odm_phase phase, uint32_t position, uint32_t layer, const uint16_t *experts,
		     const float *weights, float margin)
{
	struct route_record *r = arg;

	(void)phase, (void)position, (void)layer, (void)weights, (void)margin;
	if (r->row == 0)
		od_route_layer(r->writer);
	od_route_experts(r->writer, experts);
	r->row = (r->row + 1) % r->n_rows;
}

struct odm_observer route_record_observer(struct route_record *r)
{
	return (struct odm_observer){ .arg = r, .step = on_step, .route = on_route };
}

int route_record_close(struct route_record *r, struct od_err *err)
{
	struct od_route_writer *w = r->writer;

	r->writer = NULL;
	return od_route_close(w, err);
}
