#include "deploy/hub/hub_choose.h"

#include "common/base/args.h"
#include "common/base/mem.h"
#include "common/pack/sums.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END ".gguf"
#define NUMBER_CHARS 15 /* "-00001-of-00003" */
#define MAX_SPLIT 1024
#define LABEL "^(ud-)?((i?q|tq)[0-9]+(_[a-z0-9]+)*|mxfp4(_moe)?|nvfp4|bf16|f16|fp16|f32)$"

/* Labels of files that ggml no longer reads, or never did: those of other forks. */
#define UNREAD \
	"^(q4_0_(4_4|4_8|8_8)|iq4_nl_4_4|q[12]_0|q8_kv|iq[1-6]_(k|ks|kss|kt|kl)|i?q[1-8]_[a-z0-9_]+_r[48])(_r[48])?$"

/* Compiled. */
struct labels {
	regex_t any, unread;
};

static bool ends(const char *s, const char *end)
{
	const size_t n = strlen(s), k = strlen(end);

	return n > k && strcasecmp(s + n - k, end) == 0;
}

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* ---- GGUF: what there is ---- */

/* The label at the end of text[0..len). */
static bool find_label(const regex_t *label, const char *text, size_t len, char out[33])
{
	char end[33];

	for (size_t i = 0; i < len; i++) {
		if ((i > 0 && strchr("-._", text[i - 1]) == NULL) || len - i >= sizeof(end))
			continue;
		snprintf(end, sizeof(end), "%.*s", (int)(len - i), text + i);
		if (regexec(label, end, 0, NULL, 0) == 0) {
			memcpy(out, end, sizeof(end));
			return true;
		}
	}
	out[0] = '\0';
	return false;
}

/* The label of a file's name, or that of its folder. */
static void label_variant(struct odp_variant *v, const regex_t *label)
{
	const char *base = base_of(v->stem), *folder;

	if (find_label(label, base, strlen(base), v->label) || base == v->stem)
		return;
	for (folder = base - 1; folder > v->stem && folder[-1] != '/';)
		folder--;
	(void)find_label(label, folder, (size_t)(base - 1 - folder), v->label);
}

/* No weights of a model: projections, and matrices of importance. A quantisation that was made with one may say so in
 * its name. */
static bool is_other(const struct odp_variant *v)
{
	const char *base = base_of(v->stem);

	return strcasestr(base, "mmproj") != NULL || (strcasestr(base, "imatrix") != NULL && v->label[0] == '\0');
}

/* Reads "-00002-of-00003" at the end of a name without .gguf. */
static bool read_number(const char *stem, size_t len, unsigned *i, unsigned *n)
{
	int at = -1;
	char end[NUMBER_CHARS + 1];

	if (len <= NUMBER_CHARS)
		return false;
	snprintf(end, sizeof(end), "%.*s", NUMBER_CHARS, stem + len - NUMBER_CHARS);
	return sscanf(end, "-%5u-of-%5u%n", i, n, &at) == 2 && at == NUMBER_CHARS && *i >= 1 && *i <= *n &&
	       *n <= MAX_SPLIT;
}

const struct odp_hub_file *odp_variant_file(const struct odp_variant *v, const struct odp_listing *l, unsigned i)
{
	const struct odp_hub_file *f = NULL;
	char *path = NULL;
	int len = -1;

	if (v->n_files == 0 && i == 0)
		len = asprintf(&path, "%s" END, v->stem);
	else if (i < v->n_files)
		len = asprintf(&path, "%s-%05u-of-%05u" END, v->stem, i + 1, v->n_files);
	if (len >= 0)
		f = odp_listing_find(l, path);
	free(len >= 0 ? path : NULL);
	return f;
}

/* The first file of a split one stands for all, whose sizes are added. */
static int add_variant(struct odp_variants *out, const struct odp_listing *l, const struct odp_hub_file *f,
		       const struct labels *labels, struct od_err *err)
{
	size_t len = strlen(f->path) - strlen(END);
	struct odp_variant v = { .whole = true };
	unsigned number = 0;

	if (read_number(f->path, len, &number, &v.n_files))
		len -= NUMBER_CHARS;
	else
		number = v.n_files = 0;
	if (number > 1)
		return OD_OK;
	v.stem = strndup(f->path, len);
	if (v.stem == NULL || !od_grow((void **)&out->v, out->n, 1, &out->cap, sizeof(v))) {
		free(v.stem);
		return od_fail(err, OD_ERR_NOMEM, "no memory for the list of quantisations");
	}
	label_variant(&v, &labels->any);
	if (is_other(&v)) {
		free(v.stem);
		return OD_OK;
	}
	for (unsigned i = 0; i < (v.n_files > 0 ? v.n_files : 1); i++) {
		const struct odp_hub_file *part = odp_variant_file(&v, l, i);

		v.whole = v.whole && part != NULL && od_add(v.bytes, part->bytes, &v.bytes);
	}
	v.readable = regexec(&labels->unread, v.label, 0, NULL, 0) != 0;
	out->v[out->n++] = v;
	return OD_OK;
}

static int largest_first(const void *a, const void *b)
{
	const struct odp_variant *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return strcmp(x->stem, y->stem);
}

int odp_variants_find(struct odp_variants *out, const struct odp_listing *l, struct od_err *err)
{
	struct labels labels;
	int rc = OD_OK;

	*out = (struct odp_variants){ 0 };
	if (regcomp(&labels.any, LABEL, REG_EXTENDED | REG_ICASE | REG_NOSUB) != 0)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the list of quantisations");
	if (regcomp(&labels.unread, UNREAD, REG_EXTENDED | REG_ICASE | REG_NOSUB) != 0) {
		regfree(&labels.any);
		return od_fail(err, OD_ERR_NOMEM, "no memory for the list of quantisations");
	}
	for (size_t i = 0; rc == OD_OK && i < l->n; i++)
		if (ends(l->file[i].path, END))
			rc = add_variant(out, l, &l->file[i], &labels, err);
	regfree(&labels.any);
	regfree(&labels.unread);
	if (rc != OD_OK)
		odp_variants_fini(out);
	else if (out->n > 0)
		qsort(out->v, out->n, sizeof(*out->v), largest_first);
	return rc;
}

void odp_variants_fini(struct odp_variants *v)
{
	for (size_t i = 0; i < v->n; i++)
		free(v->v[i].stem);
	free(v->v);
	*v = (struct odp_variants){ 0 };
}

/* ---- GGUF: the choice ---- */

static const char *name_of(const struct odp_variant *v)
{
	return v->label[0] != '\0' ? v->label : base_of(v->stem);
}

static bool is_in_folder(const char *path, const char *name)
{
	const size_t n = strlen(name);

	for (const char *slash; (slash = strchr(path, '/')) != NULL; path = slash + 1)
		if ((size_t)(slash - path) == n && strncasecmp(path, name, n) == 0)
			return true;
	return false;
}

enum called { NOT_CALLED, CALLED_WITHOUT_UD, CALLED };

/* "Q4_K_M" calls UD-Q4_K_M, too, where nothing else is called so. */
static enum called is_called(const struct odp_variant *v, const char *quant)
{
	const char *base = base_of(v->stem);
	const size_t n = ends(quant, END) ? strlen(quant) - strlen(END) : strlen(quant);

	if (strcasecmp(v->label, quant) == 0 || (strncasecmp(base, quant, n) == 0 && base[n] == '\0') ||
	    is_in_folder(v->stem, quant))
		return CALLED;
	return strncasecmp(v->label, "UD-", 3) == 0 && strcasecmp(v->label + 3, quant) == 0 ? CALLED_WITHOUT_UD :
											      NOT_CALLED;
}

/* Names, with commas between: of all quantisations, or (full) of the files that are called quant in this way. */
static void list_names(const struct odp_variants *v, const char *quant, enum called how, bool full, char *out,
		       size_t size)
{
	size_t at = 0;

	out[0] = '\0';
	for (size_t i = 0; i < v->n; i++) {
		const char *name = full ? v->v[i].stem : name_of(&v->v[i]);

		if ((full && is_called(&v->v[i], quant) != how) || !v->v[i].whole)
			continue;
		if (at + strlen(name) + 8 > size) {
			snprintf(out + at, size - at, ", ...");
			return;
		}
		at += (size_t)snprintf(out + at, size - at, "%s%s", at > 0 ? ", " : "", name);
	}
}

static int choose_by_name(const struct odp_variants *v, const char *quant, const char *where,
			  const struct odp_variant **out, struct od_err *err)
{
	const struct odp_variant *found = NULL;
	enum called best = NOT_CALLED;
	char names[400];
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++) {
		const enum called how = is_called(&v->v[i], quant);

		if (how == NOT_CALLED || how < best)
			continue;
		n = how > best ? 1 : n + 1;
		best = how;
		found = &v->v[i];
	}
	if (n == 1 && !found->whole)
		return od_fail(err, OD_ERR_MISSING, "%s: files of %s are missing there: it has %u, not all are listed",
			       where, base_of(found->stem), found->n_files);
	if (n == 1 && !found->readable)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: %s is not read by od-moe: take another quantisation",
			       where, found->label);
	if (n == 1) {
		*out = found;
		return OD_OK;
	}
	list_names(v, quant, best, n > 1, names, sizeof(names));
	if (n == 0)
		return od_fail(err, OD_ERR_MISSING, "%s: no GGUF file of the quantisation %s; there are: %s", where,
			       quant, names);
	return od_fail(err, OD_ERR_ARG,
		       "%s: several GGUF files are called %s; give the whole name of one, or of its folder: %s", where,
		       quant, names);
}

bool odp_variant_fits(const struct odp_variant *v, uint64_t memory_bytes)
{
	return v->bytes <= memory_bytes / 10 * 9;
}

int odp_variants_choose(const struct odp_variants *v, const char *quant, uint64_t memory_bytes, const char *where,
			const struct odp_variant **out, struct od_err *err)
{
	*out = NULL;
	if (quant[0] != '\0')
		return choose_by_name(v, quant, where, out, err);
	for (size_t i = 0; i < v->n; i++) {
		if (!v->v[i].whole || !v->v[i].readable)
			continue;
		*out = &v->v[i];
		if (odp_variant_fits(*out, memory_bytes))
			break;
	}
	return *out != NULL ? OD_OK :
			      od_fail(err, OD_ERR_MISSING, "%s: no GGUF file that is complete and can be read", where);
}

void odp_variants_explain(const struct odp_variants *v, const struct odp_variant *chosen, uint64_t memory_bytes,
			  struct od_strbuf *out)
{
	char size[32], memory[32];

	for (size_t i = 0; i < v->n; i++) {
		const struct odp_variant *x = &v->v[i];

		od_strbuf_printf(out, "  %-14s %10s  %s%s\n", name_of(x), od_format_bytes(x->bytes, size, sizeof(size)),
				 !x->whole			   ? "files are missing" :
				 !x->readable			   ? "not read by od-moe" :
				 odp_variant_fits(x, memory_bytes) ? "fits" :
								     "larger than the memory",
				 x == chosen ? "  <- chosen" : "");
	}
	od_format_bytes(memory_bytes, memory, sizeof(memory));
	if (odp_variant_fits(chosen, memory_bytes))
		od_strbuf_printf(
			out,
			"%s is the largest that fits the %s of memory that this machine has free (a tenth is left "
			"for contexts).",
			name_of(chosen), memory);
	else
		od_strbuf_printf(
			out,
			"None fits the %s of memory that this machine has free: %s is the smallest. Experts that are "
			"not in memory are loaded when they are needed; workers hold them, too.",
			memory, name_of(chosen));
	od_strbuf_printf(out, " Another one: add :QUANT to the name.\n");
}

/* ---- checkpoints ---- */

bool odp_is_weights(const char *path)
{
	return strchr(path, '/') == NULL && ends(path, ".safetensors") && strncmp(path, "consolidated", 12) != 0 &&
	       strncmp(path, "adapter_", 8) != 0;
}

bool odp_is_checkpoint(const struct odp_listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (odp_is_weights(l->file[i].path))
			return odp_listing_find(l, "config.json") != NULL;
	return false;
}

bool odp_checkpoint_wants(const struct odp_listing *l, const char *path)
{
	/* All that packing reads, if it is there. */
	if (odp_is_weights(path))
		return strcmp(path, ODP_SINGLE_NAME) == 0 || odp_listing_find(l, ODP_SINGLE_NAME) == NULL;
	if (strcmp(path, ODP_INDEX_NAME) == 0)
		return true;
	for (const struct od_small_file *f = od_small_files; f->name != NULL; f++)
		if (f->source != NULL && strcmp(path, f->source) == 0)
			return true;
	return false;
}

int odp_refuse_listing(const struct odp_listing *l, const char *where, struct od_err *err)
{
	static const struct {
		const char *end, *what;
	} other[] = {
		{ ".safetensors",
		  "its *.safetensors files are an adapter, or in Mistral's own form, or there is no config.json" },
		{ ".bin", "PyTorch's pickles are not read, because they can hold programs" },
		{ ".onnx", "ONNX is not read" },
		{ ".npz", "MLX's form is not read" },
		{ ".gguf", "its GGUF files are projections for pictures, or matrices of importance" },
	};

	for (size_t k = 0; k < sizeof(other) / sizeof(other[0]); k++)
		for (size_t i = 0; i < l->n; i++)
			if (ends(l->file[i].path, other[k].end))
				return od_fail(
					err, OD_ERR_UNSUPPORTED,
					"%s has no files that od-moe can use (config.json with *.safetensors, or "
					"*.gguf): %s",
					where, other[k].what);
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s has no files that od-moe can use (config.json with *.safetensors, or *.gguf)", where);
}
