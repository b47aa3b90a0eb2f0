#include "common/pack/pack_info.h"

#include "common/base/args.h"
#include "common/model/mixer.h"
#include "common/pack/gguf/gguf_fingerprint.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/shadow/shadow_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Sums over all experts, or over their matrices of one type. */
struct totals {
	uint64_t weights, raw_bytes, stored_bytes; /* weights: of matrices; bytes: of biases too; stored: chunks */
	uint64_t chunks[OD_N_CODECS]; /* E-chunks of each codec */
};

struct all_totals {
	struct totals all, of[OD_DTYPE_LAST + 1];
	struct od_mat_type type[OD_DTYPE_LAST + 1]; /* the last matrix of each type, with its scales */
	bool several[OD_DTYPE_LAST + 1]; /* not all matrices of the type have that one */
	size_t here; /* complete experts: all, unless it is a spool */
};

/* A GGUF file's tensors of one type. */
struct gguf_type {
	const char *name;
	size_t n;
	uint64_t bytes;
};

struct shadow {
	enum od_precision precision;
	uint64_t bytes; /* length of the file */
	double bits; /* per weight that is quantised */
};

static void add_shard(struct totals *t, const struct od_shard *s, const struct od_mat_type *type, uint64_t n_in)
{
	t->weights += od_expert_is_bias(s->mat) ? 0 : s->n_rows * n_in;
	/* A row of scales may be in two shards; it was published once. */
	t->raw_bytes += od_mat_bytes(type, n_in, 0, s->row_begin + s->n_rows);
	t->raw_bytes -= s->row_begin > 0 ? od_mat_bytes(type, n_in, 0, s->row_begin) : 0;
	t->stored_bytes += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
	t->chunks[s->e.codec] += !od_expert_is_bias(s->mat);
}

static struct all_totals add_up(const struct od_pack *p)
{
	struct all_totals t = { 0 };

	for (size_t i = 0; i < p->manifest.n_experts; i++) {
		const struct od_expert_entry *e = &p->expert[i];

		t.here +=
			od_pack_has_expert(p, (uint32_t)(i / p->config.n_experts), (uint32_t)(i % p->config.n_experts));
		for (uint32_t s = 0; s < e->x.n_shards; s++) {
			const struct od_shard *shard = &e->x.shard[s];
			const struct od_mat_type *type = &e->type[shard->mat];
			uint64_t n_out, n_in;

			od_expert_mat_shape(&p->config, (enum od_expert_mat)shard->mat, &n_out, &n_in);
			add_shard(&t.all, shard, type, n_in);
			if (od_expert_is_bias(shard->mat))
				continue;
			t.several[type->dtype] |=
				t.of[type->dtype].weights > 0 && !od_mat_type_same(type, &t.type[type->dtype]);
			add_shard(&t.of[type->dtype], shard, type, n_in);
			t.type[type->dtype] = *type;
		}
	}
	return t;
}

/* "U4B8*BF16[1,128]"; "U4B8*several" when there are others too. */
static const char *type_text(const struct all_totals *t, int dtype, char buf[OD_MAT_TYPE_CHARS])
{
	if (!t->several[dtype])
		return od_mat_type_text(&t->type[dtype], buf);
	snprintf(buf, OD_MAT_TYPE_CHARS, "%s*several", od_dtype_name((enum od_dtype)dtype));
	return buf;
}

static double bits_per_weight(const struct totals *t)
{
	return 8.0 * (double)t->stored_bytes / (double)t->weights;
}

/* shadow [OD_N_PRECISIONS]; *n: how many there are. */
static int list_shadows(const struct od_pack *p, struct shadow *shadow, size_t *n, struct od_err *err)
{
	unsigned set;
	int rc = od_shadow_present(p, &set, err);

	*n = 0;
	for (int i = 1; rc == OD_OK && i <= OD_N_PRECISIONS; i++) {
		struct od_shadow_file f;

		if ((set & OD_SHADOW_BIT(i)) == 0)
			continue;
		rc = od_shadow_file_open(&f, p, (enum od_precision)i, err);
		if (rc == OD_OK)
			shadow[(*n)++] = (struct shadow){ (enum od_precision)i, f.table.file_bytes,
							  8.0 * (double)f.table.file_bytes /
								  (double)od_shadow_weights(&f.table) };
		od_shadow_file_close(&f);
	}
	return rc;
}

static void dtype_list(const struct all_totals *t, char *buf, size_t size)
{
	char text[OD_MAT_TYPE_CHARS];
	size_t len = 0;

	buf[0] = '\0';
	for (int d = OD_BF16; d <= OD_DTYPE_LAST; d++)
		if (t->of[d].weights > 0 && len < size)
			len += (size_t)snprintf(buf + len, size - len, "%s%s", len > 0 ? ", " : "",
						type_text(t, d, text));
}

/* "288 planes, 3 raw" */
static const char *chunk_list(const struct totals *t, char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = '\0';
	for (int c = OD_N_CODECS - 1; c >= 0; c--)
		if (t->chunks[c] > 0 && len < size)
			len += (size_t)snprintf(buf + len, size - len, "%s%" PRIu64 " %s", len > 0 ? ", " : "",
						t->chunks[c], od_codec_names[c]);
	return buf;
}

static json_t *dtypes_json(const struct all_totals *t)
{
	json_t *list = json_array();
	char text[OD_MAT_TYPE_CHARS];

	for (int d = OD_BF16; d <= OD_DTYPE_LAST; d++) {
		const struct totals *of = &t->of[d];
		json_t *chunks;

		if (of->weights == 0)
			continue;
		chunks = json_object();
		for (int c = 0; c < OD_N_CODECS; c++)
			json_object_set_new(chunks, od_codec_names[c], json_integer((json_int_t)of->chunks[c]));
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:o}", "dtype", od_dtype_name((enum od_dtype)d),
					"type", type_text(t, d, text), "weights", (json_int_t)of->weights, "raw_bytes",
					(json_int_t)of->raw_bytes, "stored_bytes", (json_int_t)of->stored_bytes,
					"bits_per_weight", bits_per_weight(of), "chunks", chunks));
	}
	return list;
}

static json_t *shadows_json(const struct shadow *shadow, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		const int at = (int)shadow[i].precision - 1;

		json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:f}", "precision", od_precision_names[at],
						      "file", od_shadow_file_names[at], "bytes",
						      (json_int_t)shadow[i].bytes, "bits_per_weight", shadow[i].bits));
	}
	return list;
}

static int by_bytes(const void *a, const void *b)
{
	const struct gguf_type *x = a, *y = b;

	return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

/* type [n tensors]: the types in the file, those with most bytes first. Returns their number. */
static size_t list_types(const struct od_gguf *g, struct gguf_type *type)
{
	size_t n = 0;

	for (size_t i = 0; i < od_gguf_n_tensors(g); i++) {
		const struct od_gguf_tensor *t = od_gguf_tensor(g, i);
		size_t at = 0;

		while (at < n && strcmp(type[at].name, t->type_name) != 0)
			at++;
		if (at == n)
			type[n++] = (struct gguf_type){ .name = t->type_name };
		type[at].n++;
		type[at].bytes += t->bytes;
	}
	qsort(type, n, sizeof(*type), by_bytes);
	return n;
}

/* Whose heads and shared experts are told: the first one with experts and with keys and values. */
static const struct od_layer_spec *told_layer(const struct od_config *c)
{
	for (uint32_t m = 0; m < c->n_moe; m++) {
		const struct od_layer_spec *l = od_config_moe_layer(c, m);
		struct od_state_spec s = { 0 };

		l->mixer->state(&l->mix, &s);
		if (s.n_streams > 0)
			return l;
	}
	return od_config_moe_layer(c, 0);
}

/* gguf: taken; NULL: a pack. */
static int print_json(const struct od_pack *p, const struct all_totals *all, const char *dtypes,
		      const struct shadow *shadow, size_t n_shadows, json_t *gguf, FILE *out, struct od_err *err)
{
	const struct od_config *c = &p->config;
	const struct od_layer_spec *l = told_layer(c);
	const struct totals *t = &all->all;
	json_t *shadows = shadows_json(shadow, n_shadows), *root;
	int bad;

	root = json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "pack",
			 p->dir, "schema_version", (int)p->manifest.schema, "fingerprint", p->manifest.fingerprint,
			 "family", c->family->name, "layers", (int)c->n_layers, "moe_layers", (int)c->n_moe, "hidden",
			 (int)c->hidden, "attention", l->mixer->name, "heads", (int)l->mix.n_heads, "kv_heads",
			 (int)l->mix.n_kv_heads, "head_dim", (int)l->mix.k_dim, "vocab", (int)c->vocab, "experts",
			 (int)c->n_experts, "top_k", (int)c->top_k, "intermediate", (int)c->intermediate,
			 "shared_intermediate", (int)l->shared_intermediate);
	bad = root == NULL;
	bad = bad || json_object_set_new(root, "codec", json_string(od_codec_names[p->manifest.codec])) != 0;
	bad = bad || json_object_set_new(root, "expert_dtype", json_string(dtypes)) != 0;
	bad = bad || json_object_set_new(root, "expert_weights", json_integer((json_int_t)t->weights)) != 0;
	bad = bad || json_object_set_new(root, "expert_raw_bytes", json_integer((json_int_t)t->raw_bytes)) != 0;
	bad = bad || json_object_set_new(root, "expert_stored_bytes", json_integer((json_int_t)t->stored_bytes)) != 0;
	bad = bad || json_object_set_new(root, "bits_per_weight", json_real(bits_per_weight(t))) != 0;
	bad = bad || json_object_set_new(root, "expert_dtypes", dtypes_json(all)) != 0;
	bad = bad || json_object_set_new(root, "slot_bytes",
					 json_integer((json_int_t)od_pack_slot_bytes(p, OD_FORM_PLAIN))) != 0;
	if (od_pack_can_form(p, OD_FORM_PLANES, NULL) == OD_OK)
		bad = bad || json_object_set_new(root, "slot_bytes_planes",
						 json_integer((json_int_t)od_pack_slot_bytes(p, OD_FORM_PLANES))) != 0;
	bad = bad || json_object_set_new(root, "dense_bytes", json_integer((json_int_t)p->manifest.dense_bytes)) != 0;
	bad = bad ||
	      json_object_set_new(root, "experts_bytes", json_integer((json_int_t)p->manifest.experts_bytes)) != 0;
	bad = bad || json_object_set_new(root, "experts_here", json_integer((json_int_t)all->here)) != 0;
	bad = bad || json_object_set_new(root, "tokenizer", json_boolean(p->tokenizer_path != NULL)) != 0;
	bad = bad || json_object_set(root, "shadows", shadows) != 0;
	if (gguf != NULL)
		bad = json_object_set_new(root, "gguf", gguf) != 0 || bad;
	bad = bad || json_dumpf(root, out, JSON_INDENT(1)) != 0 || fputc('\n', out) == EOF;
	json_decref(shadows);
	json_decref(root);
	return bad ? od_fail(err, OD_ERR_IO, "cannot write JSON") : OD_OK;
}

/* Adds what a pack has not; NULL: no memory. */
static json_t *gguf_json(const struct od_pack *p, const struct od_gguf *g, const struct gguf_type *type, size_t n_types)
{
	json_t *files = json_array(), *types = json_array();
	size_t len = 0;
	const char *arch = "";

	(void)!od_gguf_str(g, "general.architecture", &arch, &len, NULL); /* opening the pack has read it */
	for (size_t i = 0; i < od_gguf_n_files(g); i++)
		json_array_append_new(files, json_pack("{s:s, s:I}", "file", od_gguf_file(g, i)->path, "bytes",
						       (json_int_t)od_gguf_file(g, i)->size_bytes));
	for (size_t i = 0; i < n_types; i++)
		json_array_append_new(types, json_pack("{s:s, s:I, s:I}", "type", type[i].name, "tensors",
						       (json_int_t)type[i].n, "bytes", (json_int_t)type[i].bytes));
	return json_pack("{s:s, s:s%, s:o, s:o, s:s}", "fingerprint_kind", OD_GGUF_MARK, "architecture", arch, len,
			 "files", files, "types", types, "folder", p->folder);
}

static void print_gguf(const struct od_pack *p, const struct od_gguf *g, const struct gguf_type *type, size_t n_types,
		       FILE *out)
{
	uint64_t bytes = 0;
	size_t len = 0;
	const char *arch = "";
	char a[32];

	(void)!od_gguf_str(g, "general.architecture", &arch, &len, NULL);
	for (size_t i = 0; i < od_gguf_n_files(g); i++)
		bytes += od_gguf_file(g, i)->size_bytes;
	fprintf(out, "file          %s: GGUF, architecture %.*s, %zu file%s of %s\n", p->dir, (int)len, arch,
		od_gguf_n_files(g), od_gguf_n_files(g) == 1 ? "" : "s together", od_format_bytes(bytes, a, sizeof(a)));
	fprintf(out, "fingerprint   %s (" OD_GGUF_MARK ": of headers, sizes and the tensors' first bytes)\n",
		p->manifest.fingerprint);
	fprintf(out, "tensors       %zu\n", od_gguf_n_tensors(g));
	for (size_t i = 0; i < n_types; i++)
		fprintf(out, "  %-11s %zu, %s\n", type[i].name, type[i].n,
			od_format_bytes(type[i].bytes, a, sizeof(a)));
}

static void print_dtypes(const struct all_totals *t, FILE *out)
{
	char a[128], text[OD_MAT_TYPE_CHARS];

	for (int d = OD_BF16; d <= OD_DTYPE_LAST; d++)
		if (t->of[d].weights > 0)
			fprintf(out, "  %-11s %" PRIu64 " weights, %.2f bits each; coded in chunks: %s\n",
				type_text(t, d, text), t->of[d].weights, bits_per_weight(&t->of[d]),
				chunk_list(&t->of[d], a, sizeof(a)));
}

static void print_shapes(const struct od_config *c, const char *dtypes, FILE *out)
{
	const struct od_layer_spec *l = told_layer(c);

	fprintf(out, "model         %s: %u layers", c->family->name, c->n_layers);
	if (c->n_moe < c->n_layers)
		fprintf(out, " (%u with experts)", c->n_moe);
	fprintf(out, ", hidden %u, %u heads ", c->hidden, l->mix.n_heads);
	if (l->mix.kv_rank > 0)
		fprintf(out, "(latent of %u) ", l->mix.kv_rank);
	else
		fprintf(out, "(%u key-value) ", l->mix.n_kv_heads);
	fprintf(out, "of %u, vocabulary %u\n", l->mix.k_dim, c->vocab);
	fprintf(out, "experts       %u a layer, top-%u, intermediate %u, %s", c->n_experts, c->top_k, c->intermediate,
		dtypes);
	if (l->shared_intermediate > 0)
		fprintf(out, "; shared by all rows: intermediate %u", l->shared_intermediate);
	fprintf(out, "\n");
}

static void print_shadows(const struct od_pack *p, const struct shadow *shadow, size_t n_shadows, FILE *out)
{
	char a[32];

	for (size_t i = 0; i < n_shadows; i++)
		fprintf(out, "shadow        %s: %s %s, %.2f bits a weight\n",
			od_precision_names[shadow[i].precision - 1], od_shadow_file_names[shadow[i].precision - 1],
			od_format_bytes(shadow[i].bytes, a, sizeof(a)), shadow[i].bits);
	if (n_shadows == 0)
		fprintf(out, "shadow        none\n");
	fprintf(out, "tokenizer     %s\n", p->tokenizer_path != NULL ? "yes" : "no");
}

/* Behind print_gguf. */
static void print_gguf_model(const struct od_pack *p, const struct all_totals *all, const char *dtypes, FILE *out)
{
	char a[32], b[32];

	print_shapes(&p->config, dtypes, out);
	fprintf(out, "one expert    %s; all experts %s: %.2f bits a weight\n",
		od_format_bytes(p->raw_bytes, a, sizeof(a)), od_format_bytes(all->all.raw_bytes, b, sizeof(b)),
		bits_per_weight(&all->all));
	fprintf(out, "cache         %s%s\n", p->folder,
		p->temporary ? " (no other folder can be written; it is not kept)" : "");
}

static void print_text(const struct od_pack *p, const struct all_totals *all, const char *dtypes,
		       const struct shadow *shadow, size_t n_shadows, FILE *out)
{
	const struct totals *t = &all->all;
	char a[32], b[32];

	fprintf(out, "pack          %s\n", p->dir);
	fprintf(out, "fingerprint   %s\n", p->manifest.fingerprint);
	print_shapes(&p->config, dtypes, out);
	fprintf(out, "one expert    %s as published, %s stored\n", od_format_bytes(p->raw_bytes, a, sizeof(a)),
		od_format_bytes(p->stored_bytes, b, sizeof(b)));
	fprintf(out, "all experts   %s as published, %s stored: %.2f bits a weight, %.1f%%\n",
		od_format_bytes(t->raw_bytes, a, sizeof(a)), od_format_bytes(t->stored_bytes, b, sizeof(b)),
		bits_per_weight(t), 100.0 * (double)t->stored_bytes / (double)t->raw_bytes);
	fprintf(out, "codec         %s\n", od_codec_names[p->manifest.codec]);
	print_dtypes(all, out);
	if (od_pack_is_spool(p)) {
		fprintf(out, "share         %zu of %zu experts are here\n", all->here, p->manifest.n_experts);
		return;
	}
	fprintf(out, "files         " OD_DENSE_NAME " %s, ", od_format_bytes(p->manifest.dense_bytes, a, sizeof(a)));
	fprintf(out, OD_EXPERTS_NAME " %s\n", od_format_bytes(p->manifest.experts_bytes, a, sizeof(a)));
	print_shadows(p, shadow, n_shadows, out);
}

static int print(const struct od_pack *p, const struct od_gguf *g, bool json, FILE *out, struct od_err *err)
{
	const struct all_totals t = add_up(p);
	struct gguf_type *type = calloc(g != NULL ? od_gguf_n_tensors(g) : 1, sizeof(*type));
	const size_t n_types = g != NULL && type != NULL ? list_types(g, type) : 0;
	struct shadow shadow[OD_N_PRECISIONS];
	char dtypes[OD_DTYPE_LAST * OD_MAT_TYPE_CHARS];
	size_t n = 0;
	int rc = type != NULL ? list_shadows(p, shadow, &n, err) : od_fail(err, OD_ERR_NOMEM, "no memory");

	dtype_list(&t, dtypes, sizeof(dtypes));
	if (rc == OD_OK && json) {
		rc = print_json(p, &t, dtypes, shadow, n, g != NULL ? gguf_json(p, g, type, n_types) : NULL, out, err);
	} else if (rc == OD_OK && g != NULL) {
		print_gguf(p, g, type, n_types, out);
		print_gguf_model(p, &t, dtypes, out);
		print_shadows(p, shadow, n, out);
	} else if (rc == OD_OK) {
		print_text(p, &t, dtypes, shadow, n, out);
	}
	free(type);
	if (rc == OD_OK && fflush(out) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot write");
	return rc;
}

int od_pack_info(const struct od_pack *p, bool json, FILE *out, struct od_err *err)
{
	struct od_gguf *g = NULL;
	int rc = od_pack_is_gguf(p) ? od_gguf_open(&g, p->dir, err) : OD_OK;

	if (rc == OD_OK)
		rc = print(p, g, json, out, err);
	od_gguf_close(g);
	return rc;
}
