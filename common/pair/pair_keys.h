/* pair_keys.h - the keys of a pairing socket, from the words that main shows and a salt that it gives to anybody: both
 * sides know both pairs, and somebody without the words neither (docs/PROTOCOL.md, "Pairing").
 *
 * Thread: any. Owner: the caller, who also clears them. */
#ifndef OD_PAIR_KEYS_H
#define OD_PAIR_KEYS_H

#include "common/net/keys.h"

#define OD_PAIR_SALT_BYTES 16

struct od_pair_keys {
	struct od_key_pair main, joiner;
};

/* Argon2id; takes 64 MiB of memory and about a second of a slow processor. words: as od_pair_words_read has them. */
OD_MUST_CHECK int od_pair_keys_derive(struct od_pair_keys *out, const char *words,
				      const uint8_t salt[OD_PAIR_SALT_BYTES], struct od_err *err);
void od_pair_keys_clear(struct od_pair_keys *k);

#endif
