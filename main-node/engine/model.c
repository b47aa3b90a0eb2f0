#include "main-node/engine/model.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "common/model/generation_config.h"
#include "common/residency/read_mode.h"
#include "main-node/engine/pass_size.h"
#include "main-node/engine/state_plan.h"

#include <inttypes.h>
#include <stdlib.h>

#define GENERATION_CONFIG "generation_config.json"

size_t odm_model_most_rows(const struct odm_model *m)
{
	const size_t decode = odm_pass_size_rows(m->config, (uint32_t)m->opts.parallel);

	return m->opts.prefill_rows > decode ? m->opts.prefill_rows : decode;
}

struct od_forward_opts odm_model_forward_opts(const struct odm_model *m)
{
	return (struct od_forward_opts){
		.config = m->config,
		.dense = m->dense != NULL ? od_dense_get(m->dense) : NULL,
		.device = m->device,
		.state = m->state,
		.profile = m->opts.profile,
		.max_rows = odm_model_most_rows(m),
		.embed_row_bytes = od_dense_row_bytes(m->pack, m->dense_choice, OD_ROLE_EMBED),
		.layer_embed_row_bytes = od_dense_row_bytes(m->pack, m->dense_choice, OD_ROLE_LAYER_EMBED),
		.head_in_pieces = m->dense_choice == OD_DENSE_STREAMED,
	};
}

static int open_pack(struct odm_model *m, const char *pack, struct od_err *err)
{
	int rc = od_pack_open(&m->pack, pack, err);

	if (rc != OD_OK)
		return rc;
	m->config = od_pack_config(m->pack);
	od_generation_warn(od_pack_generation_config(m->pack), GENERATION_CONFIG);
	return od_generation_suppressed(&m->suppressed, &m->n_suppressed, od_pack_generation_config(m->pack),
					m->config->vocab, GENERATION_CONFIG, err);
}

int odm_model_open(struct odm_model **out, const char *pack, struct od_err *err)
{
	struct odm_model *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "model");
	rc = open_pack(m, pack, err);
	if (rc != OD_OK) {
		odm_model_close(m);
		return rc;
	}
	*out = m;
	return OD_OK;
}

/* A part of the experts is kept on one card. A GPU that "auto" has chosen is left for the CPUs: it may hold far fewer
 * experts than they do. */
static int leave_gpu(struct odm_model *m, struct od_err *err)
{
	if (!m->opts.tiered)
		return OD_OK;
	if (od_device_cards(m->device) > 1)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: a part of the experts is kept on one GPU: name one (--device cuda:0), or let several "
			"keep all experts (--resident)",
			od_device_name(m->device));
	if (!od_device_is_auto(m->device))
		return OD_OK;
	od_log(OD_LOG_INFO,
	       "computing on the CPUs instead of %s: with a part of the experts in memory, --device cuda asks for it",
	       od_device_name(m->device));
	od_device_free(m->device);
	return od_device_open(&m->device, "cpu", (enum od_cpu)m->opts.cpu, (unsigned)m->opts.threads, "od-compute",
			      err);
}

static int open_device(struct odm_model *m, struct od_err *err)
{
	const enum od_cpu cpu = (enum od_cpu)m->opts.cpu;
	const unsigned threads = (unsigned)m->opts.threads;
	int rc = od_device_open(&m->device, m->opts.device, cpu, threads, "od-compute", err);

	if (rc != OD_OK)
		return rc;
	rc = leave_gpu(m, err);
	if (rc != OD_OK)
		return rc;
	rc = odm_state_plan_make(m, err);
	if (rc == OD_OK)
		return rc;
	rc = od_device_fall_back(&m->device, rc, cpu, threads, "od-compute", err);
	return rc == OD_OK ? odm_state_plan_make(m, err) : rc;
}

static int open_reuse(struct odm_model *m, struct od_err *err)
{
	struct odm_reuse_opts o = {
		.pool = m->state,
		.device = m->device,
		.text_pages = od_state_pages((uint32_t)m->opts.ctx_tokens),
		.n_pages = m->n_pages,
		.cache_pages = m->cache_pages,
		/* lent pages would keep memory from experts */
		.uses_free = m->opts.prefix_cache_mib == ODM_PREFIX_CACHE_AUTO && !m->shares_memory,
		.n_snapshots = m->n_snapshots,
		.page_bytes = odm_state_plan_page_bytes(m),
		.dir = m->opts.prefix_cache_dir,
		.kind = { .profile = m->opts.profile,
			  .kernel_class = od_device_kernel_class(m->device, m->opts.profile),
			  .mixed = m->opts.mixed,
			  .config = m->config },
	};

	od_pack_fingerprint_bytes(m->pack, o.kind.fingerprint);
	return odm_reuse_open(&m->reuse, &o, err);
}

/* Steps read weights in the same order each time: a page cache that cannot keep all of them keeps none until it is
 * needed again. */
static bool reads_direct(const struct odm_model *m, uint64_t read_bytes)
{
	const uint64_t free_bytes = od_available_ram_bytes(),
		       taken = od_device_has_memory(m->device) ? 0 : m->tiers.limit_bytes;

	if (m->opts.read_mode != OD_READ_AUTO)
		return m->opts.read_mode == OD_READ_DIRECT;
	return free_bytes < taken || free_bytes - taken < read_bytes;
}

static void log_streamed(const struct odm_model *m, const struct od_dense_room *room)
{
	const struct od_dense_plan *p = od_dense_chosen(m->dense);
	char a[32], b[32], c[32];

	od_log(OD_LOG_INFO,
	       "dense weights: %s stay in memory, each step reads %s from the disk%s, through %s of buffers; with %" PRIu64
	       " bytes of memory all would stay",
	       od_format_bytes(p->kept_bytes, a, sizeof(a)), od_format_bytes(p->streamed_bytes, b, sizeof(b)),
	       room->direct ? ", past the page cache" : "", od_format_bytes(p->ring_bytes, c, sizeof(c)),
	       m->dense_all_bytes);
}

static int open_streamed(struct odm_model *m, struct od_err *err)
{
	uint64_t least, most;
	struct od_dense_room room = { .bytes = m->dense_bytes };
	int rc = od_dense_stream_room(m->pack, &least, &most, err);

	if (rc != OD_OK)
		return rc;
	room.direct = reads_direct(m, most - (m->dense_bytes < most ? m->dense_bytes : most));
	room.host_bytes = od_device_has_memory(m->device) ? odm_tier_plan_host_bytes() : 0;
	rc = od_dense_load_streamed(&m->dense, m->pack, m->device, &room, err);
	if (rc == OD_OK)
		log_streamed(m, &room);
	return rc;
}

static int open_state(struct odm_model *m, struct od_err *err)
{
	int rc = m->dense_choice == OD_DENSE_STREAMED ?
			 open_streamed(m, err) :
			 od_dense_load(&m->dense, m->pack, m->device, m->dense_choice, err);

	if (rc == OD_OK)
		rc = (m->shares_memory ? od_state_pool_new_lent : od_state_pool_new)(
			&m->state, m->device, m->config, m->opts.profile, (uint32_t)m->opts.ctx_tokens,
			(uint32_t)m->opts.parallel, (uint64_t)m->n_pages + m->cache_pages, err);
	return rc == OD_OK ? open_reuse(m, err) : rc;
}

static const atomic_bool never;

/* Numbers that do not fit 32 bits are out of range anyway. */
int odm_set_routing(struct od_pack *p, const struct odm_engine_opts *o, struct od_err *err)
{
	struct od_cache_prior prior;
	char text[OD_ROUTING_CHARS];
	int rc;

	if (!o->cache_prior)
		return OD_OK;
	prior = od_config_prior(od_pack_config(p), (float)o->routing_lambda);
	if (o->routing_keep != UINT64_MAX)
		prior.keep = o->routing_keep < UINT32_MAX ? (uint32_t)o->routing_keep : UINT32_MAX;
	if (o->routing_recent > 0)
		prior.recent = o->routing_recent < UINT32_MAX ? (uint32_t)o->routing_recent : UINT32_MAX;
	rc = od_pack_set_prior(p, &prior, err);
	if (rc != OD_OK)
		return od_fail_within(err, "--routing, --routing-keep and --routing-cache");
	if (!o->quiet)
		od_log(OD_LOG_INFO,
		       "routing: %s (lambda, kept, recent): experts that a text used last are preferred, so its tokens are not those of the plain router",
		       od_config_routing(od_pack_config(p), text));
	return rc;
}

int odm_model_load(struct odm_model *m, const struct odm_engine_opts *opts, struct od_err *err)
{
	int rc;

	m->opts = *opts;
	if (m->opts.cancel == NULL)
		m->opts.cancel = &never;
	if (m->opts.threads == 0)
		m->opts.threads = od_cpu_count();
	if (m->opts.parallel == 0)
		m->opts.parallel = 1;
	if (m->opts.prefill_rows == 0)
		m->opts.prefill_rows = ODM_DEFAULT_PREFILL_ROWS;
	rc = odm_set_routing(m->pack, &m->opts, err);
	if (rc == OD_OK)
		rc = odm_state_plan_ctx(m, err);
	if (rc != OD_OK)
		return rc;
	odm_state_plan_cache(m);
	/* Before memory is planned, which counts what the process has. */
	if (od_pack_tokenizer_path(m->pack) != NULL)
		rc = od_tokenizer_load(&m->tokenizer, od_pack_tokenizer_path(m->pack), err);
	if (rc == OD_OK)
		rc = open_device(m, err);
	return rc == OD_OK ? open_state(m, err) : rc;
}

void odm_model_close(struct odm_model *m)
{
	if (m == NULL)
		return;
	odm_reuse_close(&m->reuse);
	od_state_pool_free(m->state);
	od_dense_free(m->dense);
	od_device_free(m->device);
	od_tokenizer_free(m->tokenizer);
	free(m->suppressed);
	odm_tier_plan_close(&m->tiers);
	od_pack_close(m->pack);
	free(m);
}
