#include "common/pack/gguf/gguf_fingerprint.h"

#include "common/base/file.h"
#include "common/compute/router.h"

#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* Tensors of three dimensions have a matrix for each expert. More than there can be experts are not told apart: a file
 * could have one for each byte, and opening it would take hours. */
static uint64_t slices_of(const struct od_gguf_tensor *t)
{
	const uint64_t n = t->dim[2] * t->dim[3]; /* it fits: opening has multiplied them */

	return n <= OD_MAX_EXPERTS ? n : 1;
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

/* ---- The last file ---- */

/* A process opens its model more than once: a server for the template and for the engine. */
static struct {
	pthread_mutex_t lock;
	uint8_t state[OD_SHA256_BYTES]; /* the state of the files that hex belongs to */
	char hex[OD_FINGERPRINT_CHARS + 1]; /* "": there is none yet */
} last = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The sum of what shows that the files are the same and have not changed. */
static void state_of(const struct od_gguf *g, uint8_t out[OD_SHA256_BYTES])
{
	crypto_hash_sha256_state sum;

	crypto_hash_sha256_init(&sum);
	for (size_t i = 0; i < od_gguf_n_files(g); i++) {
		const struct od_gguf_file *f = od_gguf_file(g, i);

		crypto_hash_sha256_update(&sum, (const unsigned char *)f->path, strlen(f->path) + 1);
		crypto_hash_sha256_update(&sum, f->header_sha256, sizeof(f->header_sha256));
		crypto_hash_sha256_update(&sum, (const unsigned char *)&f->size_bytes, sizeof(f->size_bytes));
		crypto_hash_sha256_update(&sum, (const unsigned char *)&f->mtime_ns, sizeof(f->mtime_ns));
	}
	crypto_hash_sha256_final(&sum, out);
}

static bool recall(const uint8_t state[OD_SHA256_BYTES], char hex[OD_FINGERPRINT_CHARS + 1])
{
	bool known;

	pthread_mutex_lock(&last.lock);
	known = last.hex[0] != '\0' && memcmp(last.state, state, OD_SHA256_BYTES) == 0;
	if (known)
		memcpy(hex, last.hex, sizeof(last.hex));
	pthread_mutex_unlock(&last.lock);
	return known;
}

static void remember(const uint8_t state[OD_SHA256_BYTES], const char hex[OD_FINGERPRINT_CHARS + 1])
{
	pthread_mutex_lock(&last.lock);
	memcpy(last.state, state, sizeof(last.state));
	memcpy(last.hex, hex, sizeof(last.hex));
	pthread_mutex_unlock(&last.lock);
}

/* ---- A file ---- */

static void add_files(const struct od_gguf *g, crypto_hash_sha256_state *sum)
{
	static const unsigned char mark[] = OD_GGUF_MARK;

	crypto_hash_sha256_update(sum, mark, sizeof(mark));
	for (size_t i = 0; i < od_gguf_n_files(g); i++) {
		const struct od_gguf_file *f = od_gguf_file(g, i);

		crypto_hash_sha256_update(sum, f->header_sha256, sizeof(f->header_sha256));
		crypto_hash_sha256_update(sum, (const unsigned char *)&f->size_bytes, sizeof(f->size_bytes));
	}
}

int od_gguf_fingerprint(const struct od_gguf *g, char hex[OD_FINGERPRINT_CHARS + 1], struct od_err *err)
{
	const size_t n = od_gguf_n_tensors(g);
	const struct od_gguf_tensor **t;
	crypto_hash_sha256_state sum;
	uint8_t digest[OD_SHA256_BYTES], state[OD_SHA256_BYTES];
	int rc = OD_OK;

	hex[0] = '\0';
	state_of(g, state);
	if (recall(state, hex))
		return OD_OK;
	t = malloc((n + 1) * sizeof(*t));
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for a fingerprint", od_gguf_path(g));
	crypto_hash_sha256_init(&sum);
	add_files(g, &sum);
	for (size_t i = 0; i < n; i++)
		t[i] = od_gguf_tensor(g, i);
	qsort(t, n, sizeof(*t), by_place);
	for (size_t i = 0; i < n; i++)
		ask_for(g, t[i]);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = add_tensor(g, t[i], &sum, err);
	free(t);
	crypto_hash_sha256_final(&sum, digest);
	if (rc != OD_OK)
		return rc;
	od_hex(digest, sizeof(digest), hex);
	remember(state, hex);
	return OD_OK;
}
