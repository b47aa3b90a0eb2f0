/* synth_files.h - the files of a synthetic checkpoint around its weights.
 *
 * Thread: any. Owner: texts are malloc'd, the caller frees them. */
#ifndef OD_SYNTH_FILES_H
#define OD_SYNTH_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/bench/synth/synth_model.h"

/* config.json, generation_config.json, tokenizer.json and tokenizer_config.json into dir. The tokenizer is
 * byte-level BPE without merges: ids 0 to 2 are <unk> <s> </s>, 3 + b is byte b, the rest is filler. */
OD_MUST_CHECK int synth_write_tokenizer(const struct synth_model *m, const char *dir, struct od_err *err);
OD_MUST_CHECK int synth_write_config(const struct synth_model *m, const char *dir, struct od_err *err);

/* The start of a safetensors file with tensors [first, end): length, JSON, padding to 8 bytes. */
OD_MUST_CHECK int synth_header(const struct synth_model *m, uint64_t first, uint64_t end, char **out, size_t *len,
			       struct od_err *err);
/* Whether this file of a folder begins as synth_header makes it. */
bool synth_is_weights(int dir_fd, const char *name);

/* Splits all tensors into n_shards runs of about equal size: tensors [first[i], first[i + 1]) are in file i.
 * first: [n_shards + 1]; n_shards is at most the number of tensors. */
void synth_cut(const struct synth_model *m, uint64_t n_shards, uint64_t *first);

#define SYNTH_FILE_BYTES 40
void synth_shard_name(char *buf, uint64_t shard, uint64_t n_shards); /* SYNTH_FILE_BYTES */

/* model.safetensors.index.json: which file has which tensor. */
OD_MUST_CHECK int synth_write_index(const struct synth_model *m, const char *dir, uint64_t n_shards,
				    const uint64_t *first, struct od_err *err);

#endif
