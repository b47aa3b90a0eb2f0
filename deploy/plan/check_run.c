#include "deploy/plan/check_run.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "main-node/cluster/wire_rows.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MS 100
#define ANSWER_NS (60 * OD_NS_PER_S) /* for a RUN: a load from a slow disk, then a computation on a slow machine */
#define ROW_BYTE 0x3c /* floats and BF16 of such bytes are near 0.01: neither 0 nor large */

int odp_runs_open(struct odp_runs *r, struct odm_members *members, void *zmq, const struct odm_cluster_opts *cluster,
		  const struct odm_member *worker, struct od_err *err)
{
	int rc;

	*r = (struct odp_runs){ .members = members, .cluster = cluster, .step = 1 };
	r->row_bytes = odm_wire_rows_each(cluster->config, cluster->profile);
	r->max_rows = cluster->max_rows;
	r->rows = od_alloc_array(r->max_rows, r->row_bytes);
	r->index = calloc(r->max_rows, sizeof(*r->index));
	if (r->rows == NULL || r->index == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u rows", r->max_rows);
	memset(r->rows, ROW_BYTE, r->max_rows * r->row_bytes);
	for (uint32_t i = 0; i < r->max_rows; i++)
		r->index[i] = i;
	rc = odm_link_open(&r->link, zmq, worker, err);
	if (rc != OD_OK)
		return rc;
	while ((rc = odm_link_attach(&r->link)) == OD_ERR_BUSY) {
		zmq_pollitem_t item = { .socket = r->link.socket, .events = ZMQ_POLLIN };

		zmq_poll(&item, 1, 10);
	}
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "no answer on its data port %u", worker->data_port);
}

void odp_runs_close(struct odp_runs *r)
{
	odm_link_close(&r->link);
	od_free(r->rows);
	free(r->index);
	r->rows = NULL;
	r->index = NULL;
}

int odp_runs_send(struct odp_runs *r, const struct odp_run *run, struct od_err *err)
{
	const struct od_out_frame frame = { .bytes = r->rows, .len = run->n_rows * r->row_bytes };
	Od__RunExpert expert[ODP_RUN_EXPERTS], *list[ODP_RUN_EXPERTS];
	const uint64_t now_ns = od_now_ns(), until_ns = now_ns + ANSWER_NS;
	Od__Run body = OD__RUN__INIT;
	Od__Header h = OD__HEADER__INIT;
	int rc;

	for (size_t i = 0; i < run->n_experts; i++) {
		od__run_expert__init(&expert[i]);
		expert[i].expert = run->expert[i];
		expert[i].rank = (uint32_t)i;
		expert[i].rows = r->index;
		expert[i].n_rows = run->used;
		expert[i].last = run->last;
		list[i] = &expert[i];
	}
	r->sent_ns = now_ns;
	body.step = r->step;
	body.m = run->m;
	body.request = ++r->request;
	body.n_rows = run->n_rows;
	body.experts = list;
	body.n_experts = run->n_experts;
	body.prompt = true; /* a cache does not learn from it */
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &body;
	while ((rc = odm_link_send(&r->link, 0, &h, &frame, 1)) == OD_ERR_BUSY && od_now_ns() < until_ns)
		od_sleep_until(od_now_ns() + OD_NS_PER_MS);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "its data port takes no RUN");
}

/* *left: experts without an answer. */
static int take_result(const struct odp_run *run, const Od__Result *result, size_t *left, struct odp_run_times *t,
		       struct od_err *err)
{
	double compute_ns = 0, wait_ns = 0;

	if (result->n_experts == 0 || result->n_experts > *left)
		return od_fail(err, OD_ERR_PROTOCOL, "RESULT: expected 1 to %zu experts, found %zu", *left,
			       result->n_experts);
	for (size_t i = 0; i < result->n_experts; i++) {
		const Od__ExpertResult *x = result->experts[i];
		char reason[200];

		if (x->code != OD_OK)
			return od_fail(err, x->code < 0 ? x->code : OD_ERR_PROTOCOL, "expert %u of MoE layer %u: %s",
				       x->expert, run->m, od_peer_text(x->reason, reason, sizeof(reason)));
		wait_ns = (double)x->wait_ns;
		compute_ns += (double)x->compute_ns;
		t->load_ns += (double)x->load_ns;
		t->loaded_bytes += (double)x->loaded_bytes;
		t->ready = t->ready && x->ready;
	}
	t->compute_ns += compute_ns;
	if (wait_ns + compute_ns > t->worker_ns)
		t->worker_ns = wait_ns + compute_ns;
	*left -= result->n_experts;
	return OD_OK;
}

static bool is_answer(const struct odp_runs *r, const struct od_msg *m)
{
	return m->header->body_case == OD__HEADER__BODY_RESULT && m->header->result->request == r->request;
}

int odp_runs_wait(struct odp_runs *r, const struct odp_run *run, struct odp_run_times *t, struct od_err *err)
{
	const uint64_t begin_ns = r->sent_ns;
	size_t left = run->n_experts;
	int rc = OD_OK;

	*t = (struct odp_run_times){ .ready = true };
	while (rc == OD_OK && left > 0) {
		zmq_pollitem_t item = { .socket = r->link.socket, .events = ZMQ_POLLIN };
		struct od_msg m;

		zmq_poll(&item, 1, LOOK_MS);
		while (rc == OD_OK && left > 0 && odm_link_recv(&r->link, &m) == OD_OK) {
			t->round_ns = (double)(od_now_ns() - begin_ns);
			if (is_answer(r, &m))
				rc = take_result(run, m.header->result, &left, t, err);
			od_msg_fini(&m);
		}
		if (rc == OD_OK && left > 0 && !odm_members_alive(r->members, r->link.member, r->link.session))
			rc = od_fail(err, OD_ERR_UNREACHABLE, "its connection has ended");
		if (rc == OD_OK && left > 0 && od_now_ns() > begin_ns + ANSWER_NS)
			rc = od_fail(err, OD_ERR_TIMEOUT, "no answer to a RUN for %u s",
				     (unsigned)(ANSWER_NS / OD_NS_PER_S));
	}
	return rc;
}

int odp_runs_do(struct odp_runs *r, const struct odp_run *run, struct odp_run_times *t, struct od_err *err)
{
	const int rc = odp_runs_send(r, run, err);

	*t = (struct odp_run_times){ 0 };
	return rc == OD_OK ? odp_runs_wait(r, run, t, err) : rc;
}
