/* Keys from words, against those of other programs (tests/golden/pair/make_keys.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "common/pair/pair_keys.h"

static void from_hex(uint8_t *out, size_t size, const char *hex)
{
	size_t n;

	assert_int_equal(sodium_hex2bin(out, size, hex, strlen(hex), NULL, &n, NULL), 0);
	assert_int_equal(n, size);
}

static void keys_are_those_of_other_programs(void **state)
{
	FILE *f = fopen("tests/golden/pair/keys.txt", "r");
	char words[100], salt_hex[64], hex[4][80];
	int n = 0;

	(void)state;
	assert_non_null(f);
	while (fscanf(f, "%99s %63s %79s %79s %79s %79s", words, salt_hex, hex[0], hex[1], hex[2], hex[3]) == 6) {
		uint8_t salt[OD_PAIR_SALT_BYTES], key[OD_KEY_BYTES];
		struct od_pair_keys k;
		struct od_err err;
		const uint8_t *ours[] = { k.main.public_key, k.main.secret_key, k.joiner.public_key,
					  k.joiner.secret_key };

		for (char *c = words; *c != '\0'; c++)
			*c = *c == '-' ? ' ' : *c;
		from_hex(salt, sizeof(salt), salt_hex);
		assert_int_equal(od_pair_keys_derive(&k, words, salt, &err), OD_OK);
		for (int i = 0; i < 4; i++) {
			from_hex(key, sizeof(key), hex[i]);
			assert_memory_equal(key, ours[i], sizeof(key));
		}
		od_pair_keys_clear(&k);
		assert_true(sodium_is_zero((const uint8_t *)&k, sizeof(k)));
		n++;
	}
	fclose(f);
	assert_int_equal(n, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(keys_are_those_of_other_programs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
