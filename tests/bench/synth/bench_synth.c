/* bench_synth.c - od-bench synth: the folder, the files, the order in which they appear. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/synth/synth_family.h"
#include "tests/bench/synth/synth_files.h"
#include "tests/bench/synth/synth_model.h"
#include "tests/bench/synth/synth_weights.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BUFFER_BYTES (4u << 20)
#define PROGRESS_NS (OD_NS_PER_S / 5)
#define MAX_SHARDS 10000
#define MAX_FAMILIES 16
#define SEED_MAX 0x1p53 /* whole numbers that every reader of JSON keeps */

enum preset { PRESET_NONE, PRESET_TINY, PRESET_SMALL, PRESET_MEDIUM, PRESET_THIN, PRESET_8X7B, PRESET_8X22B };
static const char *const preset_names[] = { "none", "tiny",	    "small",	     "medium",
					    "thin", "mixtral-8x7b", "mixtral-8x22b", NULL };
static const struct synth_model presets[] = {
	[PRESET_NONE] = { .ctx = 4096 },
	/* 1.8 MB, 220 MB and 3.0 GB in BF16: for tests, for a laptop's cluster, more than a last-level cache. */
	[PRESET_TINY] = { .layers = 4,
			  .hidden = 64,
			  .intermediate = 128,
			  .experts = 8,
			  .top_k = 2,
			  .heads = 4,
			  .kv_heads = 2,
			  .vocab = 512,
			  .ctx = 512 },
	[PRESET_SMALL] = { .layers = 8,
			   .hidden = 512,
			   .intermediate = 1024,
			   .experts = 8,
			   .top_k = 2,
			   .heads = 8,
			   .kv_heads = 2,
			   .vocab = 4096,
			   .ctx = 4096 },
	[PRESET_MEDIUM] = { .layers = 16,
			    .hidden = 1024,
			    .intermediate = 3584,
			    .experts = 8,
			    .top_k = 2,
			    .heads = 16,
			    .kv_heads = 4,
			    .vocab = 32000,
			    .ctx = 8192 },
	/* Mixtral 8x7B's layers, experts and rows on the wire, but so little to compute that a few cores can play ten
	 * machines (od_moe_testbed.py). */
	[PRESET_THIN] = { .layers = 32,
			  .hidden = 4096,
			  .intermediate = 16,
			  .experts = 8,
			  .top_k = 2,
			  .heads = 8,
			  .kv_heads = 8,
			  .head_dim = 16,
			  .vocab = 512,
			  .ctx = 1024 },
	[PRESET_8X7B] = { .layers = 32,
			  .hidden = 4096,
			  .intermediate = 14336,
			  .experts = 8,
			  .top_k = 2,
			  .heads = 32,
			  .kv_heads = 8,
			  .vocab = 32000,
			  .ctx = 32768 },
	[PRESET_8X22B] = { .layers = 56,
			   .hidden = 6144,
			   .intermediate = 16384,
			   .experts = 8,
			   .top_k = 2,
			   .heads = 48,
			   .kv_heads = 8,
			   .vocab = 32768,
			   .ctx = 65536 },
};

static const char *const dtype_names[] = { "bf16", "f16", "f32", "f8_e4m3", "f8_e5m2", "mxfp4", NULL };
static const enum od_dtype dtypes[] = { OD_BF16, OD_F16, OD_F32, OD_F8_E4M3, OD_F8_E5M2, OD_F4_E2M1 };

struct synth_options {
	const char *dir;
	struct synth_model model;
	struct synth_family *made; /* the model's family */
	uint64_t shards;
	int preset, family, dtype; /* dtype -1: as published */
	bool force, json, help;
};

/* Where the weights go: one file after the other, one buffer. */
struct synth_writer {
	const struct synth_model *m;
	struct synth_row *row;
	char *buf;
	size_t used;
	char path[PATH_MAX];
	int fd;
	uint64_t offset; /* in the file, of buf's first byte */
	uint64_t done, total, start_ns, shown_ns;
	bool progress;
};

static void show_progress(struct synth_writer *w, bool last)
{
	uint64_t now = od_now_ns();
	char done[32], total[32];

	if (!w->progress || (!last && now - w->shown_ns < PROGRESS_NS))
		return;
	w->shown_ns = now;
	fprintf(stderr, "\r%s of %s, %.0f MB/s \x1b[K%s", od_format_bytes(w->done, done, sizeof(done)),
		od_format_bytes(w->total, total, sizeof(total)),
		(double)w->done / ((double)(now - w->start_ns + 1) * 1e-3), last ? "\n" : "");
}

static int flush(struct synth_writer *w, struct od_err *err)
{
	int rc = od_file_pwrite(w->fd, w->buf, w->used, w->offset, w->path, err);

	w->offset += w->used;
	w->used = 0;
	show_progress(w, false);
	return rc;
}

static int write_tensor(struct synth_writer *w, const struct synth_tensor *t, struct od_err *err)
{
	if (w->used % SYNTH_MX_BLOCK != 0) { /* so that no value or block straddles the buffer's end */
		int rc = flush(w, err);

		if (rc != OD_OK)
			return rc;
	}
	synth_row_tensor(w->row, w->m->seed, t->dtype, t);
	for (uint64_t r = 0; r < t->rows; r++) {
		for (uint64_t c = 0, n; c < t->cols; c += n) {
			n = (BUFFER_BYTES - w->used) / synth_values_bytes(t->dtype, SYNTH_MX_BLOCK) * SYNTH_MX_BLOCK;
			if (n > t->cols - c)
				n = t->cols - c;
			synth_row_fill(w->row, r, c, c + n, w->buf + w->used);
			w->used += synth_values_bytes(t->dtype, n);
			w->done += synth_values_bytes(t->dtype, n);
			if (BUFFER_BYTES - w->used < SYNTH_MX_BLOCK * sizeof(float)) {
				int rc = flush(w, err);

				if (rc != OD_OK)
					return rc;
			}
		}
	}
	return OD_OK;
}

/* Not synced: what a crash loses, the seed makes again, and 3 GB of fsync would take longer than making them. */
static int write_weights(struct synth_writer *w, const char *dir, uint64_t shard, uint64_t n_shards,
			 const uint64_t *first, struct od_err *err)
{
	char name[SYNTH_FILE_BYTES], *header = NULL;
	struct synth_tensor t;
	size_t len = 0;
	int rc;

	synth_shard_name(name, shard, n_shards);
	rc = od_path(w->path, sizeof(w->path), dir, name, err);
	if (rc != OD_OK)
		return rc;
	w->fd = open(w->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (w->fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create %s", w->path);
	rc = synth_header(w->m, first[shard], first[shard + 1], &header, &len, err);
	if (rc == OD_OK)
		rc = od_file_pwrite(w->fd, header, len, 0, w->path, err);
	free(header);
	w->offset = len;
	w->used = 0;
	for (uint64_t i = first[shard]; rc == OD_OK && i < first[shard + 1]; i++) {
		synth_tensor_at(w->m, i, &t);
		rc = write_tensor(w, &t, err);
	}
	if (rc == OD_OK)
		rc = flush(w, err);
	if (close(w->fd) != 0 && rc == OD_OK)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot close %s", w->path);
	w->fd = -1;
	return rc;
}

static int write_all_weights(const struct synth_options *o, struct od_err *err)
{
	const struct synth_model *m = &o->model;
	uint64_t widest = 0, now = od_now_ns();
	uint64_t *first = od_alloc_array(o->shards + 1, sizeof(*first));
	struct synth_writer w = { .m = m,
				  .fd = -1,
				  .total = synth_total_bytes(m),
				  .start_ns = now,
				  .shown_ns = now,
				  .progress = isatty(STDERR_FILENO) == 1 };
	struct synth_tensor t;
	int rc;

	for (uint64_t i = 0; i < synth_n_tensors(m); i++) {
		synth_tensor_at(m, i, &t);
		widest = t.cols > widest ? t.cols : widest;
	}
	w.buf = od_alloc(BUFFER_BYTES);
	rc = w.buf == NULL || first == NULL ? od_fail(err, OD_ERR_NOMEM, "write buffer") :
					      synth_row_new(&w.row, widest, err);
	if (rc == OD_OK)
		synth_cut(m, o->shards, first);
	for (uint64_t s = 0; rc == OD_OK && s < o->shards; s++)
		rc = write_weights(&w, o->dir, s, o->shards, first, err);
	if (rc == OD_OK && o->shards > 1)
		rc = synth_write_index(m, o->dir, o->shards, first, err);
	show_progress(&w, true);
	synth_row_free(w.row);
	od_free(w.buf);
	od_free(first);
	return rc;
}

static bool is_weights(const char *name)
{
	unsigned shard, of;
	int end = 0;

	return strcmp(name, "model.safetensors") == 0 ||
	       (sscanf(name, "model-%5u-of-%5u.safetensors%n", &shard, &of, &end) == 2 && end > 0 && name[end] == '\0');
}

static bool is_ours(const char *name)
{
	static const char *const names[] = { "config.json", "generation_config.json", "tokenizer.json",
					     "tokenizer_config.json", "model.safetensors.index.json" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return is_weights(name);
}

/* An empty folder, or a checkpoint made here: --force must not cost anyone a pack, or a model that was downloaded. */
static int check_replaceable(const char *dir, struct od_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	size_t n = 0, n_made = 0;
	int rc = OD_OK;

	if (d == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read folder %s", dir);
	while (rc == OD_OK && (e = readdir(d)) != NULL) {
		bool made = is_weights(e->d_name) && synth_is_weights(dirfd(d), e->d_name);

		if (is_weights(e->d_name) && !made)
			rc = od_fail(err, OD_ERR_ARG,
				     "--force: %s/%s was not made by od-bench synth; choose another folder", dir,
				     e->d_name);
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
		n_made += made;
	}
	closedir(d);
	if (rc == OD_OK && n > 0 && n_made == 0)
		rc = od_fail(err, OD_ERR_ARG,
			     "--force: %s holds files, but no weights made by od-bench synth; choose another folder",
			     dir);
	return rc;
}

/* The old checkpoint's files, so that no shard of it is left between the new ones; other files stay. */
static int remove_checkpoint(const char *dir, struct od_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int rc = OD_OK;

	if (d == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read folder %s", dir);
	while (rc == OD_OK && (e = readdir(d)) != NULL) {
		if (is_ours(e->d_name) && unlinkat(dirfd(d), e->d_name, 0) != 0)
			rc = od_fail_errno(err, OD_ERR_IO, "cannot remove %s/%s", dir, e->d_name);
	}
	closedir(d);
	return rc;
}

static int prepare_dir(const struct synth_options *o, struct od_err *err)
{
	uint64_t need = synth_total_bytes(&o->model), have;
	char want[32], found[32];
	struct statvfs fs;
	struct stat st;
	int rc;

	if (lstat(o->dir, &st) == 0) {
		if (!o->force)
			return od_fail(err, OD_ERR_ARG,
				       "%s already exists; choose another folder, or use --force to "
				       "replace its checkpoint",
				       o->dir);
		rc = od_is_dir(o->dir) ? check_replaceable(o->dir, err) :
					 od_fail(err, OD_ERR_ARG, "%s is not a folder", o->dir);
		if (rc == OD_OK)
			rc = remove_checkpoint(o->dir, err);
	} else {
		rc = od_mkdir_p(o->dir, err);
	}
	if (rc != OD_OK)
		return rc;
	if (statvfs(o->dir, &fs) != 0)
		return OD_OK; /* then writing will tell */
	have = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (need > have) {
		rmdir(o->dir); /* goes only if it is empty */
		return od_fail(err, OD_ERR_IO, "%s: the checkpoint takes %s, the file system has %s left", o->dir,
			       od_format_bytes(need, want, sizeof(want)), od_format_bytes(have, found, sizeof(found)));
	}
	return OD_OK;
}

static const char *dtype_name(enum od_dtype dtype)
{
	size_t i = 0;

	while (dtypes[i] != dtype)
		i++;
	return dtype_names[i];
}

static int report(const struct synth_options *o, double seconds, struct od_err *err)
{
	const struct synth_model *m = &o->model;
	uint64_t bytes = synth_total_bytes(m), parameters = 0;
	struct synth_tensor t;
	struct od_report *r;
	char title[96];
	int rc;

	snprintf(title, sizeof(title), "Synthetic %s checkpoint",
		 m->family != NULL ? synth_family_model(m->family) : "Mixtral");
	rc = od_report_new(&r, title, err);

	if (rc != OD_OK)
		return rc;
	for (uint64_t i = 0; i < synth_n_tensors(m); i++) {
		synth_tensor_at(m, i, &t);
		parameters += t.dtype != OD_F8_E8M0 ? t.rows * t.cols : 0; /* scales are none */
	}
	od_report_fact(r, "checkpoint", "folder", OD_TEXT(o->dir), 0, NULL);
	od_report_fact(r, "weight_bytes", "weights", OD_BYTES(bytes), 0, NULL);
	od_report_fact(r, "expert_bytes", "an expert", OD_BYTES(synth_expert_bytes(m)), 0, NULL);
	od_report_fact(r, "n_experts", "experts", OD_INT(m->moe_layers * m->experts), 0, NULL);
	od_report_fact(r, "n_parameters", "parameters", OD_INT(parameters), 0, NULL);
	od_report_fact(r, "dtype", "format", OD_TEXT(dtype_name(m->dtype)), 0, NULL);
	od_report_fact(r, "files", "weight files", OD_INT(o->shards), 0, NULL);
	od_report_fact(r, "seed", "seed", OD_INT(m->seed), 0, NULL);
	od_report_fact(r, "seconds", "time", OD_REAL(seconds), 1, "s");
	od_report_fact(r, "write_mb_per_s", "written at", OD_REAL((double)bytes / seconds * 1e-6), 0, "MB/s");
	od_report_fact(r, "peak_rss_bytes", "peak memory", OD_BYTES(od_peak_rss_bytes()), 0, NULL);
	rc = od_report_print(r, stdout, o->json, err);
	od_report_free(r);
	if (rc == OD_OK && !o->json)
		printf("\nNext: od-pack %s PACK\n", o->dir);
	return rc;
}

static int run(const struct synth_options *o, struct od_err *err)
{
	uint64_t start = od_now_ns();
	int rc = prepare_dir(o, err);

	if (rc != OD_OK)
		return rc;
	rc = synth_write_tokenizer(&o->model, o->dir, err);
	if (rc == OD_OK)
		rc = write_all_weights(o, err);
	if (rc == OD_OK)
		rc = synth_write_config(&o->model, o->dir, err);
	if (rc != OD_OK) {
		struct od_err ignored;

		/* Give the disk back what half a checkpoint takes. */
		if (remove_checkpoint(o->dir, &ignored) == OD_OK)
			rmdir(o->dir);
		return rc;
	}
	return report(o, od_seconds(od_now_ns() - start), err);
}

/* A family has its own shape: only how many layers, experts, tokens and positions is free. */
static int complete_family(struct synth_options *o, struct od_err *err)
{
	struct synth_model *m = &o->model;
	const struct synth_cut_to to = { m->layers, m->experts, m->vocab, m->ctx,
					 o->dtype >= 0 ? dtypes[o->dtype] : 0 };
	const struct {
		const char *option;
		bool given;
	} not_ours[] = {
		{ "preset", o->preset != PRESET_NONE },
		{ "hidden", m->hidden != 0 },
		{ "intermediate", m->intermediate != 0 },
		{ "top-k", m->top_k != 0 },
		{ "heads", m->heads != 0 },
		{ "kv-heads", m->kv_heads != 0 },
		{ "head-dim", m->head_dim != 0 },
		{ "tied", m->tied },
		{ "sliding-window", m->sliding_window != 0 },
	};
	const struct od_config *c;
	int rc;

	for (size_t i = 0; i < sizeof(not_ours) / sizeof(not_ours[0]); i++)
		if (not_ours[i].given)
			return od_fail(err, OD_ERR_ARG,
				       "--%s cannot be combined with --family, which has a shape of its own",
				       not_ours[i].option);
	rc = synth_family_new(&o->made, (size_t)o->family - 1, &to, err);
	if (rc != OD_OK)
		return rc;
	c = synth_family_config(o->made);
	m->family = o->made;
	m->layers = c->n_layers;
	m->moe_layers = c->n_moe;
	m->hidden = c->hidden;
	m->intermediate = c->intermediate;
	m->experts = c->n_experts;
	m->top_k = c->top_k;
	m->vocab = c->vocab;
	m->ctx = c->ctx_max;
	m->tied = c->tied_head;
	m->dtype = synth_family_dtype(o->made);
	return synth_check(m, err);
}

/* Completes the options from the preset; 0 means not given. */
static int complete(struct synth_options *o, struct od_err *err)
{
	const struct synth_model *p = &presets[o->preset];
	struct synth_model *m = &o->model;
	const struct {
		const char *option;
		uint64_t *value, preset;
	} setting[] = {
		{ "layers", &m->layers, p->layers },
		{ "hidden", &m->hidden, p->hidden },
		{ "intermediate", &m->intermediate, p->intermediate },
		{ "experts", &m->experts, p->experts },
		{ "top-k", &m->top_k, p->top_k },
		{ "heads", &m->heads, p->heads },
		{ "kv-heads", &m->kv_heads, p->kv_heads },
		{ "vocab", &m->vocab, p->vocab },
		{ "ctx", &m->ctx, p->ctx },
	};

	for (size_t i = 0; i < sizeof(setting) / sizeof(setting[0]); i++) {
		if (*setting[i].value == 0)
			*setting[i].value = setting[i].preset;
		if (*setting[i].value == 0)
			return od_fail(err, OD_ERR_ARG, "--%s is missing; give it, or start from a --preset",
				       setting[i].option);
	}
	if (m->head_dim == 0)
		m->head_dim = p->head_dim;
	if (m->head_dim == 0) {
		if (m->hidden % m->heads != 0)
			return od_fail(err, OD_ERR_ARG,
				       "--hidden %llu is not a multiple of --heads %llu: give "
				       "--head-dim",
				       (unsigned long long)m->hidden, (unsigned long long)m->heads);
		m->head_dim = m->hidden / m->heads;
	}
	m->moe_layers = m->layers;
	m->dtype = dtypes[o->dtype >= 0 ? o->dtype : 0];
	if (m->dtype == OD_F4_E2M1)
		return od_fail(err, OD_ERR_ARG, "--dtype mxfp4: only of a --family that is published so");
	return synth_check(m, err);
}

static int check_shards(const struct synth_options *o, struct od_err *err)
{
	uint64_t most = synth_n_tensors(&o->model);

	if (o->shards > most)
		return od_fail(err, OD_ERR_ARG, "--shards: expected at most %llu, one for each tensor, found %llu",
			       (unsigned long long)most, (unsigned long long)o->shards);
	return OD_OK;
}

/* --family's choices, behind "none". */
static void list_families(const char **names, char *help, size_t size)
{
	size_t used = (size_t)snprintf(help, size, "a published model's shape, of a family:");

	for (size_t i = 0; i < MAX_FAMILIES && synth_family_names()[i] != NULL; i++) {
		names[i + 1] = synth_family_names()[i];
		used += (size_t)snprintf(help + used, size - used, " %s", names[i + 1]);
	}
}

static int parse(struct synth_options *o, int argc, char **argv, struct od_err *err)
{
	struct synth_model *m = &o->model;
	size_t n = 0;
	const char *families[MAX_FAMILIES + 2] = { "none" };
	char families_help[512];
	const struct od_arg table[] = {
		{ NULL, OD_ARG_TITLE, NULL, NULL, "Shape", 0, 0, NULL },
		{ "preset", OD_ARG_CHOICE, &o->preset, "NAME",
		  "base shape: tiny, small, medium, thin, mixtral-8x7b or mixtral-8x22b; the "
		  "options below override it",
		  0, 0, preset_names },
		{ "family", OD_ARG_CHOICE, &o->family, "NAME", families_help, 0, 0, families },
		{ "layers", OD_ARG_UINT, &m->layers, "N",
		  "transformer layers, each with experts; with --family the first ones", 1, 0, NULL },
		{ "hidden", OD_ARG_UINT, &m->hidden, "N", "hidden size", 1, 0, NULL },
		{ "intermediate", OD_ARG_UINT, &m->intermediate, "N", "intermediate size of an expert", 1, 0, NULL },
		{ "experts", OD_ARG_UINT, &m->experts, "N", "experts in a layer", 1, 0, NULL },
		{ "top-k", OD_ARG_UINT, &m->top_k, "N", "experts that a token uses in a layer", 1, 0, NULL },
		{ "heads", OD_ARG_UINT, &m->heads, "N", "query heads", 1, 0, NULL },
		{ "kv-heads", OD_ARG_UINT, &m->kv_heads, "N", "key and value heads", 1, 0, NULL },
		{ "head-dim", OD_ARG_UINT, &m->head_dim, "N", "default: hidden / heads", 1, 0, NULL },
		{ "vocab", OD_ARG_UINT, &m->vocab, "N", "tokens, at least 260", 1, 0, NULL },
		{ "ctx", OD_ARG_UINT, &m->ctx, "N", "positions; default 4096 or the preset's", 1, 0, NULL },
		{ "sliding-window", OD_ARG_UINT, &m->sliding_window, "N", "positions a token sees; default: all", 1, 0,
		  NULL },
		{ "tied", OD_ARG_FLAG, &m->tied, NULL, "the head is the embedding", 0, 0, NULL },
		{ NULL, OD_ARG_TITLE, NULL, NULL, "Files", 0, 0, NULL },
		{ "dtype", OD_ARG_CHOICE, &o->dtype, "TYPE",
		  "bf16 (default), f16 or f32; f8_e4m3, f8_e5m2 or mxfp4 (gpt_oss; its "
		  "default): experts only, the rest is bf16",
		  0, 0, dtype_names },
		{ "seed", OD_ARG_UINT, &m->seed, "N", "same seed, same bytes on every machine; default 1", 0, SEED_MAX,
		  NULL },
		{ "shards", OD_ARG_UINT, &o->shards, "N", "weight files; default 1", 1, MAX_SHARDS - 1, NULL },
		{ "force", OD_ARG_FLAG, &o->force, NULL,
		  "replace the checkpoint in DIR, which this command must have made", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "the summary as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc;

	list_families(families, families_help, sizeof(families_help));
	rc = od_args_parse(table, n_table, argc, argv, &o->dir, 1, &n, err);

	if (rc != OD_OK)
		return rc;
	if (o->help) {
		od_bench_usage("synth DIR [OPTIONS]",
			       "Writes a checkpoint, of Mixtral or of a --family, with random weights that have the "
			       "statistics of trained ones:\nsimilar entropy, stable activations, routers with "
			       "clear choices.\n"
			       "Example: od-bench synth /tmp/model --preset small --layers 4",
			       table, n_table);
		return OD_OK;
	}
	if (n != 1)
		return od_fail(err, OD_ERR_ARG, "expected the folder to write; see --help");
	rc = o->family != 0 ? complete_family(o, err) : complete(o, err);
	return rc == OD_OK ? check_shards(o, err) : rc;
}

int od_bench_synth(int argc, char **argv, struct od_err *err)
{
	struct synth_options o = { .model = { .seed = 1 }, .shards = 1, .dtype = -1 };
	int rc = parse(&o, argc, argv, err);

	if (rc == OD_OK && !o.help)
		rc = run(&o, err);
	synth_family_free(o.made);
	return rc;
}
