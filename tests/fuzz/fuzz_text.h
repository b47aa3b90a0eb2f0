/* fuzz_text.h - what must hold for any tokeniser that was loaded, and any text. */
#ifndef OD_FUZZ_TEXT_H
#define OD_FUZZ_TEXT_H

#include <string.h>

#include "common/text/tokenizer.h"
#include "common/text/tok_controls.h"
#include "common/text/tok_decode.h"
#include "tests/fuzz/fuzz.h"

#define FUZZ_TEXT_BYTES 512u

/* The pieces of the stream make the text of all ids. */
static inline void fuzz_stream(const struct od_tokenizer *t, const int32_t *ids, size_t n, const char *want,
			       size_t want_len)
{
	struct od_detok *d;
	struct od_err err = { 0 };
	const char *piece;
	size_t at = 0, len;

	check(od_detok_new(&d, t, &err) == OD_OK);
	for (size_t i = 0; i <= n; i++) {
		const int rc =
			i < n ? od_detok_push(d, ids[i], &piece, &len, &err) : od_detok_flush(d, &piece, &len, &err);

		if (rc != OD_OK)
			goto out; /* too long, in this way as well as at once */
		check(len <= want_len - at && memcmp(want + at, piece, len) == 0);
		at += len;
	}
	check(at == want_len);
out:
	od_detok_free(d);
}

/* A text of which every other run of bytes is a user's: the same ids each time, and none that does not exist. */
static inline void fuzz_mixed(const struct od_tokenizer *t, const char *text, size_t len)
{
	struct od_text_spans users = { 0 };
	struct od_controls *controls;
	struct od_err err = { 0 };
	int32_t *ids[2];
	size_t n[2];
	int rc[2];

	if (od_controls_new(&controls, t, &err) != OD_OK)
		return;
	od_controls_add(controls, text, len / 2);
	for (size_t at = 0, size = 1; at < len; at += size + 1, size = 1 + (unsigned char)text[at < len ? at : 0] % 7)
		check(od_text_spans_add(&users, at, at + size < len ? at + size : len) == OD_OK);
	for (int i = 0; i < 2; i++)
		rc[i] = od_tokenizer_encode_mixed(t, text, len, &users, controls, &ids[i], &n[i], &err);
	check(rc[0] == rc[1] && n[0] == n[1]);
	if (rc[0] == OD_OK)
		check(memcmp(ids[0], ids[1], n[0] * sizeof(int32_t)) == 0);
	for (size_t i = 0; i < n[0]; i++)
		check(ids[0][i] >= 0 && (uint32_t)ids[0][i] < od_tokenizer_vocab(t));
	free(ids[0]);
	free(ids[1]);
	od_text_spans_fini(&users);
	od_controls_free(controls);
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
	fuzz_mixed(t, copy, len);
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
