/* gguf_mix.h - headers of good GGUF files that a fuzzer's input changes: values, kinds, lengths, names, shapes, types
 * and offsets, and whole keys and tensors of one file in another. So a few bytes reach what bytes of a file would need
 * luck for.
 *
 * Thread: one. Owner: lives as long as the process. */
#ifndef OD_FUZZ_GGUF_MIX_H
#define OD_FUZZ_GGUF_MIX_H

#include <stddef.h>
#include <stdint.h>

struct gguf_mix;

/* The headers in tests/golden/gguf whose names begin so; read where run.sh stands. */
struct gguf_mix *gguf_mix_new(const char *prefix);

/* A file that begins with `len` malloc'd bytes, followed by zeros up to file_bytes (at most GGUF_MIX_MOST_BYTES).
 * Takes from *data: which header and how tensors are placed, the number of changes, the changes. */
#define GGUF_MIX_MOST_BYTES (4u << 20)
uint8_t *gguf_mix_make(const struct gguf_mix *m, const uint8_t **data, size_t *size, size_t *len, size_t *file_bytes);

#endif
