#include "common/pack/load/dense_load.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/cards.h"
#include "common/compute/quant.h"
#include "common/pack/checksum.h"
#include "common/pack/load/dense_parts.h"
#include "common/pack/load/device_check.h"
#include "common/pack/load/table_rows.h"
#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct od_dense_store {
	struct od_dense dense;
	struct od_layer_weights *layer;
	struct od_device *device;
	struct od_buf *bytes[OD_MAX_CARDS]; /* all tensors of a card, each followed by padding */
	struct od_table_rows *embed, *layer_embed; /* NULL: in memory, or there is none */
	/* With OD_DENSE_STREAMED: */
	struct od_dense_plan plan;
	struct od_buf *kept, *ring;
	struct od_dense_stream *stream; /* NULL: all weights stay */
	struct od_weight *head_piece;
};

/* STREAMED: a part of dense_parts.h. Its scales are in memory. */
enum tensor_place { NOWHERE, IN_MEMORY, IN_FILE, STREAMED };

/* Vectors are widened to f32, which is exact, and finish_vector changes some; matrices stay as they are. */
static uint64_t tensor_memory(const struct od_dense_tensor *t)
{
	if (t->n_in > 0)
		return od_mat_memory_bytes(&t->type, t->n_out, t->n_in);
	return od_round_up(t->n_out * sizeof(float), OD_PAD_BYTES) + OD_PAD_BYTES;
}

/* Only single rows of it are read. */
static bool is_table(const struct od_pack *p, const struct od_dense_tensor *t)
{
	return t->type.scale == 0 &&
	       (t->role == OD_ROLE_LAYER_EMBED || (t->role == OD_ROLE_EMBED && !p->config.tied_head));
}

static enum tensor_place place_of(const struct od_pack *p, const struct od_dense_tensor *t, enum od_dense_choice choice)
{
	if (!od_config_holds_role(&p->config, t->role, t->layer) ||
	    (choice == OD_DENSE_UNQUANTISED && od_role_quantised(t->role)))
		return NOWHERE;
	if (choice == OD_DENSE_STREAMED && od_dense_is_part(p, t))
		return STREAMED;
	return (choice == OD_DENSE_WITHOUT_TABLES || choice == OD_DENSE_STREAMED) && is_table(p, t) ? IN_FILE :
												      IN_MEMORY;
}

/* Memory of a tensor with this place, without a table's or a part's. */
static uint64_t place_memory(const struct od_dense_tensor *t, enum tensor_place place)
{
	switch (place) {
	case IN_MEMORY: return tensor_memory(t);
	case STREAMED: return od_dense_scale_memory(t);
	case IN_FILE:
	case NOWHERE: break;
	}
	return 0;
}

/* A tied head's parts are read, and the embedding stays in the file. */
static bool has_table(const struct od_pack *p, const struct od_dense_tensor *t, enum od_dense_choice choice)
{
	const enum tensor_place place = place_of(p, t, choice);

	return place == IN_FILE || (place == STREAMED && t->role == OD_ROLE_EMBED);
}

uint64_t od_dense_row_bytes(const struct od_pack *p, enum od_dense_choice choice, enum od_role role)
{
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		if (t->role == role && has_table(p, t, choice))
			return od_mat_row_bytes(&t->type, t->n_in);
	}
	return 0;
}

static bool is_with_first(const struct od_dense_tensor *t)
{
	return t->role == OD_ROLE_EMBED || t->role >= OD_ROLE_LAYER_EMBED;
}

static unsigned last_card(const struct od_device *d, const struct od_pack *p)
{
	return od_device_card_of(d, od_config_end(&p->config) - 1);
}

/* Weights of layers are on the layer's card; embeddings are with the first layer, head and the norm before it with the
 * last. */
static unsigned card_of(const struct od_device *d, const struct od_pack *p, const struct od_dense_tensor *t)
{
	if (od_role_per_layer(t->role))
		return od_device_card_of(d, t->layer);
	return is_with_first(t) ? od_device_card_of(d, od_config_begin(&p->config)) : last_card(d, p);
}

static bool is_tied(const struct od_pack *p, const struct od_dense_tensor *t)
{
	return t->role == OD_ROLE_EMBED && p->config.tied_head && od_config_holds_head(&p->config);
}

/* Embeddings that are the head as well are on both cards. */
static bool is_head_too(const struct od_device *d, const struct od_pack *p, const struct od_dense_tensor *t)
{
	return is_tied(p, t) && card_of(d, p, t) != last_card(d, p);
}

static uint64_t card_bytes(const struct od_pack *p, const struct od_device *d, unsigned card,
			   enum od_dense_choice choice)
{
	uint64_t n = 0;

	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		const enum tensor_place place = place_of(p, t, choice);

		n += card_of(d, p, t) == card ? place_memory(t, place) : 0;
		if (place == IN_MEMORY)
			n += is_head_too(d, p, t) && card == last_card(d, p) ? tensor_memory(t) : 0;
	}
	return n;
}

uint64_t od_dense_need_bytes(const struct od_pack *p, enum od_dense_choice choice)
{
	uint64_t n = p->config.n_layers * sizeof(struct od_layer_weights);

	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		n += place_memory(t, place_of(p, t, choice));
		n += has_table(p, t, choice) ? od_table_rows_bytes(t) : 0;
	}
	return choice == OD_DENSE_STREAMED ? n + od_dense_parts_least(p) + od_dense_parts_beside(p) : n;
}

void od_dense_split(const struct od_pack *p, enum od_dense_choice choice, struct od_split *s)
{
	od_split_add(&s->beside.bytes, p->config.n_layers * sizeof(struct od_layer_weights));
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];
		const enum tensor_place place = place_of(p, t, choice);

		if (has_table(p, t, choice))
			od_split_add(&s->beside.bytes, od_table_rows_bytes(t));
		od_split_add(od_role_per_layer(t->role) ? &s->layer[t->layer].bytes :
			     is_with_first(t)		? &s->first :
							  &s->last,
			     place_memory(t, place));
		od_split_add(&s->tied, place == IN_MEMORY && is_tied(p, t) ? tensor_memory(t) : 0);
	}
	if (choice == OD_DENSE_STREAMED) {
		od_split_add(&s->last, od_dense_parts_least(p));
		od_split_add(&s->beside.bytes, od_dense_parts_beside(p));
	}
}

int od_dense_read(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n, uint8_t *to,
		  struct od_err *err)
{
	const uint64_t each = od_mat_row_bytes(&t->type, t->n_in > 0 ? t->n_in : 1);
	int rc = OD_OK;

	if (t->run == 0)
		return od_data_read(&p->dense, false, to, n * each, t->offset + row * each, err);
	for (uint64_t i = 0, end; rc == OD_OK && i < n; i = end) { /* rows that are neighbours in the file, too */
		const uint64_t at = od_dense_row(t->form, t->run, row + i);

		for (end = i + 1; end < n && od_dense_row(t->form, t->run, row + end) == at + end - i;)
			end++;
		rc = od_data_read(&p->dense, false, to + i * each, (end - i) * each, t->offset + at * each, err);
	}
	return rc;
}

int od_dense_read_rows(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n, void *memory,
		       uint8_t *scratch, struct od_err *err)
{
	const struct od_mat_type *type = &t->type;
	const uint64_t each = od_mat_row_bytes(type, t->n_in), row_scales = od_mat_scale_row_bytes(type, t->n_in);
	const uint64_t divisor = od_mat_divisor_bytes(type), behind = t->offset + t->n_out * each;
	int rc = od_dense_read(p, t, row, n, memory, err);

	if (rc != OD_OK || type->scale == 0)
		return rc;
	rc = od_data_read(&p->dense, false, scratch, divisor, behind, err);
	if (rc == OD_OK)
		rc = od_data_read(&p->dense, false, scratch + divisor, od_mat_scale_rows(type, row, n) * row_scales,
				  behind + divisor + od_mat_scale_row(type, row) * row_scales, err);
	if (rc == OD_OK)
		od_mat_put_scales(type, n, t->n_in, memory, 0, row, n, scratch);
	return rc;
}

uint64_t od_dense_token_bytes(const struct od_pack *p)
{
	uint64_t n = 0;

	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		if (t->role == OD_ROLE_EMBED || t->role == OD_ROLE_LAYER_EMBED)
			n += od_mat_row_bytes(&t->type, t->n_in);
		if (t->role != OD_ROLE_LAYER_EMBED && (t->role != OD_ROLE_EMBED || p->config.tied_head))
			n += t->bytes;
	}
	return n;
}

int od_dense_check_sum(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t found, struct od_err *err)
{
	const struct od_data_file *f = od_data_file(&p->dense, t->offset);
	int rc = od_pack_check_dense(p, t, found, err);

	if (rc == OD_OK)
		return OD_OK;
	return od_fail_within(err, "%s: tensor %s of layer %u at offset %" PRIu64, f->path, od_role_name(t->role),
			      t->layer, t->offset - f->begin);
}

static int read_vector(const struct od_pack *p, const struct od_dense_tensor *t, void *dst, struct od_err *err)
{
	int rc = od_dense_read(p, t, 0, t->n_out, dst, err);

	return rc == OD_OK ? od_dense_check_sum(p, t, XXH3_64bits(dst, t->bytes), err) : rc;
}

/* The sum is over the weights and what stands behind them, which scratch holds now. */
static int read_matrix(const struct od_pack *p, const struct od_dense_tensor *t, void *dst, struct od_err *err)
{
	const uint64_t weights = t->n_out * od_mat_row_bytes(&t->type, t->n_in);
	uint8_t *scratch = malloc(t->bytes - weights + 1);
	XXH3_state_t *sum = XXH3_createState();
	int rc = OD_OK;

	if (scratch == NULL || sum == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", od_data_path(&p->dense, t->offset));
	if (rc == OD_OK)
		rc = od_dense_read_rows(p, t, 0, t->n_out, dst, scratch, err);
	if (rc == OD_OK) {
		XXH3_64bits_reset(sum);
		XXH3_64bits_update(sum, dst, weights);
		XXH3_64bits_update(sum, scratch, t->bytes - weights);
		rc = od_dense_check_sum(p, t, XXH3_64bits_digest(sum), err);
	}
	XXH3_freeState(sum);
	free(scratch);
	return rc;
}

/* conv [n][taps]: weights of a channel side by side become those of a position (OD_ROLE_DELTA_CONV). */
static int put_taps_first(float *conv, size_t n, size_t taps, struct od_err *err)
{
	float *copy = od_alloc_array(n * taps, sizeof(*copy));

	if (copy == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a convolution of %zu channels", n);
	memcpy(copy, conv, n * taps * sizeof(*copy));
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < taps; j++)
			conv[j * n + i] = copy[i * taps + j];
	od_free(copy);
	return OD_OK;
}

/* Converts a vector to what the forward pass reads. */
static int finish_vector(const struct od_pack *p, const struct od_dense_tensor *t, float *v, struct od_err *err)
{
	if (t->role == OD_ROLE_DELTA_CONV) {
		const size_t taps = od_config_layer(&p->config, t->layer)->mix.conv;

		return put_taps_first(v, t->n_out / taps, taps, err);
	}
	if (t->form == OD_DENSE_NEGATIVE_EXP)
		for (size_t i = 0; i < t->n_out; i++)
			v[i] = (float)log(-(double)v[i]);
	if (p->config.norms_around_one)
		for (size_t i = 0; od_role_around_one(t->role) && i < t->n_out; i++)
			v[i] += 1;
	return OD_OK;
}

static int read_widened(const struct od_pack *p, const struct od_dense_tensor *t, float *dst, struct od_err *err)
{
	void *raw = malloc(t->bytes);
	const struct od_mat row = { .dtype = t->type.dtype, .n_out = 1, .n_in = t->n_out, .data = raw };
	int rc;

	if (raw == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", od_data_path(&p->dense, t->offset));
	rc = read_vector(p, t, raw, err);
	if (rc == OD_OK)
		od_dequant_row(&row, 0, dst);
	free(raw);
	return rc == OD_OK ? finish_vector(p, t, dst, err) : rc;
}

static void bind(struct od_dense_store *s, const struct od_dense_tensor *t, struct od_ref data)
{
	struct od_weight w = { .dtype = OD_F32, .n_out = t->n_out, .data = data };

	if (t->n_in > 0)
		od_weight_bind(&w, &t->type, t->n_out, t->n_in, data);
	if (t->role == OD_ROLE_EMBED)
		s->dense.embed = w;
	else if (t->role == OD_ROLE_HEAD)
		s->dense.head = w;
	else if (t->role == OD_ROLE_FINAL_NORM)
		s->dense.final_norm = data;
	else if (t->role == OD_ROLE_FINAL_NORM_BIAS)
		s->dense.final_norm_bias = data;
	else if (t->role == OD_ROLE_HEAD_BIAS)
		s->dense.head_bias = data;
	else if (t->role == OD_ROLE_LAYER_EMBED)
		s->dense.layer_embed = w;
	else if (t->role == OD_ROLE_LAYER_PROJECT)
		s->dense.layer_project = w;
	else if (t->role == OD_ROLE_LAYER_PROJECT_NORM)
		s->dense.layer_project_norm = data;
	else
		s->layer[t->layer].w[t->role] = w;
}

static int load_tensor(const struct od_pack *p, const struct od_dense_tensor *t, struct od_ref to, struct od_err *err)
{
	struct od_fill fill;
	int rc = od_fill_begin(&fill, to, tensor_memory(t), err);

	if (rc != OD_OK)
		return rc;
	rc = t->n_in > 0 ? read_matrix(p, t, fill.host, err) : read_widened(p, t, fill.host, err);
	return od_fill_end(&fill, rc, err);
}

/* The table's weight has its shape and type, without data. */
static int open_table(struct od_dense_store *s, const struct od_pack *p, const struct od_dense_tensor *t,
		      struct od_err *err)
{
	const bool of_layers = t->role == OD_ROLE_LAYER_EMBED;
	struct od_table_rows **rows = of_layers ? &s->layer_embed : &s->embed;
	int rc = od_table_rows_open(rows, p, t, err);

	bind(s, t, (struct od_ref){ 0 });
	*(of_layers ? &s->dense.layer_embed_reader : &s->dense.embed_reader) =
		(struct od_row_reader){ .read = od_table_rows_read, .arg = *rows };
	return rc;
}

static int load_tensors(struct od_dense_store *s, const struct od_pack *p, enum od_dense_choice choice,
			struct od_err *err)
{
	struct od_ref at[OD_MAX_CARDS];
	int rc = OD_OK;

	for (unsigned i = 0; i < od_device_cards(s->device); i++)
		at[i] = od_buf_ref(s->bytes[i], 0);
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];
		const enum tensor_place place = place_of(p, t, choice);
		struct od_ref *to = &at[card_of(s->device, p, t)], *head = &at[last_card(s->device, p)];

		if (has_table(p, t, choice))
			rc = open_table(s, p, t, err);
		if (place != IN_MEMORY)
			continue;
		rc = load_tensor(p, t, *to, err);
		bind(s, t, *to);
		*to = od_ref_at(*to, tensor_memory(t));
		if (rc != OD_OK || !is_head_too(s->device, p, t))
			continue;
		rc = load_tensor(p, t, *head, err);
		od_weight_bind(&s->dense.head, &t->type, t->n_out, t->n_in, *head);
		*head = od_ref_at(*head, tensor_memory(t));
	}
	if (p->config.tied_head && s->dense.head.data.buf == NULL)
		s->dense.head = s->dense.embed;
	return rc;
}

/* ---- parts that steps may read ---- */

/* Where each part goes. Scales of a tensor are in the memory of those that stay. */
static void bind_parts(struct od_dense_store *s, struct od_dense_parts *parts, struct od_ref scales)
{
	uint64_t at = 0;
	uint32_t n = 0;

	for (size_t i = 0; i < parts->n; i++) {
		const struct od_dense_part *plan = &parts->plan[i];
		struct od_dense_stream_part *part = &parts->part[i];
		const struct od_dense_tensor *t = part->tensor;
		const bool first = part->row == 0, head = !od_role_per_layer(t->role);
		struct od_weight *w = head ? &s->head_piece[n++] : &s->layer[t->layer].w[t->role];
		struct od_ref row_scales;

		part->stays = plan->stays;
		part->behind = plan->behind;
		part->to = plan->stays ? od_buf_ref(s->kept, at) : od_buf_ref(s->ring, plan->at);
		part->to = od_ref_at(part->to, od_dense_part_phase(t, part->row));
		at += plan->stays ? plan->bytes : 0;
		if (t->type.scale != 0 && first) {
			part->scales = scales;
			scales = od_ref_at(scales, od_dense_scale_memory(t));
		} else if (t->type.scale != 0) {
			part->scales = parts->part[i - 1].scales;
		}
		row_scales = part->scales;
		od_weight_bind_apart(w, &t->type, part->n, t->n_in, part->to, row_scales);
		w->scales.at.at += t->type.scale != 0 ? part->row * od_mat_scale_row_bytes(&t->type, t->n_in) : 0;
	}
	s->dense.head_piece = s->head_piece;
	s->dense.n_head_pieces = n;
}

static int make_room(struct od_dense_store *s, const struct od_dense_parts *parts, uint64_t bytes, struct od_err *err)
{
	int rc = OD_OK;

	if (!od_dense_plan_make(&s->plan, parts->plan, parts->n, bytes))
		return od_fail(err, OD_ERR_NOMEM,
			       "dense weights: %" PRIu64 " bytes for two layers at a time are needed, found %" PRIu64,
			       s->plan.ring_bytes, bytes);
	s->head_piece = calloc(parts->n, sizeof(*s->head_piece));
	if (s->head_piece == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu parts of dense weights", parts->n);
	if (s->plan.kept_bytes > 0)
		rc = od_buf_new(&s->kept, s->device, s->plan.kept_bytes, "the dense weights that stay", err);
	if (rc == OD_OK && s->plan.ring_bytes > 0)
		rc = od_buf_new_shared(&s->ring, s->device, s->plan.ring_bytes, "dense weights that steps read", err);
	return rc;
}

static int load_parts(struct od_dense_store *s, struct od_pack *p, const struct od_dense_room *room, struct od_err *err)
{
	struct od_dense_parts parts;
	struct od_dense_stream_opts o = { .pack = p, .device = s->device, .host_bytes = room->host_bytes };
	int rc = od_dense_parts_list(&parts, p, err);

	if (rc == OD_OK)
		rc = make_room(s, &parts, room->bytes, err);
	if (rc == OD_OK) {
		bind_parts(s, &parts,
			   od_buf_ref(s->bytes[0], card_bytes(p, s->device, 0, OD_DENSE_STREAMED) - parts.scale_bytes));
		o.part = parts.part;
		o.n = parts.n;
		o.direct = od_data_direct(&p->dense, room->direct);
		rc = od_dense_stream_new(&s->stream, &o, err);
	}
	if (rc == OD_OK)
		s->dense.stream = (struct od_weight_stream){ .take = od_dense_stream_take,
							     .give = od_dense_stream_give,
							     .arg = s->stream };
	od_dense_parts_fini(&parts);
	return rc;
}

int od_dense_stream_room(const struct od_pack *p, uint64_t *least, uint64_t *most, struct od_err *err)
{
	struct od_dense_parts parts;
	int rc = od_dense_parts_list(&parts, p, err);

	*least = *most = 0;
	for (size_t i = 0; rc == OD_OK && i < parts.n; i++)
		*most += parts.plan[i].bytes;
	if (rc == OD_OK)
		*least = od_dense_parts_least(p);
	od_dense_parts_fini(&parts);
	return rc;
}

int od_dense_load(struct od_dense_store **out, const struct od_pack *p, struct od_device *d,
		  enum od_dense_choice choice, struct od_err *err)
{
	struct od_dense_store *s = calloc(1, sizeof(*s));
	int rc = OD_OK;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the dense weights");
	s->device = d;
	s->layer = calloc(p->config.n_layers, sizeof(*s->layer));
	s->dense.layer = s->layer;
	if (s->layer == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %u layers", p->config.n_layers);
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_dense; i++)
		if (place_of(p, &p->manifest.dense[i], choice) != NOWHERE)
			rc = od_dense_check_device(p, &p->manifest.dense[i], d, err);
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(d); i++)
		rc = od_buf_new(&s->bytes[i], od_device_card(d, i), card_bytes(p, d, i, choice), "the dense weights",
				err);
	if (rc == OD_OK)
		rc = load_tensors(s, p, choice, err);
	if (rc != OD_OK) {
		od_dense_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

int od_dense_load_streamed(struct od_dense_store **out, struct od_pack *p, struct od_device *d,
			   const struct od_dense_room *room, struct od_err *err)
{
	int rc = od_dense_load(out, p, d, OD_DENSE_STREAMED, err); /* all but the parts */

	if (rc == OD_OK)
		rc = load_parts(*out, p, room, err);
	if (rc == OD_OK)
		return OD_OK;
	od_dense_free(*out);
	*out = NULL;
	return rc;
}

const struct od_dense_plan *od_dense_chosen(const struct od_dense_store *s)
{
	return s->stream != NULL ? &s->plan : NULL;
}

const struct od_dense_stream *od_dense_streamed(const struct od_dense_store *s)
{
	return s->stream;
}

void od_dense_free(struct od_dense_store *s)
{
	if (s == NULL)
		return;
	od_dense_stream_free(s->stream);
	od_buf_free(s->kept);
	od_buf_free(s->ring);
	free(s->head_piece);
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		od_buf_free(s->bytes[i]);
	od_table_rows_close(s->embed);
	od_table_rows_close(s->layer_embed);
	free(s->layer);
	free(s);
}

const struct od_dense *od_dense_get(const struct od_dense_store *s)
{
	return &s->dense;
}
