#include "main-node/cluster/shadow_link.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ANSWER_BYTES (4u << 20) /* K and V of one answer as stored; the shadow asks for less */
#define MAX_STATE_BYTES (1u << 20) /* limit of one STATE */
/* Per call; the workers' messages come next, so that a shadow that requests without end delays nothing. */
#define ANSWERS_AT_ONCE 64
#define ANSWER_BYTES_AT_ONCE (2u << 20)
#define MAX_TOKENS 16384u /* tokens of one TOKENS: a header has 256 KiB */
#define MESSAGE_BYTES 1024u /* upper bound of a message without its rows or tokens */
#define TOKEN_BYTES 5u /* upper bound of a token in a header */
#define STEP_ROW_BYTES 64u /* upper bound of a StepRow */
#define RANGE_BYTES 32u /* upper bound of a StateRange */

/* Rows of several sequences that are sent in one STATE. */
struct odm_state_batch {
	Od__StateRange range[ODM_MAX_STEP_ROWS], *list[ODM_MAX_STEP_ROWS];
	size_t n_ranges;
	uint32_t n_rows, max_rows;
	uint8_t bytes[MAX_STATE_BYTES]; /* [stream][max_rows][the stream's width] */
};

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
	const uint32_t n = od_state_pool_sequences(o->state);
	bool ok;

	*s = (struct odm_shadow_link){
		.align = *align, .config = o->config, .ctx = ctx_tokens, .device = o->device, .max_sequences = n
	};
	s->told = calloc(n, sizeof(*s->told));
	s->part = calloc(n, sizeof(*s->part));
	s->token = od_alloc_array((size_t)n * ctx_tokens, sizeof(*s->token));
	s->bias = od_alloc_array(n, sizeof(*s->bias));
	s->unsent = odm_unsent_new();
	s->batch = malloc(sizeof(*s->batch));
	ok = s->told != NULL && s->part != NULL && s->token != NULL && s->bias != NULL && s->unsent != NULL &&
	     s->batch != NULL;
	if (!od_state_pool_mapped(o->state)) {
		s->stage.rows = n + OD_KV_PAGE; /* a row of each sequence and drafts; or a page */
		s->stage.layer_bytes = s->stage.rows * od_state_pool_most_bytes(o->state);
		s->stage.max_layers = most_layers(o->config);
		s->stage.bytes = od_host_new(o->device, s->stage.max_layers * s->stage.layer_bytes);
		ok = ok && s->stage.bytes != NULL;
	}
	return ok ? OD_OK : od_fail(err, OD_ERR_NOMEM, "alignment of %u positions of %u sequences", ctx_tokens, n);
}

void odm_shadow_link_fini(struct odm_shadow_link *s)
{
	odm_link_close(&s->link);
	odm_unsent_unref(s->unsent);
	s->unsent = NULL;
	free(s->told);
	free(s->part);
	free(s->batch);
	s->told = NULL;
	s->part = NULL;
	s->batch = NULL;
	od_free(s->token);
	s->token = NULL;
	od_free(s->bias);
	s->bias = NULL;
	od_host_free(s->device, s->stage.bytes, s->stage.max_layers * s->stage.layer_bytes);
	s->stage = (struct odm_state_stage){ 0 };
}

void odm_shadow_link_follow(struct odm_shadow_link *s, const struct odm_link *link)
{
	odm_link_close(&s->link);
	s->link = *link;
	for (uint32_t i = 0; i < s->max_sequences; i++)
		s->told[i].opened = false;
}

static bool has_shadow(const struct odm_shadow_link *s)
{
	return s->deliver != NULL || s->link.socket != NULL;
}

/* True: bytes more may be added to the unsent bytes without exceeding limit. */
static bool has_room(struct odm_shadow_link *s, size_t bytes, uint64_t limit)
{
	uint64_t waiting;

	if (s->deliver != NULL)
		return true;
	waiting = odm_unsent_bytes(s->unsent);
	if (waiting + MESSAGE_BYTES + bytes <= limit) {
		s->is_slow = s->is_slow && waiting > ODM_SHADOW_ANSWER_BYTES / 2;
		return true;
	}
	if (!s->is_slow)
		od_log_limited(OD_LOG_WARN,
			       "the shadow reads slowly: %u MiB for it wait in main's memory. Main skips the rest "
			       "until the shadow requests it again",
			       (unsigned)(waiting >> 20));
	s->is_slow = true;
	return false;
}

/* Limit of unsent bytes for messages of this counter. */
static uint64_t limit_of(enum od_counter counter)
{
	return counter == OD_C_ASKED_BYTES ? ODM_SHADOW_ANSWER_BYTES : ODM_SHADOW_UNSENT_BYTES;
}

static int send_counted(struct odm_shadow_link *s, uint64_t epoch, Od__Header *h, const struct od_out_frame *frames,
			size_t n)
{
	h->session = s->link.session;
	h->epoch = epoch;
	return odm_unsent_send(s->unsent, s->link.socket, h, frames, n);
}

/* Sends a message and adds its bytes to this counter. */
static bool send_message(struct odm_shadow_link *s, uint64_t epoch, Od__Header *h, const struct od_out_frame *frames,
			 size_t n, enum od_counter counter)
{
	int rc = s->deliver != NULL ? s->deliver(s->deliver_arg, h, frames, n) : send_counted(s, epoch, h, frames, n);

	if (rc != OD_OK) {
		od_log_limited(OD_LOG_DEBUG, "cannot send %s to the shadow", od_body_name(h->body_case));
		return false;
	}
	s->counters[counter] += od__header__get_packed_size(h);
	for (size_t i = 0; i < n; i++)
		s->counters[counter] += frames[i].len;
	return true;
}

static void count_time(struct odm_shadow_link *s, uint64_t begin_ns)
{
	s->counters[OD_C_ALIGN_NS] += od_now_ns() - begin_ns;
}

/* ---- Sequences and tokens ---- */

static struct odm_told *find(const struct odm_shadow_link *s, uint64_t sequence)
{
	if (sequence != 0)
		for (uint32_t i = 0; i < s->max_sequences; i++)
			if (s->told[i].sequence == sequence)
				return &s->told[i];
	return NULL;
}

/* [ctx] */
static int32_t *tokens_of(const struct odm_shadow_link *s, const struct odm_told *t)
{
	return s->token + (size_t)(t - s->told) * s->ctx;
}

static bool send_open(struct odm_shadow_link *s, uint64_t epoch, struct odm_told *t)
{
	Od__Header h = OD__HEADER__INIT;

	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &t->open;
	return send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}

/* The request keeps its lists until the sequence is closed. With more breakers than a shadow takes it guesses without
 * DRY, which costs drafts only. */
static void fill_rare(Od__RareSampling *rare, const struct od_sampler_opts *o)
{
	od__rare_sampling__init(rare);
	rare->typical_p = o->typical_p;
	rare->top_n_sigma = o->top_n_sigma;
	rare->xtc_probability = o->xtc_probability;
	rare->xtc_threshold = o->xtc_threshold;
	rare->dynatemp_range = o->dynatemp_range;
	rare->dynatemp_exponent = o->dynatemp_exponent;
	rare->dry_base = o->dry.base;
	rare->dry_allowed_length = o->dry.allowed_length;
	rare->dry_window = o->dry.window;
	if (od_dry_is_on(&o->dry) && o->dry.n_breakers <= OD_MAX_DRY_BREAKERS) {
		rare->dry_multiplier = o->dry.multiplier;
		rare->dry_breakers = (uint32_t *)(uintptr_t)o->dry.breakers; /* none is negative */
		rare->n_dry_breakers = o->dry.n_breakers;
	}
	rare->min_draws = o->min_draws;
	rare->late = (uint32_t *)(uintptr_t)o->late;
	rare->n_late = o->n_late;
}

static void fill_open(Od__SeqOpen *open, struct odm_told_bias *b, const struct odm_part *p, bool own_state,
		      bool is_long)
{
	const struct od_sampler_opts *o = p->sampling;

	od__seq_open__init(open);
	open->sequence = p->sequence;
	open->prompt_tokens = p->prompt_tokens;
	open->own_state = own_state;
	open->is_long = is_long;
	open->temperature = o->temperature;
	open->top_k = o->top_k;
	open->top_p = o->top_p;
	open->min_p = o->min_p;
	open->repetition_penalty = o->repetition_penalty;
	open->repetition_window = o->repetition_window;
	open->frequency_penalty = o->frequency_penalty;
	open->presence_penalty = o->presence_penalty;
	open->bias_tokens = b->token;
	open->biases = b->bias;
	open->n_bias_tokens = open->n_biases = o->n_logit_bias; /* the sampler has checked them */
	for (size_t i = 0; i < o->n_logit_bias; i++) {
		b->token[i] = (uint32_t)o->logit_bias[i].token;
		b->bias[i] = o->logit_bias[i].bias;
	}
	open->seed = o->seed;
	if (p->request != NULL)
		open->request = (char *)p->request; /* stays until the sequence is closed */
	open->shared_sequence = p->shared_sequence;
	open->shared_tokens = p->shared_tokens;
}

/* The slot of a part's sequence, a new one if it has none. What the prompt has before the first step was there
 * already: its rows are in no step. */
static struct odm_told *take_slot(struct odm_shadow_link *s, const struct odm_step *step, const struct odm_part *p)
{
	const struct od_row *row = &step->rows[p->first];
	struct odm_told *t = find(s, p->sequence);

	if (t != NULL)
		return t;
	for (t = s->told; t->sequence != 0; t++)
		assert(t + 1 < s->told + s->max_sequences);
	*t = (struct odm_told){ .sequence = p->sequence, .seq = row->seq, .fresh = true, .n_told = p->shared_tokens };
	/* Fixed state is aligned by tokens. */
	fill_open(&t->open, &s->bias[t - s->told], p,
		  s->align.kv_period == 0 || od_state_pool_fixed_bytes(od_seq_state_pool(row->seq)) > 0,
		  od_seq_state_is_long(row->seq));
	fill_rare(&t->rare, p->sampling);
	t->open.rare = &t->rare;
	if (step->phase == ODM_PREFILL && row->position > 0)
		memcpy(tokens_of(s, t), p->text, row->position * sizeof(int32_t));
	return t;
}

/* Sends SEQ_OPEN first if this shadow, or this incarnation of it, has not got one for the sequence. */
static bool open_sequence(struct odm_shadow_link *s, uint64_t epoch, struct odm_told *t)
{
	if (t->opened)
		return true;
	t->opened = send_open(s, epoch, t);
	t->fresh = true;
	return t->opened;
}

static void send_tokens(struct odm_shadow_link *s, uint64_t epoch, const struct odm_told *t, uint32_t begin, uint32_t n,
			enum od_counter counter)
{
	Od__Tokens body = OD__TOKENS__INIT;
	Od__Header h = OD__HEADER__INIT;

	body.sequence = t->sequence;
	body.begin = begin;
	body.ids = (uint32_t *)tokens_of(s, t) + begin; /* none is negative */
	body.n_ids = n < MAX_TOKENS ? n : MAX_TOKENS;
	h.body_case = OD__HEADER__BODY_TOKENS;
	h.tokens = &body;
	if (has_room(s, body.n_ids * TOKEN_BYTES, limit_of(counter)))
		send_message(s, epoch, &h, NULL, 0, counter);
}

/* True: the shadow needs the prompt's tokens when main begins it, to run the prompt itself or for penalties. */
static bool wants_prompt(const struct odm_told *t)
{
	const Od__SeqOpen *o = &t->open;

	return o->own_state || o->repetition_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0 ||
	       t->rare.dry_multiplier != 0;
}

void odm_shadow_link_answer_tokens(struct odm_shadow_link *s, uint64_t epoch, const Od__TokensRequest *r)
{
	const struct odm_told *t = find(s, r->sequence);

	if (t == NULL)
		return; /* the sequence is over */
	if (r->n == 0 || r->begin >= t->n_tokens) {
		od_log_limited(OD_LOG_WARN, "the shadow requests tokens %u+%u; there are %u", r->begin, r->n,
			       t->n_tokens);
		return;
	}
	send_tokens(s, epoch, t, r->begin, r->n < t->n_tokens - r->begin ? r->n : t->n_tokens - r->begin,
		    OD_C_ASKED_BYTES);
}

/* ---- STEP ---- */

/* Number n of the decode step at a position, counted from 1. */
static uint32_t step_index(const struct odm_part *p, uint32_t position)
{
	return position - p->prompt_tokens + 1;
}

int32_t odm_shadow_link_token(const struct odm_shadow_link *s, const struct odm_step *step, const struct odm_part *part)
{
	const struct od_row *row = &step->rows[part->first];
	const struct odm_told *t = find(s, part->sequence);
	const uint32_t before = step_index(part, row->position) - 1;
	bool given = s->align.token_period > 0 ? before % s->align.token_period == 0 : before == 0;

	given = given || t == NULL || t->fresh || t->corrected || !t->opened;
	return given || step->phase == ODM_PREFILL ? row->token : -1;
}

/* Number of rows since the last alignment if this step aligns; else 0. */
static uint32_t rows_due(const struct odm_shadow_link *s, const struct odm_part *p, uint32_t begin)
{
	uint32_t first = step_index(p, begin), last = first + (uint32_t)p->n - 1;
	uint32_t period = s->align.kv_period, aligned;

	if (period == 0 || last / period == (first - 1) / period)
		return 0;
	aligned = (first - 1) / period * period;
	return last - aligned;
}

/* Sends STEP with the rows of the sequences that are open at the shadow. */
static void send_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	Od__StepRow row[ODM_MAX_STEP_ROWS], *list[ODM_MAX_STEP_ROWS];
	Od__Step body = OD__STEP__INIT;
	Od__Header h = OD__HEADER__INIT;

	for (size_t i = 0; i < step->n_parts; i++) {
		const struct odm_part *p = &step->part[i];
		struct odm_told *t = s->part[i];

		if (!t->opened)
			continue;
		for (size_t j = 0; j < p->n; j++) {
			Od__StepRow *r = list[body.n_rows] = &row[body.n_rows];

			od__step_row__init(r);
			r->sequence = p->sequence;
			r->position = step->rows[p->first + j].position;
			r->token = j > 0 ? step->rows[p->first + j].token : odm_shadow_link_token(s, step, p);
			body.n_rows++;
		}
		list[body.n_rows - p->n]->ahead = p->ahead;
		t->due_rows = list[body.n_rows - p->n]->state_rows = rows_due(s, p, t->begin);
	}
	body.step = step->step;
	body.rows = list;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	if (body.n_rows == 0 || !has_room(s, body.n_rows * STEP_ROW_BYTES, ODM_SHADOW_UNSENT_BYTES) ||
	    !send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES))
		return;
	for (size_t i = 0; i < step->n_parts; i++) {
		s->part[i]->fresh = s->part[i]->fresh && !s->part[i]->opened;
		s->part[i]->corrected = false;
	}
}

static void note_part(struct odm_shadow_link *s, const struct odm_step *step, size_t part)
{
	const struct odm_part *p = &step->part[part];
	const struct od_row *row = &step->rows[p->first];
	struct odm_told *t = take_slot(s, step, p);

	for (size_t i = 0; i < p->n; i++)
		tokens_of(s, t)[row->position + i] = row[i].token;
	t->n_tokens = row->position + (uint32_t)p->n;
	if (step->phase != ODM_DECODE)
		return;
	s->part[part] = t;
	t->in_step = true;
	t->begin = row->position;
	t->n = (uint32_t)p->n;
	t->due_rows = 0;
}

/* Only one decode step is open at a time, and prefill steps send no STATEs later. */
static void begin_decode(struct odm_shadow_link *s)
{
	s->next_layer = 0;
	s->stage.n_layers = 0;
	for (uint32_t i = 0; i < s->max_sequences; i++)
		s->told[i].in_step = false;
}

void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	const uint64_t begin_ns = od_now_ns();

	if (step->phase == ODM_DECODE)
		begin_decode(s);
	for (size_t i = 0; i < step->n_parts; i++)
		note_part(s, step, i);
	if (!has_shadow(s))
		return;
	if (s->deliver == NULL)
		odm_link_reattach(&s->link); /* a few bytes, in case the connection broke and came back */
	for (size_t i = 0; i < step->n_parts; i++) {
		const struct odm_part *p = &step->part[i];
		struct odm_told *t = find(s, p->sequence);

		if (!open_sequence(s, epoch, t) || step->phase != ODM_PREFILL || !wants_prompt(t))
			continue;
		send_tokens(s, epoch, t, t->n_told, t->n_tokens - t->n_told, OD_C_ALIGN_BYTES);
		t->n_told = t->n_tokens;
	}
	if (step->phase == ODM_DECODE && step->n_rows <= ODM_MAX_STEP_ROWS)
		send_step(s, epoch, step);
	count_time(s, begin_ns);
}

/* ---- STATE ---- */

/* How many of the rows from begin on are contiguous in memory. */
static uint32_t of_one_page(uint32_t begin, uint32_t n)
{
	uint32_t left = OD_KV_PAGE - begin % OD_KV_PAGE;

	return n < left ? n : left;
}

/* Address in the stage of a layer's stream, from its row `at` on. */
static uint8_t *staged(const struct odm_shadow_link *s, const struct odm_told *t, uint32_t layer, uint32_t stream,
		       uint32_t at)
{
	uint8_t *to = s->stage.bytes + (layer - s->stage.layer) * s->stage.layer_bytes;

	for (uint32_t i = 0; i < stream; i++)
		to += s->stage.rows * od_seq_state_row_bytes(t->seq, layer, i);
	return to + at * od_seq_state_row_bytes(t->seq, layer, stream);
}

/* Queues the copy of rows [begin, begin + n) of a layer into the stage, to its row `at` and on. */
static void get_rows(struct odm_shadow_link *s, const struct odm_told *t, uint32_t layer, uint32_t begin, uint32_t n,
		     uint32_t at)
{
	assert(at + n <= s->stage.rows);
	for (uint32_t i = 0, bytes; (bytes = (uint32_t)od_seq_state_row_bytes(t->seq, layer, i)) > 0; i++)
		for (uint32_t p = begin, some; p < begin + n; p += some) {
			some = of_one_page(p, begin + n - p);
			od_device_get(s->device, OD_QUEUE_COMPUTE, staged(s, t, layer, i, at + p - begin),
				      od_seq_state_row(t->seq, layer, i, p), (size_t)some * bytes);
		}
}

/* Position of the first due row. */
static uint32_t due_begin(const struct odm_told *t)
{
	return t->begin + t->n - t->due_rows;
}

static bool is_staged(const struct odm_shadow_link *s, const struct odm_told *t, uint32_t layer, uint32_t begin,
		      uint32_t n)
{
	return s->stage.n_layers > 0 && s->stage.layer <= layer && layer < s->stage.layer + s->stage.n_layers &&
	       t->in_step && t->staged_at != UINT32_MAX && begin >= due_begin(t) && begin + n <= t->begin + t->n;
}

/* Rows [begin, begin + n) of a layer, all in one page, as frames, one per stream; valid until the next call. */
static int find_rows(struct odm_shadow_link *s, const struct odm_told *t, uint32_t layer, uint32_t begin, uint32_t n,
		     struct od_out_frame frame[OD_MAX_STREAMS], size_t *n_frames)
{
	const bool mapped = s->stage.bytes == NULL;
	uint32_t at = 0;
	int rc = OD_OK;

	*n_frames = 0;
	if (!mapped && is_staged(s, t, layer, begin, n)) {
		at = t->staged_at + begin - due_begin(t);
	} else if (!mapped) { /* overwrites the staged rows */
		s->stage.layer = layer;
		s->stage.n_layers = 0;
		get_rows(s, t, layer, begin, n, 0);
		rc = od_device_sync(s->device, NULL);
	}
	for (uint32_t i = 0, bytes;
	     i < OD_MAX_STREAMS && (bytes = (uint32_t)od_seq_state_row_bytes(t->seq, layer, i)) > 0; i++)
		frame[(*n_frames)++] = (struct od_out_frame){
			.bytes = mapped ? od_ref_map(od_seq_state_row(t->seq, layer, i, begin)) :
					  staged(s, t, layer, i, at),
			.len = (size_t)n * bytes,
		};
	return rc;
}

/* Bytes of a position in all streams of a layer; 0: it has fixed state, whose rows the shadow computes itself. */
static size_t row_bytes(const struct odm_told *t, uint32_t layer)
{
	const struct od_state_pool *p = od_seq_state_pool(t->seq);

	return od_state_pool_layer_bytes(p, layer) > 0 ? 0 : od_state_pool_row_bytes(p, layer);
}

/* step 0: an answer to a request. rows: the sum over all ranges. */
static void send_state(struct odm_shadow_link *s, uint64_t epoch, uint64_t step, uint32_t layer, Od__StateRange **list,
		       size_t n_ranges, const struct od_out_frame *frame, size_t n_frames)
{
	const enum od_counter counter = step == 0 ? OD_C_ASKED_BYTES : OD_C_ALIGN_BYTES;
	Od__State body = OD__STATE__INIT;
	Od__Header h = OD__HEADER__INIT;
	size_t bytes = 0;

	for (size_t i = 0; i < n_frames; i++)
		bytes += frame[i].len;
	if (!has_room(s, bytes + n_ranges * RANGE_BYTES, limit_of(counter)))
		return;
	body.step = step;
	body.layer = layer;
	body.ranges = list;
	body.n_ranges = n_ranges;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	if (send_message(s, epoch, &h, frame, n_frames, counter))
		s->counters[OD_C_STATE_BYTES] += bytes;
}

static void set_range(Od__StateRange *r, const struct odm_told *t, uint32_t begin, uint32_t n)
{
	od__state_range__init(r);
	r->sequence = t->sequence;
	r->begin = begin;
	r->n = n;
}

/* Maximum positions of a layer in one STATE. */
static uint32_t max_state_rows(const struct odm_told *t, uint32_t layer)
{
	const size_t most = MAX_STATE_BYTES / row_bytes(t, layer);

	return most > 0 ? (uint32_t)most : 1;
}

/* Sends rows [begin, begin + n) of a sequence in messages of their own. */
static void send_range(struct odm_shadow_link *s, uint64_t epoch, const struct odm_told *t, uint64_t step,
		       uint32_t layer, uint32_t begin, uint32_t n)
{
	const uint32_t most = max_state_rows(t, layer);
	struct od_out_frame frame[OD_MAX_STREAMS];
	Od__StateRange range, *list = &range;
	size_t n_frames;

	for (uint32_t some; n > 0; begin += some, n -= some) {
		some = of_one_page(begin, n < most ? n : most);
		if (!has_room(s, some * row_bytes(t, layer), limit_of(step == 0 ? OD_C_ASKED_BYTES : OD_C_ALIGN_BYTES)))
			return;
		if (find_rows(s, t, layer, begin, some, frame, &n_frames) != OD_OK)
			return; /* the forward pass gets the error at its next wait */
		set_range(&range, t, begin, some);
		send_state(s, epoch, step, layer, &list, 1, frame, n_frames);
	}
}

/* t: any sequence; row widths are the same for all. */
static void send_batch(struct odm_shadow_link *s, uint64_t epoch, const struct odm_told *t, uint64_t step,
		       uint32_t layer)
{
	struct odm_state_batch *b = s->batch;
	struct od_out_frame frame[OD_MAX_STREAMS];
	size_t n_frames = 0, at = 0;

	for (size_t each;
	     n_frames < OD_MAX_STREAMS && (each = od_seq_state_row_bytes(t->seq, layer, (uint32_t)n_frames)) > 0;
	     n_frames++) {
		frame[n_frames] = (struct od_out_frame){ .bytes = b->bytes + at, .len = b->n_rows * each };
		at += b->max_rows * each;
	}
	if (b->n_rows > 0)
		send_state(s, epoch, step, layer, b->list, b->n_ranges, frame, n_frames);
	b->n_ranges = b->n_rows = 0;
}

/* Adds rows [begin, begin + n), all in one page, to the batch, which has room for them. */
static void add_range(struct odm_shadow_link *s, const struct odm_told *t, uint32_t layer, uint32_t begin, uint32_t n)
{
	struct odm_state_batch *b = s->batch;
	struct od_out_frame frame[OD_MAX_STREAMS];
	size_t n_frames, at = 0;

	if (find_rows(s, t, layer, begin, n, frame, &n_frames) != OD_OK)
		return;
	for (size_t i = 0; i < n_frames; i++) {
		const size_t each = frame[i].len / n;

		memcpy(b->bytes + at + b->n_rows * each, frame[i].bytes, frame[i].len);
		at += b->max_rows * each;
	}
	b->n_rows += n;
	if (b->n_ranges > 0 && b->range[b->n_ranges - 1].sequence == t->sequence) { /* its next page */
		b->range[b->n_ranges - 1].n += n;
		return;
	}
	b->list[b->n_ranges] = &b->range[b->n_ranges];
	set_range(&b->range[b->n_ranges++], t, begin, n);
}

static bool has_due_rows(const struct odm_shadow_link *s, const struct odm_told *t)
{
	return has_shadow(s) && t->sequence != 0 && t->in_step && t->opened && t->due_rows > 0;
}

void odm_shadow_link_collect(struct odm_shadow_link *s, const struct odm_step *step, uint32_t layer)
{
	const uint64_t begin_ns = od_now_ns();
	uint32_t used = 0;

	if (s->stage.bytes == NULL || layer + 1 - s->next_layer > s->stage.max_layers)
		return;
	s->stage.layer = s->next_layer;
	s->stage.n_layers = layer + 1 - s->next_layer;
	for (size_t i = 0; i < step->n_parts; i++) {
		struct odm_told *t = s->part[i];

		t->staged_at = UINT32_MAX;
		if (!has_due_rows(s, t) || t->due_rows > s->stage.rows - used)
			continue;
		t->staged_at = used;
		used += t->due_rows;
		for (uint32_t l = s->next_layer; l <= layer; l++)
			if (row_bytes(t, l) > 0)
				get_rows(s, t, l, due_begin(t), t->due_rows, t->staged_at);
	}
	count_time(s, begin_ns);
}

/* Sends the due rows of all parts in as few messages as possible. */
static void send_layer(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer)
{
	struct odm_state_batch *b = s->batch;
	const struct odm_told *last = NULL;

	b->n_ranges = b->n_rows = 0;
	for (size_t i = 0; i < step->n_parts; i++) {
		const struct odm_told *t = s->part[i];
		uint32_t p, end;

		if (!has_due_rows(s, t) || row_bytes(t, layer) == 0)
			continue;
		b->max_rows = max_state_rows(t, layer);
		if (row_bytes(t, layer) > MAX_STATE_BYTES) {
			send_range(s, epoch, t, step->step, layer, due_begin(t), t->due_rows);
			continue;
		}
		last = t;
		for (p = due_begin(t), end = t->begin + t->n; p < end;) {
			const uint32_t room = b->max_rows - b->n_rows,
				       n = of_one_page(p, end - p < room ? end - p : room);

			add_range(s, t, layer, p, n);
			p += n;
			if (b->n_rows == b->max_rows || b->n_ranges == ODM_MAX_STEP_ROWS)
				send_batch(s, epoch, t, step->step, layer);
		}
	}
	if (last != NULL)
		send_batch(s, epoch, last, step->step, layer);
}

void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer)
{
	const uint64_t begin_ns = od_now_ns();

	for (; s->next_layer <= layer; s->next_layer++)
		send_layer(s, epoch, step, s->next_layer);
	if (has_shadow(s))
		count_time(s, begin_ns);
}

/* Sends only rows that cannot change any more: those below the committed length. */
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const Od__StateRequest *r)
{
	struct odm_told *t = find(s, r->sequence);
	uint64_t waits;
	uint32_t length;

	if (t == NULL)
		return; /* the sequence is over */
	if (t->open.own_state) { /* the shadow missed the SEQ_OPEN with own_state: send it again */
		if (has_room(s, 0, ODM_SHADOW_ANSWER_BYTES))
			send_open(s, epoch, t);
		return;
	}
	length = od_seq_state_length(t->seq);
	if (r->layer >= s->config->n_layers || row_bytes(t, r->layer) == 0 || r->n == 0 || r->begin >= length ||
	    r->n > length - r->begin || r->n > MAX_ANSWER_BYTES / row_bytes(t, r->layer)) {
		od_log_limited(OD_LOG_WARN, "the shadow requests positions %u+%u of layer %u; there are %u", r->begin,
			       r->n, r->layer, length);
		return;
	}
	waits = od_device_waits(s->device);
	send_range(s, epoch, t, 0, r->layer, r->begin, r->n);
	s->counters[OD_C_SIDE_WAITS] += od_device_waits(s->device) - waits;
}

void odm_shadow_link_serve(struct odm_shadow_link *s, uint64_t epoch)
{
	const uint64_t before = s->counters[OD_C_ASKED_BYTES];
	const uint64_t begin_ns = od_now_ns();
	struct od_msg m;

	if (s->link.socket == NULL)
		return;
	for (int i = 0; i < ANSWERS_AT_ONCE && s->counters[OD_C_ASKED_BYTES] - before < ANSWER_BYTES_AT_ONCE &&
			odm_link_recv(&s->link, &m) == OD_OK;
	     i++) {
		if (m.header->body_case == OD__HEADER__BODY_STATE_REQUEST)
			odm_shadow_link_answer(s, epoch, m.header->state_request);
		else if (m.header->body_case == OD__HEADER__BODY_TOKENS_REQUEST)
			odm_shadow_link_answer_tokens(s, epoch, m.header->tokens_request);
		else if (m.header->body_case != OD__HEADER__BODY_ATTACHED)
			od_log_limited(OD_LOG_WARN, "the shadow sent %s on its data socket, which is not allowed",
				       od_body_name(m.header->body_case));
		od_msg_fini(&m);
	}
	count_time(s, begin_ns);
}

void odm_shadow_link_truncate(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence, uint32_t length)
{
	struct odm_told *t = find(s, sequence);
	Od__SeqTruncate body = OD__SEQ_TRUNCATE__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (t == NULL)
		return;
	t->n_tokens = length;
	t->corrected = true;
	if (!has_shadow(s) || !t->opened)
		return;
	body.sequence = sequence;
	body.length = length;
	h.body_case = OD__HEADER__BODY_SEQ_TRUNCATE;
	h.seq_truncate = &body;
	send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}

void odm_shadow_link_close_sequence(struct odm_shadow_link *s, uint64_t epoch, uint64_t sequence)
{
	struct odm_told *t = find(s, sequence);
	Od__SeqClose body = OD__SEQ_CLOSE__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (t == NULL)
		return;
	t->sequence = 0;
	if (!has_shadow(s) || !t->opened)
		return;
	body.sequence = sequence;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &body;
	send_message(s, epoch, &h, NULL, 0, OD_C_ALIGN_BYTES);
}
