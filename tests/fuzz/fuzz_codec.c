/* Any bytes at all as an E-chunk of any codec: what the check and the decoder let pass gives the same exponents and
 * weights with every table, in place too, and touches nothing else. The exponents that come out are coded again by
 * every codec. Input: codec, type, rows (2 bytes), weights of a row (3 bytes), then the chunk. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/pack/codec.h"
#include "tests/fuzz/fuzz.h"

#define HEAD_BYTES 7
#define MAX_N 200000u /* several blocks, and rows longer than one */
#define MAX_AGAIN 20000u

static const struct od_backend *table[OD_CPU_NEON + 1];
static size_t n_tables;

static void find_tables(void)
{
	for (int cpu = OD_CPU_SCALAR; cpu <= OD_CPU_NEON; cpu++)
		n_tables += od_backend_cpu(&table[n_tables], (enum od_cpu)cpu, OD_PROFILE_F32, NULL) == OD_OK;
}

static struct od_decoder *decoder(const struct od_backend *be)
{
	struct od_decoder *d;

	check(od_decoder_new(&d, be, NULL) == OD_OK);
	return d;
}

/* Exponents to e by one table, and the weights that they and sm make to w: straight and in place. */
static int decode(const struct od_coded *c, const struct od_backend *be, enum od_dtype t, const uint8_t *sm, uint8_t *e,
		  uint8_t *w)
{
	const size_t n = c->n, bytes = n * (od_codec_sm_bytes(t) + 1);
	struct od_decoder *d = decoder(be);
	uint8_t *in_place = malloc(bytes), *room = malloc(n + OD_PAD_BYTES);
	struct od_err err = { 0 };
	int rc = od_decoder_exponents(d, c, e, &err);

	check(rc == OD_OK || (rc == OD_ERR_CORRUPT && err.msg[0] != '\0'));
	check(od_decoder_weights(d, c, t, sm, room, w, NULL) == rc);
	if (rc == OD_OK && od_codec_sm_bytes(t) == 1) {
		memcpy(in_place + n, sm, n);
		check(od_decoder_weights(d, c, t, in_place + n, room, in_place, NULL) == OD_OK);
		check(memcmp(in_place, w, bytes) == 0);
	}
	free(in_place);
	free(room);
	od_decoder_free(d);
	return rc;
}

static void code_again(const uint8_t *e, size_t n, size_t row, enum od_dtype t)
{
	for (int codec = 0; codec < OD_N_CODECS; codec++) {
		const struct od_plane p = {
			.dtype = t, .e = e, .n = n, .row = row, .n_codes = n > 0 ? n - e[0] % n : 0
		};
		struct od_coded c = { .n = n, .row = row };
		struct od_decoder *d = decoder(table[n_tables - 1]);
		uint8_t *back = malloc(n + OD_PAD_BYTES), *room;
		struct od_coder *coder;

		check(od_coder_new(&coder, (enum od_codec)codec, NULL) == OD_OK);
		room = malloc(od_coder_bound(coder, n, row) + OD_PAD_BYTES);
		c.at = room;
		check(od_coder_encode(coder, &p, room, &c.bytes, &c.codec, NULL) == OD_OK);
		check(c.bytes <= n && od_coded_check(&c, NULL) == OD_OK);
		check(od_decoder_exponents(d, &c, back, NULL) == OD_OK && memcmp(back, e, n) == 0);
		od_coder_free(coder);
		od_decoder_free(d);
		free(room);
		free(back);
	}
}

static void decode_with_all(const struct od_coded *c, enum od_dtype t)
{
	const size_t bytes = c->n * (od_codec_sm_bytes(t) + 1);
	uint8_t *sm = malloc(bytes - c->n + 1), *e[2], *w[2];
	int first = OD_OK;

	for (size_t i = 0; i < bytes - c->n; i++)
		sm[i] = (uint8_t)(i * 37 + (i >> 8));
	for (size_t i = 0; i < n_tables; i++) {
		size_t k = i > 0;
		int rc;

		e[k] = malloc(c->n + OD_PAD_BYTES);
		w[k] = malloc(bytes);
		rc = decode(c, table[i], t, sm, e[k], w[k]);
		first = i == 0 ? rc : first;
		check(rc == first);
		check(rc != OD_OK || (memcmp(e[0], e[k], c->n) == 0 && memcmp(w[0], w[k], bytes) == 0));
		if (k > 0) {
			free(e[k]);
			free(w[k]);
		}
	}
	if (first == OD_OK && c->n <= MAX_AGAIN)
		code_again(e[0], c->n, c->row, t);
	free(e[0]);
	free(w[0]);
	free(sm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const enum od_dtype types[] = { OD_BF16, OD_F16, OD_F32, OD_INT8 };
	struct od_coded c = { 0 };
	struct od_err err = { 0 };
	size_t rows;
	uint8_t *chunk;
	int rc;

	if (n_tables == 0)
		find_tables();
	if (size < HEAD_BYTES)
		return 0;
	rows = 1 + ((size_t)data[2] | (size_t)data[3] << 8);
	c.row = 1 + ((size_t)data[4] | (size_t)data[5] << 8 | (size_t)data[6] << 16);
	if (rows > MAX_N / c.row)
		return 0;
	c.codec = (enum od_codec)(data[0] % (OD_N_CODECS + 1)); /* one that there is not */
	c.n = rows * c.row;
	c.bytes = size - HEAD_BYTES;
	chunk = calloc(1, c.bytes + OD_PAD_BYTES);
	memcpy(chunk, data + HEAD_BYTES, c.bytes);
	c.at = chunk;
	rc = od_coded_check(&c, &err);
	check(rc == OD_OK || err.msg[0] != '\0');
	if (rc == OD_OK)
		decode_with_all(&c, types[data[1] % 4]);
	free(chunk);
	return 0;
}
