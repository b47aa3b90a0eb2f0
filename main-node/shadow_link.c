#include "main-node/shadow_link.h"

#include "common/base/log.h"

#define ATTACH_TIMEOUT_MS 2000
#define MAX_STEP_ROWS 64
#define MAX_ANSWER_BYTES (4u << 20) /* K and V of one answer; the shadow asks for less */

void odm_shadow_link_follow(struct odm_shadow_link *s, struct odm_cluster *c, const struct odm_member *shadow)
{
	struct od_err why;

	if (shadow == NULL || s->link.session != shadow->session) {
		odm_link_close(&s->link);
		s->sequence = 0;
	}
	if (shadow == NULL || s->link.session == shadow->session)
		return;
	if (odm_link_open(&s->link, odm_cluster_zmq(c), shadow, ATTACH_TIMEOUT_MS, &why) != OD_OK)
		odm_members_distrust(odm_cluster_members(c), shadow->id, shadow->session, why.msg);
}

static bool has_shadow(const struct odm_shadow_link *s)
{
	return s->deliver != NULL || s->link.socket != NULL;
}

static int send_message(struct odm_shadow_link *s, uint64_t epoch, Od__Header *h, const struct od_out_frame *frames,
			size_t n)
{
	if (s->deliver != NULL)
		return s->deliver(s->deliver_arg, h, frames, n);
	return odm_link_send(&s->link, epoch, h, frames, n);
}

void odm_shadow_link_step(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step)
{
	Od__StepRow row[MAX_STEP_ROWS], *list[MAX_STEP_ROWS];
	Od__Step body = OD__STEP__INIT;
	Od__Header h = OD__HEADER__INIT;

	if (!has_shadow(s) || step->n_rows > MAX_STEP_ROWS)
		return;
	for (size_t i = 0; i < step->n_rows; i++) {
		od__step_row__init(&row[i]);
		row[i].sequence = step->sequence;
		row[i].position = step->rows[i].position;
		row[i].token = step->rows[i].token;
		list[i] = &row[i];
	}
	body.step = step->step;
	body.next_step = step->next_step;
	body.rows = list;
	body.n_rows = step->n_rows;
	body.state_follows = true;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	s->sequence = step->sequence;
	s->seq = step->rows[0].seq;
	if (s->deliver == NULL)
		odm_link_reattach(&s->link); /* a few bytes, in case the connection broke and came back */
	if (send_message(s, epoch, &h, NULL, 0) != OD_OK)
		od_log_limited(OD_LOG_DEBUG, "the shadow does not take STEPs");
}

/* Rows [begin, begin + n) of a layer; answers say step 0. */
static void send_rows(struct odm_shadow_link *s, uint64_t epoch, uint64_t step, uint32_t layer, uint32_t begin,
		      uint32_t n)
{
	size_t bytes = (size_t)n * od_seq_state_row_bytes(s->seq);
	const struct od_out_frame frame[2] = {
		{ .bytes = od_seq_state_k(s->seq, layer, begin), .len = bytes },
		{ .bytes = od_seq_state_v(s->seq, layer, begin), .len = bytes },
	};
	Od__State body = OD__STATE__INIT;
	Od__Header h = OD__HEADER__INIT;

	body.sequence = s->sequence;
	body.step = step;
	body.layer = layer;
	body.begin = begin;
	body.n = n;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	if (send_message(s, epoch, &h, frame, 2) == OD_OK)
		s->state_bytes += 2 * bytes;
}

void odm_shadow_link_state(struct odm_shadow_link *s, uint64_t epoch, const struct odm_step *step, uint32_t layer)
{
	if (!has_shadow(s) || s->sequence != step->sequence)
		return;
	send_rows(s, epoch, step->step, layer, step->rows[0].position, (uint32_t)step->n_rows);
}

/* Only rows that never change any more are given out: below the committed length. */
void odm_shadow_link_answer(struct odm_shadow_link *s, uint64_t epoch, const struct od_config *cfg,
			    const Od__StateRequest *r)
{
	uint32_t length;

	if (s->sequence == 0 || r->sequence != s->sequence)
		return; /* of a sequence that is over */
	length = od_seq_state_length(s->seq);
	if (r->layer >= cfg->n_layers || r->n == 0 || r->begin >= length || r->n > length - r->begin ||
	    r->n > MAX_ANSWER_BYTES / (2 * od_seq_state_row_bytes(s->seq))) {
		od_log_limited(OD_LOG_WARN, "the shadow asks for positions %u+%u of layer %u; there are %u", r->begin, r->n,
			       r->layer, length);
		return;
	}
	send_rows(s, epoch, 0, r->layer, r->begin, r->n);
}

void odm_shadow_link_serve(struct odm_shadow_link *s, const struct od_config *cfg, uint64_t epoch)
{
	struct od_msg m;

	while (s->link.socket != NULL && odm_link_recv(&s->link, &m) == OD_OK) {
		if (m.header->body_case == OD__HEADER__BODY_STATE_REQUEST)
			odm_shadow_link_answer(s, epoch, cfg, m.header->state_request);
		od_msg_fini(&m);
	}
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
	if (send_message(s, epoch, &h, NULL, 0) != OD_OK)
		od_log_limited(OD_LOG_DEBUG, "the shadow does not take SEQ_CLOSE");
}
