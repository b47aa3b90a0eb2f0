#include "common/pair/pair_keys.h"

#include <sodium.h>
#include <string.h>

/* Argon2id's cost, a part of the protocol: passes and memory. */
#define PASSES crypto_pwhash_argon2id_OPSLIMIT_MODERATE
#define MEMORY_BYTES (64u << 20)

_Static_assert(OD_PAIR_SALT_BYTES == crypto_pwhash_argon2id_SALTBYTES, "a salt of Argon2id");
_Static_assert(OD_KEY_BYTES == crypto_box_SEEDBYTES && OD_KEY_BYTES == crypto_box_PUBLICKEYBYTES &&
		       OD_KEY_BYTES == crypto_box_SECRETKEYBYTES,
	       "CURVE's keys are crypto_box's");

int od_pair_keys_derive(struct od_pair_keys *out, const char *words, const uint8_t salt[OD_PAIR_SALT_BYTES],
			struct od_err *err)
{
	uint8_t seed[2 * OD_KEY_BYTES];
	int rc = OD_OK;

	memset(out, 0, sizeof(*out));
	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "libsodium does not start");
	if (crypto_pwhash(seed, sizeof(seed), words, strlen(words), salt, PASSES, MEMORY_BYTES,
			  crypto_pwhash_ALG_ARGON2ID13) != 0)
		return od_fail(err, OD_ERR_NOMEM, "the words need %u MiB of memory to become keys, and there is less",
			       MEMORY_BYTES >> 20);
	if (crypto_box_seed_keypair(out->main.public_key, out->main.secret_key, seed) != 0 ||
	    crypto_box_seed_keypair(out->joiner.public_key, out->joiner.secret_key, seed + OD_KEY_BYTES) != 0)
		rc = od_fail(err, OD_ERR_INTERNAL, "cannot make keys of the words");
	sodium_memzero(seed, sizeof(seed));
	return rc;
}

void od_pair_keys_clear(struct od_pair_keys *k)
{
	sodium_memzero(k, sizeof(*k));
}
