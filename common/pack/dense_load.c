#include "common/pack/dense_load.h"

#include "common/base/file.h"
#include "common/pack/checksum.h"
#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct od_dense_store {
	struct od_dense dense;
	struct od_layer_weights *layer;
	char *bytes; /* all tensors, each followed by padding */
	uint64_t n_bytes;
};

/* Norms are widened to f32, which is exact; matrices stay as they are. */
static uint64_t tensor_memory(const struct od_dense_tensor *t)
{
	uint64_t n = t->n_in > 0 ? t->bytes : t->n_out * sizeof(float);

	return od_round_up(n, OD_PAD_BYTES) + OD_PAD_BYTES;
}

static bool is_attention(enum od_role role)
{
	return role >= OD_ROLE_Q && role <= OD_ROLE_O;
}

static uint64_t all_tensors(const struct od_pack *p, bool attention)
{
	uint64_t n = 0;

	for (size_t i = 0; i < p->manifest.n_dense; i++)
		if (attention || !is_attention(p->manifest.dense[i].role))
			n += tensor_memory(&p->manifest.dense[i]);
	return n;
}

uint64_t od_dense_some_bytes(const struct od_pack *p, bool attention)
{
	return all_tensors(p, attention) + p->config.n_layers * sizeof(struct od_layer_weights);
}

uint64_t od_dense_need_bytes(const struct od_pack *p)
{
	return od_dense_some_bytes(p, true);
}

static int read_tensor(const struct od_pack *p, const struct od_dense_tensor *t, void *dst, struct od_err *err)
{
	int rc = od_file_pread(p->dense.fd, dst, t->bytes, t->offset, p->dense.path, err);
	uint64_t found;

	if (rc != OD_OK)
		return rc;
	found = XXH3_64bits(dst, t->bytes);
	if (found != t->xxh3)
		return od_fail(err, OD_ERR_CORRUPT, "%s: tensor %s of layer %u at offset %" PRIu64 ": checksum: expected "
			       "%016" PRIx64 ", found %016" PRIx64, p->dense.path, od_role_name(t->role), t->layer,
			       t->offset, t->xxh3, found);
	return OD_OK;
}

static void widen(enum od_dtype dtype, const void *src, size_t n, float *dst)
{
	const uint16_t *half = src;

	if (dtype == OD_F32)
		memcpy(dst, src, n * sizeof(float));
	else
		for (size_t i = 0; i < n; i++)
			dst[i] = dtype == OD_BF16 ? od_bf16_f32(half[i]) : od_f16_f32(half[i]);
}

static int read_norm(const struct od_pack *p, const struct od_dense_tensor *t, float *dst, struct od_err *err)
{
	void *raw = malloc(t->bytes);
	int rc;

	if (raw == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", p->dense.path);
	rc = read_tensor(p, t, raw, err);
	if (rc == OD_OK)
		widen(t->dtype, raw, t->n_out, dst);
	free(raw);
	return rc;
}

static void bind(struct od_dense_store *s, const struct od_dense_tensor *t, const void *data)
{
	const struct od_mat mat = { .dtype = t->dtype, .n_out = t->n_out, .n_in = t->n_in, .data = data };
	struct od_layer_weights *l = &s->layer[t->layer];

	switch (t->role) {
	case OD_ROLE_EMBED: s->dense.embed = mat; break;
	case OD_ROLE_HEAD: s->dense.head = mat; break;
	case OD_ROLE_FINAL_NORM: s->dense.final_norm = data; break;
	case OD_ROLE_ATTN_NORM: l->attn_norm = data; break;
	case OD_ROLE_FFN_NORM: l->ffn_norm = data; break;
	case OD_ROLE_Q: l->q = mat; break;
	case OD_ROLE_K: l->k = mat; break;
	case OD_ROLE_V: l->v = mat; break;
	case OD_ROLE_O: l->o = mat; break;
	case OD_ROLE_ROUTER: l->router = mat; break;
	case OD_N_ROLES: break;
	}
}

static int load_tensors(struct od_dense_store *s, const struct od_pack *p, bool attention, struct od_err *err)
{
	char *at = s->bytes;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		if (!attention && is_attention(t->role))
			continue;
		if (t->n_in > 0)
			rc = read_tensor(p, t, at, err);
		else
			rc = read_norm(p, t, (float *)(void *)at, err);
		bind(s, t, at);
		at += tensor_memory(t);
	}
	if (p->config.tied_head)
		s->dense.head = s->dense.embed;
	return rc;
}

int od_dense_load_some(struct od_dense_store **out, const struct od_pack *p, bool attention, struct od_err *err)
{
	struct od_dense_store *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the dense weights");
	s->n_bytes = od_dense_some_bytes(p, attention);
	s->bytes = od_alloc(all_tensors(p, attention));
	s->layer = calloc(p->config.n_layers, sizeof(*s->layer));
	s->dense.layer = s->layer;
	if (s->bytes == NULL || s->layer == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for the dense weights of %s: %" PRIu64 " bytes", p->dir,
			     s->n_bytes);
	else
		rc = load_tensors(s, p, attention, err);
	if (rc != OD_OK) {
		od_dense_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

int od_dense_load(struct od_dense_store **out, const struct od_pack *p, struct od_err *err)
{
	return od_dense_load_some(out, p, true, err);
}

void od_dense_free(struct od_dense_store *s)
{
	if (s == NULL)
		return;
	od_free(s->bytes);
	free(s->layer);
	free(s);
}

const struct od_dense *od_dense_get(const struct od_dense_store *s)
{
	return &s->dense;
}

uint64_t od_dense_bytes(const struct od_dense_store *s)
{
	return s->n_bytes;
}
