/* tiny_files.h - a tiny Mixtral checkpoint on disk, for tests: random bits, three dtypes or codes with scales, known to
 * the test.
 * Thread: one. Owner: tiny_files_free frees memory and removes the folder. */
#ifndef OD_TESTS_TINY_FILES_H
#define OD_TESTS_TINY_FILES_H

#include <stddef.h>
#include <stdint.h>

#define TINY_HIDDEN 32
#define TINY_INTERMEDIATE 48
#define TINY_LAYERS 2
#define TINY_EXPERTS 3
#define TINY_VOCAB 80

struct tiny_tensor {
	char name[128];
	const char *dtype;
	uint64_t n_out, n_in; /* n_in 0: a vector; of elements, which may be several weights */
	uint8_t *data;
	size_t bytes;
};

struct tiny_files {
	char root[64]; /* a fresh folder under /tmp */
	char checkpoint[96], pack[96];
	struct tiny_tensor tensor[128];
	size_t n;
};

void tiny_files_make(struct tiny_files *t);
/* The model as published with scales: layer 0's experts as F8_E4M3 in blocks of 16 x 16, as four-bit integers and as
 * NVFP4, in turn, any bits; its o_proj as I8. */
void tiny_files_make_scaled(struct tiny_files *t);
void tiny_files_free(struct tiny_files *t);
const struct tiny_tensor *tiny_files_find(const struct tiny_files *t, const char *name);
/* A weight as a double, whatever its dtype. */
double tiny_weight(const struct tiny_tensor *t, size_t i);

/* Writes a file; aborts the test when it cannot. */
void tiny_write(const char *dir, const char *name, const void *data, size_t len);

#endif
