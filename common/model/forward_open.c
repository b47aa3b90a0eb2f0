/* From the options of a forward pass to its memory, and back. */
#include "common/model/forward_open.h"

#include "common/base/mem.h"
#include "common/compute/cards.h"
#include "common/compute/scratch.h"
#include "common/model/forward_internal.h"
#include "common/model/rope.h"

#include <stdlib.h>
#include <string.h>

/* Buffers that the host reads, or fills for each step. */
static const bool on_host[N_BUFFERS] = {
	[BUF_X] = true,	     [BUF_H] = true, [BUF_PROBABILITY] = true, [BUF_EXPERT] = true, [BUF_WEIGHT] = true,
	[BUF_MARGIN] = true, [BUF_Y] = true, [BUF_LOGITS] = true,      [BUF_EMBED] = true,  [BUF_LAYER_EMBED] = true,
};

static uint64_t table_bytes(const struct od_forward_opts *o)
{
	return o->state == NULL ? 0 :
				  (uint64_t)od_state_pool_sequences(o->state) *
					  od_state_pages(od_state_pool_ctx(o->state)) * sizeof(uint32_t);
}

uint32_t od_forward_dims_before(const struct od_config *c, uint32_t rope)
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

	/* A queue runs the layers one after another, so all of them share the scratch of the largest. */
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

static bool norms_aside(const struct od_forward_opts *o)
{
	bool any = false;

	for (uint32_t i = 0; i < o->config->n_kinds; i++)
		any = any || o->config->kind[i].router.norm || o->config->kind[i].sandwich;
	return any;
}

uint64_t od_forward_saved_before(const struct od_config *c, uint32_t layer)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < layer; i++) {
		const struct od_layer_spec *l = od_config_layer(c, i);
		struct od_state_spec s = { 0 };

		if (od_config_holds(c, i))
			l->mixer->state(&l->mix, &s);
		sum += od_round_up(s.saved_bytes * OD_KEEP_ROWS, 64);
	}
	return sum;
}

size_t od_forward_max_logits(const struct od_forward_opts *o)
{
	return o->max_logits > 0 ? o->max_logits : 1;
}

static uint64_t logits_bytes(const struct od_forward_opts *o)
{
	uint64_t bytes;

	return od_mul(od_forward_max_logits(o), o->config->vocab * sizeof(float), &bytes) ? bytes : UINT64_MAX;
}

/* The list of all buffers, used both to count their bytes and to place them. */
static void list_bytes(const struct od_forward_opts *o, uint64_t bytes[N_BUFFERS])
{
	const struct od_config *c = o->config;
	const uint64_t hidden = c->hidden * sizeof(float), dims = od_forward_dims_before(c, c->n_ropes);
	const uint64_t inputs = c->layer_input * sizeof(float);
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
		[BUF_ASIDE] = norms_aside(o) ? hidden : 0,
		[BUF_BESIDE] = ffn_bytes(o) > 0 ? hidden : 0,
		[BUF_SCORE] = sizeof(float),
		[BUF_INPUT] = inputs * c->n_layers,
		[BUF_PROJECT] = inputs * c->n_layers,
		[BUF_GATED] = inputs,
		[BUF_EMBED] = o->embed_row_bytes,
		[BUF_LAYER_EMBED] = o->layer_embed_row_bytes,
		[BUF_MIX] = mix_bytes(o),
		[BUF_FFN] = ffn_bytes(o),
		[BUF_TABLES] = table_bytes(o),
		[BUF_INV_FREQ] = dims * sizeof(float),
		[BUF_LOGITS] = logits_bytes(o),
		[BUF_SAVED] = od_forward_saved_before(c, c->n_layers),
	};

	memcpy(bytes, all, sizeof(all));
}

/* Host memory for a buffer of these rows where the device's is not mapped. */
static uint64_t host_bytes(const struct od_forward_opts *o, const uint64_t each[N_BUFFERS], size_t i)
{
	uint64_t bytes;

	return od_mul(i < N_ROW_BUFFERS ? o->max_rows : 1, each[i], &bytes) ? bytes : UINT64_MAX;
}

/* Host memory for rows on their way from card to card. */
static uint64_t moved_bytes(const struct od_forward_opts *o, const uint64_t each[N_BUFFERS])
{
	const uint64_t x = host_bytes(o, each, BUF_X), input = host_bytes(o, each, BUF_INPUT);

	return x > input ? x : input;
}

/* Bytes of all buffers, each followed by padding; UINT64_MAX: overflow. */
static uint64_t lay_out_buffers(const struct od_forward_opts *o, uint64_t at[N_BUFFERS])
{
	uint64_t bytes[N_BUFFERS], sum = 0;

	list_bytes(o, bytes);
	for (size_t i = 0; i < N_BUFFERS; i++) {
		at[i] = sum;
		/* The bound keeps the padding and the rounding from wrapping before od_add() looks. */
		if ((i < N_ROW_BUFFERS && !od_mul(o->max_rows, bytes[i], &bytes[i])) || bytes[i] > UINT64_MAX / 2 ||
		    !od_add(sum, od_round_up(bytes[i] + OD_PAD_BYTES, 64), &sum))
			return UINT64_MAX;
	}
	return sum;
}

uint64_t od_forward_bytes(const struct od_forward_opts *opts)
{
	uint64_t at[N_BUFFERS], each[N_BUFFERS], sum = lay_out_buffers(opts, at), rows;

	if (!od_mul(opts->max_rows, sizeof(struct od_row) + sizeof(struct od_row_info), &rows) ||
	    !od_add(sum, rows, &sum) || !od_add(sum, table_bytes(opts) + sizeof(struct od_forward), &sum))
		return UINT64_MAX;
	list_bytes(opts, each);
	if (opts->device == NULL || od_device_maps(opts->device)) {
		if (opts->head_in_pieces && !od_add(sum, host_bytes(opts, each, BUF_LOGITS), &sum))
			return UINT64_MAX;
		return sum;
	}
	for (size_t i = 0; i < N_BUFFERS; i++)
		if (on_host[i] && !od_add(sum, host_bytes(opts, each, i), &sum))
			return UINT64_MAX;
	return sum;
}

void od_forward_split(const struct od_forward_opts *opts, struct od_split *s)
{
	uint64_t at[N_BUFFERS];
	const uint64_t on_device = lay_out_buffers(opts, at), all = od_forward_bytes(opts);

	od_split_add(&s->each.bytes, on_device);
	od_split_add(&s->beside.bytes, all - on_device);
}

/* in_file: the weight has no data */
static bool shape_fits(const struct od_weight *w, const struct od_config *c, enum od_role role, uint32_t layer,
		       bool in_file)
{
	uint64_t n_out, n_in;

	od_role_shape(c, role, layer, &n_out, &n_in);
	if (n_out == 0 || !od_config_holds_role(c, role, layer))
		return w->data.buf == NULL && !in_file;
	return (w->data.buf == NULL) == in_file && w->n_out == n_out && w->n_in == n_in;
}

static bool weight_fits(const struct od_weight *w, const struct od_config *c, enum od_role role, uint32_t layer)
{
	return shape_fits(w, c, role, layer, false);
}

/* row_bytes: those of a row, if the table stays in a file; else 0 */
static bool table_fits(const struct od_weight *w, const struct od_row_reader *reader, uint64_t row_bytes,
		       const struct od_config *c, enum od_role role)
{
	const struct od_format *f = od_format(w->dtype);
	const bool in_file = reader->read != NULL;

	if (!shape_fits(w, c, role, 0, in_file) || row_bytes != (in_file ? od_row_bytes(w->dtype, w->n_in) : 0))
		return false;
	return w->n_out == 0 || (f != NULL && (f->uses & (OD_USE_VECTOR | OD_USE_BLOCKS)) != 0);
}

static bool pieces_fit(const struct od_dense *d, const struct od_config *c)
{
	uint64_t rows = 0;

	for (uint32_t i = 0; i < d->n_head_pieces; i++) {
		const struct od_weight *w = &d->head_piece[i];

		if (w->data.buf == NULL || w->n_in != c->hidden || w->n_out > c->vocab)
			return false;
		rows += w->n_out;
	}
	return rows == c->vocab && d->stream.take != NULL;
}

static bool head_fits(const struct od_dense *d, const struct od_config *c)
{
	const bool whole = (c->tied_head ? d->head.data.buf != NULL : weight_fits(&d->head, c, OD_ROLE_HEAD, 0)) &&
			   d->head.n_out == c->vocab && d->head.n_in == c->hidden;

	return (d->n_head_pieces > 0 ? pieces_fit(d, c) : whole) && d->final_norm.buf != NULL &&
	       (d->final_norm_bias.buf != NULL) == (c->norm == OD_NORM_LAYER) &&
	       (d->head_bias.buf != NULL) == c->head_bias;
}

/* The loaders check files; this second check prevents reads outside a buffer if one of them has a bug. */
static int check_dense(const struct od_forward_opts *o, struct od_err *err)
{
	const struct od_dense *d = o->dense;
	const struct od_config *c = o->config;
	bool ok =
		table_fits(&d->embed, &d->embed_reader, o->embed_row_bytes, c, OD_ROLE_EMBED) &&
		(!od_config_holds_head(c) || head_fits(d, c)) && (d->n_head_pieces > 0) == o->head_in_pieces &&
		table_fits(&d->layer_embed, &d->layer_embed_reader, o->layer_embed_row_bytes, c, OD_ROLE_LAYER_EMBED) &&
		weight_fits(&d->layer_project, c, OD_ROLE_LAYER_PROJECT, 0) &&
		(d->layer_project_norm.buf != NULL) == (c->layer_input > 0);

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

/* The host has memory of its own for the buffer. */
static bool is_staged(const struct od_forward *f, size_t i)
{
	return on_host[i] && (f->staged || (i == BUF_LOGITS && f->o.head_in_pieces));
}

static int open_buffers(struct od_forward *f, struct od_err *err)
{
	const uint32_t n = od_state_pool_sequences(f->o.state);
	const uint64_t bytes = lay_out_buffers(&f->o, f->at), *each = f->row_bytes;
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < f->n_cards; i++)
		rc = od_buf_new(&f->buf[i], od_device_card(f->o.device, i), bytes, "the rows of a step", err);
	if (rc != OD_OK)
		return rc;
	list_bytes(&f->o, f->row_bytes);
	/* A mapping is one card's, but results come from the card that has the layer: with several all are staged. */
	f->staged = f->n_cards > 1 || od_ref_map(od_forward_ref(f, BUF_X)) == NULL;
	if (f->n_cards > 1)
		f->moved = od_host_new(f->o.device, moved_bytes(&f->o, each));
	if (f->n_cards > 1 && f->moved == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for rows between cards");
	for (size_t i = 0; i < N_BUFFERS; i++) {
		if (!on_host[i])
			continue;
		f->host[i] = is_staged(f, i) ? od_host_new(f->o.device, host_bytes(&f->o, each, i)) :
					       od_ref_map(od_forward_ref(f, (enum buffer)i));
		if (f->host[i] == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for a step's results on the host");
	}
	/* Each step's puts copy info and tables, so these are memory of od_host_new: a GPU has it pinned. */
	f->rows = calloc(f->o.max_rows, sizeof(*f->rows));
	f->info = od_host_new(f->o.device, f->o.max_rows * sizeof(*f->info));
	f->tables = od_host_new(f->o.device, table_bytes(&f->o));
	f->table_of = calloc(n, sizeof(*f->table_of));
	f->of = calloc(n, sizeof(*f->of));
	f->begun = calloc(n, sizeof(*f->begun));
	f->count = calloc(n, sizeof(*f->count));
	f->span = calloc((size_t)n * (OD_MAX_MARKS + 1), sizeof(*f->span));
	f->segment = calloc(4 * (size_t)f->o.config->n_layers, sizeof(*f->segment));
	if (f->rows == NULL || f->info == NULL || f->tables == NULL || f->table_of == NULL || f->of == NULL ||
	    f->begun == NULL || f->count == NULL || f->span == NULL || f->segment == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu rows", f->o.max_rows);
	return OD_OK;
}

/* Rows of a table in a file go to the card of the first layer, which needs them. */
static void bind_table(struct od_forward *f, struct od_weight *w, const struct od_weight *table,
		       const struct od_row_reader *reader, enum buffer b)
{
	*w = *table;
	if (reader->read == NULL)
		return;
	w->n_out = f->o.max_rows;
	w->data = od_buf_ref(f->buf[od_device_card_of(f->o.device, od_config_begin(f->o.config))], f->at[b]);
}

static int put_frequencies(struct od_forward *f, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	size_t bytes = od_forward_dims_before(c, c->n_ropes) * sizeof(float);
	float *inv_freq = malloc(bytes + 1);
	int rc;

	if (inv_freq == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu frequencies", bytes / sizeof(float));
	for (uint32_t i = 0; i < 2 * c->n_ropes; i++)
		od_rope_frequencies(&c->rope[i / 2], i % 2 == 1,
				    inv_freq + od_forward_dims_before(c, i / 2) + i % 2 * c->rope[i / 2].dims / 2);
	for (f->card = 0; f->card < f->n_cards; f->card++)
		od_device_put(f->o.device, OD_QUEUE_COMPUTE, od_forward_ref(f, BUF_INV_FREQ), inv_freq, bytes);
	f->card = 0;
	/* Queued puts may read inv_freq until this wait. */
	rc = od_device_sync(f->o.device, err);
	free(inv_freq);
	return rc;
}

int od_forward_new(struct od_forward **out, const struct od_forward_opts *opts, struct od_err *err)
{
	struct od_forward *f;
	int rc;

	*out = NULL;
	/* od_forward_bytes() is UINT64_MAX where a product overflows, so those with max_rows below need no check. */
	if (opts->max_rows == 0 || opts->max_rows > UINT32_MAX || od_forward_bytes(opts) > SIZE_MAX / 2)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: %zu is zero or too many", opts->max_rows);
	if (opts->max_logits > opts->max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows with logits: expected at most %zu (rows of a step), found %zu",
			       opts->max_rows, opts->max_logits);
	rc = check_dense(opts, err);
	if (rc == OD_OK)
		rc = check_state(opts, err);
	if (rc != OD_OK)
		return rc;
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "forward pass");
	f->o = *opts;
	f->now = f->half;
	f->n_cards = od_device_cards(opts->device); /* from here od_forward_free() is valid */
	rc = open_buffers(f, err);
	if (rc == OD_OK)
		rc = put_frequencies(f, err);
	if (rc == OD_OK) {
		bind_table(f, &f->embed, &opts->dense->embed, &opts->dense->embed_reader, BUF_EMBED);
		bind_table(f, &f->layer_embed, &opts->dense->layer_embed, &opts->dense->layer_embed_reader,
			   BUF_LAYER_EMBED);
	}
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
	if (f->taken)
		f->o.dense->stream.give(f->o.dense->stream.arg, f->now->layer);
	/* a step that was given up may have queued work that uses the buffers below */
	(void)!od_device_sync(f->o.device, NULL);
	/* A mapping ends with its buffer: only stages are the pass's own. */
	for (size_t i = 0; i < N_BUFFERS; i++)
		if (is_staged(f, i))
			od_host_free(f->o.device, f->host[i], host_bytes(&f->o, f->row_bytes, i));
	od_host_free(f->o.device, f->info, f->o.max_rows * sizeof(*f->info));
	od_host_free(f->o.device, f->tables, table_bytes(&f->o));
	free(f->rows);
	free(f->table_of);
	free(f->of);
	free(f->begun);
	free(f->count);
	free(f->span);
	free(f->segment);
	for (unsigned i = 0; i < f->n_cards; i++)
		od_buf_free(f->buf[i]);
	od_host_free(f->o.device, f->moved, moved_bytes(&f->o, f->row_bytes));
	free(f);
}
