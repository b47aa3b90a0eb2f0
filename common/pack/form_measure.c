#include "common/pack/form_measure.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/compute/ops.h"
#include "common/compute/planes.h"

#include <stdlib.h>

#define EXPERTS 4u /* different ones, so that a cache holds few of them */
#define MAX_BYTES (12u << 20) /* of an expert as BF16 */
#define REPEATS 7u
#define MOST_LIKELY 121u /* exponent; the others are half as frequent each, about as in trained weights */

struct trial {
	struct od_device *d;
	uint32_t hidden, n; /* n: intermediate */
	struct od_buf *weights[OD_N_FORMS], *rows;
	struct od_expert expert[OD_N_FORMS][EXPERTS];
	struct od_ffn_part part[EXPERTS];
	uint64_t chunk_at;
	/* On the host: a matrix, in both forms. */
	uint16_t *plain;
	uint8_t *sm, *e, *coded[2];
	size_t coded_bytes[2]; /* in rows of hidden, of n */
};

static size_t weights_of(const struct trial *t)
{
	return (size_t)t->hidden * t->n;
}

static uint32_t rows_within(const struct od_config *cfg)
{
	const uint32_t most = MAX_BYTES / (OD_N_EXPERT_MATS * 2 * cfg->hidden) / 64 * 64;

	return most < 64		? (cfg->intermediate < 64 ? cfg->intermediate : 64) :
	       most < cfg->intermediate ? most :
					  cfg->intermediate;
}

static void make_weights(struct trial *t)
{
	uint64_t random = 1;

	for (size_t i = 0; i < weights_of(t); i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		t->sm[i] = (uint8_t)(random >> 56);
		t->e[i] = (uint8_t)(MOST_LIKELY - (unsigned)__builtin_ctzll(random | 1u << 12));
		t->plain[i] = (uint16_t)((t->sm[i] & 1u) << 15 | (unsigned)t->e[i] << 7 | t->sm[i] >> 1);
	}
	t->coded_bytes[0] = od_planes_encode(t->e, weights_of(t), t->hidden, t->coded[0]);
	t->coded_bytes[1] = od_planes_encode(t->e, weights_of(t), t->n, t->coded[1]);
}

static int make_host(struct trial *t, struct od_err *err)
{
	const size_t n = weights_of(t);

	t->plain = od_alloc_array(n, sizeof(*t->plain));
	t->sm = od_alloc(n);
	t->e = od_alloc(n);
	t->coded[0] = od_alloc(od_planes_bound(n, t->hidden));
	t->coded[1] = od_alloc(od_planes_bound(n, t->n));
	if (t->plain == NULL || t->sm == NULL || t->e == NULL || t->coded[0] == NULL || t->coded[1] == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to measure forms of experts");
	make_weights(t);
	return OD_OK;
}

/* Takes n bytes of the form's buffer, and puts them there. */
static struct od_ref place(struct trial *t, enum od_form form, uint64_t *at, const void *from, size_t n)
{
	const struct od_ref r = od_buf_ref(t->weights[form], *at);

	od_device_put(t->d, OD_QUEUE_COMPUTE, r, from, n);
	*at += od_round_up(n + OD_PAD_BYTES, OD_PAD_BYTES);
	return r;
}

static void place_expert(struct trial *t, struct od_expert *x, enum od_form form, uint64_t *at)
{
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		const bool down = mat == OD_MAT_DOWN;
		struct od_weight *w = &x->mat[mat];

		*w = (struct od_weight){ .dtype = OD_BF16,
					 .n_out = down ? t->hidden : t->n,
					 .n_in = down ? t->n : t->hidden };
		if (form == OD_FORM_PLAIN) {
			w->data = place(t, form, at, t->plain, weights_of(t) * sizeof(*t->plain));
			continue;
		}
		w->data = place(t, form, at, t->sm, weights_of(t));
		w->coded = place(t, form, at, t->coded[down], t->coded_bytes[down]);
		w->chunk_at = &t->chunk_at;
		w->chunk_rows = w->n_out;
	}
}

static int place_experts(struct trial *t, struct od_err *err)
{
	const uint64_t coded = 2 * t->coded_bytes[0] + t->coded_bytes[1], n = OD_N_EXPERT_MATS * weights_of(t);
	const uint64_t each[OD_N_FORMS] = { [OD_FORM_PLAIN] = 2 * n, [OD_FORM_PLANES] = n + coded };
	int rc = OD_OK;

	for (int form = 0; rc == OD_OK && form < OD_N_FORMS; form++) {
		uint64_t at = 0;

		rc = od_buf_new_shared(&t->weights[form], t->d,
				       EXPERTS * (each[form] + 2 * OD_N_EXPERT_MATS * 2 * OD_PAD_BYTES),
				       "experts to measure their forms", err);
		for (uint32_t i = 0; rc == OD_OK && i < EXPERTS; i++)
			place_expert(t, &t->expert[form][i], (enum od_form)form, &at);
	}
	return rc == OD_OK ? od_device_sync(t->d, err) : rc;
}

/* What an operation works on, one after the other: x, y, choices, scratch. */
static int make_op(struct trial *t, enum od_form_use use, struct od_op *op, struct od_err *err)
{
	const uint64_t row = t->hidden * sizeof(float), choices = 2 * EXPERTS * row;
	const bool slots = use == OD_FORM_OF_SLOTS;
	const uint64_t scratch = slots ? od_ffn_scratch_bytes(t->n, EXPERTS) :
					 od_experts_scratch_bytes(t->hidden, t->n, EXPERTS, EXPERTS, 1);
	uint16_t choice[EXPERTS];
	int rc = od_buf_new(&t->rows, t->d, choices + 64 + scratch, "rows to measure forms of experts", err);

	if (rc != OD_OK)
		return rc;
	for (uint32_t i = 0; i < EXPERTS; i++)
		choice[i] = (uint16_t)i;
	od_device_put(t->d, OD_QUEUE_COMPUTE, od_buf_ref(t->rows, choices), choice, sizeof(choice));
	*op = (struct od_op){ .kind = slots ? OD_OP_FFN : OD_OP_EXPERTS,
			      .profile = OD_PROFILE_F32,
			      .n_rows = slots ? EXPERTS : 1 };
	if (slots)
		op->ffn = (struct od_op_ffn){ .part = t->part,
					      .n_parts = EXPERTS,
					      .routed = true,
					      .x = od_buf_ref(t->rows, 0),
					      .y = od_buf_ref(t->rows, EXPERTS * row),
					      .scratch = od_buf_ref(t->rows, choices + 64) };
	else
		op->experts = (struct od_op_experts){ .x = od_buf_ref(t->rows, 0),
						      .choice = od_buf_ref(t->rows, choices),
						      .y = od_buf_ref(t->rows, EXPERTS * row),
						      .scratch = od_buf_ref(t->rows, choices + 64),
						      .n_experts = EXPERTS,
						      .top_k = EXPERTS,
						      .hidden = t->hidden };
	return od_device_sync(t->d, err);
}

static int run(struct trial *t, struct od_op *op, enum od_form form, uint64_t *ns, struct od_err *err)
{
	uint64_t begin_ns;
	int rc;

	for (uint32_t i = 0; i < EXPERTS; i++)
		t->part[i] = od_expert_part(&t->expert[form][i], 1);
	if (op->kind == OD_OP_EXPERTS)
		op->experts.expert = t->expert[form];
	begin_ns = od_now_ns();
	od_device_run(t->d, OD_QUEUE_COMPUTE, op);
	rc = od_device_sync(t->d, err);
	*ns = (od_now_ns() - begin_ns) / EXPERTS;
	return rc;
}

static int by_time(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The forms take turns; the first turn makes what an operation keeps. */
static int time_forms(struct trial *t, struct od_op *op, uint64_t ns[OD_N_FORMS], struct od_err *err)
{
	uint64_t taken[OD_N_FORMS][REPEATS + 1];
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i <= REPEATS; i++)
		for (int form = 0; rc == OD_OK && form < OD_N_FORMS; form++)
			rc = run(t, op, (enum od_form)form, &taken[form][i], err);
	for (int form = 0; rc == OD_OK && form < OD_N_FORMS; form++) {
		qsort(taken[form] + 1, REPEATS, sizeof(uint64_t), by_time);
		ns[form] = taken[form][1 + REPEATS / 2];
	}
	return rc;
}

static void free_trial(struct trial *t)
{
	for (int form = 0; form < OD_N_FORMS; form++)
		od_buf_free(t->weights[form]);
	od_buf_free(t->rows);
	od_free(t->plain);
	od_free(t->sm);
	od_free(t->e);
	od_free(t->coded[0]);
	od_free(t->coded[1]);
	free(t);
}

int od_form_measure(uint64_t ns[OD_N_FORMS], const struct od_config *cfg, struct od_device *d, enum od_form_use use,
		    struct od_err *err)
{
	struct trial *t = calloc(1, sizeof(*t));
	struct od_op op;
	int rc;

	ns[OD_FORM_PLAIN] = ns[OD_FORM_PLANES] = 0;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to measure forms of experts");
	t->d = d;
	t->hidden = (uint32_t)cfg->hidden;
	t->n = rows_within(cfg);
	rc = make_host(t, err);
	if (rc == OD_OK)
		rc = place_experts(t, err);
	if (rc == OD_OK)
		rc = make_op(t, use, &op, err);
	if (rc == OD_OK)
		rc = time_forms(t, &op, ns, err);
	(void)!od_device_sync(d, NULL); /* what was queued uses what is freed */
	free_trial(t);
	return rc == OD_OK ?
		       OD_OK :
		       od_fail_within(err,
				      "measuring in which form experts are faster (--resident-form decides without)");
}
