#include "shadow-node/publish.h"

#include "common/base/log.h"

static void send_predictions(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct ods_publisher *to = arg;
	Od__Header header = OD__HEADER__INIT;
	Od__Predict body = OD__PREDICT__INIT;
	Od__PredictRow row[ODS_MAX_STEP_ROWS], *rows[ODS_MAX_STEP_ROWS];
	uint32_t experts[ODS_MAX_STEP_ROWS][OD_MAX_CANDIDATES];

	for (size_t i = 0; i < n; i++) {
		for (size_t j = 0; j < p[i].n; j++)
			experts[i][j] = p[i].expert[j];
		od__predict_row__init(&row[i]);
		row[i].sequence = p[i].sequence;
		row[i].position = p[i].position;
		row[i].token = p[i].token;
		row[i].experts = experts[i];
		row[i].n_experts = p[i].n;
		row[i].probabilities = (float *)p[i].probability;
		row[i].n_probabilities = p[i].n;
		row[i].margin = p[i].margin;
		rows[i] = &row[i];
	}
	body.m = m;
	body.rows = rows;
	body.n_rows = n;
	header.body_case = OD__HEADER__BODY_PREDICT;
	header.predict = &body;
	if (od_daemon_post(to->daemon, to->session, &header) != OD_OK)
		to->counters[OD_C_SHADOW_LOST] += n;
}

/* A request that cannot be sent is lost: the emulator sends it again after ODS_ASK_AGAIN_NS. */
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
	return (struct ods_sink){ .arg = p, .predict = send_predictions, .ask = ask_rows, .ask_tokens = ask_tokens };
}
