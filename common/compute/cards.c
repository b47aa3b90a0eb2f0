#include "common/compute/cards.h"

#include "common/compute/device_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cards {
	struct od_device base; /* first: od_device * is this struct's address */
	_Atomic uint64_t tickets;
	unsigned n;
	struct od_device *card[OD_MAX_CARDS];
	uint32_t end[OD_MAX_CARDS]; /* behind the last layer of each */
};

static struct cards *of(struct od_device *d)
{
	return (struct cards *)d;
}

/* ---- which card an operation runs on ---- */

/* Finds the device of operands, and that they have the same one. */
struct finder {
	struct od_device *device;
	bool same;
};

static void see(struct finder *f, struct od_ref r)
{
	if (r.buf == NULL)
		return;
	f->same = f->same && (f->device == NULL || f->device == r.buf->device);
	f->device = r.buf->device;
}

static void see_weight(struct finder *f, const struct od_weight *w)
{
	if (w == NULL)
		return;
	see(f, w->data);
	see(f, w->scales.at);
	see(f, w->scale);
	see(f, w->coded);
}

static void see_stream(struct finder *f, const struct od_stream *s)
{
	see(f, s->pages);
	see(f, s->tables);
}

static void see_all(struct finder *f, const struct od_ref *r, size_t n)
{
	for (size_t i = 0; i < n; i++)
		see(f, r[i]);
}

#define SEE(f, ...) \
	see_all(f, (const struct od_ref[]){ __VA_ARGS__ }, \
		sizeof((const struct od_ref[]){ __VA_ARGS__ }) / sizeof(struct od_ref))

static void see_matrices(struct finder *f, const struct od_op *op)
{
	if (op->kind == OD_OP_LINEAR)
		for (int i = 0; i < OD_MAX_LINEAR; i++) {
			see_weight(f, op->linear.w[i]);
			SEE(f, op->linear.y[i], op->linear.bias[i]);
		}
	for (uint32_t i = 0; op->kind == OD_OP_FFN && i < op->ffn.n_segments; i++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			see_weight(f, &op->ffn.segment[i].mat[mat]);
	for (uint32_t i = 0; op->kind == OD_OP_EXPERTS && i < op->experts.n_experts; i++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			see_weight(f, &op->experts.expert[i].mat[mat]);
}

static void see_operands(struct finder *f, const struct od_op *op)
{
	switch (op->kind) {
	case OD_OP_EMBED: SEE(f, op->embed.table->data, op->embed.rows, op->embed.x); break;
	case OD_OP_ANGLES: SEE(f, op->angles.rows, op->angles.inv_freq, op->angles.angles); break;
	case OD_OP_NORM: SEE(f, op->norm.x, op->norm.add, op->norm.weight, op->norm.bias, op->norm.y); break;
	case OD_OP_LINEAR: SEE(f, op->linear.x); break;
	case OD_OP_ROPE_STORE:
		SEE(f, op->rope_store.rows, op->rope_store.q, op->rope_store.k, op->rope_store.v,
		    op->rope_store.turn.angles, op->rope_store.q_norm, op->rope_store.k_norm);
		see_stream(f, &op->rope_store.keys);
		see_stream(f, &op->rope_store.values);
		break;
	case OD_OP_LATENT_STORE:
		SEE(f, op->latent_store.rows, op->latent_store.latent_key, op->latent_store.turn.angles,
		    op->latent_store.norm);
		see_stream(f, &op->latent_store.stream);
		break;
	case OD_OP_LATENT_QUERY:
		SEE(f, op->latent_query.rows, op->latent_query.q, op->latent_query.out, op->latent_query.turn.angles);
		see_weight(f, op->latent_query.kv_b);
		break;
	case OD_OP_LATENT_VALUE: SEE(f, op->latent_value.in, op->latent_value.out); break;
	case OD_OP_ATTEND:
		SEE(f, op->attend.rows, op->attend.q, op->attend.out, op->attend.sinks);
		see_stream(f, &op->attend.keys);
		see_stream(f, &op->attend.values);
		break;
	case OD_OP_SPLIT: SEE(f, op->split.in, op->split.first, op->split.second); break;
	case OD_OP_GATE: SEE(f, op->gate.y, op->gate.gate); break;
	case OD_OP_DELTA_IN:
		SEE(f, op->delta_in.qkv, op->delta_in.row, op->delta_in.a_log, op->delta_in.dt_bias);
		break;
	case OD_OP_DELTA:
		SEE(f, op->delta.rows, op->delta.row, op->delta.conv, op->delta.norm, op->delta.from, op->delta.to,
		    op->delta.z);
		break;
	case OD_OP_ROUTE:
		SEE(f, op->route.logits, op->route.choice, op->route.weight, op->route.bias, op->route.factor,
		    op->route.round, op->route.rows);
		see_stream(f, &op->route.recent);
		break;
	case OD_OP_ACT: SEE(f, op->act.gate, op->act.up); break;
	case OD_OP_FFN: SEE(f, op->ffn.x, op->ffn.y, op->ffn.scratch); break;
	case OD_OP_EXPERTS: SEE(f, op->experts.x, op->experts.choice, op->experts.y, op->experts.scratch); break;
	case OD_OP_COMBINE:
		SEE(f, op->combine.y, op->combine.weight, op->combine.x, op->combine.sum, op->combine.shared,
		    op->combine.gate, op->combine.experts_norm, op->combine.shared_norm, op->combine.norm,
		    op->combine.scale);
		break;
	case OD_OP_COPY: SEE(f, op->copy.from, op->copy.to); break;
	case OD_OP_MERGE: SEE(f, op->merge.sm, op->merge.e, op->merge.to); break;
	}
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	struct finder f = { .same = true };

	(void)d;
	see_operands(&f, op);
	see_matrices(&f, op);
	assert(f.device != NULL && f.same);
	od_device_run(f.device, q, op);
}

/* ---- the rest ---- */

static int buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	return od_buf_new(out, of(d)->card[0], bytes, what, err);
}

/* Pinned for one card it is for all. */
static void *host_new(struct od_device *d, uint64_t bytes)
{
	return of(d)->card[0]->ops->host_new(of(d)->card[0], bytes);
}

static void host_free(struct od_device *d, void *at)
{
	of(d)->card[0]->ops->host_free(of(d)->card[0], at);
}

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	(void)d;
	od_device_put(to.buf->device, q, to, from, n);
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	(void)d;
	od_device_get(from.buf->device, q, to, from, n);
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	(void)q;
	return atomic_fetch_add(&of(d)->tickets, 1) + 1;
}

/* For all that the cards have been given, which is at least what the ticket stands for. */
static int wait(struct od_device *d, enum od_queue q, uint64_t ticket_of, struct od_err *err)
{
	int rc = OD_OK;

	(void)ticket_of;
	for (unsigned i = 0; i < of(d)->n; i++) {
		struct od_device *c = of(d)->card[i];
		struct od_err why;
		int rc_card = od_device_wait(c, q, od_device_ticket(c, q), err != NULL ? &why : NULL);

		if (rc_card == OD_OK || rc != OD_OK)
			continue;
		rc = rc_card;
		if (err != NULL)
			*err = why;
	}
	return rc;
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t ticket_of)
{
	(void)ticket_of;
	for (unsigned i = 0; i < of(d)->n; i++)
		od_device_after(of(d)->card[i], q, other, od_device_ticket(of(d)->card[i], other));
}

static void free_cards(struct od_device *d)
{
	for (unsigned i = 0; i < of(d)->n; i++)
		od_device_free(of(d)->card[i]);
	free(d);
}

static bool supports(const struct od_device *d, enum od_op_kind op, enum od_dtype t)
{
	return od_device_supports(((const struct cards *)d)->card[0], op, t);
}

/* Buffers are the cards'. */
static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.host_new = host_new,
	.host_free = host_free,
	.put = put,
	.get = get,
	.run = run,
	.supports = supports,
	.ticket = ticket,
	.wait = wait,
	.after = after,
	.free = free_cards,
};
/* Operations of cards whose host memory is like any other. */
static const struct od_device_ops plain_ops = {
	.buf_new = buf_new,
	.put = put,
	.get = get,
	.run = run,
	.supports = supports,
	.ticket = ticket,
	.wait = wait,
	.after = after,
	.free = free_cards,
};

static bool is_cards(const struct od_device *d)
{
	return d->ops == &ops || d->ops == &plain_ops;
}

int od_device_cards_new(struct od_device **out, struct od_device *const *card, unsigned n, struct od_err *err)
{
	struct cards *c;

	*out = NULL;
	for (unsigned i = 1; i < n; i++)
		for (int p = 0; p < 2; p++)
			if (strcmp(card[i]->kernel_class[p], card[0]->kernel_class[p]) != 0)
				return od_fail(err, OD_ERR_UNSUPPORTED,
					       "%s and %s: expected devices of one kernel class, found %s and %s",
					       card[0]->name, card[i]->name, card[0]->kernel_class[p],
					       card[i]->kernel_class[p]);
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u devices", n);
	c->base.ops = card[0]->ops->host_new != NULL ? &ops : &plain_ops;
	snprintf(c->base.name, sizeof(c->base.name), "%u x %.40s", n, card[0]->name);
	memcpy(c->base.kernels, card[0]->kernels, sizeof(c->base.kernels));
	memcpy(c->base.kernel_class, card[0]->kernel_class, sizeof(c->base.kernel_class));
	c->base.likes_planes = card[0]->likes_planes;
	c->base.cache_bytes = card[0]->cache_bytes;
	c->base.maps = card[0]->maps;
	c->base.shares = card[0]->shares;
	c->n = n;
	memcpy(c->card, card, n * sizeof(struct od_device *));
	memset(c->end, 0xff, sizeof(c->end)); /* until they are dealt, layers are the first card's */
	*out = &c->base;
	return OD_OK;
}

unsigned od_device_cards(const struct od_device *d)
{
	return is_cards(d) ? ((const struct cards *)d)->n : 1;
}

struct od_device *od_device_card(struct od_device *d, unsigned i)
{
	return is_cards(d) ? of(d)->card[i] : d;
}

void od_device_split(struct od_device *d, const uint32_t *end)
{
	if (is_cards(d))
		memcpy(of(d)->end, end, of(d)->n * sizeof(*end));
}

uint32_t od_device_card_end(const struct od_device *d, unsigned i)
{
	return is_cards(d) ? ((const struct cards *)d)->end[i] : UINT32_MAX;
}

uint32_t od_device_card_begin(const struct od_device *d, unsigned i)
{
	return i > 0 ? od_device_card_end(d, i - 1) : 0;
}

unsigned od_device_card_of(const struct od_device *d, uint32_t layer)
{
	unsigned i = 0;

	while (i + 1 < od_device_cards(d) && layer >= od_device_card_end(d, i))
		i++;
	return i;
}
