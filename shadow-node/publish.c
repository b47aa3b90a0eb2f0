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
		to->lost++;
}

/* When it cannot be sent it counts as lost: the emulator asks again in a second. */
static void send_request(void *arg, uint64_t sequence, const struct ods_range *r)
{
	struct ods_publisher *to = arg;
	Od__Header header = OD__HEADER__INIT;
	Od__StateRequest body = OD__STATE_REQUEST__INIT;
	int rc;

	body.sequence = sequence;
	body.layer = r->layer;
	body.begin = r->begin;
	body.n = r->n;
	header.session = to->session;
	header.body_case = OD__HEADER__BODY_STATE_REQUEST;
	header.state_request = &body;
	rc = od_data_port_send(to->port, &header, NULL, 0);
	if (rc != OD_OK)
		od_log_limited(OD_LOG_WARN, "cannot ask main for keys and values: %s", od_status_text(rc));
}

struct ods_sink ods_publisher_sink(struct ods_publisher *p)
{
	return (struct ods_sink){ .arg = p, .predict = send_prediction, .ask = send_request };
}
