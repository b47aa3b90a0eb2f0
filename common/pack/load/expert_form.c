#include "common/pack/load/expert_form.h"

#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <string.h>

const char *const od_form_names[] = { "bf16", "planes", NULL };

/* The E region, to the expert's end: whole pages. */
static uint64_t e_bytes(const struct od_expert_entry *e)
{
	return e->x.offset + e->x.bytes - e->e_offset;
}

uint64_t od_expert_buf_bytes(const struct od_config *cfg, const struct od_expert_entry *e, enum od_expert_buf buf)
{
	switch (buf) {
	case OD_BUF_SM: return e->e_offset - e->sm_offset;
	case OD_BUF_E: return od_round_up(e_bytes(e), OD_PAD_BYTES);
	case OD_BUF_PLAIN: break;
	}
	return od_plain_offset(cfg, e, od_expert_tensors(cfg));
}

uint64_t od_pack_buf_bytes(const struct od_pack *p, enum od_expert_buf buf)
{
	return p->buf_bytes[buf];
}

unsigned od_form_bufs(enum od_form form)
{
	return form == OD_FORM_PLAIN ? OD_SET_PLAIN : OD_SET_STORED;
}

static uint64_t slot_bytes(const uint64_t buf_bytes[OD_N_EXPERT_BUFS], enum od_form form)
{
	uint64_t bytes = 0;

	for (int buf = 0; buf < OD_N_EXPERT_BUFS; buf++)
		bytes += (od_form_bufs(form) & 1u << buf) != 0 ? buf_bytes[buf] : 0;
	return bytes;
}

static struct od_expert_mem slot_mem(const uint64_t buf_bytes[OD_N_EXPERT_BUFS], enum od_form form, struct od_ref slot)
{
	struct od_expert_mem mem = { 0 };

	for (int buf = 0; buf < OD_N_EXPERT_BUFS; buf++) {
		if ((od_form_bufs(form) & 1u << buf) == 0)
			continue;
		mem.at[buf] = slot;
		slot = od_ref_at(slot, buf_bytes[buf]);
	}
	return mem;
}

uint64_t od_pack_slot_bytes(const struct od_pack *p, enum od_form form)
{
	return slot_bytes(p->buf_bytes, form);
}

struct od_expert_mem od_pack_slot_mem(const struct od_pack *p, enum od_form form, struct od_ref slot)
{
	return slot_mem(p->buf_bytes, form, slot);
}

const struct od_buf_sizes *od_pack_layer_sizes(const struct od_pack *p)
{
	return p->layer;
}

uint64_t od_layer_slot_bytes(const struct od_pack *p, enum od_form form, uint32_t m)
{
	return slot_bytes(p->layer[m].bytes, form);
}

struct od_expert_mem od_layer_slot_mem(const struct od_pack *p, enum od_form form, uint32_t m, struct od_ref slot)
{
	return slot_mem(p->layer[m].bytes, form, slot);
}

int od_expert_mem_commit(const struct od_pack *p, uint32_t m, const struct od_expert_mem *mem, struct od_err *err)
{
	int rc = OD_OK;

	for (int buf = 0; rc == OD_OK && buf < OD_N_EXPERT_BUFS; buf++)
		if (mem->at[buf].buf != NULL)
			rc = od_ref_commit(mem->at[buf], p->layer[m].bytes[buf] + OD_PAD_BYTES, "an expert", err);
	return rc;
}

int od_pack_can_form(const struct od_pack *p, enum od_form form, struct od_err *err)
{
	const bool packed_for_planes = p->manifest.codec == OD_CODEC_PLANES; /* then these stay as they are */

	if (form == OD_FORM_PLANES)
		for (size_t i = 0; i < p->manifest.n_experts; i++) {
			const struct od_expert_entry *e = &p->expert[i];
			const uint32_t m = (uint32_t)(i / p->config.n_experts),
				       expert = (uint32_t)(i % p->config.n_experts);

			for (uint32_t s = 0; s < e->x.n_shards; s++) {
				const struct od_shard *shard = &e->x.shard[s];

				if (od_expert_is_bias(shard->mat))
					continue; /* in any form as it is stored */
				if (e->type[shard->mat].dtype != OD_BF16)
					return od_fail(err, OD_ERR_UNSUPPORTED,
						       "%s: expert (%u, %u) has %s weights: only BF16 can be computed "
						       "on as planes; use --resident-form bf16 (as published)",
						       p->dir, m, expert, od_dtype_name(e->type[shard->mat].dtype));
				if (shard->e.codec != OD_CODEC_PLANES)
					return od_fail(
						err, OD_ERR_UNSUPPORTED,
						"%s: expert (%u, %u) shard %u: its exponents are stored with codec "
						"%s%s: only planes can be computed on; use --resident-form bf16%s",
						p->dir, m, expert, s, od_codec_names[shard->e.codec],
						packed_for_planes ? ", as all are that coding would not make smaller" :
								    "",
						packed_for_planes ? "" :
								    ", or make the pack with od-pack --codec planes");
			}
		}
	return OD_OK;
}

/* Kernels decode 64 weights at a time, and what is left of a row slowly. */
static bool suits_kernels(const struct od_config *cfg)
{
	return cfg->hidden % 64 == 0 && cfg->intermediate % 64 == 0;
}

/* The bytes of experts that are read for a token: so much lies between two uses of the same expert. */
static uint64_t token_bytes(const struct od_pack *p)
{
	return (uint64_t)p->config.n_moe * p->config.top_k * p->raw_bytes;
}

int od_pack_choose_form(const struct od_pack *p, const struct od_device *d, int asked, enum od_form *form,
			struct od_err *err)
{
	*form = OD_FORM_PLAIN;
	if (asked != OD_FORM_AUTO) {
		*form = (enum od_form)asked;
		return od_pack_can_form(p, *form, err);
	}
	if (suits_kernels(&p->config) && od_device_likes_planes(d, token_bytes(p)) &&
	    od_pack_can_form(p, OD_FORM_PLANES, NULL) == OD_OK)
		*form = OD_FORM_PLANES;
	return OD_OK;
}

static void bind_plain(const struct od_config *cfg, const struct od_expert_entry *e, struct od_ref plain,
		       struct od_expert *w)
{
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		uint64_t n_out, n_in;

		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		od_weight_bind(&w->mat[mat], &e->type[mat], n_out, n_in,
			       od_ref_at(plain, od_plain_offset(cfg, e, mat)));
		if (cfg->expert_bias)
			w->bias[mat] =
				(struct od_vector){ e->type[OD_BIAS_GATE + mat].dtype,
						    od_ref_at(plain, od_plain_offset(cfg, e, OD_BIAS_GATE + mat)) };
	}
}

static void bind_planes(const struct od_config *cfg, const struct od_expert_entry *e, struct od_ref sm,
			struct od_ref coded, struct od_expert *w)
{
	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		uint64_t n_out, n_in;

		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		w->mat[mat] =
			(struct od_weight){ .dtype = e->type[mat].dtype, .n_out = n_out, .n_in = n_in, .coded = coded };
	}
	for (uint32_t i = e->x.n_shards; i-- > 0;) { /* so that a matrix's first shard has the last word */
		const struct od_shard *s = &e->x.shard[i];
		struct od_weight *m = &w->mat[s->mat % OD_N_EXPERT_MATS];

		if (od_expert_is_bias(s->mat)) {
			w->bias[s->mat % OD_N_EXPERT_MATS] =
				(struct od_vector){ e->type[s->mat].dtype,
						    od_ref_at(coded, s->e.offset - e->e_offset) };
			continue;
		}
		m->data = od_ref_at(sm, s->sm.offset - e->sm_offset);
		m->chunk_at = &e->e_at[i];
		m->chunk_rows = s->n_rows;
	}
}

void od_pack_bind(const struct od_pack *p, uint32_t m, uint32_t expert, const struct od_expert_mem *mem,
		  struct od_expert *w)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);

	memset(w->bias, 0, sizeof(w->bias));
	if (mem->at[OD_BUF_PLAIN].buf != NULL)
		bind_plain(&p->config, e, mem->at[OD_BUF_PLAIN], w);
	else
		bind_planes(&p->config, e, mem->at[OD_BUF_SM], mem->at[OD_BUF_E], w);
}
