#include "common/pack/shadow/shadow_load.h"

#include "common/base/file.h"
#include "common/compute/cards.h"
#include "common/pack/checksum.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/shadow/shadow_file.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A device that maps no memory gets tensors by way of the host, which holds so many bytes of them at a time, or a
 * tensor for each thread if that is more. */
#define STAGE_BYTES (8u << 20)

/* The records of dense matrices, or those of the experts, as they stand in the file. */
struct shadow_input {
	struct od_shadow_file file;
	bool experts;
	size_t begin, end; /* tensors of its table */
	uint64_t n_bytes;
	enum od_activations act;
	/* On each card: tensors [begin, end), which begin at `base` of the file. */
	struct run {
		size_t begin, end;
		uint64_t base, n_bytes;
		struct od_buf *bytes;
	} card[OD_MAX_CARDS], now; /* now: those of a card that are being read */
	char *host; /* their bytes meanwhile */
};

struct od_shadow_store {
	const struct od_pack *pack;
	struct od_device *device;
	struct od_dense_store *dense_store;
	struct od_expert_store *expert_store; /* experts as published, else */
	struct shadow_input experts;
	struct od_expert *expert;
	struct od_buf *biases[OD_MAX_CARDS]; /* each expert's behind the one before */
	struct shadow_input dense_input; /* when not as published */
	struct od_layer_weights *layer;
	struct od_dense dense; /* as dense_store's, with matrices from dense_input's records */
};

const char *od_shadow_choice_text(const struct od_shadow_choice *c, char buf[OD_SHADOW_CHOICE_CHARS])
{
	bool same = c->dense == c->experts;

	snprintf(buf, OD_SHADOW_CHOICE_CHARS, "%s%s%s", od_precision_names[c->experts - 1], same ? "" : "+",
		 same ? "" : od_precision_names[c->dense - 1]);
	return buf;
}

/* Adds what an operator can do about it to the reason. */
static int advise(const struct od_pack *p, enum od_precision precision, int rc, struct od_err *err)
{
	const char *name = od_precision_names[precision - 1];
	size_t len = err != NULL ? strlen(err->msg) : 0;

	if (err == NULL || rc == OD_ERR_NOMEM || rc == OD_ERR_IO)
		return rc;
	snprintf(
		err->msg + len, sizeof(err->msg) - len,
		rc == OD_ERR_MISSING ?
			": od-pack shadow %s %s makes it (or start od-shadow with --precision bf16, or do without one: od-main "
			"--predictor none)" :
			" (od-pack shadow --force %s %s makes it again)",
		p->dir, name);
	return rc;
}

/* Both lists are in the order of layers, so the tensors of layers [begin, end) stand together. */
static void find_tensors(const struct shadow_input *input, const struct od_config *c, uint32_t begin, uint32_t end,
			 size_t *first, size_t *behind)
{
	const struct od_shadow_table *t = &input->file.table;
	uint32_t m = 0;

	if (input->experts) {
		while (m < c->n_moe && c->layer_of[m] < begin)
			m++;
		*first = od_shadow_expert_index(t, c, m, 0, OD_MAT_GATE);
		while (m < c->n_moe && c->layer_of[m] < end)
			m++;
		*behind = od_shadow_expert_index(t, c, m, 0, OD_MAT_GATE);
		return;
	}
	for (*first = 0; *first < t->n_dense && t->dense[*first].layer < begin;)
		++*first;
	for (*behind = *first; *behind < t->n_dense && t->dense[*behind].layer < end;)
		++*behind;
}

static uint64_t bytes_of(const struct shadow_input *input, size_t begin, size_t end)
{
	const struct od_disk_shadow_tensor *t = input->file.table.tensor;

	return begin < end ? t[end - 1].offset + t[end - 1].bytes - t[begin].offset : 0;
}

static uint64_t layer_bytes(const struct shadow_input *input, const struct od_config *c, uint32_t layer)
{
	size_t begin, end;

	find_tensors(input, c, layer, layer + 1, &begin, &end);
	return bytes_of(input, begin, end);
}

/* made: the file must be there; else its layout alone is. */
static int input_open(struct shadow_input *input, const struct od_pack *p, enum od_precision precision, bool experts,
		      bool made, struct od_err *err)
{
	int rc = made ? od_shadow_file_open(&input->file, p, precision, err) :
			od_shadow_table_init(&input->file.table, &p->config, precision, err);

	if (rc != OD_OK)
		return advise(p, precision, rc, err);
	input->experts = experts;
	find_tensors(input, &p->config, od_config_begin(&p->config), od_config_end(&p->config), &input->begin,
		     &input->end);
	input->n_bytes = bytes_of(input, input->begin, input->end);
	return OD_OK;
}

static void input_close(struct shadow_input *input)
{
	od_shadow_file_close(&input->file);
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		od_buf_free(input->card[i].bytes);
}

static int check_choice(const struct od_shadow_choice *c, struct od_err *err)
{
	const int found[] = { (int)c->experts, (int)c->dense };

	for (size_t i = 0; i < 2; i++)
		if (found[i] < 1 || found[i] > OD_N_PRECISIONS)
			return od_fail(err, OD_ERR_ARG, "unknown shadow precision %d", found[i]);
	return OD_OK;
}

/* Opens the shadow files that the choice needs. After any return close_inputs is valid. */
static int open_inputs(struct od_shadow_store *s, const struct od_pack *p, const struct od_shadow_choice *c, bool made,
		       struct od_err *err)
{
	int rc;

	*s = (struct od_shadow_store){ .pack = p, .experts.file.file.fd = -1, .dense_input.file.file.fd = -1 };
	s->experts.act = s->dense_input.act = c->act;
	rc = check_choice(c, err);
	if (rc == OD_OK && c->experts != OD_PRECISION_BF16)
		rc = input_open(&s->experts, p, c->experts, true, made, err);
	if (rc == OD_OK && c->dense != OD_PRECISION_BF16)
		rc = input_open(&s->dense_input, p, c->dense, false, made, err);
	return rc;
}

static void close_inputs(struct od_shadow_store *s)
{
	input_close(&s->experts);
	input_close(&s->dense_input);
}

double od_shadow_expert_bits(const struct od_pack *p, enum od_precision precision)
{
	double bytes = 0, weights = 0;

	for (size_t i = 0; i < p->manifest.n_experts; i++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			struct od_shadow_sections own;
			uint64_t n_out, n_in;

			od_expert_mat_shape(&p->config, (enum od_expert_mat)mat, &n_out, &n_in);
			own = od_shadow_sections(precision, n_out, n_in);
			weights += (double)n_out * (double)n_in;
			bytes += precision == OD_PRECISION_BF16 ?
					 (double)od_mat_bytes(&p->expert[i].type[mat], n_in, 0, n_out) :
					 (double)own.data_bytes + (double)own.n_scales * sizeof(float);
		}
	return 8 * bytes / weights;
}

enum od_precision od_shadow_default(const struct od_pack *p)
{
	const bool saves = od_shadow_expert_bits(p, OD_PRECISION_INT8) < od_shadow_expert_bits(p, OD_PRECISION_BF16);
	unsigned made = OD_SHADOW_ALL;

	if (od_pack_is_gguf(p) && od_shadow_present(p, &made, NULL) != OD_OK)
		made = 0;
	return saves && (made & OD_SHADOW_BIT(OD_PRECISION_INT8)) != 0 ? OD_PRECISION_INT8 : OD_PRECISION_BF16;
}

/* Bytes of the largest expert's biases. */
static uint64_t bias_bytes(const struct od_pack *p)
{
	uint64_t most = 0;

	for (size_t i = 0; i < p->manifest.n_experts; i++) {
		uint64_t n = 0, n_out, n_in;

		for (int mat = OD_N_EXPERT_MATS; mat < od_expert_tensors(&p->config); mat++) {
			od_expert_mat_shape(&p->config, (enum od_expert_mat)mat, &n_out, &n_in);
			n += od_mat_memory_bytes(&p->expert[i].type[mat], n_out, n_in);
		}
		most = n > most ? n : most;
	}
	return most;
}

/* published: the pack's own precision, not a shadow file's */
static enum od_dense_choice dense_choice(bool published)
{
	return published ? OD_DENSE_ALL : OD_DENSE_UNQUANTISED;
}

static int need_bytes(const struct od_pack *p, const struct od_shadow_choice *c, bool made, uint64_t *bytes,
		      struct od_err *err)
{
	struct od_shadow_store s;
	size_t first;
	int rc = open_inputs(&s, p, c, made, err);

	*bytes = 0;
	if (rc == OD_OK) {
		*bytes = od_dense_need_bytes(p, dense_choice(c->dense == OD_PRECISION_BF16)) + s.dense_input.n_bytes +
			 s.experts.n_bytes;
		*bytes += c->dense == OD_PRECISION_BF16 ? 0 : p->config.n_layers * sizeof(struct od_layer_weights);
		*bytes += c->experts == OD_PRECISION_BF16 ? od_experts_need_bytes(p, c->form) :
							    p->manifest.n_experts * sizeof(struct od_expert) +
								    od_pack_held_experts(p, &first) * bias_bytes(p);
	}
	close_inputs(&s);
	return rc;
}

int od_shadow_need_bytes(const struct od_pack *p, const struct od_shadow_choice *c, uint64_t *bytes, struct od_err *err)
{
	return need_bytes(p, c, true, bytes, err);
}

int od_shadow_would_need_bytes(const struct od_pack *p, const struct od_shadow_choice *c, uint64_t *bytes,
			       struct od_err *err)
{
	return need_bytes(p, c, false, bytes, err);
}

int od_shadow_split(const struct od_pack *p, const struct od_shadow_choice *c, struct od_split *split,
		    struct od_err *err)
{
	const struct od_config *cfg = &p->config;
	struct od_shadow_store s;
	uint32_t begin, end;
	int rc = open_inputs(&s, p, c, true, err);

	if (rc == OD_OK) {
		od_dense_split(p, dense_choice(c->dense == OD_PRECISION_BF16), split);
		od_split_add(&split->beside.bytes,
			     c->dense == OD_PRECISION_BF16 ? 0 : cfg->n_layers * sizeof(struct od_layer_weights));
		if (c->dense != OD_PRECISION_BF16)
			for (uint32_t i = split->begin; i < split->end; i++)
				od_split_add(&split->layer[i].bytes, layer_bytes(&s.dense_input, cfg, i));
	}
	if (rc == OD_OK && c->experts == OD_PRECISION_BF16) {
		od_experts_split(p, c->form, split);
	} else if (rc == OD_OK) {
		od_config_moe_held(cfg, &begin, &end);
		od_split_add(&split->beside.bytes, p->manifest.n_experts * sizeof(struct od_expert));
		for (uint32_t m = begin; m < end; m++)
			od_split_add(&split->layer[cfg->layer_of[m]].bytes,
				     layer_bytes(&s.experts, cfg, cfg->layer_of[m]) + cfg->n_experts * bias_bytes(p));
	}
	close_inputs(&s);
	return rc;
}

/* ---- reading ---- */

static int read_record(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct shadow_input *input = arg;
	const size_t index = input->now.begin + item;
	const struct od_disk_shadow_tensor *t = &input->file.table.tensor[index];
	char *at = input->host + (t->offset - input->now.base);
	int rc = od_file_pread(input->file.file.fd, at, t->bytes, t->offset, input->file.file.path, err);

	(void)thread;
	*bytes = t->bytes;
	if (rc != OD_OK)
		return rc;
	return od_check_xxh3(XXH3_64bits(at, t->bytes), t->xxh3, err, "%s: tensor %zu at offset %" PRIu64 ": checksum",
			     input->file.file.path, index, t->offset);
}

/* The tensors of the layers that are on a card and that this process holds. */
static struct run run_of(const struct shadow_input *input, const struct od_shadow_store *s, unsigned card)
{
	const struct od_config *c = &s->pack->config;
	uint32_t begin = od_device_card_begin(s->device, card), end = od_device_card_end(s->device, card);
	struct run run = { 0 };

	begin = begin > od_config_begin(c) ? begin : od_config_begin(c);
	end = end < od_config_end(c) ? end : od_config_end(c);
	find_tensors(input, c, begin, begin < end ? end : begin, &run.begin, &run.end);
	run.n_bytes = bytes_of(input, run.begin, run.end);
	run.base = run.n_bytes > 0 ? input->file.table.tensor[run.begin].offset : 0;
	return run;
}

/* The tensors of a card from `begin` on that are read together: all, if no stage is needed. */
static struct run piece_of(const struct shadow_input *input, const struct run *run, size_t begin, unsigned n_threads)
{
	const struct od_disk_shadow_tensor *t = input->file.table.tensor;
	struct run piece = { .begin = begin, .end = begin + 1, .base = t[begin].offset };

	while (piece.end < run->end &&
	       (od_ref_map(od_buf_ref(run->bytes, 0)) != NULL || piece.end - begin < n_threads ||
		bytes_of(input, begin, piece.end + 1) <= STAGE_BYTES))
		piece.end++;
	piece.n_bytes = (piece.end < run->end ? t[piece.end].offset : run->base + run->n_bytes) - piece.base;
	return piece;
}

static int read_piece(struct shadow_input *input, const struct run *run, struct od_team_job *team, struct od_err *err)
{
	struct od_fill fill;
	int rc = od_fill_begin(&fill, od_buf_ref(run->bytes, input->now.base - run->base), input->now.n_bytes, err);

	if (rc != OD_OK)
		return rc;
	input->host = fill.host;
	team->fn = read_record;
	team->arg = input;
	team->n_items = input->now.end - input->now.begin;
	rc = od_fill_end(&fill, od_team_run(team, err), err);
	team->done_bytes += input->now.n_bytes;
	return rc;
}

static int read_card(struct shadow_input *input, const struct od_shadow_store *s, unsigned card,
		     struct od_team_job *team, struct od_err *err)
{
	struct run *run = &input->card[card];
	int rc;

	*run = run_of(input, s, card);
	if (run->n_bytes == 0)
		return OD_OK;
	rc = od_buf_new(&run->bytes, od_device_card(s->device, card), run->n_bytes, input->file.file.path, err);
	for (size_t at = run->begin; rc == OD_OK && at < run->end; at = input->now.end) {
		input->now = piece_of(input, run, at, team->n_threads);
		rc = read_piece(input, run, team, err);
	}
	return rc;
}

static int input_read(struct shadow_input *input, const struct od_shadow_store *s, struct od_team_job *team,
		      struct od_err *err)
{
	for (unsigned i = 0; i < od_device_cards(s->device); i++) {
		int rc = read_card(input, s, i, team, err);

		if (rc != OD_OK)
			return advise(s->pack, input->file.table.precision, rc, err);
	}
	return OD_OK;
}

static struct od_weight mat_of(const struct shadow_input *input, size_t index)
{
	const enum od_precision precision = input->file.table.precision;
	const struct od_disk_shadow_tensor *t = &input->file.table.tensor[index];
	const struct od_shadow_sections sections = od_shadow_sections(precision, t->n_out, t->n_in);
	const struct run *run = input->card;
	struct od_ref at;
	struct od_weight w = {
		.dtype = precision == OD_PRECISION_FP16 ? OD_F16 :
			 precision == OD_PRECISION_INT8 ? OD_INT8 :
							  OD_NF4,
		.n_out = t->n_out,
		.n_in = t->n_in,
		.act = input->act,
	};

	while (index < run->begin || index >= run->end)
		run++;
	at = w.data = od_buf_ref(run->bytes, t->offset - run->base);
	if (sections.n_scales > 0)
		w.scale = od_ref_at(at, sections.scale_at);
	return w;
}

static void bind_dense(struct od_shadow_store *s)
{
	const struct od_shadow_table *t = &s->dense_input.file.table;

	s->dense = *od_dense_get(s->dense_store);
	memcpy(s->layer, s->dense.layer, s->pack->config.n_layers * sizeof(*s->layer));
	s->dense.layer = s->layer;
	for (size_t i = s->dense_input.begin; i < s->dense_input.end; i++)
		s->layer[t->dense[i].layer].w[t->dense[i].role] = mat_of(&s->dense_input, i);
}

static void bind_experts(struct od_shadow_store *s)
{
	const struct od_config *cfg = &s->pack->config;
	uint32_t begin, end;

	od_config_moe_held(cfg, &begin, &end);
	for (uint32_t m = begin; m < end; m++)
		for (uint32_t e = 0; e < cfg->n_experts; e++)
			for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
				s->expert[(size_t)m * cfg->n_experts + e].mat[mat] =
					mat_of(&s->experts, od_shadow_expert_index(&s->experts.file.table, cfg, m, e,
										   (enum od_expert_mat)mat));
}

static int read_biases(struct od_shadow_store *s, size_t i, struct od_ref to, uint8_t *host, struct od_err *err)
{
	const struct od_config *cfg = &s->pack->config;
	const uint32_t m = (uint32_t)(i / cfg->n_experts), expert = (uint32_t)(i % cfg->n_experts);
	uint64_t at = 0, n_out, n_in;
	int rc = OD_OK;

	for (int mat = OD_N_EXPERT_MATS; rc == OD_OK && mat < OD_N_EXPERT_TENSORS; mat++) {
		const struct od_mat_type *type = &s->pack->expert[i].type[mat];

		rc = od_expert_bias_read(s->pack, m, expert, (enum od_expert_mat)mat, host + at, err);
		s->expert[i].bias[mat - OD_N_EXPERT_MATS] = (struct od_vector){ type->dtype, od_ref_at(to, at) };
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		at += od_mat_memory_bytes(type, n_out, n_in);
	}
	return rc;
}

/* Loads the biases of the experts whose matrices are on a card. Shadow files have none: they stay as published. */
static int load_card_biases(struct od_shadow_store *s, unsigned card, uint64_t each, struct od_err *err)
{
	const struct run *run = &s->experts.card[card];
	const size_t before = s->experts.file.table.n_dense, first = (run->begin - before) / OD_N_EXPERT_MATS;
	const size_t n = (run->end - run->begin) / OD_N_EXPERT_MATS;
	struct od_fill fill;
	int rc;

	if (n == 0)
		return OD_OK;
	rc = od_buf_new(&s->biases[card], od_device_card(s->device, card), n * each, "the experts' biases", err);
	if (rc == OD_OK)
		rc = od_fill_begin(&fill, od_buf_ref(s->biases[card], 0), n * each, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = read_biases(s, first + i, od_buf_ref(s->biases[card], i * each), (uint8_t *)fill.host + i * each,
				 err);
	return od_fill_end(&fill, rc, err);
}

static int load_biases(struct od_shadow_store *s, struct od_err *err)
{
	const uint64_t each = bias_bytes(s->pack);
	int rc = OD_OK;

	if (each > 0)
		for (unsigned i = 0; rc == OD_OK && i < od_device_cards(s->device); i++)
			rc = load_card_biases(s, i, each, err);
	return rc;
}

static int load_dense(struct od_shadow_store *s, struct od_team_job *team, struct od_err *err)
{
	bool published = s->dense_input.file.file.fd < 0; /* not from a shadow file */
	int rc = od_dense_load(&s->dense_store, s->pack, s->device, dense_choice(published), err);

	if (rc != OD_OK || published)
		return rc;
	s->layer = calloc(s->pack->config.n_layers, sizeof(*s->layer));
	if (s->layer == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the shadow");
	rc = input_read(&s->dense_input, s, team, err);
	if (rc == OD_OK)
		bind_dense(s);
	return rc;
}

static int load_experts(struct od_shadow_store *s, struct od_team_job *team, struct od_err *err)
{
	int rc;

	s->expert = calloc(s->pack->manifest.n_experts, sizeof(*s->expert));
	if (s->expert == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the shadow");
	rc = input_read(&s->experts, s, team, err);
	if (rc != OD_OK)
		return rc;
	bind_experts(s);
	return load_biases(s, err);
}

int od_shadow_load(struct od_shadow_store **out, const struct od_pack *p, struct od_device *d,
		   const struct od_shadow_choice *c, unsigned n_threads, od_progress_fn *progress, void *arg,
		   struct od_err *err)
{
	struct od_shadow_store *s = malloc(sizeof(*s));
	struct od_team_job team = { .n_threads = n_threads, .progress_arg = arg };
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the shadow");
	rc = open_inputs(s, p, c, true, err);
	s->device = d;
	if (rc == OD_OK) {
		/* Experts as published count for themselves; the rest is little beside them. */
		team.progress = c->experts != OD_PRECISION_BF16 ? progress : NULL;
		team.all_bytes = s->dense_input.n_bytes + s->experts.n_bytes;
		rc = load_dense(s, &team, err);
	}
	if (rc == OD_OK && c->experts == OD_PRECISION_BF16)
		rc = od_experts_load_all(&s->expert_store, p, d, c->form, n_threads, progress, arg, err);
	else if (rc == OD_OK)
		rc = load_experts(s, &team, err);
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
	close_inputs(s);
	od_dense_free(s->dense_store);
	od_experts_free(s->expert_store);
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		od_buf_free(s->biases[i]);
	free(s->layer);
	free(s->expert);
	free(s);
}

const struct od_dense *od_shadow_dense(const struct od_shadow_store *s)
{
	return s->layer != NULL ? &s->dense : od_dense_get(s->dense_store);
}

const struct od_expert *od_shadow_experts(const struct od_shadow_store *s)
{
	return s->expert != NULL ? s->expert : od_experts_get(s->expert_store);
}
