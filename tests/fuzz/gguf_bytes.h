/* gguf_bytes.h - the file and the memory limit of the fuzzers of GGUF files. */
#ifndef OD_FUZZ_GGUF_BYTES_H
#define OD_FUZZ_GGUF_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The path of a file in memory, of these bytes and zeros behind them; valid until the next call. */
const char *gguf_bytes_file(const uint8_t *bytes, size_t len, size_t file_bytes);

/* From here to gguf_bytes_end, the heap may grow by that many bytes: a finding if it grows by more. */
void gguf_bytes_begin(size_t most);
void gguf_bytes_end(void);

#endif
