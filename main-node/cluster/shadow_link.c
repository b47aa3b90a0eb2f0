#include "main-node/cluster/shadow_link.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <assert.h>

#define MAX_ANSWER_BYTES (4u << 20) /* K and V of one answer as stored; the shadow asks for less */
#define MAX_STATE_BYTES (1u << 20)  /* of one STATE */
#define ANSWERS_AT_ONCE 8	    /* then the workers get their turn: a shadow that asks without end holds up nobody */
#define MAX_TOKENS 16384u	    /* of one TOKENS: a header has 256 KiB */

/* ---- Life ---- */

/* Layers whose state is fetched together: those between two MoE layers, and the second. */
static uint32_t most_layers(const struct od_config *c)
{
	uint32_t most = c->layer_of[0] + 1u;

	for (uint32_t m = 1; m < c->n_moe; m++)
		if (c->layer_of[m] - c->layer_of[m - 1] > (int)most)
			most = c->layer_of[m] - c->layer_of[m - 1];
	return most;
}

int odm_shadow_link_init(struct odm_shadow_link *s, const struct od_forward_opts *o, uint32_t ctx_tokens,
			 const struct odm_align *align, struct od_err *err)
{
	bool ok;

	*s = (struct odm_shadow_link){ .align = *align, .config = o->config, .ctx = ctx_tokens, .device = o->device };
	s->token = od_alloc_array(ctx_tokens, sizeof(*s->token));
	ok = s->token != NULL;
	if (!od_state_pool_mapped(o->state)) {
		s->stage.layer_bytes = OD_KV_PAGE * od_state_pool_most_bytes(o->state);
		s->stage.max_layers = most_layers(o->config);
		s->stage.bytes = od_alloc_array(s->stage.max_layers, s->stage.layer_bytes);
		ok = ok && s->stage.bytes != NULL;
	}
	return ok ? OD_OK : od_fail(err, OD_ERR_NOMEM, "alignment of %u positions", ctx_tokens);
}

void odm_shadow_link_fini(struct odm_shadow_link *s)
{
	odm_link_close(&s->link);
	od_free(s->token);
	s->token = NULL;
	od_free(s->stage.bytes);
	s->stage = (struct odm_state_stage){ 0 };
}

void odm_shadow_link_follow(struct odm_shadow_link *s, const struct odm_link *link)
{
	odm_link_close(&s->link);
	s->link = *link;
	s->sequence = 0;
}

static bool has_shadow(const struct odm_shadow_link *s)
{
	return s->deliver != NULL || s->link.socket != NULL;
}

/* Their bytes are added to this counter. */
static bool send_message(struct odm_shadow_link *s, uint64_t epoch, Od__Header *h, const struct od_out_frame *frames,
			 size_t n, enum od_counter counter)
{
	int rc = s->deliver != NULL ? s->deliver(s->deliver_arg, h, frames, n) :
				      odm_link_send(&s->link, epoch, h, frames, n);

	if (rc != OD_OK) {
		od_log_limited(OD_LOG_DEBUG, "the shadow does not take %s", od_body_name(h->body_case));
		return false;
	}
	s->counters[counter] += od__header__get_packed_size(h);
	for (size_t i = 0; i < n; i++)
		s->counters[counter] += frames[i].len;
	return true;
}

/* ---- Sequences and tokens ---- */

static bool send_open(struct odm_shadow_link *s, uint64_t epoch)
{
	Od__Header h = OD__HEADER__INIT;

	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &s->open;
	return send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}

/* A shadow that has not heard of the sequence, or is another one than the one that had, is told first. */
static bool open_sequence(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	const struct od_sampler_opts *o = &step->sampling;

	if (s->sequence == step->sequence)
		return true;
	od__seq_open__init(&s->open);
	s->open.sequence = step->sequence;
	s->open.prompt_tokens = step->prompt_tokens;
	s->open.own_state = s->align.kv_period == 0;
	s->open.temperature = o->temperature;
	s->open.top_k = o->top_k;
	s->open.top_p = o->top_p;
	s->open.min_p = o->min_p;
	s->open.repetition_penalty = o->repetition_penalty;
	s->open.repetition_window = o->repetition_window;
	s->open.seed = o->seed;
	if (!send_open(s, epoch))
		return false;
	s->sequence = step->sequence;
	s->seq = step->rows[0].seq;
	s->fresh = true;
	return true;
}

static void send_tokens(struct odm_shadow_link *s, uint64_t epoch, uint32_t begin, uint32_t n,
			enum od_counter counter)
{
	Od__Tokens body = OD__TOKENS__INIT;
	Od__Header h = OD__HEADER__INIT;

	body.sequence = s->sequence;
	body.begin = begin;
	body.ids = (uint32_t *)s->token + begin; /* none is negative */
	body.n_ids = n < MAX_TOKENS ? n : MAX_TOKENS;
	h.body_case = OD__HEADER__BODY_TOKENS;
	h.tokens = &body;
	send_message(s, epoch, &h, NULL, 0, counter);
}

/* A shadow that runs the prompt itself begins when main does; penalties look at the prompt too. */
static bool wants_prompt(const struct odm_shadow_link *s)
{
	return s->open.own_state || s->open.repetition_penalty != 1;
}

void odm_shadow_link_answer_tokens(struct odm_shadow_link *s, uint64_t epoch, const Od__TokensRequest *r)
{
	if (s->sequence == 0 || r->sequence != s->sequence)
		return; /* of a sequence that is over */
	if (r->n == 0 || r->begin >= s->n_tokens) {
		od_log_limited(OD_LOG_WARN, "the shadow asks for tokens %u+%u; there are %u", r->begin, r->n, s->n_tokens);
		return;
	}
	send_tokens(s, epoch, r->begin, r->n < s->n_tokens - r->begin ? r->n : s->n_tokens - r->begin,
		    OD_C_ASKED_BYTES);
}

/* ---- STEP ---- */

/* Number of the decode step that a position is. */
static uint32_t step_index(const struct odm_step *step, uint32_t position)
{
	return position - step->prompt_tokens + 1;
}

int32_t odm_shadow_link_token(const struct odm_shadow_link *s, const struct odm_step *step)
{
	uint32_t before = step_index(step, step->rows[0].position) - 1;
	bool given = s->align.token_period > 0 ? before % s->align.token_period == 0 : before == 0;

	given = given || s->fresh || s->sequence != step->sequence;
	return given || step->phase == ODM_PREFILL ? step->rows[0].token : -1;
}

/* All rows since the last alignment, when this step has one. */
static uint32_t rows_due(const struct odm_shadow_link *s, const struct odm_step *step)
{
	uint32_t first = step_index(step, step->rows[0].position), last = first + (uint32_t)step->n_rows - 1;
	uint32_t period = s->align.kv_period, aligned;

	if (period == 0 || last / period == (first - 1) / period)
		return 0;
	aligned = (first - 1) / period * period;
	return last - aligned;
}

static void send_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	Od__StepRow row[ODM_MAX_STEP_ROWS], *list[ODM_MAX_STEP_ROWS];
	Od__Step body = OD__STEP__INIT;
	Od__Header h = OD__HEADER__INIT;

	for (size_t i = 0; i < step->n_rows; i++) {
		od__step_row__init(&row[i]);
		row[i].sequence = step->sequence;
		row[i].position = step->rows[i].position;
		row[i].token = i > 0 ? step->rows[i].token : odm_shadow_link_token(s, step);
		list[i] = &row[i];
	}
	s->due_rows = row[0].state_rows = rows_due(s, step);
	body.step = step->step;
	body.next_step = step->next_step;
	body.rows = list;
	body.n_rows = step->n_rows;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	if (send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES))
		s->fresh = false;
}

void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	uint32_t begin = step->rows[0].position;

	s->due_rows = s->stage.n = s->next_layer = 0;
	for (size_t i = 0; i < step->n_rows; i++)
		s->token[begin + i] = step->rows[i].token;
	s->n_tokens = begin + (uint32_t)step->n_rows;
	if (!has_shadow(s))
		return;
	if (s->deliver == NULL)
		odm_link_reattach(&s->link); /* a few bytes, in case the connection broke and came back */
	if (!open_sequence(s, epoch, step))
		return;
	if (step->phase == ODM_DECODE && step->n_rows <= ODM_MAX_STEP_ROWS)
		send_step(s, epoch, step);
	else if (step->phase == ODM_PREFILL && wants_prompt(s))
		send_tokens(s, epoch, begin, (uint32_t)step->n_rows, OD_C_ALIGN_BYTES);
}

/* ---- STATE ---- */

/* How many of the rows from begin on lie side by side. */
static uint32_t of_one_page(uint32_t begin, uint32_t n)
{
	uint32_t left = OD_KV_PAGE - begin % OD_KV_PAGE;

	return n < left ? n : left;
}

/* Where the stage has the row of position `begin` of a layer's stream. */
static uint8_t *staged(const struct odm_shadow_link *s, uint32_t layer, uint32_t stream, uint32_t begin)
{
	uint8_t *at = s->stage.bytes + (layer - s->stage.layer) * s->stage.layer_bytes;

	for (uint32_t i = 0; i < stream; i++)
		at += OD_KV_PAGE * od_seq_state_row_bytes(s->seq, layer, i);
	return at + (begin - s->stage.begin) * od_seq_state_row_bytes(s->seq, layer, stream);
}

/* Rows [begin, begin + n) of n_layers layers, at most OD_KV_PAGE, are in the stage when what is queued by now is done. */
static void get_rows(struct odm_shadow_link *s, uint32_t layer, uint32_t n_layers, uint32_t begin, uint32_t n)
{
	assert(n <= OD_KV_PAGE && n_layers <= s->stage.max_layers);
	s->stage.layer = layer;
	s->stage.n_layers = n_layers;
	s->stage.begin = begin;
	s->stage.n = n;
	for (uint32_t l = layer; l < layer + n_layers; l++)
		for (uint32_t i = 0, bytes; (bytes = (uint32_t)od_seq_state_row_bytes(s->seq, l, i)) > 0; i++)
			for (uint32_t at = begin, some; at < begin + n; at += some) {
				some = of_one_page(at, begin + n - at);
				od_device_get(s->device, OD_QUEUE_COMPUTE, staged(s, l, i, at), od_seq_state_row(s->seq, l, i, at),
					      (size_t)some * bytes);
			}
}

static bool is_staged(const struct odm_shadow_link *s, uint32_t layer, uint32_t begin, uint32_t n)
{
	return s->stage.n > 0 && s->stage.layer <= layer && layer < s->stage.layer + s->stage.n_layers &&
	       s->stage.begin <= begin && begin + n <= s->stage.begin + s->stage.n;
}

/* Rows [begin, begin + n) of a layer, which one page has, as frames until the next call: one for each stream. */
static int find_rows(struct odm_shadow_link *s, uint32_t layer, uint32_t begin, uint32_t n,
		     struct od_out_frame frame[OD_MAX_STREAMS], size_t *n_frames)
{
	const bool mapped = s->stage.bytes == NULL;
	int rc = OD_OK;

	*n_frames = 0;
	if (!mapped && !is_staged(s, layer, begin, n)) {
		get_rows(s, layer, 1, begin, n);
		rc = od_device_sync(s->device, NULL);
		if (rc != OD_OK)
			s->stage.n = 0;
	}
	for (uint32_t i = 0, bytes; i < OD_MAX_STREAMS && (bytes = (uint32_t)od_seq_state_row_bytes(s->seq, layer, i)) > 0; i++)
		frame[(*n_frames)++] = (struct od_out_frame){
			.bytes = mapped ? od_ref_map(od_seq_state_row(s->seq, layer, i, begin)) : staged(s, layer, i, begin),
			.len = (size_t)n * bytes,
		};
	return rc;
}

/* Rows [begin, begin + n) of a layer, which one page has; answers say step 0. */
static void send_rows(struct odm_shadow_link *s, uint64_t epoch, uint64_t step, uint32_t layer, uint32_t begin,
		      uint32_t n)
{
	struct od_out_frame frame[OD_MAX_STREAMS];
	size_t n_frames;
	Od__State body = OD__STATE__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (find_rows(s, layer, begin, n, frame, &n_frames) != OD_OK)
		return; /* the forward pass hears of it at its next wait */
	body.sequence = s->sequence;
	body.step = step;
	body.layer = layer;
	body.begin = begin;
	body.n = n;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	if (!send_message(s, epoch, &h, frame, n_frames, step == 0 ? OD_C_ASKED_BYTES : OD_C_ALIGN_BYTES))
		return;
	for (size_t i = 0; i < n_frames; i++)
		s->counters[OD_C_STATE_BYTES] += frame[i].len;
}

/* Bytes of a position in all streams of a layer. */
static size_t row_bytes(const struct odm_shadow_link *s, uint32_t layer)
{
	return od_state_pool_row_bytes(od_seq_state_pool(s->seq), layer);
}

static void send_range(struct odm_shadow_link *s, uint64_t epoch, uint64_t step, uint32_t layer, uint32_t begin,
		       uint32_t n)
{
	uint32_t most;

	if (row_bytes(s, layer) == 0)
		return;
	most = (uint32_t)(MAX_STATE_BYTES / row_bytes(s, layer));
	most = most > 0 ? most : 1;
	for (uint32_t some; n > 0; begin += some, n -= some) {
		some = of_one_page(begin, n < most ? n : most);
		send_rows(s, epoch, step, layer, begin, some);
	}
}

static bool has_due_rows(const struct odm_shadow_link *s, const struct odm_step *step)
{
	return has_shadow(s) && s->sequence == step->sequence && s->due_rows > 0;
}

/* Position of the first of them. */
static uint32_t due_begin(const struct odm_shadow_link *s, const struct odm_step *step)
{
	return step->rows[0].position + (uint32_t)step->n_rows - s->due_rows;
}

void odm_shadow_link_collect(struct odm_shadow_link *s, const struct odm_step *step, uint32_t layer)
{
	if (s->stage.bytes != NULL && has_due_rows(s, step) && s->due_rows <= OD_KV_PAGE &&
	    layer + 1 - s->next_layer <= s->stage.max_layers)
		get_rows(s, s->next_layer, layer + 1 - s->next_layer, due_begin(s, step), s->due_rows);
}

void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer)
{
	for (; s->next_layer <= layer; s->next_layer++)
		if (has_due_rows(s, step))
			send_range(s, epoch, step->step, s->next_layer, due_begin(s, step), s->due_rows);
}

/* Only rows that never change any more are given out: below the committed length. */
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const Od__StateRequest *r)
{
	uint64_t waits;
	uint32_t length;

	if (s->sequence == 0 || r->sequence != s->sequence)
		return; /* of a sequence that is over */
	if (s->open.own_state) { /* it has not heard of that */
		send_open(s, epoch);
		return;
	}
	length = od_seq_state_length(s->seq);
	if (r->layer >= s->config->n_layers || row_bytes(s, r->layer) == 0 || r->n == 0 || r->begin >= length ||
	    r->n > length - r->begin || r->n > MAX_ANSWER_BYTES / row_bytes(s, r->layer)) {
		od_log_limited(OD_LOG_WARN, "the shadow asks for positions %u+%u of layer %u; there are %u", r->begin, r->n,
			       r->layer, length);
		return;
	}
	waits = od_device_waits(s->device);
	send_range(s, epoch, 0, r->layer, r->begin, r->n);
	s->counters[OD_C_SIDE_WAITS] += od_device_waits(s->device) - waits;
}

void odm_shadow_link_serve(struct odm_shadow_link *s, uint64_t epoch)
{
	struct od_msg m;

	for (int i = 0; i < ANSWERS_AT_ONCE && s->link.socket != NULL && odm_link_recv(&s->link, &m) == OD_OK; i++) {
		if (m.header->body_case == OD__HEADER__BODY_STATE_REQUEST)
			odm_shadow_link_answer(s, epoch, m.header->state_request);
		else if (m.header->body_case == OD__HEADER__BODY_TOKENS_REQUEST)
			odm_shadow_link_answer_tokens(s, epoch, m.header->tokens_request);
		else if (m.header->body_case != OD__HEADER__BODY_ATTACHED)
			od_log_limited(OD_LOG_WARN, "the shadow sent %s on its data socket, which it must not",
				       od_body_name(m.header->body_case));
		od_msg_fini(&m);
	}
}

void odm_shadow_link_truncate(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence, uint32_t length)
{
	Od__SeqTruncate body = OD__SEQ_TRUNCATE__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (!has_shadow(s) || s->sequence != sequence)
		return;
	s->n_tokens = length;
	body.sequence = sequence;
	body.length = length;
	h.body_case = OD__HEADER__BODY_SEQ_TRUNCATE;
	h.seq_truncate = &body;
	send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}

void odm_shadow_link_close_sequence(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence)
{
	Od__SeqClose body = OD__SEQ_CLOSE__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (!has_shadow(s) || s->sequence != sequence)
		return;
	body.sequence = sequence;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &body;
	s->sequence = 0;
	send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}
