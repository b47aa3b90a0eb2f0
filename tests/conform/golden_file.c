#include "tests/conform/golden_file.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/mem.h"

#include <endian.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Talebook's eight prompts take 0.4 MB; jansson needs about ten times the text. */
#define MAX_JSON_BYTES (256u << 20)
#define MAX_NAME_BYTES 200u
#define MAX_LOGIT_MARGIN 1e30
#define MAX_ROUTE_WEIGHT 1e6 /* published factors go up to 16 */
#define MAX_TOLERANCE 1.0
#define DENSE UINT32_MAX

struct golden_logits {
	char *path;
	int fd;
	uint32_t vocab;
	float *row; /* [vocab] */
};

/* Shapes that the folder must fit. */
struct shapes {
	const struct od_config *cfg;
	uint32_t n_moe;
	uint32_t *m_of; /* [n_layers], DENSE for layers without experts */
};

/* Place that is being read, for messages: routes_prefill[3][17][1] of an entry of a file. */
struct spot {
	const char *where; /* "DIR/golden.json: entry 2 (\"wolf\")" */
	const char *field;
	size_t index[3];
	unsigned depth;
	struct od_err *err;
};

static struct spot inside(const struct spot *s, size_t index)
{
	struct spot in = *s;

	in.index[in.depth++] = index;
	return in;
}

static const char *spot_name(const struct spot *s, char *buf, size_t size)
{
	int n = snprintf(buf, size, "%s: field \"%s", s->where, s->field);

	for (unsigned i = 0; i < s->depth && n >= 0 && (size_t)n < size; i++)
		n += snprintf(buf + n, size - (size_t)n, "[%zu]", s->index[i]);
	if (n >= 0 && (size_t)n < size)
		snprintf(buf + n, size - (size_t)n, "\"");
	return buf;
}

/* A value in words: short ones as they stand. */
static const char *found(const json_t *v, char *buf, size_t size)
{
	char *text;

	if (v == NULL)
		return "nothing";
	if (json_is_object(v))
		return "an object";
	if (json_is_array(v)) {
		snprintf(buf, size, "a list of %zu", json_array_size(v));
		return buf;
	}
	text = json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
	snprintf(buf, size, "%s", text != NULL ? text : "something else");
	free(text);
	return buf;
}

static int refuse(const struct spot *s, int code, const json_t *v, const char *expected)
{
	char name[512], value[48];

	return od_fail(s->err, v == NULL ? OD_ERR_MISSING : code, "%s: expected %s, found %s",
		       spot_name(s, name, sizeof(name)), expected, found(v, value, sizeof(value)));
}

/* A list of exactly n things. */
static int list_of(const struct spot *s, const json_t *v, size_t n, const char *things)
{
	char expected[96];

	if (json_is_array(v) && json_array_size(v) == n)
		return OD_OK;
	snprintf(expected, sizeof(expected), "a list of %zu %s", n, things);
	return refuse(s, json_is_array(v) ? OD_ERR_SHAPE : OD_ERR_FORMAT, v, expected);
}

static int whole_below(const struct spot *s, const json_t *v, uint32_t limit, const char *what, uint32_t *out)
{
	json_int_t i = json_integer_value(v);
	char expected[96];

	*out = 0;
	if (json_is_integer(v) && i >= 0 && (uint64_t)i < limit) {
		*out = (uint32_t)i;
		return OD_OK;
	}
	snprintf(expected, sizeof(expected), "%s, 0 to %u", what, limit - 1);
	return refuse(s, json_is_integer(v) ? OD_ERR_RANGE : OD_ERR_FORMAT, v, expected);
}

/* Kept as double: 1e-05 as a float would be below the 1e-5 that decides ties. */
static int margin_at(const struct spot *s, const json_t *v, double max, double *out)
{
	double d = json_number_value(v);
	char expected[96];

	*out = 0;
	if (json_is_number(v) && d >= 0 && d <= max) {
		*out = d;
		return OD_OK;
	}
	snprintf(expected, sizeof(expected), "a margin, 0 to %g", max);
	return refuse(s, json_is_number(v) ? OD_ERR_RANGE : OD_ERR_FORMAT, v, expected);
}

static int read_ids(const struct spot *s, const json_t *v, uint32_t vocab, size_t least, int32_t **out, size_t *n_out)
{
	size_t n = json_array_size(v);
	int rc = OD_OK;

	*n_out = 0;
	*out = NULL;
	if (!json_is_array(v) || n < least)
		return refuse(s, json_is_array(v) ? OD_ERR_SHAPE : OD_ERR_FORMAT, v,
			      least > 0 ? "a list of at least one token id" : "a list of token ids");
	*out = calloc(n + 1, sizeof(**out));
	if (*out == NULL)
		return od_fail(s->err, OD_ERR_NOMEM, "%s", s->where);
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		struct spot at = inside(s, i);
		uint32_t id;

		rc = whole_below(&at, json_array_get(v, i), vocab, "a token id", &id);
		(*out)[i] = (int32_t)id;
	}
	*n_out = n;
	return rc;
}

/* The experts of one row: top_k different ones. */
static int read_route(const struct spot *s, const json_t *v, const struct od_config *cfg, uint16_t *out)
{
	int rc = list_of(s, v, cfg->top_k, "experts, the model's top-k");

	for (size_t r = 0; rc == OD_OK && r < cfg->top_k; r++) {
		struct spot at = inside(s, r);
		uint32_t expert;

		rc = whole_below(&at, json_array_get(v, r), cfg->n_experts, "an expert", &expert);
		for (size_t q = 0; rc == OD_OK && q < r; q++) {
			if (out[q] == expert)
				rc = refuse(&at, OD_ERR_FORMAT, json_array_get(v, r), "another expert than before it");
		}
		out[r] = (uint16_t)expert;
	}
	return rc;
}

/* One for each expert of the route. They neither fall nor sum to 1 in every family. */
static int read_weights(const struct spot *s, const json_t *v, uint32_t top_k, float *out)
{
	int rc = list_of(s, v, top_k, "weights, one for each expert");

	for (size_t r = 0; rc == OD_OK && r < top_k; r++) {
		const json_t *w = json_array_get(v, r);
		struct spot at = inside(s, r);

		out[r] = (float)json_number_value(w);
		if (!json_is_number(w) || fabs(json_number_value(w)) > MAX_ROUTE_WEIGHT)
			rc = refuse(&at, json_is_number(w) ? OD_ERR_RANGE : OD_ERR_FORMAT, w,
				    "a router weight, at most 1e+06");
	}
	return rc;
}

/* A table that is [layer][position] for the prompt and [step][layer] for decode. */
enum table_kind { EXPERTS, MARGINS, WEIGHTS };
struct table {
	const struct golden_entry *e;
	const struct shapes *m;
	enum table_kind kind;
};

/* A layer without experts has none, hence no weights, and margin 1. */
static int read_dense_cell(const struct spot *s, const json_t *v, enum table_kind kind)
{
	if (kind == MARGINS && json_is_number(v) && json_number_value(v) == 1.0)
		return OD_OK;
	if (kind != MARGINS && json_is_array(v) && json_array_size(v) == 0)
		return OD_OK;
	return refuse(s, OD_ERR_SHAPE, v,
		      kind == MARGINS ? "1, as the layer has no experts" :
					"an empty list, as the layer has no experts");
}

static int read_cell(const struct spot *s, const json_t *v, const struct table *t, size_t position, size_t layer)
{
	const struct golden_entry *e = t->e;
	uint32_t top_k = t->m->cfg->top_k, m = t->m->m_of[layer];
	size_t at = position * t->m->n_moe + m;

	if (m == DENSE)
		return read_dense_cell(s, v, t->kind);
	switch (t->kind) {
	case EXPERTS: return read_route(s, v, t->m->cfg, e->route + at * top_k);
	case MARGINS: return margin_at(s, v, 1.0, &e->route_margin[at]);
	case WEIGHTS: return read_weights(s, v, top_k, e->route_weight + at * top_k);
	}
	return OD_ERR_INTERNAL;
}

static int read_prefill(const struct spot *s, const json_t *v, const struct table *t)
{
	uint32_t n_layers = t->m->cfg->n_layers;
	int rc = list_of(s, v, n_layers, "layers, as the model has");

	for (size_t l = 0; rc == OD_OK && l < n_layers; l++) {
		const json_t *row = json_array_get(v, l);
		struct spot layer = inside(s, l);

		rc = list_of(&layer, row, t->e->n_prompt, "positions, as prompt_ids has");
		for (size_t p = 0; rc == OD_OK && p < t->e->n_prompt; p++) {
			struct spot at = inside(&layer, p);

			rc = read_cell(&at, json_array_get(row, p), t, p, l);
		}
	}
	return rc;
}

static int read_decode(const struct spot *s, const json_t *v, const struct table *t)
{
	size_t n_steps = t->e->n_positions - t->e->n_prompt, n_layers = t->m->cfg->n_layers;
	int rc = list_of(s, v, n_steps, "steps, one less than greedy_ids");

	for (size_t i = 0; rc == OD_OK && i < n_steps; i++) {
		const json_t *row = json_array_get(v, i);
		struct spot step = inside(s, i);

		rc = list_of(&step, row, n_layers, "layers, as the model has");
		for (size_t l = 0; rc == OD_OK && l < n_layers; l++) {
			struct spot at = inside(&step, l);

			rc = read_cell(&at, json_array_get(row, l), t, t->e->n_prompt + i, l);
		}
	}
	return rc;
}

static int read_token_margins(const struct spot *s, const json_t *v, struct golden_entry *e)
{
	int rc = list_of(s, v, e->n_greedy, "margins, as greedy_ids has tokens");

	if (rc != OD_OK)
		return rc;
	e->token_margin = calloc(e->n_greedy + 1, sizeof(*e->token_margin));
	if (e->token_margin == NULL)
		return od_fail(s->err, OD_ERR_NOMEM, "%s", s->where);
	for (size_t i = 0; rc == OD_OK && i < e->n_greedy; i++) {
		struct spot at = inside(s, i);

		rc = margin_at(&at, json_array_get(v, i), MAX_LOGIT_MARGIN, &e->token_margin[i]);
	}
	return rc;
}

/* Missing and null mean: not given. */
static int read_text(const struct spot *s, const json_t *v, struct golden_text *out)
{
	if (v == NULL || json_is_null(v))
		return OD_OK;
	if (!json_is_string(v))
		return refuse(s, OD_ERR_FORMAT, v, "a text");
	out->len = json_string_length(v);
	out->bytes = calloc(out->len + 1, 1);
	if (out->bytes == NULL)
		return od_fail(s->err, OD_ERR_NOMEM, "%s", s->where);
	memcpy(out->bytes, json_string_value(v), out->len);
	return OD_OK;
}

static void find_eos(struct golden_entry *e, const struct od_config *cfg)
{
	for (size_t i = 0; i < e->n_greedy; i++) {
		for (uint32_t k = 0; k < cfg->n_eos; k++) {
			if (e->greedy[i] == cfg->eos[k])
				*(i + 1 == e->n_greedy ? &e->ends_at_eos : &e->passes_eos) = true;
		}
	}
}

static int read_ids_and_texts(const json_t *obj, struct spot s, const struct od_config *cfg, struct golden_entry *e)
{
	int rc;

	s.field = "prompt_ids";
	rc = read_ids(&s, json_object_get(obj, s.field), cfg->vocab, 1, &e->prompt, &e->n_prompt);
	if (rc != OD_OK)
		return rc;
	s.field = "greedy_ids";
	rc = read_ids(&s, json_object_get(obj, s.field), cfg->vocab, 0, &e->greedy, &e->n_greedy);
	if (rc != OD_OK)
		return rc;
	find_eos(e, cfg);
	e->n_positions = e->n_prompt + (e->n_greedy > 0 ? e->n_greedy - 1 : 0); /* both count elements in memory */
	s.field = "margins";
	rc = read_token_margins(&s, json_object_get(obj, s.field), e);
	if (rc != OD_OK)
		return rc;
	s.field = "prompt_text";
	rc = read_text(&s, json_object_get(obj, s.field), &e->prompt_text);
	if (rc != OD_OK)
		return rc;
	s.field = "greedy_text";
	return read_text(&s, json_object_get(obj, s.field), &e->greedy_text);
}

static int make_tables(struct spot s, const struct shapes *m, bool weights, struct golden_entry *e)
{
	uint64_t cells, experts;

	if (!od_mul(e->n_positions, m->n_moe, &cells) || !od_mul(cells, m->cfg->top_k, &experts))
		return od_fail(s.err, OD_ERR_RANGE, "%s: %zu positions are too many", s.where, e->n_positions);
	/* One more than needed: a model may have no layer with experts. */
	e->route = calloc(experts + 1, sizeof(*e->route));
	e->route_margin = calloc(cells + 1, sizeof(*e->route_margin));
	if (weights)
		e->route_weight = calloc(experts + 1, sizeof(*e->route_weight));
	if (e->route == NULL || e->route_margin == NULL || (weights && e->route_weight == NULL))
		return od_fail(s.err, OD_ERR_NOMEM, "%s: no memory for the routes of %zu positions", s.where,
			       e->n_positions);
	return OD_OK;
}

static int read_tables(const json_t *obj, struct spot s, const struct shapes *m, struct golden_entry *e)
{
	static const struct {
		const char *field;
		int (*read)(const struct spot *s, const json_t *v, const struct table *t);
		enum table_kind kind;
	} table[] = {
		{ "routes_prefill", read_prefill, EXPERTS },	   { "route_margin_prefill", read_prefill, MARGINS },
		{ "route_weight_prefill", read_prefill, WEIGHTS }, { "routes_decode", read_decode, EXPERTS },
		{ "route_margin_decode", read_decode, MARGINS },   { "route_weight_decode", read_decode, WEIGHTS },
	};
	/* Either of the two calls for the other. */
	bool weights = json_object_get(obj, "route_weight_prefill") != NULL ||
		       json_object_get(obj, "route_weight_decode") != NULL;
	int rc = make_tables(s, m, weights, e);

	for (size_t i = 0; rc == OD_OK && i < sizeof(table) / sizeof(table[0]); i++) {
		const struct table t = { .e = e, .m = m, .kind = table[i].kind };

		if (t.kind == WEIGHTS && !weights)
			continue;
		s.field = table[i].field;
		rc = table[i].read(&s, json_object_get(obj, s.field), &t);
	}
	return rc;
}

/* Names go to terminals and into paths. */
static bool printable(const json_t *v)
{
	const char *text = json_string_value(v);
	size_t len = json_string_length(v);

	if (text == NULL || len == 0 || len > MAX_NAME_BYTES)
		return false;
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			return false;
	}
	return true;
}

/* Fields NAME_file and NAME_shape: a file of float32 with these dimensions. *path is malloc'd, NULL: there is none. */
struct data_file {
	const char *file, *shape, *things; /* things: what the dimensions are, for messages */
	uint64_t want[3];
	const char *source[3];
	unsigned n_dims;
};

static int read_shape(const json_t *obj, struct spot s, const struct data_file *d)
{
	const json_t *shape = json_object_get(obj, d->shape);
	int rc;

	s.field = d->shape;
	rc = list_of(&s, shape, d->n_dims, d->things);
	for (size_t i = 0; rc == OD_OK && i < d->n_dims; i++) {
		const json_t *v = json_array_get(shape, i);
		struct spot at = inside(&s, i);
		char expected[64];

		snprintf(expected, sizeof(expected), "%llu, %s", (unsigned long long)d->want[i], d->source[i]);
		if (!json_is_integer(v) || (uint64_t)json_integer_value(v) != d->want[i])
			rc = refuse(&at, OD_ERR_SHAPE, v, expected);
	}
	return rc;
}

/* A folder with a file missing is told before the model is loaded, not an hour later. */
static int check_size(const struct spot *s, const struct data_file *d, const char *path)
{
	uint64_t rows = d->want[0] * (d->n_dims == 3 ? d->want[1] : 1); /* at most 4097 layers: cannot overflow */
	struct golden_logits *l;
	int rc = golden_logits_open(&l, path, rows, (uint32_t)d->want[d->n_dims - 1], s->err);

	golden_logits_close(l);
	return rc == OD_OK ? OD_OK : od_fail_within(s->err, "%s: field \"%s\"", s->where, d->file);
}

static int read_data_file(const json_t *obj, struct spot s, const char *dir, const struct data_file *d, char **out)
{
	const json_t *file = json_object_get(obj, d->file);
	char path[PATH_MAX];
	int rc;

	*out = NULL;
	s.field = d->file;
	if (file == NULL || json_is_null(file))
		return OD_OK;
	if (!printable(file) || strchr(json_string_value(file), '/') != NULL)
		return refuse(&s, OD_ERR_FORMAT, file, "the name of a file in the same folder");
	rc = read_shape(obj, s, d);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), dir, json_string_value(file), s.err);
	if (rc == OD_OK)
		rc = check_size(&s, d, path);
	if (rc != OD_OK)
		return rc;
	*out = strdup(path);
	return *out != NULL ? OD_OK : od_fail(s.err, OD_ERR_NOMEM, "%s", s.where);
}

/* hidden_file is only checked: nothing here can see the residual stream of a running model. */
static int read_data_files(const json_t *obj, struct spot s, const char *dir, const struct od_config *cfg,
			   struct golden_entry *e)
{
	static const char vocabulary[] = "the model's vocabulary", prompt[] = "as prompt_ids has tokens";
	const struct data_file logits = { "logits_file",
					  "logits_shape",
					  "numbers: prompt tokens, vocabulary",
					  { e->n_prompt, cfg->vocab },
					  { prompt, vocabulary },
					  2 };
	const struct data_file decode = { "decode_logits_file",
					  "decode_logits_shape",
					  "numbers: tokens, vocabulary",
					  { e->n_greedy, cfg->vocab },
					  { "as greedy_ids has tokens", vocabulary },
					  2 };
	const struct data_file hidden = { "hidden_file",
					  "hidden_shape",
					  "numbers: layers and one more, prompt tokens, hidden size",
					  { (uint64_t)cfg->n_layers + 1, e->n_prompt, cfg->hidden },
					  { "the model's layers and one more", prompt, "the model's hidden size" },
					  3 };
	char *unused;
	int rc = read_data_file(obj, s, dir, &logits, &e->logits_path);

	if (rc == OD_OK)
		rc = read_data_file(obj, s, dir, &decode, &e->decode_logits_path);
	if (rc == OD_OK) {
		rc = read_data_file(obj, s, dir, &hidden, &unused);
		free(unused);
	}
	return rc;
}

static int read_tolerance(const json_t *obj, struct spot s, struct golden_entry *e)
{
	const json_t *v;

	s.field = "logit_tolerance";
	v = json_object_get(obj, s.field);
	if (v == NULL)
		return OD_OK;
	e->logit_tolerance = json_number_value(v);
	if (json_is_number(v) && e->logit_tolerance > 0 && e->logit_tolerance <= MAX_TOLERANCE)
		return OD_OK;
	return refuse(&s, json_is_number(v) ? OD_ERR_RANGE : OD_ERR_FORMAT, v,
		      "a part of the largest logit, above 0 and at most 1");
}

static int read_entry(struct golden_entry *e, size_t i, const json_t *obj, const char *dir, const char *file,
		      const struct shapes *m, struct od_err *err)
{
	char where[PATH_MAX + MAX_NAME_BYTES + 64];
	struct spot s = { .where = where, .field = "name", .err = err };
	const json_t *name;
	int rc;

	snprintf(where, sizeof(where), "%s: entry %zu", file, i);
	if (!json_is_object(obj))
		return od_fail(err, OD_ERR_FORMAT, "%s: expected an object", where);
	name = json_object_get(obj, "name");
	if (!printable(name))
		return refuse(&s, OD_ERR_FORMAT, name, "a printable text of 1 to 200 bytes");
	e->name = strdup(json_string_value(name));
	if (e->name == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", where);
	snprintf(where, sizeof(where), "%s: entry %zu (\"%s\")", file, i, e->name);
	rc = read_ids_and_texts(obj, s, m->cfg, e);
	if (rc == OD_OK)
		rc = read_tables(obj, s, m, e);
	if (rc == OD_OK)
		rc = read_tolerance(obj, s, e);
	return rc == OD_OK ? read_data_files(obj, s, dir, m->cfg, e) : rc;
}

static int parse(const char *path, json_t **root, struct od_err *err)
{
	json_error_t why;
	char *text;
	size_t len;
	int rc = od_file_read(path, MAX_JSON_BYTES, &text, &len, err);

	*root = NULL;
	if (rc != OD_OK)
		return rc;
	*root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
	free(text);
	if (*root == NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: not valid JSON: line %d, column %d: %s", path, why.line,
			       why.column, why.text);
	if (json_is_array(*root) && json_array_size(*root) > 0)
		return OD_OK;
	return od_fail(err, OD_ERR_FORMAT, "%s: expected a list of at least one prompt, found %s", path,
		       json_is_array(*root) ? "an empty list" : "something else");
}

/* Both directions: from the file's layers to ours and back. */
static int number_layers(struct golden *g, struct shapes *m, struct od_err *err)
{
	m->m_of = od_alloc_array(m->cfg->n_layers, sizeof(*m->m_of));
	g->layer = od_alloc_array(m->cfg->n_layers, sizeof(*g->layer));
	if (m->m_of == NULL || g->layer == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %u layers", m->cfg->n_layers);
	for (uint32_t l = 0; l < m->cfg->n_layers; l++) {
		const bool moe = od_config_layer(m->cfg, l)->ffn == OD_FFN_MOE;

		m->m_of[l] = moe ? m->n_moe : DENSE;
		if (moe)
			g->layer[m->n_moe++] = l;
	}
	g->n_moe = m->n_moe;
	return OD_OK;
}

int golden_load(struct golden **out, const char *dir, const struct od_config *cfg, struct od_err *err)
{
	struct shapes m = { .cfg = cfg };
	struct golden *g = NULL;
	json_t *root = NULL;
	char path[PATH_MAX];
	int rc;

	*out = NULL;
	rc = od_path(path, sizeof(path), dir, "golden.json", err);
	if (rc == OD_OK)
		rc = parse(path, &root, err);
	if (rc != OD_OK)
		goto fail;
	g = calloc(1, sizeof(*g));
	if (g != NULL)
		g->entry = calloc(json_array_size(root), sizeof(*g->entry));
	if (g == NULL || g->entry == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "%s", path);
		goto fail;
	}
	g->top_k = cfg->top_k;
	g->vocab = cfg->vocab;
	g->n_entries = json_array_size(root);
	rc = number_layers(g, &m, err);
	for (size_t i = 0; rc == OD_OK && i < g->n_entries; i++)
		rc = read_entry(&g->entry[i], i, json_array_get(root, i), dir, path, &m, err);
	if (rc != OD_OK)
		goto fail;
	od_free(m.m_of);
	json_decref(root);
	*out = g;
	return OD_OK;
fail:
	od_free(m.m_of);
	json_decref(root);
	golden_free(g);
	return rc;
}

void golden_free(struct golden *g)
{
	if (g == NULL)
		return;
	for (size_t i = 0; i < g->n_entries; i++) {
		struct golden_entry *e = &g->entry[i];

		free(e->name);
		free(e->prompt_text.bytes);
		free(e->greedy_text.bytes);
		free(e->prompt);
		free(e->greedy);
		free(e->token_margin);
		free(e->route);
		free(e->route_margin);
		free(e->route_weight);
		free(e->logits_path);
		free(e->decode_logits_path);
	}
	od_free(g->layer);
	free(g->entry);
	free(g);
}

int golden_logits_open(struct golden_logits **out, const char *path, size_t n_rows, uint32_t vocab, struct od_err *err)
{
	struct golden_logits *l = calloc(1, sizeof(*l));
	uint64_t size, want;
	int rc;

	*out = NULL;
	if (l == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", path);
	l->fd = -1;
	l->vocab = vocab;
	l->path = strdup(path);
	l->row = od_alloc_array(vocab, sizeof(*l->row));
	rc = l->path == NULL || l->row == NULL ? od_fail(err, OD_ERR_NOMEM, "%s", path) :
						 od_file_open(path, &l->fd, &size, err);
	if (rc != OD_OK)
		goto fail;
	if (!od_mul(n_rows, (uint64_t)vocab * sizeof(float), &want) || size != want) {
		rc = od_fail(err, OD_ERR_SHAPE, "%s: expected %llu bytes (%zu positions of %u float32), found %llu",
			     path, (unsigned long long)want, n_rows, vocab, (unsigned long long)size);
		goto fail;
	}
	*out = l;
	return OD_OK;
fail:
	golden_logits_close(l);
	return rc;
}

void golden_logits_close(struct golden_logits *l)
{
	if (l == NULL)
		return;
	if (l->fd >= 0)
		close(l->fd);
	od_free(l->row);
	free(l->path);
	free(l);
}

int golden_logits_row(struct golden_logits *l, size_t row, const float **out, struct od_err *err)
{
	uint64_t bytes = (uint64_t)l->vocab * sizeof(float);
	int rc = od_file_pread(l->fd, l->row, bytes, row * bytes, l->path, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < l->vocab; i++) {
		uint32_t bits;

		memcpy(&bits, &l->row[i], sizeof(bits));
		bits = le32toh(bits);
		memcpy(&l->row[i], &bits, sizeof(bits));
	}
	*out = l->row;
	return OD_OK;
}
