/* fuzz_text.h - what must hold for any tokeniser that was loaded, and any text. */
#ifndef OD_FUZZ_TEXT_H
#define OD_FUZZ_TEXT_H

#include <string.h>

#include "common/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#define FUZZ_TEXT_BYTES 512u

/* The pieces of the stream make the text of all ids. */
static inline void fuzz_stream(const struct od_tokenizer *t, const int32_t *ids, size_t n, const char *want, size_t want_len)
{
	struct od_detok *d;
	struct od_err err = { 0 };
	const char *piece;
	size_t at = 0, len;

	check(od_detok_new(&d, t, &err) == OD_OK);
	for (size_t i = 0; i <= n; i++) {
		const int rc = i < n ? od_detok_push(d, ids[i], &piece, &len, &err) : od_detok_flush(d, &piece, &len, &err);

		if (rc != OD_OK)
			goto out; /* too long, in this way as well as at once */
		check(len <= want_len - at && memcmp(want + at, piece, len) == 0);
		at += len;
	}
	check(at == want_len);
out:
	od_detok_free(d);
}

static inline void fuzz_text(const struct od_tokenizer *t, const char *data, size_t size)
{
	const size_t len = size < FUZZ_TEXT_BYTES ? size : FUZZ_TEXT_BYTES;
	struct od_err err = { 0 };
	int32_t *ids[2];
	size_t n[2], text_len;
	char *text, copy[FUZZ_TEXT_BYTES + 1];
	int rc[2];

	memcpy(copy, data, len); /* with a known byte behind it, which must not be read */
	copy[len] = '\xff';
	for (unsigned flags = 0; flags < 4; flags++) {
		for (int i = 0; i < 2; i++)
			rc[i] = od_tokenizer_encode(t, copy, len, flags, &ids[i], &n[i], &err);
		check(rc[0] == rc[1] && n[0] == n[1]);
		if (rc[0] != OD_OK) {
			check(ids[0] == NULL && ids[1] == NULL && err.msg[0] != '\0');
			continue;
		}
		check(memcmp(ids[0], ids[1], n[0] * sizeof(int32_t)) == 0);
		for (size_t i = 0; i < n[0]; i++)
			check(ids[0][i] >= 0 && (uint32_t)ids[0][i] < od_tokenizer_vocab(t));
		if (od_tokenizer_decode(t, ids[0], n[0], true, &text, &text_len, &err) == OD_OK) {
			check(text[text_len] == '\0');
			fuzz_stream(t, ids[0], n[0], text, text_len);
		} else {
			check(text == NULL && err.msg[0] != '\0');
		}
		free(text);
		free(ids[0]);
		free(ids[1]);
	}
}

#endif
