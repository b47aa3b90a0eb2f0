#include "shadow-node/saved_rows.h"

int ods_saved_init(struct ods_saved *s, const struct od_forward_opts *o, struct od_err *err)
{
	*s = (struct ods_saved){ .device = o->device, .profile = o->profile, .each_bytes = od_state_pool_most_bytes(o->state) };
	return od_buf_new(&s->buf, o->device, o->max_rows * s->each_bytes, "main's rows", err);
}

void ods_saved_fini(struct ods_saved *s)
{
	od_buf_free(s->buf);
	s->buf = NULL;
}

void ods_saved_copy(struct ods_saved *s, size_t i, const struct od_seq_state *seq, uint32_t layer, uint32_t position, bool save)
{
	struct od_ref saved = od_buf_ref(s->buf, i * s->each_bytes);
	struct od_op op = { .kind = OD_OP_COPY, .profile = s->profile, .n_rows = 1 };

	for (uint32_t stream = 0; stream < OD_MAX_STREAMS; stream++, saved.at += op.copy.n) {
		op.copy.n = od_seq_state_row_bytes(seq, layer, stream);
		if (op.copy.n == 0)
			return;
		op.copy.from = op.copy.to = od_seq_state_row(seq, layer, stream, position);
		*(save ? &op.copy.to : &op.copy.from) = saved;
		od_device_run(s->device, OD_QUEUE_COMPUTE, &op);
	}
}
