#include "shadow-node/saved_rows.h"

int ods_saved_init(struct ods_saved *s, const struct od_forward_opts *o, struct od_err *err)
{
	int rc = OD_OK;

	*s = (struct ods_saved){ .device = o->device,
				 .profile = o->profile,
				 .each_bytes = od_state_pool_most_bytes(o->state) };
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(o->device); i++)
		rc = od_buf_new(&s->buf[i], od_device_card(o->device, i), o->max_rows * s->each_bytes, "main's rows",
				err);
	return rc;
}

void ods_saved_fini(struct ods_saved *s)
{
	for (unsigned i = 0; i < OD_MAX_CARDS; i++) {
		od_buf_free(s->buf[i]);
		s->buf[i] = NULL;
	}
}

/* The buffer of the card that has the row: one operation cannot copy from card to card. */
static struct od_buf *beside(const struct ods_saved *s, struct od_ref row)
{
	unsigned i = 0;

	while (od_device_card(s->device, i) != od_buf_device(row.buf))
		i++;
	return s->buf[i];
}

void ods_saved_copy(struct ods_saved *s, size_t i, const struct od_seq_state *seq, uint32_t layer, uint32_t position,
		    bool save)
{
	uint64_t at = i * s->each_bytes;
	struct od_op op = { .kind = OD_OP_COPY, .profile = s->profile, .n_rows = 1 };

	for (uint32_t stream = 0; stream < OD_MAX_STREAMS; stream++, at += op.copy.n) {
		op.copy.n = od_seq_state_row_bytes(seq, layer, stream);
		if (op.copy.n == 0)
			return;
		op.copy.from = op.copy.to = od_seq_state_row(seq, layer, stream, position);
		*(save ? &op.copy.to : &op.copy.from) = od_buf_ref(beside(s, op.copy.from), at);
		od_device_run(s->device, OD_QUEUE_COMPUTE, &op);
	}
}
