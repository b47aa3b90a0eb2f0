#include "common/pack/write/fingerprint.h"

#include "common/base/strbuf.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
	char *name, *line;
};

struct od_fingerprint {
	struct entry *entry;
	size_t n, room;
};

int od_fingerprint_new(struct od_fingerprint **out, struct od_err *err)
{
	*out = calloc(1, sizeof(**out));
	return *out != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for the fingerprint");
}

void od_fingerprint_free(struct od_fingerprint *f)
{
	if (f == NULL)
		return;
	for (size_t i = 0; i < f->n; i++) {
		free(f->entry[i].name);
		free(f->entry[i].line);
	}
	free(f->entry);
	free(f);
}

int od_fingerprint_add(struct od_fingerprint *f, const char *name, const struct od_mat_type *type, uint64_t n_out,
		       uint64_t n_in, const uint8_t sha256[OD_SHA256_BYTES], struct od_err *err)
{
	char text[OD_MAT_TYPE_CHARS], hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1], line[OD_NAME_BYTES + 256], shape[64];
	struct entry *e;

	if (f->n == f->room) {
		size_t room = f->room == 0 ? 256 : f->room * 2;

		e = reallocarray(f->entry, room, sizeof(*e));
		if (e == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for the fingerprint");
		f->entry = e;
		f->room = room;
	}
	od_hex(sha256, OD_SHA256_BYTES, hex);
	if (n_in > 0)
		snprintf(shape, sizeof(shape), "%" PRIu64 "x%" PRIu64, n_out, n_in);
	else
		snprintf(shape, sizeof(shape), "%" PRIu64, n_out);
	snprintf(line, sizeof(line), "tensor %s %s %s %s\n", name, od_mat_type_text(type, text), shape, hex);
	e = &f->entry[f->n];
	e->name = strdup(name);
	e->line = strdup(line);
	f->n++;
	return e->name != NULL && e->line != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for the fingerprint");
}

int od_fingerprint_add_expert(struct od_fingerprint *f, const struct od_config *cfg, uint32_t m, uint32_t expert,
			      const struct od_expert_entry *e, struct od_err *err)
{
	int rc = OD_OK;

	for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(cfg); mat++) {
		char name[OD_NAME_BYTES];
		uint64_t n_out, n_in;

		od_expert_source_name(cfg, m, expert, (enum od_expert_mat)mat, name);
		od_expert_mat_shape(cfg, (enum od_expert_mat)mat, &n_out, &n_in);
		rc = od_fingerprint_add(f, name, &e->type[mat], n_out, od_expert_is_bias(mat) ? 0 : n_in,
					e->sha256[mat], err);
	}
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static void hash_text(crypto_hash_sha256_state *state, const char *text)
{
	crypto_hash_sha256_update(state, (const unsigned char *)text, strlen(text));
}

int od_fingerprint_finish(struct od_fingerprint *f, const struct od_config *cfg, const char *tokenizer,
			  char hex[OD_FINGERPRINT_CHARS + 1], struct od_err *err)
{
	char sum_hex[OD_HEX_CHARS(OD_SHA256_BYTES) + 1] = "none";
	struct od_strbuf canonical = { 0 };
	crypto_hash_sha256_state state;
	uint8_t sum[OD_SHA256_BYTES];
	int rc = od_config_canonical(cfg, &canonical, err);

	hex[0] = '\0';
	if (rc == OD_OK && tokenizer != NULL)
		rc = od_sha256_file(tokenizer, sum, err);
	if (rc != OD_OK) {
		od_strbuf_fini(&canonical);
		return rc;
	}
	if (tokenizer != NULL)
		od_hex(sum, sizeof(sum), sum_hex);
	qsort(f->entry, f->n, sizeof(*f->entry), by_name);
	crypto_hash_sha256_init(&state);
	for (size_t i = 0; i < f->n; i++)
		hash_text(&state, f->entry[i].line);
	hash_text(&state, "config ");
	hash_text(&state, canonical.text);
	hash_text(&state, "\ntokenizer ");
	hash_text(&state, sum_hex);
	hash_text(&state, "\n");
	crypto_hash_sha256_final(&state, sum);
	od_hex(sum, sizeof(sum), hex);
	od_strbuf_fini(&canonical);
	return OD_OK;
}
