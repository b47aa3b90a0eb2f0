#include "common/pack/gguf/gguf_pack.h"

#include "common/base/file.h"
#include "common/pack/gguf/gguf_config.h"
#include "common/pack/gguf/gguf_fingerprint.h"
#include "common/pack/gguf/gguf_folder.h"
#include "common/pack/gguf/gguf_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Dense tensors ---- */

static int place_dense(struct od_pack *p, const struct od_gguf *g, struct od_dense_tensor *t, struct od_err *err)
{
	struct od_gguf_place at;
	int rc = od_gguf_dense(g, &p->config, t->role, t->layer, &at, err);

	if (rc != OD_OK)
		return rc;
	t->type = at.type;
	t->form = at.form;
	t->run = at.run;
	t->offset = p->dense.file[at.tensor->file].begin + at.tensor->offset + at.offset;
	t->bytes = at.bytes;
	return OD_OK;
}

/* ---- Experts ---- */

static int place_expert(struct od_pack *p, const struct od_gguf_place *at, uint32_t m, uint32_t expert,
			struct od_err *err)
{
	struct od_mat_type type[OD_N_EXPERT_TENSORS];
	uint64_t begin[OD_N_EXPERT_TENSORS], n_out, n_in;

	for (int mat = 0; mat < od_expert_tensors(&p->config); mat++) {
		od_expert_mat_shape(&p->config, (enum od_expert_mat)mat, &n_out, &n_in);
		type[mat] = at[mat].type;
		begin[mat] = p->experts.file[at[mat].tensor->file].begin + at[mat].tensor->offset +
			     (at[mat].first_row + expert * at[mat].step) * od_mat_row_bytes(&at[mat].type, n_in);
	}
	return od_expert_whole(&p->expert[(size_t)m * p->config.n_experts + expert], &p->config, type, begin, err);
}

/* Where each expert has its own, blk.3.ffn_up.*.weight stands for all. */
static void name_tensor(char name[OD_TENSOR_NAME_BYTES], const struct od_gguf_place *at)
{
	const int n = snprintf(name, OD_TENSOR_NAME_BYTES, "%s", at->tensor->name);

	if (at->apart)
		name[n - (int)strlen("0.weight")] = '*';
}

static int place_layer(struct od_pack *p, const struct od_gguf *g, uint32_t m, struct od_err *err)
{
	struct od_gguf_place at[OD_N_EXPERT_TENSORS];
	int rc = OD_OK;

	for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(&p->config); mat++) {
		rc = od_gguf_experts(g, &p->config, m, (enum od_expert_mat)mat, &at[mat], err);
		if (rc == OD_OK)
			name_tensor(p->tensor[m].name[mat], &at[mat]);
	}
	for (uint32_t e = 0; rc == OD_OK && e < p->config.n_experts; e++) {
		for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(&p->config); mat++)
			if (at[mat].apart)
				rc = od_gguf_expert_apart(g, &p->config, m, (enum od_expert_mat)mat, e, &at[mat], err);
		if (rc == OD_OK)
			rc = place_expert(p, at, m, e, err);
	}
	return rc;
}

/* ---- The pack ---- */

/* Another file can take the place of the one whose header was read. */
static int add_file(struct od_pack_data *d, const struct od_gguf_file *f, struct od_err *err)
{
	struct stat first, now;
	int rc = od_data_add(d, f->path, err);

	if (rc != OD_OK)
		return rc;
	if (fstat(f->fd, &first) != 0 || fstat(d->file[d->n - 1].fd, &now) != 0)
		return od_fail_errno(err, OD_ERR_IO, "%s", f->path);
	if (first.st_dev == now.st_dev && first.st_ino == now.st_ino)
		return OD_OK;
	return od_fail(err, OD_ERR_MISMATCH, "%s: another file took its place while it was opened; start again",
		       f->path);
}

static int open_data(struct od_pack *p, const struct od_gguf *g, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < od_gguf_n_files(g); i++) {
		rc = add_file(&p->dense, od_gguf_file(g, i), err);
		if (rc == OD_OK)
			rc = add_file(&p->experts, od_gguf_file(g, i), err);
	}
	return rc;
}

static int fill_tables(struct od_pack *p, const struct od_gguf *g, const char *fingerprint, struct od_err *err)
{
	int rc = od_gguf_check(g, &p->config, err);

	if (rc == OD_OK)
		rc = od_manifest_init(&p->manifest, &p->config, err);
	if (rc == OD_OK)
		rc = open_data(p, g, err);
	if (rc != OD_OK)
		return rc;
	memcpy(p->manifest.fingerprint, fingerprint, sizeof(p->manifest.fingerprint));
	p->manifest.codec = OD_CODEC_RAW;
	p->expert = calloc(p->manifest.n_experts, sizeof(*p->expert));
	p->tensor = calloc(p->config.n_moe, sizeof(*p->tensor));
	if (p->expert == NULL || p->tensor == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for expert tables", p->dir);
	for (size_t i = 0; rc == OD_OK && i < p->manifest.n_dense; i++)
		rc = place_dense(p, g, &p->manifest.dense[i], err);
	for (uint32_t m = 0; rc == OD_OK && m < p->config.n_moe; m++)
		rc = place_layer(p, g, m, err);
	return rc == OD_OK ? od_pack_measure(p, err) : rc;
}

int od_gguf_pack_fill(struct od_pack *p, struct od_err *err)
{
	struct od_gguf *g;
	char fingerprint[OD_FINGERPRINT_CHARS + 1], sums[PATH_MAX], where[PATH_MAX];
	json_t *config = NULL;
	int rc = od_gguf_open(&g, p->dir, err);

	if (rc == OD_OK)
		rc = od_gguf_config(g, &config, err);
	snprintf(where, sizeof(where), "%s (its metadata as a config.json)", p->dir); /* fields are named as there */
	if (rc == OD_OK)
		rc = od_config_parse(&p->config, config, where, err);
	if (rc == OD_OK)
		rc = od_gguf_fingerprint(g, fingerprint, err);
	if (rc == OD_OK)
		rc = od_gguf_folder_make(g, fingerprint, config, &p->folder, &p->temporary, err);
	if (rc == OD_OK)
		rc = fill_tables(p, g, fingerprint, err);
	if (rc == OD_OK)
		rc = od_path(sums, sizeof(sums), p->folder, "sums.bin", err);
	if (rc == OD_OK)
		rc = od_gguf_sums_open(&p->sums, p->temporary ? NULL : sums, g,
				       p->manifest.n_dense + p->manifest.n_experts * od_expert_shards(&p->config), err);
	if (rc == OD_OK)
		rc = od_pack_read_extras(p, err);
	json_decref(config);
	od_gguf_close(g);
	return rc;
}
