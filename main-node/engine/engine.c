#include "main-node/engine/engine.h"

#include "common/compute/device.h"
#include "main-node/engine/engine_internal.h"
#include "main-node/engine/engine_report.h"
#include "main-node/engine/state_plan.h"
#include "main-node/step/timeline.h"

#include <assert.h>
#include <stdlib.h>

void odm_engine_defaults(struct odm_engine_opts *o)
{
	*o = (struct odm_engine_opts){
		.profile = OD_PROFILE_F32,
		.routing_keep = UINT64_MAX,
		.cpu = OD_CPU_AUTO,
		.prefill_rows = ODM_DEFAULT_PREFILL_ROWS,
		.draft = ODM_DRAFT_SHADOW,
		.form = OD_FORM_AUTO,
	};
}

const char *odm_engine_fingerprint(const struct odm_engine *e, char buf[ODM_FINGERPRINT_CHARS])
{
	char routing[OD_ROUTING_CHARS];

	snprintf(buf, ODM_FINGERPRINT_CHARS, "fp_%.12s_%s_%s%s_%s", od_pack_fingerprint(e->model->pack),
		 od_profile_names[e->model->opts.profile - 1],
		 od_device_kernel_class(e->model->device, e->model->opts.profile), e->model->opts.mixed ? "_mixed" : "",
		 od_config_routing(e->model->config, routing));
	return buf;
}

int odm_engine_check(const struct odm_engine *e, const struct odm_request *req, struct od_err *err)
{
	int rc = odm_sequence_check(e->model, req, err);

	/* odm_sequence_room() subtracts the prompt from the context, so it is asked only when the prompt is known to
	 * fit. */
	return rc == OD_OK ? odm_state_plan_fits(
				     e->model, (uint32_t)(req->n_prompt + odm_sequence_room(e->model, req) - 1), err) :
			     rc;
}

static int open_batch(struct odm_engine *e, struct od_err *err)
{
	struct odm_engine_opts *o = &e->model->opts;
	struct od_forward_opts fo = odm_model_forward_opts(e->model);

	/* Steps call service->draft wherever the option says ODM_DRAFT_SHADOW (sequence.c), so it is off before any. */
	if (e->service->draft == NULL && o->draft == ODM_DRAFT_SHADOW)
		o->draft = ODM_DRAFT_FORCED;
	fo.max_rows = o->prefill_rows;
	return odm_batch_init(&e->batch, e, &fo, (uint32_t)o->parallel, err);
}

int odm_engine_open(struct odm_engine **out, struct odm_model *model, struct odm_expert_service *service,
		    struct od_err *err)
{
	struct odm_engine *e = calloc(1, sizeof(*e));
	int rc;

	*out = NULL;
	if (e == NULL) {
		service->free(service);
		return od_fail(err, OD_ERR_NOMEM, "engine");
	}
	pthread_mutex_init(&e->report_lock, NULL);
	e->model = model;
	e->service = service; /* from here odm_engine_close() is valid, and frees it */
	rc = odm_timeline_new(&e->timeline, model->config->n_layers, model->config->n_moe, err);
	if (rc == OD_OK)
		rc = open_batch(e, err);
	if (rc != OD_OK) {
		odm_engine_close(e);
		return rc;
	}
	/* Other threads may ask for a report before the first step makes one. */
	odm_engine_report_make(e, true);
	if (!model->opts.quiet)
		od_device_log_memory(model->device);
	*out = e;
	return OD_OK;
}

void odm_engine_close(struct odm_engine *e)
{
	if (e == NULL)
		return;
	/* A step that was given up may have queued work that uses the memory below. */
	(void)!od_device_sync(e->model->device, NULL);
	/* A prefill that has not ended is still the service's open step, so the service goes before the batch. */
	e->service->free(e->service);
	odm_batch_fini(&e->batch);
	odm_timeline_free(e->timeline);
	pthread_mutex_destroy(&e->report_lock);
	free(e);
}

const struct od_pack *odm_engine_pack(const struct odm_engine *e)
{
	return e->model->pack;
}

const struct od_tokenizer *odm_engine_tokenizer(const struct odm_engine *e)
{
	return e->model->tokenizer;
}

uint32_t odm_engine_ctx(const struct odm_engine *e)
{
	return (uint32_t)e->model->opts.ctx_tokens;
}

uint32_t odm_engine_parallel(const struct odm_engine *e)
{
	return (uint32_t)e->model->opts.parallel;
}

const char *odm_engine_prefix_dir(const struct odm_engine *e)
{
	return e->model->reuse.store != NULL ? odm_prefix_store_dir(e->model->reuse.store) : NULL;
}

bool odm_engine_wants_forks(const struct odm_engine *e)
{
	return e->model->reuse.snapshots != NULL;
}

enum od_form odm_engine_form(const struct odm_engine *e)
{
	return e->model->form;
}

const struct od_device *odm_engine_device(const struct odm_engine *e)
{
	return e->model->device;
}

int odm_engine_failed(const struct odm_engine *e, struct od_err *why)
{
	const int rc = od_device_failed(e->model->device, why);

	return rc == OD_OK && e->service->failed != NULL ? e->service->failed(e->service, why) : rc;
}

int odm_engine_ready(const struct odm_engine *e, struct od_err *why)
{
	return e->service->ready != NULL ? e->service->ready(e->service, why) : OD_OK;
}

uint64_t odm_engine_state_bytes(const struct odm_engine *e)
{
	return od_state_pool_bytes(e->model->config, e->model->opts.profile, e->model->n_pages,
				   (uint32_t)e->model->opts.parallel);
}

int odm_engine_submit(struct odm_engine *e, const struct odm_request *req, struct odm_sequence **out,
		      struct od_err *err)
{
	return odm_batch_submit(e, req, out, err);
}

bool odm_engine_work(struct odm_engine *e)
{
	return odm_batch_work(e);
}

void odm_engine_get_report(const struct odm_engine *e, struct odm_report *r)
{
	/* all that changes of a reader's engine */
	pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&e->report_lock;

	pthread_mutex_lock(lock);
	*r = e->report;
	pthread_mutex_unlock(lock);
}

void odm_engine_get_nodes(const struct odm_engine *e, struct odm_figures *f)
{
	if (e->service->nodes != NULL)
		e->service->nodes(e->service, f);
}

void odm_engine_get_machines(const struct odm_engine *e, struct odm_machines *list)
{
	if (e->service->machines != NULL)
		e->service->machines(e->service, list);
}

uint64_t odm_engine_kept_experts(const struct odm_engine *e)
{
	return e->service->kept_experts != NULL ? e->service->kept_experts(e->service) : 0;
}

struct odm_timeline *odm_engine_timeline(const struct odm_engine *e)
{
	return e->timeline;
}

/* ---- Texts ---- */

const char *odm_finish_name(enum odm_finish f)
{
	switch (f) {
	case ODM_FINISH_LENGTH: return "length";
	case ODM_FINISH_EOS: return "eos";
	case ODM_FINISH_STOP: return "stop";
	case ODM_FINISH_CONTEXT: return "context";
	case ODM_FINISH_CANCELLED: return "cancelled";
	case ODM_FINISH_ERROR: return "error";
	}
	return "unknown";
}

bool odm_sequence_done(const struct odm_sequence *q)
{
	return q->phase == ODM_DONE;
}

void odm_sequence_cancel(struct odm_sequence *q)
{
	atomic_store(&q->cancelled, true);
}

void odm_result_fini(struct odm_result *r)
{
	free(r->tokens);
	free(r->text);
	odm_figures_fini(&r->figures);
	*r = (struct odm_result){ 0 };
}

int odm_sequence_take(struct odm_sequence *q, struct odm_result *r, struct od_err *err)
{
	const int rc = q->err.code;

	assert(q->phase == ODM_DONE);
	if (err != NULL)
		*err = q->err;
	/* The result moves to the caller, so nothing of it may be left for odm_sequence_free(). */
	*r = q->r;
	q->r = (struct odm_result){ 0 };
	odm_sequence_free(q);
	return rc;
}

int odm_generate(struct odm_engine *e, const struct odm_request *req, struct odm_result *r, struct od_err *err)
{
	struct odm_sequence *q;
	int rc = odm_engine_submit(e, req, &q, err);

	*r = (struct odm_result){ .finish = ODM_FINISH_ERROR };
	if (rc != OD_OK)
		return rc;
	while (!odm_sequence_done(q))
		odm_engine_work(e);
	return odm_sequence_take(q, r, err);
}
