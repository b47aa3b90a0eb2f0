#include "common/compute/cards.h"
#include "common/compute/formats/format.h"
#include "common/model/forward_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The current rows' part of a buffer of rows. */
static struct od_ref ref(const struct od_forward *f, enum buffer b)
{
	return od_ref_at(od_forward_ref(f, b), b < N_ROW_BUFFERS ? f->now->first * f->row_bytes[b] : 0);
}

static struct od_ref row_ref(const struct od_forward *f, enum buffer b, size_t row, size_t n)
{
	return od_ref_at(ref(f, b), row * n * sizeof(float));
}

/* As ref, of the host's memory. */
static void *host_rows(const struct od_forward *f, enum buffer b)
{
	return (char *)f->host[b] + (b < N_ROW_BUFFERS ? f->now->first * f->row_bytes[b] : 0);
}

/* op: all but profile and rows. */
static void run(struct od_forward *f, struct od_op *op)
{
	op->profile = f->o.profile;
	op->n_rows = (uint32_t)f->now->n;
	od_device_run(f->o.device, OD_QUEUE_COMPUTE, op);
	f->queued = true;
}

static unsigned card_of(const struct od_forward *f, uint32_t layer)
{
	return od_device_card_of(f->o.device, layer);
}

/* ---- weights that do not stay ---- */

static void give(struct od_forward *f)
{
	const struct od_weight_stream *stream = &f->o.dense->stream;

	if (f->taken)
		stream->give(stream->arg, f->now->layer);
	f->taken = false;
}

int od_forward_take(struct od_forward *f, struct od_err *err)
{
	const struct od_weight_stream *stream = &f->o.dense->stream;
	int rc = OD_OK;

	assert(f->now->phase == PHASE_ATTENTION);
	if (stream->take == NULL || f->taken)
		return OD_OK;
	rc = stream->take(stream->arg, f->now->layer, err);
	f->taken = rc == OD_OK;
	return rc;
}

/* ---- begin ---- */

/* The row's token, its sequence and its position, which must follow the sequence's row before it, or its committed
 * length. A sequence of which it is the first row gets the next table. */
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
	t = &f->table_of[od_seq_state_index(row->seq)];
	expected = *t == NO_TABLE ? od_seq_state_length(row->seq) : f->begun[*t] + f->count[*t];
	if (row->position != expected)
		return od_fail(err, OD_ERR_RANGE, "row %zu: position: expected %u, found %u", r, expected,
			       row->position);
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

static void run_angles(struct od_forward *f)
{
	const struct od_config *c = f->o.config;

	for (uint32_t i = 0; i < c->n_ropes; i++) {
		const uint64_t at = od_forward_dims_before(c, i) * sizeof(float);
		const float magnitude = c->rope[i].magnitude;

		run(f,
		    &(struct od_op){ .kind = OD_OP_ANGLES,
				     .angles = { .rows = ref(f, BUF_INFO),
						 .inv_freq = od_ref_at(ref(f, BUF_INV_FREQ), at),
						 .angles = od_ref_at(od_forward_ref(f, BUF_ANGLES), at * f->o.max_rows),
						 .half = c->rope[i].dims / 2,
						 .magnitude = { magnitude, c->rope[i].short_ctx != 0 ?
										   c->rope[i].long_magnitude :
										   magnitude } } });
	}
}

/* Page tables are as long as this step needs, rounded up to a power of two: small enough for one copy, and as long in
 * most steps as in the step before, so that a GPU can replay its graph. */
static uint32_t table_pages(const struct od_forward *f)
{
	const uint32_t most = od_state_pages(od_state_pool_ctx(f->o.state)),
		       needed = od_state_pages(f->max_position + 1);
	uint32_t n = 1;

	while (n < needed)
		n *= 2;
	return n < most ? n : most;
}

/* Pages for the step's rows. */
static int reserve_pages(struct od_forward *f, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t t = 0; rc == OD_OK && t < f->n_tables; t++)
		rc = od_seq_state_reserve(f->of[t], f->begun[t] + f->count[t], err);
	return rc;
}

/* Sends the device its tables of the step's rows. */
static void put_rows(struct od_forward *f)
{
	struct od_device *d = f->o.device;

	f->max_position = 0;
	for (size_t r = 0; r < f->now->n; r++) {
		const struct od_row *row = &f->rows[r];

		f->info[r] = (struct od_row_info){ row->token, row->position, f->table_of[od_seq_state_index(row->seq)],
						   od_seq_state_is_long(row->seq) };
		f->max_position = row->position > f->max_position ? row->position : f->max_position;
	}
	f->table_pages = table_pages(f);
	for (uint32_t t = 0; t < f->n_tables; t++) {
		const uint32_t end = f->begun[t] + f->count[t];

		memcpy(f->tables + (size_t)t * f->table_pages, od_seq_state_pages(f->of[t]),
		       od_state_pages(end) * sizeof(*f->tables));
	}
	for (f->card = 0; f->card < f->n_cards; f->card++) {
		od_device_put(d, OD_QUEUE_COMPUTE, ref(f, BUF_INFO), f->info, f->now->n * sizeof(*f->info));
		od_device_put(d, OD_QUEUE_COMPUTE, ref(f, BUF_TABLES), f->tables,
			      (size_t)f->n_tables * f->table_pages * sizeof(*f->tables));
		run_angles(f);
	}
	f->card = card_of(f, f->now->layer);
}

/* If the table stays in a file, reads the rows of the step's tokens into buffer b. */
static int read_embed(struct od_forward *f, const struct od_row_reader *reader, uint64_t row_bytes, enum buffer b,
		      const struct od_row *rows, size_t n_rows, struct od_err *err)
{
	int rc = OD_OK;

	if (reader->read == NULL)
		return OD_OK;
	for (size_t r = 0; rc == OD_OK && r < n_rows; r++)
		rc = reader->read(reader->arg, (uint32_t)rows[r].token, (char *)f->host[b] + r * row_bytes, err);
	return rc;
}

/* Embeds the step's tokens into x. For a table in a file, buffer b has their rows (read_embed). */
static void run_embed(struct od_forward *f, const struct od_weight *table, uint64_t row_bytes, enum buffer b,
		      enum buffer x, float scale)
{
	const bool in_file = row_bytes > 0;

	if (in_file && f->staged)
		od_device_put(f->o.device, OD_QUEUE_COMPUTE, ref(f, b), f->host[b], f->now->n * row_bytes);
	run(f, &(struct od_op){ .kind = OD_OP_EMBED,
				.embed = { .table = table,
					   .rows = ref(f, BUF_INFO),
					   .x = ref(f, x),
					   .scale = scale,
					   .in_order = in_file } });
}

/* A new text has no fixed state yet. */
static void clear_fixed(struct od_forward *f)
{
	for (uint32_t t = 0; t < f->n_tables; t++)
		if (f->begun[t] == 0)
			od_seq_state_clear_fixed(f->of[t]);
}

/* Each layer's own input (Gemma 4): the token's embedding for that layer plus the normed projection of its ordinary
 * embedding. The published model divides the projection by sqrt(hidden) and the sum by sqrt(2). A norm follows each, so
 * only its eps would notice: here the norms get eps * hidden and eps * 2 (run_input) instead. */
static void run_inputs(struct od_forward *f)
{
	const struct od_config *c = f->o.config;
	const uint32_t n = c->n_layers * c->layer_input;

	if (n == 0)
		return;
	run_embed(f, &f->layer_embed, f->o.layer_embed_row_bytes, BUF_LAYER_EMBED, BUF_INPUT,
		  sqrtf((float)c->layer_input));
	run(f, &(struct od_op){ .kind = OD_OP_LINEAR,
				.linear = { .w = { &f->o.dense->layer_project },
					    .x = ref(f, BUF_X),
					    .y = { ref(f, BUF_PROJECT) } } });
	for (uint32_t i = 0; i < c->n_layers; i++) { /* rows of layer_input, as many at a time as the step has rows */
		const struct od_ref row = row_ref(f, BUF_PROJECT, i * f->now->n, c->layer_input);

		run(f, &(struct od_op){ .kind = OD_OP_NORM,
					.norm = { .x = row,
						  .weight = f->o.dense->layer_project_norm,
						  .y = row,
						  .n = c->layer_input,
						  .eps = c->rms_eps * (float)c->hidden } });
	}
	run(f, &(struct od_op){ .kind = OD_OP_COMBINE,
				.combine = { .x = ref(f, BUF_INPUT),
					     .shared = ref(f, BUF_PROJECT),
					     .sum = ref(f, BUF_PROJECT),
					     .hidden = n } });
}

/* Waits until the device has read the tables of the step before, and its rows of embeddings in a file, which this step
 * is about to write over. Work that was queued before that step has then been done, too. */
static int settle(struct od_forward *f, struct od_err *err)
{
	if (!f->put_open)
		return OD_OK;
	f->put_open = false;
	return od_device_wait(f->o.device, OD_QUEUE_COMPUTE, f->put, err);
}

int od_forward_begin(struct od_forward *f, uint64_t step, const struct od_row *rows, size_t n_rows, struct od_err *err)
{
	int rc;

	give(f); /* a step that was given up may hold some */
	f->n_halves = 1;
	f->now = f->half;
	f->now->phase = PHASE_IDLE;
	if (n_rows == 0 || n_rows > f->o.max_rows)
		return od_fail(err, OD_ERR_RANGE, "rows of a step: expected 1 to %zu, found %zu", f->o.max_rows,
			       n_rows);
	/* take_rows only checks and counts. The host's copies of rows and tables, from which the device may still
	 * read, change after settle(). */
	rc = take_rows(f, rows, n_rows, err);
	if (rc == OD_OK)
		rc = settle(f, err);
	if (rc == OD_OK)
		rc = read_embed(f, &f->o.dense->embed_reader, f->o.embed_row_bytes, BUF_EMBED, rows, n_rows, err);
	if (rc == OD_OK)
		rc = read_embed(f, &f->o.dense->layer_embed_reader, f->o.layer_embed_row_bytes, BUF_LAYER_EMBED, rows,
				n_rows, err);
	if (rc == OD_OK)
		rc = reserve_pages(f, err);
	if (rc != OD_OK)
		return rc;
	memcpy(f->rows, rows, n_rows * sizeof(*rows));
	f->step = step;
	f->now->first = 0;
	f->now->n = n_rows;
	/* The last step may still be queued with its segments (run_ffn), so steps use two sets in turn: settle() has
	 * waited for the step before that. */
	f->second = !f->second;
	f->now->layer = od_config_begin(f->o.config);
	f->moves = false;
	f->now->fetched = 0;
	f->failed = OD_OK;
	/* From here on a failure that another wait reports counts as this step's. */
	f->failures = od_device_failures(f->o.device);
	f->now->phase = PHASE_ATTENTION;
	put_rows(f);
	if (od_config_holds_embed(f->o.config))
		run_embed(f, &f->embed, f->o.embed_row_bytes, BUF_EMBED, BUF_X, f->o.config->embed_scale);
	run_inputs(f);
	/* This ticket comes after the operations that read rows of embeddings in a file: settle() waits for both. */
	f->put = od_device_ticket(f->o.device, OD_QUEUE_COMPUTE);
	f->put_open = true;
	clear_fixed(f);
	return OD_OK;
}

void od_forward_halve(struct od_forward *f, size_t n_first)
{
	struct half *a = &f->half[0], *b = &f->half[1];

	assert(f->n_halves == 1 && a->phase == PHASE_ATTENTION);
	assert(n_first > 0 && n_first < a->n && f->n_cards == 1 && f->o.dense->stream.take == NULL &&
	       od_state_pool_fixed_bytes(f->o.state) == 0);
	*b = *a;
	b->first = n_first;
	b->n = a->n - n_first;
	a->n = n_first;
	f->n_halves = 2;
}

void od_forward_turn_to(struct od_forward *f, unsigned half)
{
	assert(half < f->n_halves);
	f->now = &f->half[half];
}

/* ---- a layer ---- */

static void run_norm(struct od_forward *f, struct od_ref add, struct od_ref weight, struct od_ref bias)
{
	const struct od_config *c = f->o.config;

	run(f, &(struct od_op){ .kind = OD_OP_NORM,
				.norm = { .x = ref(f, BUF_X),
					  .add = add,
					  .weight = weight,
					  .bias = bias,
					  .y = ref(f, BUF_H),
					  .kind = c->norm,
					  .n = c->hidden,
					  .eps = c->rms_eps } });
}

/* A norm that only some models have, without a bias. */
static void run_norm_of(struct od_forward *f, enum buffer x, struct od_ref weight, enum buffer y, float eps)
{
	run(f,
	    &(struct od_op){
		    .kind = OD_OP_NORM,
		    .norm = {
			    .x = ref(f, x), .weight = weight, .y = ref(f, y), .n = f->o.config->hidden, .eps = eps } });
}

static void run_own_norm(struct od_forward *f, enum buffer x, struct od_ref weight, enum buffer y)
{
	run_norm_of(f, x, weight, y, f->o.config->rms_eps);
}

/* The rows of table t, from its fixed state in a layer to the next one, by way of its marks. Returns the number of
 * spans. */
static uint32_t cut_spans(const struct od_forward *f, uint32_t layer, uint32_t t, struct od_span *span)
{
	const struct od_fixed fixed = od_seq_state_fixed(f->of[t], layer);
	const uint32_t end = f->begun[t] + f->count[t];
	struct od_ref from = fixed.committed, to;
	uint32_t n = 0, at = f->begun[t], length;

	for (uint32_t i = 0; od_seq_state_mark_of(f->of[t], layer, i, &length, &to); i++) {
		if (length <= at || length >= end)
			continue;
		span[n++] = (struct od_span){
			.table = t, .first = at - f->begun[t], .n = length - at, .from = from, .to = to
		};
		from = to;
		at = length;
	}
	span[n++] = (struct od_span){
		.table = t, .first = at - f->begun[t], .n = end - at, .from = from, .to = fixed.next
	};
	return n;
}

/* Marks behind the step's last rows get a copy of the next state. */
static void copy_marks(struct od_forward *f, uint32_t layer)
{
	struct od_op op = { .kind = OD_OP_COPY, .profile = f->o.profile, .n_rows = 1 };
	uint32_t length;

	op.copy.n = od_state_pool_layer_bytes(f->o.state, layer);
	for (uint32_t t = 0; op.copy.n > 0 && t < f->n_tables; t++)
		for (uint32_t i = 0; od_seq_state_mark_of(f->of[t], layer, i, &length, &op.copy.to); i++) {
			if (length != f->begun[t] + f->count[t])
				continue;
			op.copy.from = od_seq_state_fixed(f->of[t], layer).next;
			od_device_run(f->o.device, OD_QUEUE_COMPUTE, &op);
		}
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
				    .n_rows = (uint32_t)f->now->n,
				    .max_rows = (uint32_t)f->o.max_rows,
				    .max_position = f->max_position,
				    .rows = ref(f, BUF_INFO),
				    .x = ref(f, BUF_H),
				    .y = ref(f, BUF_H),
				    .scratch = ref(f, BUF_MIX),
				    .info = f->info,
				    .span = f->span };
	uint32_t n_streams =
		od_state_pool_streams(f->o.state, spec->mix.kv_of != 0 ? spec->mix.kv_of - 1 : layer, call.stream);

	for (uint32_t i = 0; i < n_streams; i++) {
		call.stream[i].tables = ref(f, BUF_TABLES);
		call.stream[i].table_pages = f->table_pages;
	}
	if (spec->mixer->replay != NULL && f->now->n <= OD_KEEP_ROWS)
		call.saved = od_ref_at(ref(f, BUF_SAVED), od_forward_saved_before(c, layer));
	if (rope != NULL)
		call.turn = (struct od_turn){
			.angles = od_ref_at(od_forward_ref(f, BUF_ANGLES),
					    (od_forward_dims_before(c, spec->mix.rope) * f->o.max_rows +
					     f->now->first * rope->dims) *
						    sizeof(float)),
			.dims = rope->dims,
			.neighbours = rope->neighbours,
		};
	return call;
}

static void run_ffn(struct od_forward *f, const struct od_weight *mat, enum buffer x)
{
	const size_t set = 2 * f->second + (f->now != f->half);
	struct od_ffn_segment *segment = &f->segment[set * f->o.config->n_layers + f->now->layer];

	*segment = (struct od_ffn_segment){ .mat = mat, .n_rows = (uint32_t)f->now->n };
	run(f, &(struct od_op){ .kind = OD_OP_FFN,
				.ffn = { .segment = segment,
					 .n_segments = 1,
					 .act = f->o.config->act,
					 .x = ref(f, x),
					 .y = ref(f, BUF_BESIDE),
					 .scratch = ref(f, BUF_FFN) } });
}

/* Shared experts may have a norm of the row that is their own. */
static void run_shared(struct od_forward *f, const struct od_layer_spec *l)
{
	const struct od_weight *w = f->o.dense->layer[f->now->layer].w;

	if (l->shared_intermediate == 0)
		return;
	if (l->sandwich)
		run_own_norm(f, BUF_X, w[OD_ROLE_SHARED_NORM].data, BUF_ASIDE);
	run_ffn(f, &w[OD_ROLE_SHARED_GATE], l->sandwich ? BUF_ASIDE : BUF_H);
}

/* x += norm(project(act(gate x) * the layer's own input)), then x is multiplied by the layer's number. */
static void run_input(struct od_forward *f)
{
	const struct od_config *c = f->o.config;
	const struct od_weight *w = f->o.dense->layer[f->now->layer].w;

	if (c->layer_input == 0)
		return;
	run(f, &(struct od_op){
		       .kind = OD_OP_LINEAR,
		       .linear = { .w = { &w[OD_ROLE_INPUT_GATE] }, .x = ref(f, BUF_X), .y = { ref(f, BUF_GATED) } } });
	run(f, &(struct od_op){ .kind = OD_OP_ACT,
				.act = { .gate = ref(f, BUF_GATED),
					 .up = row_ref(f, BUF_INPUT, f->now->layer, c->layer_input),
					 .n = c->layer_input,
					 .stride = c->n_layers * c->layer_input,
					 .act = c->act } });
	run(f,
	    &(struct od_op){
		    .kind = OD_OP_LINEAR,
		    .linear = { .w = { &w[OD_ROLE_INPUT_PROJECT] }, .x = ref(f, BUF_GATED), .y = { ref(f, BUF_H) } } });
	run_norm_of(f, BUF_H, w[OD_ROLE_INPUT_POST_NORM].data, BUF_H, 2 * c->rms_eps); /* run_inputs */
	run(f, &(struct od_op){ .kind = OD_OP_COMBINE,
				.combine = { .x = ref(f, BUF_X),
					     .shared = ref(f, BUF_H),
					     .sum = ref(f, BUF_H),
					     .scale = w[OD_ROLE_LAYER_SCALE].data,
					     .hidden = c->hidden } });
}

/* The results are of all rows. */
static void join(struct od_forward *f)
{
	f->half[0].n += f->half[1].n;
	f->n_halves = 1;
	f->now = f->half;
}

static void run_combine(struct od_forward *f, const struct od_layer_spec *l)
{
	const bool beside = l->ffn == OD_FFN_DENSE || l->shared_intermediate > 0;
	const struct od_weight *w = f->o.dense->layer[f->now->layer].w;

	run(f, &(struct od_op){ .kind = OD_OP_COMBINE,
				.combine = { .y = ref(f, BUF_Y),
					     .weight = ref(f, BUF_WEIGHT),
					     .x = ref(f, BUF_X),
					     .sum = ref(f, BUF_H),
					     .shared = beside ? ref(f, BUF_BESIDE) : (struct od_ref){ 0 },
					     .gate = l->shared_gate ? ref(f, BUF_SCORE) : (struct od_ref){ 0 },
					     .experts_norm = w[OD_ROLE_EXPERTS_POST_NORM].data,
					     .shared_norm = w[OD_ROLE_SHARED_POST_NORM].data,
					     .norm = w[OD_ROLE_FFN_POST_NORM].data,
					     .scale = f->o.config->layer_input == 0 ? w[OD_ROLE_LAYER_SCALE].data :
										      (struct od_ref){ 0 },
					     .eps = f->o.config->rms_eps,
					     .top_k = l->ffn == OD_FFN_DENSE ? 0 : f->o.config->top_k,
					     .hidden = f->o.config->hidden } });
	run_input(f);
	give(f);
	f->now->layer++;
	f->moves = f->n_cards > 1 && f->now->layer < od_config_end(f->o.config) && card_of(f, f->now->layer) != f->card;
	f->now->phase = f->now->layer == od_config_end(f->o.config) ? PHASE_LOGITS : PHASE_ATTENTION;
	if (f->n_halves == 2 && f->half[0].phase == PHASE_LOGITS && f->half[1].phase == PHASE_LOGITS)
		join(f);
}

/* A layer's last stream. */
static struct od_stream recent_stream(struct od_forward *f)
{
	struct od_stream all[OD_MAX_STREAMS], *last = all + od_state_pool_streams(f->o.state, f->now->layer, all) - 1;

	last->tables = ref(f, BUF_TABLES);
	last->table_pages = f->table_pages;
	return *last;
}

static void run_router(struct od_forward *f, const struct od_layer_spec *l, const struct od_weight *w)
{
	const struct od_config *c = f->o.config;
	const enum buffer x = l->router.norm ? BUF_ASIDE : BUF_H;
	struct od_op_linear scores = { .w = { &w[OD_ROLE_ROUTER] },
				       .x = ref(f, x),
				       .y = { ref(f, BUF_PROBABILITY) },
				       .bias = { w[OD_ROLE_LOGIT_BIAS].data } };
	struct od_op_route route = { .logits = ref(f, BUF_PROBABILITY),
				     .choice = ref(f, BUF_EXPERT),
				     .weight = ref(f, BUF_WEIGHT),
				     .margin = ref(f, BUF_MARGIN),
				     .n_experts = c->n_experts,
				     .top_k = c->top_k,
				     .hidden = c->hidden,
				     .bias = w[OD_ROLE_ROUTER_BIAS].data,
				     .factor = w[OD_ROLE_ROUTER_FACTORS].data,
				     .router = l->router,
				     .prior = c->prior };

	if (l->router.norm)
		run_own_norm(f, BUF_X, w[OD_ROLE_ROUTER_NORM].data, BUF_ASIDE);
	if (l->shared_gate) {
		scores.w[1] = &w[OD_ROLE_SHARED_SCORE];
		scores.y[1] = ref(f, BUF_SCORE);
	}
	/* The router reads the row before it is rounded. Shared experts run later: without a norm of their own they
	 * read the rounded one, as routed ones do. Another order would change bits. */
	if (f->o.profile == OD_PROFILE_BF16)
		route.round = ref(f, BUF_H);
	if (c->prior.recent > 0) {
		route.rows = ref(f, BUF_INFO);
		route.recent = recent_stream(f);
	}
	run(f, &(struct od_op){ .kind = OD_OP_LINEAR, .linear = scores });
	run(f, &(struct od_op){ .kind = OD_OP_ROUTE, .route = route });
}

/* Moves the rows of a buffer that the next layers need to their card, through the host. An error shows at the step's
 * next wait. */
static void move_buffer(struct od_forward *f, enum buffer b, size_t bytes, unsigned card)
{
	if (bytes == 0)
		return;
	/* Each card has its own queue, and `moved` serves all buffers in turn: so the host waits for the copy out
	 * before the copy in, and for that before the next buffer. */
	od_device_get(f->o.device, OD_QUEUE_COMPUTE, f->moved, ref(f, b), bytes);
	(void)!od_device_sync(f->o.device, NULL);
	od_device_put(f->o.device, OD_QUEUE_COMPUTE, od_buf_ref(f->buf[card], f->at[b]), f->moved, bytes);
	(void)!od_device_sync(f->o.device, NULL);
}

static void move_rows(struct od_forward *f)
{
	const struct od_config *c = f->o.config;
	const unsigned card = card_of(f, f->now->layer);

	move_buffer(f, BUF_X, f->now->n * c->hidden * sizeof(float), card);
	move_buffer(f, BUF_INPUT, f->now->n * c->n_layers * c->layer_input * sizeof(float), card);
	f->card = card;
	f->moves = false;
}

void od_forward_attention(struct od_forward *f)
{
	const struct od_layer_spec *l = od_config_layer(f->o.config, f->now->layer);
	const struct od_weight *w = f->o.dense->layer[f->now->layer].w;
	struct od_mix_call call;

	assert(f->now->phase == PHASE_ATTENTION && (f->o.dense->stream.take == NULL || f->taken));
	if (f->moves)
		move_rows(f);
	call = mix_call(f, f->now->layer);
	run_norm(f, (struct od_ref){ 0 }, w[OD_ROLE_ATTN_NORM].data, w[OD_ROLE_ATTN_NORM_BIAS].data);
	if (l->mixer->replay != NULL)
		for (uint32_t t = 0; t < f->n_tables; t++)
			call.n_spans += cut_spans(f, f->now->layer, t, f->span + call.n_spans);
	/* The queue keeps order: marks are copied from the state that the mixer has just written. */
	l->mixer->run(&call);
	copy_marks(f, f->now->layer);
	if (l->sandwich)
		run_own_norm(f, BUF_H, w[OD_ROLE_ATTN_POST_NORM].data, BUF_H);
	run_norm(f, ref(f, BUF_H), w[OD_ROLE_FFN_NORM].data, w[OD_ROLE_FFN_NORM_BIAS].data);
	f->now->fetched = 0;
	if (l->ffn == OD_FFN_MOE) {
		run_router(f, l, w);
		f->now->phase = PHASE_EXPERTS;
	} else {
		run_ffn(f, &w[OD_ROLE_FFN_GATE], BUF_H);
		run_combine(f, l);
	}
}

bool od_forward_routed(const struct od_forward *f)
{
	return f->now->phase == PHASE_EXPERTS;
}

static const void *fetched(const struct od_forward *f, unsigned what, enum buffer b)
{
	return f->now->fetched & what ? host_rows(f, b) : NULL;
}

int od_forward_fetch_for(struct od_forward *f, struct od_expert_runner *runner, unsigned what, struct od_err *err)
{
	if (runner->needs != NULL)
		what |= runner->needs(runner, f->step, od_forward_m(f));
	return od_forward_fetch(f, what, err);
}

/* Fills the call's host fields: all for a runner that works on the host, else those that it needs. */
static int fetch_call(struct od_forward *f, struct od_expert_runner *runner, struct od_moe_call *call,
		      struct od_err *err)
{
	int rc;

	if (runner->on_device && runner->needs == NULL)
		return OD_OK;
	rc = runner->on_device ? od_forward_fetch_for(f, runner, 0, err) :
				 od_forward_fetch(f, OD_FETCH_ROUTES | OD_FETCH_ROWS, err);
	call->x = fetched(f, OD_FETCH_ROWS, BUF_H);
	call->expert = fetched(f, OD_FETCH_ROUTES, BUF_EXPERT);
	call->weight = fetched(f, OD_FETCH_ROUTES, BUF_WEIGHT);
	call->y = runner->on_device ? NULL : host_rows(f, BUF_Y);
	call->probability = fetched(f, OD_FETCH_PROBABILITIES, BUF_PROBABILITY);
	call->residual = fetched(f, OD_FETCH_RESIDUALS, BUF_X);
	return rc;
}

int od_forward_submit(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err)
{
	int rc;

	assert(f->now->phase == PHASE_EXPERTS);
	f->now->call = (struct od_moe_call){
		.step = f->step,
		.m = od_forward_m(f),
		.first = f->now->first,
		.n_rows = f->now->n,
		.x_at = ref(f, BUF_H),
		.expert_at = ref(f, BUF_EXPERT),
		.y_at = ref(f, BUF_Y),
	};
	rc = fetch_call(f, runner, &f->now->call, err);
	if (rc == OD_OK)
		rc = runner->submit(runner, &f->now->call, err);
	/* In a cluster, shared experts are computed here while the workers compute theirs. */
	if (rc == OD_OK)
		run_shared(f, od_config_layer(f->o.config, f->now->layer));
	return rc;
}

int od_forward_collect(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	int rc = OD_OK;

	assert(f->now->phase == PHASE_EXPERTS);
	if (runner->collect != NULL)
		rc = runner->collect(runner, &f->now->call, err);
	if (rc != OD_OK)
		return rc;
	if (!runner->on_device && f->staged)
		od_device_put(f->o.device, OD_QUEUE_COMPUTE, ref(f, BUF_Y), f->now->call.y,
			      f->now->n * c->top_k * c->hidden * sizeof(float));
	run_combine(f, od_config_layer(c, f->now->layer));
	return OD_OK;
}

int od_forward_experts(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err)
{
	const int rc = od_forward_submit(f, runner, err);

	return rc == OD_OK ? od_forward_collect(f, runner, err) : rc;
}

uint32_t od_forward_layer(const struct od_forward *f)
{
	return f->now->layer;
}

uint32_t od_forward_m(const struct od_forward *f)
{
	return f->o.config->m_of[f->now->layer];
}

bool od_forward_done(const struct od_forward *f)
{
	return f->now->phase >= PHASE_LOGITS;
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
		od_device_get(f->o.device, OD_QUEUE_COMPUTE, host_rows(f, b), ref(f, b), bytes);
}

int od_forward_fetch(struct od_forward *f, unsigned what, struct od_err *err)
{
	const struct od_config *c = f->o.config;
	const size_t n = f->now->n;
	int rc;

	assert(f->now->phase == PHASE_EXPERTS);
	what &= ~f->now->fetched;
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
		f->now->fetched |= what;
	return rc;
}

const uint16_t *od_forward_experts_of(const struct od_forward *f, size_t row)
{
	assert(f->now->fetched & OD_FETCH_ROUTES);
	return (const uint16_t *)f->host[BUF_EXPERT] + row * f->o.config->top_k;
}

const float *od_forward_weights_of(const struct od_forward *f, size_t row)
{
	assert(f->now->fetched & OD_FETCH_ROUTES);
	return (const float *)f->host[BUF_WEIGHT] + row * f->o.config->top_k;
}

float od_forward_margin_of(const struct od_forward *f, size_t row)
{
	assert(f->now->fetched & OD_FETCH_ROUTES);
	return ((const float *)f->host[BUF_MARGIN])[row];
}

const float *od_forward_probabilities_of(const struct od_forward *f, size_t row)
{
	assert(f->now->fetched & OD_FETCH_PROBABILITIES);
	return (const float *)f->host[BUF_PROBABILITY] + row * f->o.config->n_experts;
}

const float *od_forward_residual_of(const struct od_forward *f, size_t row)
{
	assert(f->now->fetched & OD_FETCH_RESIDUALS);
	return (const float *)f->host[BUF_X] + row * f->o.config->hidden;
}

/* ---- some of the layers ---- */

int od_forward_input(struct od_forward *f, const float *x, struct od_err *err)
{
	assert(f->now->phase != PHASE_IDLE && f->now->phase != PHASE_EXPERTS);
	od_device_put(f->o.device, OD_QUEUE_COMPUTE, ref(f, BUF_X), x, f->now->n * f->o.config->hidden * sizeof(float));
	return wait_for_all(f, err);
}

int od_forward_output(struct od_forward *f, const float **x, struct od_err *err)
{
	assert(f->now->phase == PHASE_LOGITS);
	get(f, BUF_X, f->now->n * f->o.config->hidden * sizeof(float));
	*x = f->host[BUF_X];
	return wait_for_all(f, err);
}

/* Norms the rows into a contiguous block. Adjacent rows share one operation. */
static void norm_rows(struct od_forward *f, const uint32_t *row, size_t n)
{
	const struct od_config *c = f->o.config;

	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && row[end] == row[end - 1] + 1;)
			end++;
		od_device_run(f->o.device, OD_QUEUE_COMPUTE,
			      &(struct od_op){ .kind = OD_OP_NORM,
					       .profile = f->o.profile,
					       .n_rows = (uint32_t)(end - i),
					       .norm = { .x = row_ref(f, BUF_X, row[i], c->hidden),
							 .weight = f->o.dense->final_norm,
							 .bias = f->o.dense->final_norm_bias,
							 /* free here: no layer is left that would want it */
							 .y = row_ref(f, BUF_H, i, c->hidden),
							 .kind = c->norm,
							 .n = c->hidden,
							 .eps = c->rms_eps } });
	}
}

static void run_head(struct od_forward *f, const struct od_weight *w, size_t n, struct od_ref y, struct od_ref bias)
{
	od_device_run(f->o.device, OD_QUEUE_COMPUTE,
		      &(struct od_op){ .kind = OD_OP_LINEAR,
				       .profile = f->o.profile,
				       .n_rows = (uint32_t)n,
				       .linear = { .w = { w },
						   .x = ref(f, BUF_H),
						   .y = { y },
						   .bias = { bias },
						   .cap = f->o.config->logit_cap } });
}

/* Logits of a piece of the head, from `first` on: [n][n_out] on the device, a part of each row on the host. */
static int head_piece(struct od_forward *f, uint32_t i, size_t first, size_t n, struct od_err *err)
{
	const struct od_dense *d = f->o.dense;
	const struct od_weight *w = &d->head_piece[i];
	const size_t vocab = f->o.config->vocab, bytes = w->n_out * sizeof(float);
	const struct od_ref y = od_ref_at(ref(f, BUF_LOGITS), first * n * sizeof(float));
	const uint32_t stage = f->o.config->n_layers + i;
	struct od_ref bias = d->head_bias;
	int rc = d->stream.take(d->stream.arg, stage, err);

	if (rc != OD_OK)
		return rc;
	if (bias.buf != NULL)
		bias = od_ref_at(bias, first * sizeof(float));
	run_head(f, w, n, y, bias);
	d->stream.give(d->stream.arg, stage);
	for (size_t r = 0; r < n; r++)
		od_device_get(f->o.device, OD_QUEUE_COMPUTE, (float *)f->host[BUF_LOGITS] + r * vocab + first,
			      od_ref_at(y, r * bytes), bytes);
	return OD_OK;
}

static int head_pieces(struct od_forward *f, size_t n, struct od_err *err)
{
	const struct od_dense *d = f->o.dense;
	size_t first = 0;
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < d->n_head_pieces; i++) {
		rc = head_piece(f, i, first, n, err);
		first += d->head_piece[i].n_out;
	}
	return rc;
}

int od_forward_logits(struct od_forward *f, const uint32_t *row, size_t n, float **logits, struct od_err *err)
{
	int rc = OD_OK;

	assert(f->now->phase >= PHASE_LOGITS && n > 0 && n <= od_forward_max_logits(&f->o));
	for (size_t i = 0; i < n; i++)
		assert(row[i] < f->now->n);
	norm_rows(f, row, n);
	if (f->o.dense->n_head_pieces > 0) {
		rc = head_pieces(f, n, err);
	} else {
		run_head(f, &f->o.dense->head, n, ref(f, BUF_LOGITS), f->o.dense->head_bias);
		get(f, BUF_LOGITS, n * f->o.config->vocab * sizeof(float));
	}
	*logits = f->host[BUF_LOGITS];
	if (rc == OD_OK)
		return wait_for_all(f, err);
	f->queued = true;
	return rc;
}

/* Rebuilds the fixed state as if only the kept rows had run. */
static void replay(struct od_forward *f, const uint32_t *kept)
{
	for (uint32_t i = od_config_begin(f->o.config); i < od_config_end(f->o.config); i++) {
		struct od_mix_call call;

		f->card = card_of(f, i);
		call = mix_call(f, i);
		if (call.spec->mixer->replay == NULL)
			continue;
		call.x = call.y = (struct od_ref){ 0 };
		for (uint32_t t = 0; t < f->n_tables; t++) {
			const struct od_fixed fixed = od_seq_state_fixed(f->of[t], i);

			if (kept[t] > 0)
				f->span[call.n_spans++] = (struct od_span){
					.table = t, .n = kept[t], .from = fixed.committed, .to = fixed.next
				};
		}
		call.spec->mixer->replay(&call);
	}
	f->queued = true;
}

int od_forward_end(struct od_forward *f, const uint32_t *kept, struct od_err *err)
{
	const bool fixed = od_state_pool_fixed_bytes(f->o.state) > 0;
	bool cut = false; /* between rows of a sequence */
	int rc = OD_OK;

	assert(f->now->phase == PHASE_LOGITS);
	if (kept != NULL)
		for (uint32_t t = 0; t < f->n_tables; t++) {
			assert(kept[t] <= f->count[t]);
			cut = cut || (kept[t] > 0 && kept[t] < f->count[t]);
		}
	if (fixed && cut && f->now->n > OD_KEEP_ROWS)
		return od_fail(err, OD_ERR_UNSUPPORTED, "a step of %zu rows is kept whole, or has at most %d",
			       f->now->n, OD_KEEP_ROWS);
	if (fixed && cut)
		replay(f, kept);
	if (f->queued)
		rc = wait_for_all(f, err);
	if (rc == OD_OK && f->failed != OD_OK) /* its logits have said so, or a fetch */
		rc = od_fail(err, f->failed, "the step failed: %s", od_status_text(f->failed));
	/* Lengths alone make rows part of a text, so a step that failed leaves all texts as they were. */
	f->now->phase = PHASE_ENDED;
	if (rc == OD_OK)
		for (uint32_t t = 0; t < f->n_tables; t++) {
			const uint32_t n = kept != NULL ? kept[t] : f->count[t];

			if (n == 0)
				continue;
			od_seq_state_set_length(f->of[t], f->begun[t] + n);
			od_seq_state_take_next(f->of[t]);
		}
	return rc;
}
