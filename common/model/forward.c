#include "common/model/forward.h"

#include "common/base/mem.h"
#include "common/model/rope.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Cut from one buffer of the device. */
enum buffer {
	/* of max_rows rows: */
	BUF_INFO,	 /* struct od_row_info */
	BUF_X,		 /* [hidden]: the residual stream */
	BUF_H,		 /* [hidden]: normed rows; between times what the mixer gave */
	BUF_ANGLES,	 /* rope by rope [dims]: of the row's position */
	BUF_PROBABILITY, /* [n_experts] */
	BUF_EXPERT,	 /* uint16_t [top_k] */
	BUF_WEIGHT,	 /* [top_k] */
	BUF_MARGIN,	 /* [1] */
	BUF_Y,		 /* [top_k][hidden]: what the experts gave */
	BUF_BESIDE,	 /* [hidden]: what a dense layer's network, or the shared experts, gave */
	BUF_SCORE,	 /* [1]: the gate of the latter */
	N_ROW_BUFFERS,
	/* once: */
	BUF_MIX = N_ROW_BUFFERS, /* scratch of mixers */
	BUF_FFN,		 /* scratch of dense networks */
	BUF_TABLES,		 /* uint32_t [n_tables][table_pages]: page tables of the step's sequences */
	BUF_INV_FREQ,		 /* rope by rope [dims / 2] */
	BUF_LOGITS,		 /* [max_logits][vocab] */
	BUF_SAVED,		 /* layer by layer [OD_KEEP_ROWS] of what its mixer saves */
	N_BUFFERS
};

enum phase { PHASE_IDLE, PHASE_ATTENTION, PHASE_EXPERTS, PHASE_LOGITS, PHASE_ENDED };

#define NO_TABLE UINT32_MAX

struct od_forward {
	struct od_forward_opts o;
	enum phase phase;
	uint64_t step;
	uint32_t layer, max_position, table_pages, n_tables;
	size_t n_rows;
	struct od_buf *buf;
	uint64_t at[N_BUFFERS]; /* in buf */
	/* On the host: the buffers that begin sends, and those for fetched results. */
	struct od_row *rows;	  /* [max_rows] */
	struct od_row_info *info; /* [max_rows] */
	uint32_t *tables;	  /* [n_tables][table_pages] */
	uint32_t *table_of;	  /* [sequences]: by place (seq_state.h); NO_TABLE: the step has no rows of it */
	struct od_seq_state **of; /* [n_tables]: whose table it is */
	uint32_t *begun;	  /* [n_tables]: position of its first row */
	uint32_t *count;	  /* [n_tables]: its rows */
	struct od_fixed *fixed;	  /* [n_tables]: of the layer under way */
	/* [2][n_layers]: of its dense network or shared experts; two sets, because an abandoned step may still be queued */
	struct od_ffn_part *part;
	bool second;		  /* whose turn it is */
	uint64_t put;		  /* ticket for what begin has put from there */
	bool put_open;		  /* the device may still read it */
	bool queued;		  /* work that has not been waited for */
	int failed;		  /* what a wait of this step has said; OD_OK: nothing went wrong yet */
	uint64_t failures;	  /* of the device, when the step began */
	void *host[N_BUFFERS];	  /* of what is fetched: the device's mapping, else a stage */
	bool staged;		  /* the latter */
	unsigned fetched;
};

/* What the host reads and writes beyond begin. */
static const bool on_host[N_BUFFERS] = {
	[BUF_X] = true, [BUF_H] = true, [BUF_PROBABILITY] = true, [BUF_EXPERT] = true, [BUF_WEIGHT] = true,
	[BUF_MARGIN] = true, [BUF_Y] = true, [BUF_LOGITS] = true,
};

static uint64_t table_bytes(const struct od_forward_opts *o)
{
	return o->state == NULL ? 0 : (uint64_t)od_state_pool_sequences(o->state) *
				      od_state_pages(od_state_pool_ctx(o->state)) * sizeof(uint32_t);
}

/* Elements of the ropes before this one; with rope n_ropes, of all ropes. */
static uint32_t dims_before(const struct od_config *c, uint32_t rope)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < rope; i++)
		n += c->rope[i].dims;
	return n;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t mix_bytes(const struct od_forward_opts *o)
{
	const struct od_config *c = o->config;
	uint64_t most = 0;

	for (uint32_t i = 0; i < c->n_kinds; i++)
		most = larger(most, c->kind[i].mixer->scratch_bytes(c, &c->kind[i].mix, o->max_rows));
	return most;
}

static uint64_t ffn_bytes(const struct od_forward_opts *o)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < o->config->n_kinds; i++) {
		const struct od_layer_spec *l = &o->config->kind[i];
		uint32_t n = l->ffn == OD_FFN_DENSE ? l->intermediate : l->shared_intermediate;

		most = larger(most, n > 0 ? od_ffn_scratch_bytes(n, o->max_rows) : 0);
	}
	return most;
}

/* Of the layers before this one. */
static uint64_t saved_before(const struct od_config *c, uint32_t layer)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < layer; i++) {
		const struct od_layer_spec *l = od_config_layer(c, i);
		struct od_state_spec s = { 0 };

		l->mixer->state(&l->mix, &s);
		sum += od_round_up(s.saved_bytes * OD_KEEP_ROWS, 64);
	}
	return sum;
}

static size_t max_logits(const struct od_forward_opts *o)
{
	return o->max_logits > 0 ? o->max_logits : 1;
}

static uint64_t logits_bytes(const struct od_forward_opts *o)
{
	uint64_t bytes;

	return od_mul(max_logits(o), o->config->vocab * sizeof(float), &bytes) ? bytes : UINT64_MAX;
}

/* The list of all buffers, used both to count their bytes and to place them. */
static void list_bytes(const struct od_forward_opts *o, uint64_t bytes[N_BUFFERS])
{
	const struct od_config *c = o->config;
	const uint64_t hidden = c->hidden * sizeof(float), dims = dims_before(c, c->n_ropes);
	const uint64_t all[N_BUFFERS] = {
		[BUF_INFO] = sizeof(struct od_row_info),
		[BUF_X] = hidden,
		[BUF_H] = hidden,
		[BUF_ANGLES] = dims * sizeof(float),
		[BUF_PROBABILITY] = c->n_experts * sizeof(float),
		[BUF_EXPERT] = c->top_k * sizeof(uint16_t),
		[BUF_WEIGHT] = c->top_k * sizeof(float),
		[BUF_MARGIN] = sizeof(float),
		[BUF_Y] = c->top_k * hidden,
		[BUF_BESIDE] = ffn_bytes(o) > 0 ? hidden : 0,
		[BUF_SCORE] = sizeof(float),
		[BUF_MIX] = mix_bytes(o),
		[BUF_FFN] = ffn_bytes(o),
		[BUF_TABLES] = table_bytes(o),
		[BUF_INV_FREQ] = dims / 2 * sizeof(float),
		[BUF_LOGITS] = logits_bytes(o),
		[BUF_SAVED] = saved_before(c, c->n_layers),
	};

	memcpy(bytes, all, sizeof(all));
}

/* Bytes of all buffers, each followed by padding; UINT64_MAX: overflow. */
static uint64_t place_buffers(const struct od_forward_opts *o, uint64_t at[N_BUFFERS])
{
	uint64_t bytes[N_BUFFERS], sum = 0;

	list_bytes(o, bytes);
	for (size_t i = 0; i < N_BUFFERS; i++) {
		at[i] = sum;
		if ((i < N_ROW_BUFFERS && !od_mul(o->max_rows, bytes[i], &bytes[i])) || bytes[i] > UINT64_MAX / 2 ||
		    !od_add(sum, od_round_up(bytes[i] + OD_PAD_BYTES, 64), &sum))
			return UINT64_MAX;
	}
	return sum;
}

uint64_t od_forward_bytes(const struct od_forward_opts *opts)
{
	uint64_t at[N_BUFFERS], sum = place_buffers(opts, at), rows;

	if (!od_mul(opts->max_rows, sizeof(struct od_row) + sizeof(struct od_row_info), &rows) || !od_add(sum, rows, &sum) ||
	    !od_add(sum, table_bytes(opts) + sizeof(struct od_forward), &sum))
		return UINT64_MAX;
	return sum;
}

static bool weight_fits(const struct od_weight *w, const struct od_config *c, enum od_role role, uint32_t layer)
{
	uint64_t n_out, n_in;

	od_role_shape(c, role, layer, &n_out, &n_in);
	if (n_out == 0)
		return w->data.buf == NULL;
	return w->data.buf != NULL && w->n_out == n_out && w->n_in == n_in;
}

/* The loaders check files; this second check prevents reads outside a buffer if one of them has a bug. */
static int check_dense(const struct od_dense *d, const struct od_config *c, struct od_err *err)
{
	bool ok = weight_fits(&d->embed, c, OD_ROLE_EMBED, 0) &&
		  (d->embed.dtype == OD_BF16 || d->embed.dtype == OD_F16 || d->embed.dtype == OD_F32) &&
		  (c->tied_head ? d->head.data.buf != NULL : weight_fits(&d->head, c, OD_ROLE_HEAD, 0)) &&
		  d->head.n_out == c->vocab && d->head.n_in == c->hidden && d->final_norm.buf != NULL;

	for (uint32_t i = 0; i < c->n_layers && ok; i++)
		for (int role = 0; ok && role < OD_N_ROLES; role++)
			ok = !od_role_per_layer((enum od_role)role) ||
			     weight_fits(&d->layer[i].w[role], c, (enum od_role)role, i);
	return ok ? OD_OK : od_fail(err, OD_ERR_SHAPE, "dense weights do not have the shapes of their configuration");
}

/* A step writes state by this configuration and profile, wherever the pool's own would have it. */
static int check_state(const struct od_forward_opts *o, struct od_err *err)
{
	const enum od_dtype dtype = o->profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;

	if (od_state_pool_dtype(o->state) != dtype)
		return od_fail(err, OD_ERR_MISMATCH, "keys and values: expected %s, found %s", od_dtype_name(dtype),
			       od_dtype_name(od_state_pool_dtype(o->state)));
	if (!od_state_pool_fits(o->state, o->config))
		return od_fail(err, OD_ERR_MISMATCH, "keys and values do not have the shapes of their configuration");
	return OD_OK;
}

static struct od_ref ref(const struct od_forward *f, enum buffer b)
{
	return od_buf_ref(f->buf, f->at[b]);
}

static struct od_ref row_ref(const struct od_forward *f, enum buffer b, size_t row, size_t n)
{
	return od_buf_ref(f->buf, f->at[b] + row * n * sizeof(float));
}

static int open_buffers(struct od_forward *f, struct od_err *err)
{
	const uint32_t n = od_state_pool_sequences(f->o.state);
	uint64_t bytes = place_buffers(&f->o, f->at), each[N_BUFFERS];
	int rc = od_buf_new(&f->buf, f->o.device, bytes, "the rows of a step", err);

	if (rc != OD_OK)
		return rc;
	list_bytes(&f->o, each);
	f->staged = od_ref_map(ref(f, BUF_X)) == NULL;
	for (size_t i = 0; i < N_BUFFERS; i++) {
		if (!on_host[i])
			continue;
		f->host[i] = f->staged ? od_alloc_array(i < N_ROW_BUFFERS ? f->o.max_rows : 1, each[i]) :
					 od_ref_map(ref(f, (enum buffer)i));
		if (f->host[i] == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for a step's results on the host");
	}
	f->rows = calloc(f->o.max_rows, sizeof(*f->rows));
	f->info = calloc(f->o.max_rows, sizeof(*f->info));
	f->tables = calloc(n, od_state_pages(od_state_pool_ctx(f->o.state)) * sizeof(*f->tables));
	f->table_of = calloc(n, sizeof(*f->table_of));
	f->of = calloc(n, sizeof(*f->of));
	f->begun = calloc(n, sizeof(*f->begun));
	f->count = calloc(n, sizeof(*f->count));
	f->fixed = calloc(n, sizeof(*f->fixed));
	f->part = calloc(2 * (size_t)f->o.config->n_layers, sizeof(*f->part));
	if (f->rows == NULL || f->info == NULL || f->tables == NULL || f->table_of == NULL || f->of == NULL || f->begun == NULL ||
	    f->count == NULL || f->fixed == NULL || f->part == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu rows", f->o.max_rows);
	return OD_OK;
}

static int put_frequencies(struct od_forward *f, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	size_t bytes = dims_before(c, c->n_ropes) / 2 * sizeof(float);
	float *inv_freq = malloc(bytes + 1);
	int rc;

	if (inv_freq == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu frequencies", bytes / sizeof(float));
	for (uint32_t i = 0; i < c->n_ropes; i++)
		od_rope_frequencies(&c->rope[i], inv_freq + dims_before(c, i) / 2);
	od_device_put(f->o.device, OD_QUEUE_COMPUTE, ref(f, BUF_INV_FREQ), inv_freq, bytes);
	rc = od_device_sync(f->o.device, err);
	free(inv_freq);
	return rc;
}

int od_forward_new(struct od_forward **out, const struct od_forward_opts *opts, struct od_err *err)
{
	struct od_forward *f;
	int rc;

	*out = NULL;
	if (opts->max_rows == 0 || opts->max_rows > UINT32_MAX || od_forward_bytes(opts) > SIZE_MAX / 2)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: %zu is zero or too many", opts->max_rows);
	if (opts->max_logits > opts->max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows with logits: expected at most %zu (rows of a step), found %zu",
			       opts->max_rows, opts->max_logits);
	rc = check_dense(opts->dense, opts->config, err);
	if (rc == OD_OK)
		rc = check_state(opts, err);
	if (rc != OD_OK)
		return rc;
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "forward pass");
	f->o = *opts;
	rc = open_buffers(f, err);
	if (rc == OD_OK)
		rc = put_frequencies(f, err);
	if (rc != OD_OK) {
		od_forward_free(f);
		return rc;
	}
	*out = f;
	return OD_OK;
}

void od_forward_free(struct od_forward *f)
{
	if (f == NULL)
		return;
	(void)!od_device_sync(f->o.device, NULL); /* what a step that was given up has queued uses what is freed here */
	for (size_t i = 0; f->staged && i < N_BUFFERS; i++)
		od_free(f->host[i]);
	free(f->rows);
	free(f->info);
	free(f->tables);
	free(f->table_of);
	free(f->of);
	free(f->begun);
	free(f->count);
	free(f->fixed);
	free(f->part);
	od_buf_free(f->buf);
	free(f);
}

/* op: all but profile and rows. */
static void run(struct od_forward *f, struct od_op *op)
{
	op->profile = f->o.profile;
	op->n_rows = (uint32_t)f->n_rows;
	od_device_run(f->o.device, OD_QUEUE_COMPUTE, op);
	f->queued = true;
}

/* ---- begin ---- */

/* The row's token, its sequence and its position, which must follow the sequence's row before it, or its committed length.
 * A sequence of which it is the first row gets the next table. */
static int take_row(struct od_forward *f, const struct od_row *row, size_t r, struct od_err *err)
{
	const uint32_t vocab = f->o.config->vocab;
	uint32_t *t, expected;

	if ((uint32_t)row->token >= vocab) /* negative ones too */
		return od_fail(err, OD_ERR_RANGE, "row %zu: token: expected 0 to %u, found %d", r, vocab - 1,
			       row->token);
	if (od_seq_state_pool(row->seq) != f->o.state)
		return od_fail(err, OD_ERR_MISMATCH, "row %zu: its sequence state belongs to another forward pass", r);
	if (row->position >= od_seq_state_ctx(row->seq))
		return od_fail(err, OD_ERR_RANGE, "row %zu: position %u is outside the context of %u", r, row->position,
			       od_seq_state_ctx(row->seq));
	t = &f->table_of[od_seq_state_place(row->seq)];
	expected = *t == NO_TABLE ? od_seq_state_length(row->seq) : f->begun[*t] + f->count[*t];
	if (row->position != expected)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", r, expected, row->position);
	if (*t == NO_TABLE) {
		*t = f->n_tables++;
		f->of[*t] = row->seq;
		f->begun[*t] = row->position;
		f->count[*t] = 0;
	}
	f->count[*t]++;
	return OD_OK;
}

static int take_rows(struct od_forward *f, const struct od_row *rows, size_t n_rows, struct od_err *err)
{
	int rc = OD_OK;

	f->n_tables = 0;
	for (uint32_t i = 0; i < od_state_pool_sequences(f->o.state); i++)
		f->table_of[i] = NO_TABLE;
	for (size_t r = 0; rc == OD_OK && r < n_rows; r++)
		rc = take_row(f, &rows[r], r, err);
	return rc;
}

/* What the device knows of the rows. A table is as long as the step's last position needs, not as ctx would, so that all of
 * them are little, and put at once. */
static void put_rows(struct od_forward *f)
{
	struct od_device *d = f->o.device;

	f->max_position = 0;
	for (size_t r = 0; r < f->n_rows; r++) {
		const struct od_row *row = &f->rows[r];

		f->info[r] = (struct od_row_info){ row->token, row->position, f->table_of[od_seq_state_place(row->seq)], 0 };
		f->max_position = row->position > f->max_position ? row->position : f->max_position;
	}
	od_device_put(d, OD_QUEUE_COMPUTE, ref(f, BUF_INFO), f->info, f->n_rows * sizeof(*f->info));
	f->table_pages = od_state_pages(f->max_position + 1);
	for (uint32_t t = 0; t < f->n_tables; t++) {
		const uint32_t end = f->begun[t] + f->count[t];

		od_seq_state_reserve(f->of[t], end);
		memcpy(f->tables + (size_t)t * f->table_pages, od_seq_state_pages(f->of[t]),
		       od_state_pages(end) * sizeof(*f->tables));
	}
	od_device_put(d, OD_QUEUE_COMPUTE, ref(f, BUF_TABLES), f->tables,
		      (size_t)f->n_tables * f->table_pages * sizeof(*f->tables));
	f->put = od_device_ticket(d, OD_QUEUE_COMPUTE);
	f->put_open = true;
}

/* A new text has no fixed state yet. */
static void clear_fixed(struct od_forward *f)
{
	const uint64_t n = od_state_pool_fixed_bytes(f->o.state);
	struct od_op op = { .kind = OD_OP_COPY, .profile = f->o.profile, .n_rows = 1 };

	for (uint32_t t = 0; n > 0 && t < f->n_tables; t++) {
		if (f->begun[t] > 0)
			continue;
		op.copy = (struct od_op_copy){ .from = od_state_pool_zeros(f->o.state),
					       .to = od_seq_state_fixed(f->of[t], 0).committed, .n = n };
		od_device_run(f->o.device, OD_QUEUE_COMPUTE, &op);
	}
}

static void run_angles(struct od_forward *f)
{
	const struct od_config *c = f->o.config;

	for (uint32_t i = 0; i < c->n_ropes; i++) {
		const uint64_t at = dims_before(c, i) * sizeof(float);

		run(f, &(struct od_op){ .kind = OD_OP_ANGLES,
				       .angles = { .rows = ref(f, BUF_INFO),
						   .inv_freq = od_ref_at(ref(f, BUF_INV_FREQ), at / 2),
						   .angles = od_ref_at(ref(f, BUF_ANGLES), at * f->o.max_rows),
						   .half = c->rope[i].dims / 2,
						   .magnitude = c->rope[i].magnitude } });
	}
}

/* What the step before has put is about to be written over. What was queued before that step is done afterwards. */
static int settle(struct od_forward *f, struct od_err *err)
{
	if (!f->put_open)
		return OD_OK;
	f->put_open = false;
	return od_device_wait(f->o.device, OD_QUEUE_COMPUTE, f->put, err);
}

int od_forward_begin(struct od_forward *f, uint64_t step, const struct od_row *rows, size_t n_rows,
		     struct od_err *err)
{
	int rc;

	f->phase = PHASE_IDLE;
	if (n_rows == 0 || n_rows > f->o.max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: expected 1 to %zu, found %zu", f->o.max_rows,
			       n_rows);
	rc = take_rows(f, rows, n_rows, err);
	if (rc == OD_OK)
		rc = settle(f, err);
	if (rc != OD_OK)
		return rc;
	memcpy(f->rows, rows, n_rows * sizeof(*rows));
	f->step = step;
	f->n_rows = n_rows;
	f->second = !f->second;
	f->layer = 0;
	f->fetched = 0;
	f->failed = OD_OK;
	f->failures = od_device_failures(f->o.device);
	f->phase = PHASE_ATTENTION;
	put_rows(f);
	run(f, &(struct od_op){ .kind = OD_OP_EMBED,
			       .embed = { .table = &f->o.dense->embed, .rows = ref(f, BUF_INFO), .x = ref(f, BUF_X) } });
	clear_fixed(f);
	run_angles(f);
	return OD_OK;
}

/* ---- a layer ---- */

static void run_norm(struct od_forward *f, struct od_ref add, struct od_ref weight)
{
	run(f, &(struct od_op){ .kind = OD_OP_NORM,
			       .norm = { .x = ref(f, BUF_X), .add = add, .weight = weight, .y = ref(f, BUF_H),
					 .n = f->o.config->hidden, .eps = f->o.config->rms_eps } });
}

static struct od_mix_call mix_call(struct od_forward *f, uint32_t layer)
{
	const struct od_config *c = f->o.config;
	const struct od_layer_spec *spec = od_config_layer(c, layer);
	const struct od_rope *rope = spec->mix.rope < c->n_ropes ? &c->rope[spec->mix.rope] : NULL;
	struct od_mix_call call = { .device = f->o.device,
				    .config = c,
				    .spec = spec,
				    .w = &f->o.dense->layer[layer],
				    .profile = f->o.profile,
				    .n_rows = (uint32_t)f->n_rows,
				    .max_rows = (uint32_t)f->o.max_rows,
				    .max_position = f->max_position,
				    .rows = ref(f, BUF_INFO),
				    .x = ref(f, BUF_H),
				    .y = ref(f, BUF_H),
				    .scratch = ref(f, BUF_MIX),
				    .info = f->info,
				    .fixed = f->fixed };
	uint32_t n_streams = od_state_pool_streams(f->o.state, layer, call.stream);

	for (uint32_t i = 0; i < n_streams; i++) {
		call.stream[i].tables = ref(f, BUF_TABLES);
		call.stream[i].table_pages = f->table_pages;
	}
	for (uint32_t t = 0; od_state_pool_fixed_bytes(f->o.state) > 0 && t < f->n_tables; t++)
		f->fixed[t] = od_seq_state_fixed(f->of[t], layer);
	if (spec->mixer->replay != NULL && f->n_rows <= OD_KEEP_ROWS)
		call.saved = od_ref_at(ref(f, BUF_SAVED), saved_before(c, layer));
	if (rope != NULL)
		call.turn = (struct od_turn){
			.angles = od_ref_at(ref(f, BUF_ANGLES),
					    dims_before(c, spec->mix.rope) * sizeof(float) * f->o.max_rows),
			.dims = rope->dims,
			.neighbours = rope->neighbours,
		};
	return call;
}

static void run_ffn(struct od_forward *f, const struct od_weight *mat)
{
	struct od_ffn_part *part = &f->part[f->second * f->o.config->n_layers + f->layer];

	*part = (struct od_ffn_part){ mat, (uint32_t)f->n_rows };
	run(f, &(struct od_op){ .kind = OD_OP_FFN,
			       .ffn = { .part = part, .n_parts = 1, .x = ref(f, BUF_H), .y = ref(f, BUF_BESIDE),
					.scratch = ref(f, BUF_FFN) } });
}

static void run_combine(struct od_forward *f, const struct od_layer_spec *l)
{
	const bool beside = l->ffn == OD_FFN_DENSE || l->shared_intermediate > 0;

	run(f, &(struct od_op){ .kind = OD_OP_COMBINE,
			       .combine = { .y = ref(f, BUF_Y),
					    .weight = ref(f, BUF_WEIGHT),
					    .x = ref(f, BUF_X),
					    .sum = ref(f, BUF_H),
					    .shared = beside ? ref(f, BUF_BESIDE) : (struct od_ref){ 0 },
					    .gate = l->shared_gate ? ref(f, BUF_SCORE) : (struct od_ref){ 0 },
					    .top_k = l->ffn == OD_FFN_DENSE ? 0 : f->o.config->top_k,
					    .hidden = f->o.config->hidden } });
	f->layer++;
	f->phase = f->layer == f->o.config->n_layers ? PHASE_LOGITS : PHASE_ATTENTION;
}

static void run_router(struct od_forward *f, const struct od_layer_spec *l, const struct od_weight *w)
{
	const struct od_config *c = f->o.config;
	struct od_op_linear scores = { .w = { &w[OD_ROLE_ROUTER] }, .x = ref(f, BUF_H), .y = { ref(f, BUF_PROBABILITY) } };
	struct od_op_route route = { .logits = ref(f, BUF_PROBABILITY), .choice = ref(f, BUF_EXPERT),
				     .weight = ref(f, BUF_WEIGHT), .margin = ref(f, BUF_MARGIN),
				     .n_experts = c->n_experts, .top_k = c->top_k, .hidden = c->hidden,
				     .bias = w[OD_ROLE_ROUTER_BIAS].data, .router = l->router };

	if (l->shared_gate) {
		scores.w[1] = &w[OD_ROLE_SHARED_SCORE];
		scores.y[1] = ref(f, BUF_SCORE);
	}
	if (f->o.profile == OD_PROFILE_BF16)
		route.round = ref(f, BUF_H);
	run(f, &(struct od_op){ .kind = OD_OP_LINEAR, .linear = scores });
	run(f, &(struct od_op){ .kind = OD_OP_ROUTE, .route = route });
}

void od_forward_attention(struct od_forward *f)
{
	const struct od_layer_spec *l = od_config_layer(f->o.config, f->layer);
	const struct od_weight *w = f->o.dense->layer[f->layer].w;
	const struct od_mix_call call = mix_call(f, f->layer);

	assert(f->phase == PHASE_ATTENTION);
	run_norm(f, (struct od_ref){ 0 }, w[OD_ROLE_ATTN_NORM].data);
	l->mixer->run(&call);
	run_norm(f, ref(f, BUF_H), w[OD_ROLE_FFN_NORM].data);
	f->fetched = 0;
	if (l->ffn == OD_FFN_MOE) {
		run_router(f, l, w);
		f->phase = PHASE_EXPERTS;
	} else {
		run_ffn(f, &w[OD_ROLE_FFN_GATE]);
		run_combine(f, l);
	}
}

bool od_forward_routed(const struct od_forward *f)
{
	return f->phase == PHASE_EXPERTS;
}

static const void *fetched(const struct od_forward *f, unsigned what, enum buffer b)
{
	return f->fetched & what ? f->host[b] : NULL;
}

/* Fills the call's host fields, for a runner that works on the host. */
static int fetch_call(struct od_forward *f, struct od_moe_call *call, struct od_err *err)
{
	int rc = od_forward_fetch(f, OD_FETCH_ROUTES | OD_FETCH_ROWS, err);

	call->x = f->host[BUF_H];
	call->expert = f->host[BUF_EXPERT];
	call->weight = f->host[BUF_WEIGHT];
	call->y = f->host[BUF_Y];
	call->probability = fetched(f, OD_FETCH_PROBABILITIES, BUF_PROBABILITY);
	call->residual = fetched(f, OD_FETCH_RESIDUALS, BUF_X);
	return rc;
}

int od_forward_experts(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	const struct od_layer_spec *l = od_config_layer(c, f->layer);
	struct od_moe_call call = {
		.step = f->step, .m = od_forward_m(f), .n_rows = f->n_rows,
		.x_at = ref(f, BUF_H), .expert_at = ref(f, BUF_EXPERT), .y_at = ref(f, BUF_Y),
	};
	int rc = OD_OK;

	assert(f->phase == PHASE_EXPERTS);
	if (!runner->on_device)
		rc = fetch_call(f, &call, err);
	if (rc == OD_OK)
		rc = runner->submit(runner, &call, err);
	if (rc != OD_OK)
		return rc;
	if (l->shared_intermediate > 0)
		run_ffn(f, &f->o.dense->layer[f->layer].w[OD_ROLE_SHARED_GATE]);
	if (runner->collect != NULL)
		rc = runner->collect(runner, err);
	if (rc != OD_OK)
		return rc;
	if (!runner->on_device && f->staged)
		od_device_put(f->o.device, OD_QUEUE_COMPUTE, ref(f, BUF_Y), call.y,
			      f->n_rows * c->top_k * c->hidden * sizeof(float));
	run_combine(f, l);
	return OD_OK;
}

uint32_t od_forward_layer(const struct od_forward *f)
{
	return f->layer;
}

uint32_t od_forward_m(const struct od_forward *f)
{
	return f->o.config->m_of[f->layer];
}

bool od_forward_done(const struct od_forward *f)
{
	return f->phase >= PHASE_LOGITS;
}

/* ---- results ---- */

static int wait_for_all(struct od_forward *f, struct od_err *err)
{
	int rc = od_device_sync(f->o.device, err);

	/* Another wait reported a failure, which may have been in this step's work. */
	if (rc == OD_OK && f->failed == OD_OK && od_device_failures(f->o.device) != f->failures)
		rc = od_fail(err, OD_ERR_INTERNAL, "the device failed during the step");
	f->put_open = f->queued = false;
	f->failed = f->failed != OD_OK ? f->failed : rc;
	return rc;
}

static void get(struct od_forward *f, enum buffer b, size_t bytes)
{
	if (f->staged)
		od_device_get(f->o.device, OD_QUEUE_COMPUTE, f->host[b], ref(f, b), bytes);
}

int od_forward_fetch(struct od_forward *f, unsigned what, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	const size_t n = f->n_rows;
	int rc;

	assert(f->phase == PHASE_EXPERTS);
	what &= ~f->fetched;
	if (what == 0)
		return OD_OK;
	if (what & OD_FETCH_ROUTES) {
		get(f, BUF_EXPERT, n * c->top_k * sizeof(uint16_t));
		get(f, BUF_WEIGHT, n * c->top_k * sizeof(float));
		get(f, BUF_MARGIN, n * sizeof(float));
	}
	if (what & OD_FETCH_PROBABILITIES)
		get(f, BUF_PROBABILITY, n * c->n_experts * sizeof(float));
	if (what & OD_FETCH_RESIDUALS)
		get(f, BUF_X, n * c->hidden * sizeof(float));
	if (what & OD_FETCH_ROWS)
		get(f, BUF_H, n * c->hidden * sizeof(float));
	rc = wait_for_all(f, err);
	if (rc == OD_OK)
		f->fetched |= what;
	return rc;
}

const uint16_t *od_forward_experts_of(const struct od_forward *f, size_t row)
{
	assert(f->fetched & OD_FETCH_ROUTES);
	return (const uint16_t *)f->host[BUF_EXPERT] + row * f->o.config->top_k;
}

const float *od_forward_weights_of(const struct od_forward *f, size_t row)
{
	assert(f->fetched & OD_FETCH_ROUTES);
	return (const float *)f->host[BUF_WEIGHT] + row * f->o.config->top_k;
}

float od_forward_margin_of(const struct od_forward *f, size_t row)
{
	assert(f->fetched & OD_FETCH_ROUTES);
	return ((const float *)f->host[BUF_MARGIN])[row];
}

const float *od_forward_probabilities_of(const struct od_forward *f, size_t row)
{
	assert(f->fetched & OD_FETCH_PROBABILITIES);
	return (const float *)f->host[BUF_PROBABILITY] + row * f->o.config->n_experts;
}

const float *od_forward_residual_of(const struct od_forward *f, size_t row)
{
	assert(f->fetched & OD_FETCH_RESIDUALS);
	return (const float *)f->host[BUF_X] + row * f->o.config->hidden;
}

/* Norms the rows into a contiguous block. Adjacent rows share one operation. */
static void norm_rows(struct od_forward *f, const uint32_t *row, size_t n)
{
	const struct od_config *c = f->o.config;

	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && row[end] == row[end - 1] + 1;)
			end++;
		od_device_run(f->o.device, OD_QUEUE_COMPUTE,
			      &(struct od_op){ .kind = OD_OP_NORM, .profile = f->o.profile, .n_rows = (uint32_t)(end - i),
					       .norm = { .x = row_ref(f, BUF_X, row[i], c->hidden),
							 .weight = f->o.dense->final_norm,
							 /* free here: no layer is left that would want it */
							 .y = row_ref(f, BUF_H, i, c->hidden),
							 .n = c->hidden, .eps = c->rms_eps } });
	}
}

int od_forward_logits(struct od_forward *f, const uint32_t *row, size_t n, float **logits, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	struct od_op head = { .kind = OD_OP_LINEAR, .profile = f->o.profile, .n_rows = (uint32_t)n,
			      .linear = { .w = { &f->o.dense->head }, .x = ref(f, BUF_H), .y = { ref(f, BUF_LOGITS) } } };

	assert(f->phase >= PHASE_LOGITS && n > 0 && n <= max_logits(&f->o));
	for (size_t i = 0; i < n; i++)
		assert(row[i] < f->n_rows);
	norm_rows(f, row, n);
	od_device_run(f->o.device, OD_QUEUE_COMPUTE, &head);
	get(f, BUF_LOGITS, n * c->vocab * sizeof(float));
	*logits = f->host[BUF_LOGITS];
	return wait_for_all(f, err);
}

/* Rebuilds the fixed state as if only the kept rows had run. */
static void replay(struct od_forward *f, const uint32_t *kept)
{
	for (uint32_t i = 0; i < f->o.config->n_layers; i++) {
		struct od_mix_call call = mix_call(f, i);

		call.x = call.y = (struct od_ref){ 0 };
		call.kept = kept;
		if (call.spec->mixer->replay != NULL)
			call.spec->mixer->replay(&call);
	}
	f->queued = true;
}

int od_forward_end(struct od_forward *f, const uint32_t *kept, struct od_err *err)
{
	const bool fixed = od_state_pool_fixed_bytes(f->o.state) > 0;
	bool all = true;
	int rc = OD_OK;

	assert(f->phase == PHASE_LOGITS);
	for (uint32_t t = 0; kept != NULL && t < f->n_tables; t++) {
		assert(kept[t] <= f->count[t]);
		all = all && kept[t] == f->count[t];
	}
	if (fixed && !all && f->n_rows > OD_KEEP_ROWS)
		return od_fail(err, OD_ERR_UNSUPPORTED, "a step of %zu rows is kept whole, or has at most %d", f->n_rows, OD_KEEP_ROWS);
	if (fixed && !all)
		replay(f, kept);
	if (f->queued)
		rc = wait_for_all(f, err);
	if (rc == OD_OK && f->failed != OD_OK) /* its logits have said so, or a fetch */
		rc = od_fail(err, f->failed, "the step failed: %s", od_status_text(f->failed));
	f->phase = PHASE_ENDED;
	for (uint32_t t = 0; rc == OD_OK && t < f->n_tables; t++) {
		const uint32_t n = kept != NULL ? kept[t] : f->count[t];

		if (n == 0)
			continue;
		od_seq_state_set_length(f->of[t], f->begun[t] + n);
		od_seq_state_take_next(f->of[t]);
	}
	return rc;
}
