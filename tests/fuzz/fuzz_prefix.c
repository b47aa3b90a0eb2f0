/* A file of the prefix cache, as its reader looks at it: whatever the bytes are, only the file that was written is
 * taken, and a header says whose it is without more being read than there is. The input replaces bytes of a good file
 * (position and byte, three bytes each), and is itself a file. */
#include <sodium.h>

#include "main-node/engine/prefix/prefix_file.h"
#include "tests/fuzz/fuzz.h"

#define PAGE 1u

static int32_t text[(PAGE + 1) * OD_KV_PAGE];
static struct odm_prefix_id id;
static struct odm_prefix_key key;
static uint8_t *good, *file;
static size_t len;

static void make_good(void)
{
	static struct od_config cfg;
	static const struct od_layer_spec layer = { .mixer = &od_mixer_gqa,
						    .ffn = OD_FFN_MOE,
						    .mix = { .n_heads = 1, .n_kv_heads = 1, .k_dim = 2, .v_dim = 2 } };
	const struct odm_prefix_kind kind = { .profile = OD_PROFILE_F32, .kernel_class = "fma16", .config = &cfg };
	const struct od_rope rope = { .dims = 2, .theta = 10000, .magnitude = 1 };
	struct od_err err;
	uint32_t at;

	cfg.ctx_max = 128;
	check(sodium_init() >= 0);
	check(od_config_add_rope(&cfg, &rope, &at, &err) == OD_OK && od_config_add_layer(&cfg, &layer, &err) == OD_OK);
	odm_prefix_id_init(&id, &kind, ODM_PREFIX_PAGE);
	odm_prefix_key_begin(&key, &id, false);
	for (uint32_t i = 0; i <= PAGE; i++)
		odm_prefix_key_next(&key, text + i * OD_KV_PAGE);
	len = odm_prefix_file_bytes(&id, PAGE);
	good = calloc(1, len);
	file = malloc(len);
	check(good != NULL && file != NULL);
	odm_prefix_file_seal(good, &id, &key, text, PAGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_err err;

	if (good == NULL)
		make_good();
	(void)odm_prefix_file_look(data, size, &id);
	check((odm_prefix_file_check(data, size, &id, &key, text, PAGE, &err) == OD_OK) ==
	      (size == len && memcmp(data, good, len) == 0));
	memcpy(file, good, len);
	for (size_t i = 0; i + 2 < size; i += 3)
		file[(data[i] | data[i + 1] << 8) % len] = data[i + 2];
	check((odm_prefix_file_check(file, len, &id, &key, text, PAGE, &err) == OD_OK) ==
	      (memcmp(file, good, len) == 0));
	return 0;
}
