#include "shadow-node/publish.h"

#include "common/base/log.h"

static void send_prediction(void *arg, const struct od_prediction *p)
{
	struct ods_publisher *to = arg;
	Od__Header header = OD__HEADER__INIT;
	Od__Predict body = OD__PREDICT__INIT;
	uint32_t experts[OD_MAX_CANDIDATES];

	for (size_t i = 0; i < p->n; i++)
		experts[i] = p->expert[i];
	body.step = p->step;
	body.row = p->row;
	body.sequence = p->sequence;
	body.position = p->position;
	body.token = p->token;
	body.m = p->m;
	body.experts = experts;
	body.n_experts = p->n;
	body.probabilities = (float *)p->probability;
	body.n_probabilities = p->n;
	header.body_case = OD__HEADER__BODY_PREDICT;
	header.predict = &body;
	if (od_daemon_post(to->daemon, to->session, &header) != OD_OK)
		to->counters[OD_C_SHADOW_LOST]++;
}

/* When it cannot be sent it counts as lost: the emulator asks again in a second. */
static void send_request(struct ods_publisher *to, Od__Header *header)
{
	int rc;

	header->session = to->session;
	rc = od_data_port_send(to->port, header, NULL, 0);
	if (rc != OD_OK)
		od_log_limited(OD_LOG_WARN, "cannot send %s: %s", od_body_name(header->body_case), od_status_text(rc));
}

static void ask_rows(void *arg, uint64_t sequence, const struct ods_range *r)
{
	Od__Header header = OD__HEADER__INIT;
	Od__StateRequest body = OD__STATE_REQUEST__INIT;

	body.sequence = sequence;
	body.layer = r->layer;
	body.begin = r->begin;
	body.n = r->n;
	header.body_case = OD__HEADER__BODY_STATE_REQUEST;
	header.state_request = &body;
	send_request(arg, &header);
}

static void ask_tokens(void *arg, uint64_t sequence, uint32_t begin, uint32_t n)
{
	Od__Header header = OD__HEADER__INIT;
	Od__TokensRequest body = OD__TOKENS_REQUEST__INIT;

	body.sequence = sequence;
	body.begin = begin;
	body.n = n;
	header.body_case = OD__HEADER__BODY_TOKENS_REQUEST;
	header.tokens_request = &body;
	send_request(arg, &header);
}

struct ods_sink ods_publisher_sink(struct ods_publisher *p)
{
	return (struct ods_sink){ .arg = p, .predict = send_prediction, .ask = ask_rows,
				  .ask_tokens = ask_tokens };
}
