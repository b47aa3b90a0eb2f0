#include "common/pack/shadow_load.h"

#include "common/base/file.h"
#include "common/pack/pack_internal.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *const od_precision_names[] = { "bf16", "int8", NULL };

struct od_shadow_store {
	const struct od_pack *pack;
	struct od_dense_store *dense_store;
	struct od_expert_store *expert_store; /* precision bf16 */
	char *bytes;			      /* precision int8: shadow-int8.bin as it is in the file */
	struct od_dense dense;		      /* precision int8: as dense_store's, with q, k, v, o from bytes */
	struct od_layer_weights *layer;
	struct od_expert *expert;
};

static int check_precision(const struct od_pack *p, enum od_precision precision, struct od_err *err)
{
	if (precision != OD_PRECISION_BF16 && precision != OD_PRECISION_INT8)
		return od_fail(err, OD_ERR_ARG, "unknown shadow precision %d", (int)precision);
	if (precision == OD_PRECISION_INT8 && p->manifest.int8 == NULL)
		return od_fail(err, OD_ERR_MISSING, "pack %s has no int8 shadow: make it again with od-pack --shadow int8, "
			       "or start od-shadow with --precision bf16, or do without one: od-main --predictor none",
			       p->dir);
	return OD_OK;
}

int od_shadow_need_bytes(const struct od_pack *p, enum od_precision precision, uint64_t *bytes, struct od_err *err)
{
	int rc = check_precision(p, precision, err);

	*bytes = 0;
	if (rc != OD_OK)
		return rc;
	if (precision == OD_PRECISION_BF16)
		*bytes = od_dense_need_bytes(p) + od_experts_need_bytes(p);
	else
		*bytes = od_dense_some_bytes(p, false) + p->manifest.int8_bytes +
			 p->config.n_layers * sizeof(struct od_layer_weights) +
			 p->manifest.n_experts * sizeof(struct od_expert);
	return OD_OK;
}

static int read_record(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct od_shadow_store *s = arg;
	const struct od_pack *p = s->pack;
	const struct od_int8_tensor *t = &p->manifest.int8[item];
	int rc = od_file_pread(p->int8.fd, s->bytes + t->offset, t->bytes, t->offset, p->int8.path, err);
	uint64_t found;

	(void)thread;
	*bytes = t->bytes;
	if (rc != OD_OK)
		return rc;
	found = XXH3_64bits(s->bytes + t->offset, t->bytes);
	if (found != t->xxh3)
		return od_fail(err, OD_ERR_CORRUPT, "%s: tensor %zu at offset %" PRIu64 ": checksum: expected %016" PRIx64
			       ", found %016" PRIx64, p->int8.path, item, t->offset, t->xxh3, found);
	return OD_OK;
}

static struct od_mat int8_mat(const struct od_shadow_store *s, size_t index)
{
	const struct od_int8_tensor *t = &s->pack->manifest.int8[index];
	const char *at = s->bytes + t->offset;

	return (struct od_mat){
		.dtype = OD_INT8,
		.n_out = t->n_out,
		.n_in = t->n_in,
		.data = at,
		.scale = (const float *)(const void *)(at + od_int8_scale_offset(t->n_out, t->n_in)),
	};
}

static void bind_int8(struct od_shadow_store *s)
{
	const struct od_config *cfg = &s->pack->config;

	s->dense = *od_dense_get(s->dense_store);
	memcpy(s->layer, s->dense.layer, cfg->n_layers * sizeof(*s->layer));
	s->dense.layer = s->layer;
	for (uint32_t l = 0; l < cfg->n_layers; l++) {
		s->layer[l].q = int8_mat(s, od_int8_attn_index(OD_ROLE_Q, l));
		s->layer[l].k = int8_mat(s, od_int8_attn_index(OD_ROLE_K, l));
		s->layer[l].v = int8_mat(s, od_int8_attn_index(OD_ROLE_V, l));
		s->layer[l].o = int8_mat(s, od_int8_attn_index(OD_ROLE_O, l));
		for (uint32_t e = 0; e < cfg->n_experts; e++)
			for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
				s->expert[(size_t)l * cfg->n_experts + e].mat[mat] =
					int8_mat(s, od_int8_expert_index(cfg, l, e, (enum od_expert_mat)mat));
	}
}

static int load_int8(struct od_shadow_store *s, unsigned n_threads, od_progress_fn *progress, void *arg,
		     struct od_err *err)
{
	const struct od_pack *p = s->pack;
	const struct od_team_job job = {
		.fn = read_record,
		.arg = s,
		.n_items = p->manifest.n_int8,
		.n_threads = n_threads,
		.progress = progress,
		.progress_arg = arg,
		.all_bytes = p->manifest.int8_bytes,
	};
	int rc;

	s->bytes = od_alloc(p->manifest.int8_bytes);
	s->layer = calloc(p->config.n_layers, sizeof(*s->layer));
	s->expert = calloc(p->manifest.n_experts, sizeof(*s->expert));
	if (s->bytes == NULL || s->layer == NULL || s->expert == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the int8 shadow of %s: %" PRIu64 " bytes", p->dir,
			       p->manifest.int8_bytes);
	rc = od_dense_load_some(&s->dense_store, p, false, err);
	if (rc == OD_OK)
		rc = od_team_run(&job, err);
	if (rc == OD_OK)
		bind_int8(s);
	return rc;
}

int od_shadow_load(struct od_shadow_store **out, const struct od_pack *p, enum od_precision precision,
		   unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err)
{
	struct od_shadow_store *s;
	int rc = check_precision(p, precision, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the shadow");
	s->pack = p;
	if (precision == OD_PRECISION_INT8) {
		rc = load_int8(s, n_threads, progress, arg, err);
	} else {
		rc = od_dense_load(&s->dense_store, p, err);
		if (rc == OD_OK)
			rc = od_experts_load_all(&s->expert_store, p, n_threads, progress, arg, err);
	}
	if (rc != OD_OK) {
		od_shadow_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_shadow_free(struct od_shadow_store *s)
{
	if (s == NULL)
		return;
	od_dense_free(s->dense_store);
	od_experts_free(s->expert_store);
	od_free(s->bytes);
	free(s->layer);
	free(s->expert);
	free(s);
}

const struct od_dense *od_shadow_dense(const struct od_shadow_store *s)
{
	return s->bytes != NULL ? &s->dense : od_dense_get(s->dense_store);
}

const struct od_expert *od_shadow_experts(const struct od_shadow_store *s)
{
	return s->bytes != NULL ? s->expert : od_experts_get(s->expert_store);
}
