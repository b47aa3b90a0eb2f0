#include "common/pack/gguf/gguf_fingerprint.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* Tensors of three dimensions have a matrix for each expert. */
static uint64_t slices_of(const struct od_gguf_tensor *t)
{
	return t->dim[2] * t->dim[3];
}

static uint64_t first_bytes(uint64_t slice_bytes)
{
	return slice_bytes < OD_GGUF_FIRST_BYTES ? slice_bytes : OD_GGUF_FIRST_BYTES;
}

static int by_place(const void *a, const void *b)
{
	const struct od_gguf_tensor *x = *(const struct od_gguf_tensor *const *)a,
				    *y = *(const struct od_gguf_tensor *const *)b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The disk reads these pages while the ones before are summed. */
static void ask_for(const struct od_gguf *g, const struct od_gguf_tensor *t)
{
	const uint64_t n = slices_of(t), each = t->bytes / n;

	for (uint64_t i = 0; i < n; i++)
		(void)posix_fadvise(od_gguf_file(g, t->file)->fd, (off_t)(t->offset + i * each),
				    (off_t)first_bytes(each), POSIX_FADV_WILLNEED);
}

static int add_tensor(const struct od_gguf *g, const struct od_gguf_tensor *t, crypto_hash_sha256_state *sum,
		      struct od_err *err)
{
	const uint64_t n = slices_of(t), each = t->bytes / n;
	uint8_t buf[OD_GGUF_FIRST_BYTES];
	int rc = OD_OK;

	for (uint64_t i = 0; rc == OD_OK && i < n; i++) {
		rc = od_gguf_read(g, t, i * each, buf, (size_t)first_bytes(each), err);
		if (rc == OD_OK)
			crypto_hash_sha256_update(sum, buf, first_bytes(each));
	}
	return rc;
}

int od_gguf_fingerprint(const struct od_gguf *g, char hex[OD_FINGERPRINT_CHARS + 1], struct od_err *err)
{
	static const unsigned char mark[] = "gguf1";
	const size_t n = od_gguf_n_tensors(g);
	const struct od_gguf_tensor **t = malloc((n + 1) * sizeof(struct od_gguf_tensor *));
	crypto_hash_sha256_state sum;
	uint8_t digest[OD_SHA256_BYTES];
	int rc = OD_OK;

	hex[0] = '\0';
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for a fingerprint", od_gguf_path(g));
	crypto_hash_sha256_init(&sum);
	crypto_hash_sha256_update(&sum, mark, sizeof(mark));
	for (size_t i = 0; i < od_gguf_n_files(g); i++) {
		const struct od_gguf_file *f = od_gguf_file(g, i);

		crypto_hash_sha256_update(&sum, f->header_sha256, sizeof(f->header_sha256));
		crypto_hash_sha256_update(&sum, (const unsigned char *)&f->size_bytes, sizeof(f->size_bytes));
	}
	for (size_t i = 0; i < n; i++)
		t[i] = od_gguf_tensor(g, i);
	qsort(t, n, sizeof(*t), by_place);
	for (size_t i = 0; i < n; i++)
		ask_for(g, t[i]);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = add_tensor(g, t[i], &sum, err);
	free(t);
	crypto_hash_sha256_final(&sum, digest);
	if (rc == OD_OK)
		od_hex(digest, sizeof(digest), hex);
	return rc;
}
