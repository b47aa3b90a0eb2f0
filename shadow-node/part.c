#include "shadow-node/part.h"

#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/model/resident.h"
#include "shadow-node/saved_rows.h"

#include <stdlib.h>
#include <string.h>

struct ods_part {
	struct ods_emulator_opts o;
	ods_part_send_fn *send;
	void *arg;
	struct od_state_pool *state;
	struct od_forward *forward;
	struct od_expert_runner *experts;
	struct ods_saved saved;
	uint32_t n_sequences;
	struct od_seq_state **sequence; /* [n_sequences] */
	bool *taken; /* [n_sequences]: by a table of the run that is being read */
	uint32_t *page; /* [pages of a context] */
	struct od_row *rows; /* [max_rows] */
	size_t n_rows;
	uint32_t *count; /* [n_sequences]: rows of each of the run's tables */
	uint32_t n_tables;
	uint64_t run; /* the newest */
	bool running; /* its rows can go on, or be read */
	struct od_err failed; /* failure of a message without an answer; code OD_OK: none */
};

/* ---- life ---- */

static int open_sequences(struct ods_part *p, struct od_err *err)
{
	p->n_sequences = 2 * (uint32_t)p->o.max_sequences; /* as the emulator's */
	p->sequence = calloc(p->n_sequences, sizeof(struct od_seq_state *));
	p->taken = calloc(p->n_sequences, sizeof(*p->taken));
	p->count = calloc(p->n_sequences, sizeof(*p->count));
	p->page = calloc(od_state_pages(p->o.ctx_tokens), sizeof(*p->page));
	p->rows = calloc(p->o.forward.max_rows, sizeof(*p->rows));
	return p->sequence != NULL && p->taken != NULL && p->count != NULL && p->page != NULL && p->rows != NULL ?
		       OD_OK :
		       od_fail(err, OD_ERR_NOMEM, "part: %u sequences", p->n_sequences);
}

static int open_state(struct ods_part *p, struct od_err *err)
{
	struct od_forward_opts *f = &p->o.forward;
	const uint64_t most = (uint64_t)od_state_pages(p->o.ctx_tokens) * p->o.max_sequences;
	int rc = od_state_pool_new(&p->state, f->device, f->config, f->profile, p->o.ctx_tokens, p->n_sequences,
				   p->o.n_pages > 0 && p->o.n_pages < most ? p->o.n_pages : most, err);

	if (rc == OD_OK)
		rc = od_state_pool_set_copies(p->state, f->device, ODS_FIXED_COPIES, err);
	f->state = p->state;
	for (uint32_t i = 0; rc == OD_OK && i < p->n_sequences; i++) /* the lowest free index: i */
		rc = od_seq_state_new(&p->sequence[i], p->state, err);
	return rc;
}

int ods_part_new(struct ods_part **out, const struct ods_emulator_opts *o, ods_part_send_fn *send, void *arg,
		 struct od_err *err)
{
	struct ods_part *p = calloc(1, sizeof(*p));
	int rc;

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "part");
	p->o = *o;
	p->send = send;
	p->arg = arg;
	rc = open_sequences(p, err);
	if (rc == OD_OK)
		rc = open_state(p, err);
	if (rc == OD_OK)
		rc = ods_saved_init(&p->saved, &p->o.forward, err);
	if (rc == OD_OK)
		rc = od_forward_new(&p->forward, &p->o.forward, err);
	if (rc == OD_OK)
		rc = od_resident_new(&p->experts, &p->o.forward, o->experts, err);
	if (rc != OD_OK) {
		ods_part_free(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

void ods_part_free(struct ods_part *p)
{
	if (p == NULL)
		return;
	(void)!od_device_sync(p->o.forward.device, NULL); /* queued work uses buffers that are freed here */
	od_resident_free(p->experts);
	od_forward_free(p->forward);
	ods_saved_fini(&p->saved);
	if (p->sequence != NULL)
		for (uint32_t i = 0; i < p->n_sequences; i++)
			od_seq_state_free(p->sequence[i]);
	od_state_pool_free(p->state);
	free(p->sequence);
	free(p->taken);
	free(p->count);
	free(p->page);
	free(p->rows);
	free(p);
}

/* ---- answers ---- */

static void answer(struct ods_part *p, uint64_t run, uint32_t layer, int code, const char *reason, const float *rows,
		   size_t n)
{
	const struct od_out_frame frame = { .bytes = rows, .len = n * sizeof(*rows) };
	Od__PartResult body = OD__PART_RESULT__INIT;
	Od__Header header = OD__HEADER__INIT;

	body.run = run;
	body.layer = layer;
	body.code = code;
	body.reason = (char *)(code == OD_OK ? "" : reason);
	header.body_case = OD__HEADER__BODY_PART_RESULT;
	header.part_result = &body;
	p->send(p->arg, &header, &frame, code == OD_OK && rows != NULL);
}

static int on_open(struct ods_part *p, const Od__PartOpen *m)
{
	Od__PartReady body = OD__PART_READY__INIT;
	Od__Header header = OD__HEADER__INIT;

	body.first_layer = od_config_begin(p->o.forward.config);
	body.end_layer = od_config_end(p->o.forward.config);
	body.max_rows = (uint32_t)p->o.forward.max_rows;
	body.max_sequences = (uint32_t)p->o.max_sequences;
	body.pages = od_state_pool_n_pages(p->state);
	header.body_case = OD__HEADER__BODY_PART_READY;
	header.part_ready = &body;
	if (m->begin) {
		p->run = 0;
		p->running = false;
		p->failed.code = OD_OK;
	}
	p->send(p->arg, &header, NULL, 0);
	return OD_OK;
}

/* ---- PART_RUN ---- */

static int check_table(const struct ods_part *p, const Od__PartTable *t, size_t i, struct od_err *err)
{
	const uint32_t copies = od_state_pool_copies(p->state);

	if (t->place >= p->n_sequences || p->taken[t->place])
		return od_fail(err, OD_ERR_RANGE, "table %zu: place: expected one of %u that is free, found %u", i,
			       p->n_sequences, t->place);
	if (t->n_rows == 0 || !od_within(t->length, t->n_rows, p->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "table %zu: %u rows from position %u on: expected 1 to %u", i,
			       t->n_rows, t->length, p->o.ctx_tokens);
	if (t->n_pages < od_state_pages(t->length + t->n_rows) || t->n_pages > od_state_pages(p->o.ctx_tokens))
		return od_fail(err, OD_ERR_RANGE, "table %zu: pages: expected %u to %u, found %u", i,
			       od_state_pages(t->length + t->n_rows), od_state_pages(p->o.ctx_tokens), t->n_pages);
	if (t->committed >= copies || t->next >= copies || t->committed == t->next)
		return od_fail(err, OD_ERR_RANGE, "table %zu: copies %u and %u: expected two of %u", i, t->committed,
			       t->next, copies);
	return OD_OK;
}

/* Its page numbers stand at `page`, of any alignment. */
static int take_table(struct ods_part *p, const Od__PartTable *t, size_t i, const uint8_t *page, struct od_err *err)
{
	const struct od_seq_mirror mirror = { .page = p->page,
					      .n_pages = t->n_pages,
					      .length = t->length,
					      .is_long = t->is_long,
					      .committed = t->committed,
					      .next = t->next };

	memcpy(p->page, page, t->n_pages * sizeof(*p->page));
	for (uint32_t j = 0; j < t->n_pages; j++)
		if (p->page[j] >= od_state_pool_n_pages(p->state))
			return od_fail(err, OD_ERR_RANGE, "table %zu: page: expected below %u, found %u", i,
				       od_state_pool_n_pages(p->state), p->page[j]);
	p->taken[t->place] = true;
	od_seq_state_mirror(p->sequence[t->place], &mirror);
	p->count[i] = t->n_rows;
	return OD_OK;
}

static int take_tables(struct ods_part *p, const Od__PartRun *m, const uint8_t *page, size_t page_bytes,
		       struct od_err *err)
{
	size_t n_rows = 0, at = 0;

	memset(p->taken, 0, p->n_sequences * sizeof(*p->taken));
	for (size_t i = 0; i < m->n_tables; i++) {
		const Od__PartTable *t = m->tables[i];
		int rc = check_table(p, t, i, err);

		if (rc == OD_OK &&
		    (t->n_pages > (page_bytes - at) / sizeof(uint32_t) || t->n_rows > m->n_tokens - n_rows))
			rc = od_fail(err, OD_ERR_SHAPE, "table %zu: more rows or pages than the message has", i);
		if (rc == OD_OK)
			rc = take_table(p, t, i, page + at, err);
		if (rc != OD_OK)
			return rc;
		for (uint32_t j = 0; j < t->n_rows; j++, n_rows++)
			p->rows[n_rows] = (struct od_row){ p->sequence[t->place], t->length + j, m->tokens[n_rows] };
		at += t->n_pages * sizeof(uint32_t);
	}
	if (n_rows != m->n_tokens || at != page_bytes)
		return od_fail(err, OD_ERR_SHAPE, "tables of %zu rows and %zu bytes of pages: expected %zu and %zu",
			       n_rows, at, m->n_tokens, page_bytes);
	p->n_tables = (uint32_t)m->n_tables;
	p->n_rows = n_rows;
	return OD_OK;
}

static int on_run(struct ods_part *p, const struct od_msg *m, struct od_err *err)
{
	const Od__PartRun *r = m->header->part_run;
	size_t x_bytes, page_bytes;
	const void *x = od_msg_frame(m, 0, &x_bytes), *page = od_msg_frame(m, 1, &page_bytes);
	int rc;

	p->running = false;
	if (r->run <= p->run)
		return od_fail(err, OD_ERR_PROTOCOL, "run %llu: late or repeated, the newest is %llu",
			       (unsigned long long)r->run, (unsigned long long)p->run);
	p->run = r->run;
	if (r->n_tables == 0 || r->n_tables > p->n_sequences || r->n_tokens == 0 || r->n_tokens > p->o.forward.max_rows)
		return od_fail(err, OD_ERR_RANGE, "%zu sequences, %zu rows: expected 1 to %u and 1 to %zu", r->n_tables,
			       r->n_tokens, p->n_sequences, p->o.forward.max_rows);
	if (m->n_frames != 2 || x_bytes != r->n_tokens * p->o.forward.config->hidden * sizeof(float))
		return od_fail(err, OD_ERR_SHAPE, "frames: expected 2, of %zu rows and of pages, found %zu, %zu bytes",
			       r->n_tokens, m->n_frames, x_bytes);
	rc = take_tables(p, r, page, page_bytes, err);
	if (rc == OD_OK)
		rc = od_forward_begin(p->forward, p->run, p->rows, p->n_rows, err);
	if (rc == OD_OK)
		rc = od_forward_input(p->forward, x, err);
	p->running = rc == OD_OK;
	return rc;
}

/* ---- PART_LAYER ---- */

static int check_keep(const struct ods_part *p, const Od__PartLayer *l, struct od_err *err)
{
	for (size_t i = 0; i < l->n_keep; i++)
		if (l->keep[i] >= p->n_rows || (i > 0 && l->keep[i] <= l->keep[i - 1]))
			return od_fail(err, OD_ERR_RANGE, "row %u to keep: expected ascending ones below %zu",
				       l->keep[i], p->n_rows);
	return OD_OK;
}

static void copy_kept(struct ods_part *p, const Od__PartLayer *l, bool save)
{
	for (size_t i = 0; i < l->n_keep; i++) {
		const struct od_row *r = &p->rows[l->keep[i]];

		ods_saved_copy(&p->saved, l->keep[i], r->seq, l->layer, r->position, save);
	}
}

/* Answers as soon as the layer is routed: the first shadow publishes while the experts are computed here. */
static int run_layer(struct ods_part *p, const Od__PartLayer *l, struct od_err *err)
{
	const float *probability = NULL;
	const uint64_t begin = od_trace_begin();
	bool routed;
	int rc = check_keep(p, l, err);

	if (rc != OD_OK)
		return rc;
	copy_kept(p, l, true);
	od_forward_attention(p->forward);
	copy_kept(p, l, false);
	routed = od_forward_routed(p->forward);
	if (routed && l->probabilities) {
		rc = od_forward_fetch(p->forward, OD_FETCH_PROBABILITIES, err);
		probability = rc == OD_OK ? od_forward_probabilities_of(p->forward, 0) : NULL;
	}
	if (rc != OD_OK)
		return rc;
	answer(p, l->run, l->layer, OD_OK, NULL, probability, p->n_rows * p->o.forward.config->n_experts);
	if (routed) {
		struct od_err later;

		if (od_forward_experts(p->forward, p->experts, &later) != OD_OK)
			p->failed = later;
	}
	od_trace_end("layer of a part", begin, (int64_t)p->run, l->layer, -1);
	return OD_OK;
}

static int send_rows(struct ods_part *p, const Od__PartLayer *l, struct od_err *err)
{
	const float *x;
	int rc = od_forward_output(p->forward, &x, err);

	if (rc == OD_OK)
		answer(p, l->run, l->layer, OD_OK, NULL, x, p->n_rows * p->o.forward.config->hidden);
	return rc;
}

static int do_layer(struct ods_part *p, const Od__PartLayer *l, struct od_err *err)
{
	if (p->failed.code != OD_OK) { /* a message before this one */
		*err = p->failed;
		p->failed.code = OD_OK;
		return err->code;
	}
	if (!p->running || l->run != p->run || l->layer != od_forward_layer(p->forward))
		return od_fail(err, OD_ERR_PROTOCOL, "layer %u of run %llu: expected layer %u of run %llu", l->layer,
			       (unsigned long long)l->run, p->running ? od_forward_layer(p->forward) : 0,
			       (unsigned long long)p->run);
	return od_forward_done(p->forward) ? send_rows(p, l, err) : run_layer(p, l, err);
}

static int on_layer(struct ods_part *p, const Od__PartLayer *l, struct od_err *err)
{
	int rc = do_layer(p, l, err);

	if (rc == OD_OK)
		return OD_OK;
	p->running = false;
	answer(p, l->run, l->layer, rc, err->msg, NULL, 0);
	return rc;
}

static int on_commit(struct ods_part *p, const Od__PartCommit *c, struct od_err *err)
{
	int rc;

	if (!p->running || c->run != p->run || !od_forward_done(p->forward) || c->n_kept != p->n_tables)
		return od_fail(err, OD_ERR_PROTOCOL,
			       "%zu numbers of kept rows of run %llu: expected %u, after the layers of run %llu",
			       c->n_kept, (unsigned long long)c->run, p->n_tables, (unsigned long long)p->run);
	for (uint32_t i = 0; i < p->n_tables; i++)
		if (c->kept[i] > p->count[i])
			return od_fail(err, OD_ERR_RANGE, "kept rows of sequence %u: expected at most %u, found %u", i,
				       p->count[i], c->kept[i]);
	rc = od_forward_end(p->forward, c->kept, err);
	p->running = false;
	return rc;
}

/* ---- PART_STATE ---- */

static int check_state(const struct ods_part *p, const struct od_msg *m, struct od_stream stream[OD_MAX_STREAMS],
		       uint32_t *n_streams, struct od_err *err)
{
	const Od__PartState *s = m->header->part_state;
	uint64_t rows = 0;

	*n_streams = 0;
	if (!od_config_holds(p->o.forward.config, s->layer))
		return od_fail(err, OD_ERR_RANGE, "layer %u: this shadow holds %u-%u", s->layer,
			       od_config_begin(p->o.forward.config), od_config_end(p->o.forward.config) - 1);
	for (size_t i = 0; i < s->n_rows; i++) {
		const Od__PartRows *r = s->rows[i];

		if (r->page >= od_state_pool_n_pages(p->state) || r->n == 0 || !od_within(r->first, r->n, OD_KV_PAGE))
			return od_fail(err, OD_ERR_RANGE,
				       "rows [%u, +%u) of page %u: expected at most %d, pages below %u", r->first, r->n,
				       r->page, OD_KV_PAGE, od_state_pool_n_pages(p->state));
		rows += r->n;
	}
	*n_streams = od_state_pool_streams(p->state, s->layer, stream);
	if (*n_streams == 0 || m->n_frames != *n_streams)
		return od_fail(err, OD_ERR_SHAPE, "layer %u: expected %u frames, one per stream, found %zu", s->layer,
			       *n_streams, m->n_frames);
	for (uint32_t i = 0; i < *n_streams; i++) {
		uint64_t bytes;
		size_t found;

		od_msg_frame(m, i, &found);
		if (!od_mul(rows, stream[i].row_bytes, &bytes) || found != bytes)
			return od_fail(err, OD_ERR_SHAPE, "frame %u of layer %u: expected %llu bytes, found %zu", i,
				       s->layer, (unsigned long long)bytes, found);
	}
	return OD_OK;
}

static int on_state(struct ods_part *p, const struct od_msg *m, struct od_err *err)
{
	const Od__PartState *s = m->header->part_state;
	struct od_stream stream[OD_MAX_STREAMS];
	uint32_t n_streams;
	size_t bytes;
	int rc = check_state(p, m, stream, &n_streams, err);

	if (rc != OD_OK)
		return rc;
	for (uint32_t j = 0; j < n_streams; j++) {
		const char *from = od_msg_frame(m, j, &bytes);

		for (size_t i = 0; i < s->n_rows; i++) {
			const size_t n = s->rows[i]->n * stream[j].row_bytes;

			od_device_put(p->o.forward.device, OD_QUEUE_COMPUTE,
				      od_state_pool_row(p->state, s->layer, j, s->rows[i]->page, s->rows[i]->first),
				      from, n);
			from += n;
		}
	}
	return od_device_sync(p->o.forward.device, err); /* the message is freed when this returns */
}

/* ---- dispatch ---- */

int ods_part_message(struct ods_part *p, const struct od_msg *m, struct od_err *err)
{
	const Od__Header *h = m->header;
	int rc;

	if (h->body_case != OD__HEADER__BODY_PART_RUN && h->body_case != OD__HEADER__BODY_PART_STATE &&
	    m->n_frames != 0)
		return od_fail(err, OD_ERR_PROTOCOL, "expected no tensors, found %zu", m->n_frames);
	if (h->body_case == OD__HEADER__BODY_PART_OPEN)
		return on_open(p, h->part_open);
	if (h->body_case == OD__HEADER__BODY_PART_LAYER)
		return on_layer(p, h->part_layer, err);
	if (h->body_case == OD__HEADER__BODY_PART_RUN)
		rc = on_run(p, m, err);
	else if (h->body_case == OD__HEADER__BODY_PART_STATE)
		rc = on_state(p, m, err);
	else if (h->body_case == OD__HEADER__BODY_PART_COMMIT)
		rc = on_commit(p, h->part_commit, err);
	else
		return od_fail(err, OD_ERR_PROTOCOL,
			       "this message does not belong on the data socket of a shadow that holds layers %u-%u: "
			       "the shadow with layer 0 takes it",
			       od_config_begin(p->o.forward.config), od_config_end(p->o.forward.config) - 1);
	if (rc != OD_OK && p->failed.code == OD_OK)
		p->failed = *err;
	return rc;
}
