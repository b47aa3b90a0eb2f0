/* hub_choose.h - which files of a repository are fetched: a checkpoint's, or those of one GGUF quantisation.
 *
 * Thread: any; regular expressions are compiled on each call. Owner: the caller; a listing is only read. */
#ifndef OD_PACK_HUB_CHOOSE_H
#define OD_PACK_HUB_CHOOSE_H

#include <limits.h>

#include "common/base/strbuf.h"
#include "deploy/hub/hub_listing.h"

/* One GGUF file, or all files of a split one. */
struct odp_variant {
	char *stem; /* the path without -00001-of-00003 and .gguf */
	unsigned n_files; /* 0: not split */
	char label[33]; /* the quantisation as the name has it: "Q4_K_M", "UD-Q4_K_XL"; "": none */
	uint64_t bytes;
	bool whole; /* no file of it is missing */
	bool readable; /* by its label; false for what ggml has dropped */
};

struct odp_variants {
	struct odp_variant *v; /* [n]; the largest first */
	size_t n, cap;
};

OD_MUST_CHECK int odp_variants_find(struct odp_variants *out, const struct odp_listing *l, struct od_err *err);
void odp_variants_fini(struct odp_variants *v);
/* File i of a variant in the listing; NULL: i is past the last, or it is missing. */
const struct odp_hub_file *odp_variant_file(const struct odp_variant *v, const struct odp_listing *l, unsigned i);

/* quant: a label, or the name of a file or of its folder, in any case. Otherwise ("") the largest that fits into the memory, or, where
 * none does, the smallest. where: for messages. */
OD_MUST_CHECK int odp_variants_choose(const struct odp_variants *v, const char *quant, uint64_t memory_bytes,
				      const char *where, const struct odp_variant **out, struct od_err *err);
/* Nine tenths of the memory are for weights: contexts and results need some, too. */
bool odp_variant_fits(const struct odp_variant *v, uint64_t memory_bytes);
/* A table of them with sizes, a line each, and why chosen is chosen. */
void odp_variants_explain(const struct odp_variants *v, const struct odp_variant *chosen, uint64_t memory_bytes,
			  struct od_strbuf *out);

/* The repository has config.json and *.safetensors files in transformers' form. */
bool odp_is_checkpoint(const struct odp_listing *l);
#define ODP_SINGLE_NAME "model.safetensors"
#define ODP_INDEX_NAME "model.safetensors.index.json"
bool odp_is_weights(const char *path);
/* A file that packing such a checkpoint may read. Where there is an index, only weights that it names are read. */
bool odp_checkpoint_wants(const struct odp_listing *l, const char *path);
/* Why nothing in the repository can be used. Returns the code. */
int odp_refuse_listing(const struct odp_listing *l, const char *where, struct od_err *err);

#endif
