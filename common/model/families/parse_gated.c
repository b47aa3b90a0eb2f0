#include "common/model/families/parse_gated.h"

#include <string.h>

static int read_delta(const struct od_parse *p, struct od_mixer *m)
{
	const struct {
		const char *key;
		uint32_t min, max, *out;
	} field[] = {
		{ "linear_num_value_heads", 1, OD_DIM_MAX, &m->n_heads },
		{ "linear_num_key_heads", 1, OD_DIM_MAX, &m->n_kv_heads },
		{ "linear_key_head_dim", 1, OD_MAX_RANK, &m->k_dim },
		{ "linear_value_head_dim", 1, OD_MAX_RANK, &m->v_dim },
		{ "linear_conv_kernel_dim", 2, 64, &m->conv },
	};
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < sizeof(field) / sizeof(field[0]); i++)
		rc = od_json_u32(p->root, field[i].key, field[i].min, field[i].max, field[i].out, p->where, p->err);
	if (rc == OD_OK && m->n_heads % m->n_kv_heads != 0)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"linear_num_value_heads\": expected a multiple of "
			     "\"linear_num_key_heads\" %u, found %u",
			     p->where, m->n_kv_heads, m->n_heads);
	if (rc == OD_OK && 2 * ((uint64_t)m->n_heads * m->v_dim + (uint64_t)m->n_kv_heads * m->k_dim) > OD_DIM_MAX)
		rc = od_fail(p->err, OD_ERR_RANGE,
			     "%s: field \"linear_num_value_heads\": expected at most %u elements for all heads "
			     "together, found %u heads",
			     p->where, OD_DIM_MAX, m->n_heads);
	m->norm_eps = p->cfg->rms_eps;
	return rc;
}

static int read_attention(const struct od_parse *p, struct od_mixer *m)
{
	uint32_t dims;
	int rc = od_json_has(p->root, "head_dim") ?
			 OD_OK :
			 od_fail(p->err, OD_ERR_MISSING, "%s: field \"head_dim\" is missing", p->where);

	if (rc == OD_OK)
		rc = od_parse_gqa(p, m);
	m->qk_norm = OD_QK_NORM_HEAD;
	m->gated = true;
	if (rc == OD_OK)
		rc = od_parse_rotated(p, m->k_dim, 0.25, &dims);
	return rc == OD_OK ? od_parse_rope(p, dims, false, &m->rope, NULL) : rc;
}

int od_parse_gated_mixers(const struct od_parse *p, struct od_mixer *delta, struct od_mixer *attention)
{
	int rc = od_parse_only_bool(p, "use_sliding_window", false);

	if (rc == OD_OK)
		rc = od_parse_only_bool(p, "attn_output_gate", true);
	if (rc == OD_OK)
		rc = read_delta(p, delta);
	if (rc == OD_OK)
		rc = read_attention(p, attention);
	p->cfg->norms_around_one = true;
	return rc;
}

/* types NULL: every interval-th layer has attention. */
static int read_kind(const struct od_parse *p, const json_t *types, uint32_t interval, uint32_t layer, bool *attention)
{
	const char *type = json_string_value(json_array_get(types, layer));

	*attention = types != NULL ? type != NULL && strcmp(type, "full_attention") == 0 : (layer + 1) % interval == 0;
	if (types == NULL || *attention || (type != NULL && strcmp(type, "linear_attention") == 0))
		return OD_OK;
	return od_fail(p->err, OD_ERR_UNSUPPORTED,
		       "%s: field \"layer_types\": expected \"linear_attention\" or "
		       "\"full_attention\" for layer %u, found %s%.64s",
		       p->where, layer, type != NULL ? "" : "no text", type != NULL ? type : "");
}

int od_parse_gated_layers(const struct od_parse *p, const struct od_mixer *delta, const struct od_mixer *attention,
			  const struct od_layer_spec *spec, bool dense)
{
	struct od_layer_spec l = *spec;
	uint32_t n_layers = 0, interval = 4, n_attention = 0;
	json_t *types = NULL;
	int rc = od_parse_layers(p, &n_layers);

	if (rc == OD_OK && od_json_has(p->root, "layer_types"))
		rc = od_json_arr(p->root, "layer_types", &types, p->where, p->err);
	else if (rc == OD_OK)
		rc = od_json_u32_or(p->root, "full_attention_interval", 1, UINT32_MAX, 4, &interval, p->where, p->err);
	if (rc == OD_OK && types != NULL && json_array_size(types) != n_layers)
		rc = od_fail(p->err, OD_ERR_FORMAT,
			     "%s: field \"layer_types\": expected one for each of %u layers, found %zu", p->where,
			     n_layers, json_array_size(types));
	if (rc == OD_OK) /* GGUF files have them as layers behind the model's; safetensors under names of their own */
		rc = od_parse_mtp(p, "num_nextn_predict_layers");
	for (uint32_t i = 0; rc == OD_OK && i < n_layers; i++) {
		bool full = false, sparse = true;

		rc = read_kind(p, types, interval, i, &full);
		if (rc == OD_OK && dense)
			rc = od_parse_is_sparse(p, i, &sparse);
		l.mixer = full ? &od_mixer_gqa : &od_mixer_delta;
		l.mix = full ? *attention : *delta;
		l.ffn = sparse ? OD_FFN_MOE : OD_FFN_DENSE;
		n_attention += full;
		if (rc == OD_OK)
			rc = od_config_add_layer(p->cfg, &l, p->err);
	}
	if (rc == OD_OK && n_attention == 0)
		rc = od_fail(p->err, OD_ERR_UNSUPPORTED,
			     "%s: field \"%s\": expected full attention in at least one of %u layers", p->where,
			     types != NULL ? "layer_types" : "full_attention_interval", n_layers);
	return rc;
}
