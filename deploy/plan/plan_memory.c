#include "deploy/plan/plan_memory.h"

#include "common/compute/card_split.h"
#include "common/model/resident.h"
#include "common/model/seq_state.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/dense_parts.h"
#include "common/pack/shadow/shadow_load.h"
#include "main-node/engine/model.h"
#include "main-node/engine/pass_size.h"
#include "main-node/engine/state_plan.h"
#include "shadow-node/emulator.h"
#include "worker-node/memory_plan.h"

#include <string.h>

#define MIB (1ull << 20)
#define MOST_MIB (1ull << 24) /* 16 TiB */
/* Program, libraries, threads, messages; the vocabulary's tables: for each token its text and its merge. */
#define MAIN_BYTES (17 * MIB)
#define MAIN_TEXT_BYTES (3 * MIB / 16)
#define VOCAB_TOKEN_BYTES 220
#define SHADOW_BYTES (11 * MIB) /* program, libraries and messages of a shadow at work */

static void add(struct odp_memory *m, const char *what, uint64_t bytes)
{
	if (bytes == 0)
		return;
	m->share[m->n++] = (struct odp_memory_share){ what, bytes };
	m->need_bytes += bytes;
}

/* Bytes of a split without its state, and what pages and copies of state come to. */
static uint64_t split_bytes(const struct od_split *s, uint64_t pages, uint64_t copies)
{
	return od_split_need(s, s->n_cards, pages, copies);
}

/* ---- od-main ---- */

static struct odm_model main_model(const struct odp_model *m, struct od_device *d, const struct odp_texts *texts)
{
	struct odm_model model = { .pack = m->pack, .config = m->config, .device = d };

	odm_engine_defaults(&model.opts);
	model.opts.profile = m->profile;
	model.opts.parallel = texts->parallel;
	model.opts.prefill_rows = texts->prefill_rows;
	model.opts.ctx_tokens = texts->ctx_tokens;
	model.opts.threads = 1;
	return model;
}

static uint64_t program_bytes(const struct odp_model *m, const struct odp_texts *texts)
{
	return MAIN_BYTES + texts->parallel * MAIN_TEXT_BYTES + (uint64_t)m->config->vocab * VOCAB_TOKEN_BYTES;
}

/* Main with this choice of dense weights, which take dense_bytes. */
static int count_main(struct odp_memory *out, const struct odp_model *m, struct odm_model *given, uint64_t dense_bytes,
		      const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	struct od_device *d = given->device;
	struct od_forward_opts chunk = odm_model_forward_opts(given);
	const uint64_t pages = od_state_pages((uint32_t)texts->ctx_tokens) * (uint64_t)texts->parallel;
	struct od_split s;
	int rc = od_split_init(&s, d, m->config->n_layers, 0, m->config->n_layers, UINT64_MAX, err);

	*out = (struct odp_memory){ .limit_bytes = limit_bytes };
	if (rc == OD_OK) {
		chunk.max_rows = texts->prefill_rows;
		odm_pass_size_split(&chunk, texts->parallel, &s);
		od_state_split(m->config, m->profile, &s);
		od_split_count(&s, d);
		add(out, "program", program_bytes(m, texts));
		add(out, "dense weights", dense_bytes);
		add(out, "rows of a step", split_bytes(&s, 0, 0));
		/* The pool has two copies of fixed state for each text, and one of zeros. */
		add(out, "context", split_bytes(&s, pages, 2 * (uint64_t)texts->parallel + 1) - split_bytes(&s, 0, 0));
	}
	od_split_fini(&s);
	return rc;
}

int odp_memory_main(struct odp_memory *out, const struct odp_model *m, struct od_device *d,
		    const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	struct odm_model model = main_model(m, d, texts);

	return count_main(out, m, &model, od_dense_need_bytes(m->pack, OD_DENSE_ALL), texts, limit_bytes, err);
}

int odp_memory_reads(struct odp_streamed *out, const struct odp_model *m, uint64_t room_bytes, struct od_err *err)
{
	const uint32_t n_layers = m->config->n_layers;
	struct od_dense_parts parts;
	struct od_dense_plan plan;
	int rc = od_dense_parts_list(&parts, m->pack, err);

	if (rc == OD_OK && !od_dense_plan_make(&plan, parts.plan, parts.n, room_bytes))
		rc = od_fail(err, OD_ERR_NOMEM, "two layers of dense weights do not fit");
	memset(out->layer_bytes, 0, n_layers * sizeof(*out->layer_bytes));
	out->head_bytes = out->step_bytes = 0;
	for (size_t i = 0; rc == OD_OK && i < parts.n; i++) {
		const struct od_dense_part *p = &parts.plan[i];
		const double bytes = p->stays ? 0 : (double)p->bytes;

		*(p->stage < n_layers ? &out->layer_bytes[p->stage] : &out->head_bytes) += bytes;
		out->step_bytes += bytes;
	}
	od_dense_parts_fini(&parts);
	return rc;
}

int odp_memory_streamed(struct odp_streamed *out, const struct odp_model *m, struct od_device *d,
			const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	const uint64_t need = od_dense_need_bytes(m->pack, OD_DENSE_STREAMED);
	struct odm_model model = main_model(m, d, texts);
	uint64_t least, most, room;
	int rc = od_dense_stream_room(m->pack, &least, &most, err);

	model.dense_choice = OD_DENSE_STREAMED;
	if (rc == OD_OK)
		rc = count_main(&out->memory, m, &model, need, texts, limit_bytes, err);
	if (rc != OD_OK || !odp_memory_fits(&out->memory))
		return rc;
	room = least + limit_bytes - out->memory.need_bytes;
	room = room < most ? room : most;
	rc = odp_memory_reads(out, m, room, err);
	return rc == OD_OK ? count_main(&out->memory, m, &model, need - least + room, texts, limit_bytes, err) : rc;
}

/* Texts take so much while all contexts are full. */
static uint64_t state_bytes(const struct odm_model *model, uint64_t pages)
{
	return pages * odm_state_plan_page_bytes(model) +
	       2 * model->opts.parallel * od_state_fixed_bytes(model->config);
}

/* The room that the ring needs; it is a part of what streamed weights need. */
static uint64_t stream_least(const struct odp_model *m)
{
	uint64_t least, most;
	struct od_err err;

	return od_dense_stream_room(m->pack, &least, &most, &err) == OD_OK ? least : 0;
}

static void share_alone(struct odp_alone *out, const struct odp_model *m, const struct odm_model *model,
			const struct odp_texts *texts)
{
	const bool streams = model->dense_choice == OD_DENSE_STREAMED;
	const uint64_t dense =
		streams ? od_dense_need_bytes(m->pack, OD_DENSE_STREAMED) + model->dense_bytes - stream_least(m) :
			  od_dense_need_bytes(m->pack, model->dense_choice);
	const struct odm_tier_division tiers = odm_tier_plan_divide(&model->tiers, m->config->top_k);
	const uint32_t full = model->shares_memory ? texts->writing : texts->parallel;
	const uint64_t pages = od_state_pages((uint32_t)texts->ctx_tokens) * (uint64_t)full;
	const uint64_t state = state_bytes(model, pages < model->n_pages ? pages : model->n_pages);
	const uint64_t all = odm_tier_plan_all_bytes(&model->tiers, m->config);
	const uint64_t shared = model->tiers.shared_bytes - tiers.slots_bytes;
	uint64_t room = shared > state ? shared - state : 0; /* texts leave it */

	room = room < tiers.cache_bytes ? room : tiers.cache_bytes;
	out->form = model->form;
	out->n_slots = tiers.n_slots;
	out->cache_bytes = room < all ? room : all;
	out->holds_all = all <= room;
	out->ctx_tokens = model->opts.ctx_tokens;
	out->dense_bytes = streams ? model->dense_bytes : 0;
	out->all_bytes = streams ? model->dense_all_bytes : 0;
	add(&out->memory, "program", odm_tier_plan_beside(model->device));
	add(&out->memory, "dense weights", dense);
	add(&out->memory, "loads and rows", model->tiers.load_bytes + tiers.slots_bytes);
	add(&out->memory, "context", state);
	add(&out->memory, "experts kept", out->cache_bytes);
}

/* As od-main plans it. OD_ERR_NOMEM: it does not fit. */
static int try_alone(struct odp_alone *out, const struct odp_model *m, struct od_device *d,
		     const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	struct odm_model model = main_model(m, d, texts);
	int rc;

	*out = (struct odp_alone){ .memory.limit_bytes = limit_bytes };
	model.opts.tiered = true;
	model.opts.memory_bytes = limit_bytes;
	od_device_assume_free(d, limit_bytes);
	rc = odm_state_plan_ctx(&model, err);
	if (rc == OD_OK)
		rc = odm_state_plan_make(&model, err);
	if (rc == OD_OK)
		share_alone(out, m, &model, texts);
	od_device_assume_free(d, 0);
	odm_tier_plan_close(&model.tiers);
	return rc;
}

/* Halves the interval until the least memory, in whole MiB, is known. */
static int find_least(struct odp_alone *out, const struct odp_model *m, struct od_device *d,
		      const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	uint64_t low = limit_bytes / MIB, high = low + 1;
	int rc;

	while ((rc = try_alone(out, m, d, texts, high * MIB, err)) == OD_ERR_NOMEM && high < MOST_MIB)
		high *= 2;
	while (rc == OD_OK && high - low > 1) {
		const uint64_t middle = low + (high - low) / 2;

		rc = try_alone(out, m, d, texts, middle * MIB, err);
		if (rc == OD_OK)
			high = middle;
		else if (rc == OD_ERR_NOMEM)
			low = middle;
		rc = rc == OD_ERR_NOMEM ? OD_OK : rc;
	}
	if (rc == OD_OK)
		rc = try_alone(out, m, d, texts, high * MIB, err);
	out->memory.limit_bytes = limit_bytes;
	out->memory.need_bytes = high * MIB;
	return rc;
}

int odp_memory_alone(struct odp_alone *out, const struct odp_model *m, struct od_device *d,
		     const struct odp_texts *texts, uint64_t limit_bytes, struct od_err *err)
{
	int rc = try_alone(out, m, d, texts, limit_bytes, err);

	return rc == OD_ERR_NOMEM ? find_least(out, m, d, texts, limit_bytes, err) : rc;
}

/* ---- od-worker ---- */

static int plan_worker(struct odw_memory_plan *plan, struct odw_memory_opts *o, unsigned slots, uint64_t limit_bytes,
		       struct od_err *err)
{
	int rc = OD_ERR_NOMEM;

	o->limit_bytes = limit_bytes;
	for (o->slots = slots; rc == OD_ERR_NOMEM && o->slots > 0; o->slots--)
		rc = odw_memory_plan(plan, o, err);
	return rc;
}

/* Slots come first; whole experts of what is left are kept. A worker needs unused_bytes to start, and does not use
 * them. */
static int share_worker(struct odp_worker_plan *out, struct odw_memory_opts *o, unsigned slots, uint64_t kept_experts,
			uint64_t unused_bytes, struct od_err *err)
{
	const uint64_t limit = out->memory.limit_bytes, each = o->sizes->most_bytes;
	struct odw_memory_plan plan;
	uint64_t kept;
	int rc = plan_worker(&plan, o, slots, limit, err);

	if (rc == OD_ERR_NOMEM) {
		rc = plan_worker(&plan, o, 1, UINT64_MAX / 2, err);
		plan.n_slots = 1;
	} else if (rc == OD_OK) {
		out->n_slots = plan.n_slots;
		kept = (limit - plan.need_bytes) / each;
		kept = kept < kept_experts ? kept : kept_experts;
		out->cache_bytes = (kept * each + MIB - 1) / MIB * MIB; /* --cache-mib */
		if (out->cache_bytes > limit - plan.need_bytes)
			out->cache_bytes -= MIB;
		out->cache_bytes = out->cache_bytes >= each ? out->cache_bytes : 0;
	}
	if (rc != OD_OK)
		return rc;
	add(&out->memory, "program and loads",
	    plan.need_bytes - plan.n_slots * each - (out->n_slots > 0 ? unused_bytes : 0));
	add(&out->memory, "slots", plan.n_slots * each);
	add(&out->memory, "experts kept", out->cache_bytes);
	return OD_OK;
}

int odp_memory_worker(struct odp_worker_plan *out, const struct odp_model *m, struct od_device *d, unsigned slots,
		      uint64_t kept_experts, uint32_t step_rows, uint64_t limit_bytes, struct od_err *err)
{
	struct od_residency_sizes sizes = { 0 };
	struct odw_memory_opts o = { .pack = m->pack,
				     .device = d,
				     .sizes = &sizes,
				     .n_readers = OD_DEFAULT_READERS,
				     .n_inflaters = OD_DEFAULT_INFLATERS };
	int rc = od_pack_choose_form(m->pack, d, OD_FORM_AUTO, &o.form, err);

	*out = (struct odp_worker_plan){ .memory.limit_bytes = limit_bytes, .form = o.form };
	if (rc == OD_OK)
		rc = od_residency_measure(&sizes, m->pack, d, o.form, err);
	od_device_assume_free(d, UINT64_MAX / 2);
	if (rc == OD_OK)
		rc = share_worker(out, &o, slots, kept_experts, odw_memory_unused(m->config, step_rows, m->row_bytes),
				  err);
	od_device_assume_free(d, 0);
	od_residency_sizes_fini(&sizes);
	return rc;
}

/* ---- od-shadow ---- */

/* Copies of fixed state that texts write while others do not take their places: those of one sequence, not of two, and
 * no zeros. */
static void leave_spare_copies(struct od_split *s)
{
	for (uint32_t i = s->begin; i < s->end; i++)
		s->layer[i].copy = s->layer[i].copy / (2 * ODS_FIXED_COPIES + 1) * ODS_FIXED_COPIES;
}

/* A shadow whose steps have so many rows, and base_bytes beside its model and its work. spare: with copies of fixed
 * state that are seldom used. */
static int count_shadow(struct odp_memory *out, const struct odp_model *m, struct od_device *d, uint64_t model_bytes,
			uint64_t base_bytes, uint32_t rows, bool spare, const struct odp_texts *texts,
			struct od_err *err)
{
	const struct ods_emulator_opts o = {
		.forward = { .config = m->config, .device = d, .profile = m->profile, .max_rows = rows },
		.ctx_tokens = (uint32_t)texts->ctx_tokens,
		.max_sequences = texts->parallel,
	};
	const uint64_t pages = od_state_pages(o.ctx_tokens) * (uint64_t)texts->parallel;
	struct od_split s;
	int rc = od_split_init(&s, d, m->config->n_layers, 0, m->config->n_layers, UINT64_MAX, err);

	*out = (struct odp_memory){ .limit_bytes = out->limit_bytes };
	if (rc == OD_OK) {
		ods_emulator_split(&o, &s);
		if (!spare)
			leave_spare_copies(&s);
		od_split_count(&s, d);
		add(out, "program", base_bytes);
		add(out, "copy of the model", model_bytes);
		add(out, "rows of a step", split_bytes(&s, 0, 0));
		add(out, "context", split_bytes(&s, pages, texts->parallel) - split_bytes(&s, 0, 0));
	}
	od_split_fini(&s);
	return rc;
}

/* To start, a shadow needs room for the largest steps and all messages that may wait; where it has that, what its work
 * takes is planned. */
int odp_memory_shadow(struct odp_memory *out, const struct odp_model *m, struct od_device *d,
		      enum od_precision precision, const struct odp_texts *texts, uint64_t limit_bytes,
		      struct od_err *err)
{
	const struct od_shadow_choice c = { .experts = precision,
					    .dense = precision,
					    .form = precision == OD_PRECISION_BF16 && m->has_planes ? OD_FORM_PLANES :
												      OD_FORM_PLAIN };
	uint64_t model_bytes;
	int rc = od_shadow_would_need_bytes(m->pack, &c, &model_bytes, err);

	*out = (struct odp_memory){ .limit_bytes = limit_bytes };
	if (rc == OD_OK)
		rc = count_shadow(out, m, d, model_bytes, ODS_BASE_BYTES, ODS_MAX_STEP_ROWS, true, texts, err);
	if (rc != OD_OK || !odp_memory_fits(out))
		return rc;
	return count_shadow(out, m, d, model_bytes, SHADOW_BYTES, odm_pass_size_rows(m->config, texts->parallel), false,
			    texts, err);
}
