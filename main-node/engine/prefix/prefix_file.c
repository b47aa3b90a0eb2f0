#include "main-node/engine/prefix/prefix_file.h"

#include "common/base/mem.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

#define VERSION 1u
#define SUM_BYTES 32u
#define CLASS_BYTES 16u
/* Offsets in the header. */
#define MAGIC_BYTES 8u
#define ID_BYTES 108u /* all before what differs from file to file */
#define AT_TOKENS ID_BYTES
#define AT_KEY 112u
_Static_assert(AT_KEY + ODM_PREFIX_KEY_BYTES == ODM_PREFIX_HEADER_BYTES, "header");

static const char magic[ODM_N_PREFIX_WHAT][MAGIC_BYTES + 1] = { "ODPREFIX", "ODRECURR" };

static uint8_t *put(uint8_t *to, const void *bytes, size_t n)
{
	memcpy(to, bytes, n);
	return to + n;
}

/* Sizes of all layers' fixed states, or widths of all their streams, and the prior. Returns the bytes of a snapshot or
 * of a page. */
static uint64_t hash_layout(uint8_t hash[SUM_BYTES], const struct odm_prefix_kind *kind, enum odm_prefix_what what)
{
	const uint64_t each = kind->profile == OD_PROFILE_BF16 ? 2 : 4;
	crypto_generichash_state h;
	uint64_t sum = 0;

	crypto_generichash_init(&h, NULL, 0, SUM_BYTES);
	for (uint32_t i = 0; i < kind->config->n_layers; i++) {
		const struct od_layer_spec *l = od_config_layer(kind->config, i);
		struct od_state_spec s = { 0 };
		uint64_t row[OD_MAX_STREAMS];
		uint32_t n;

		if (what == ODM_PREFIX_STATE) {
			l->mixer->state(&l->mix, &s);
			crypto_generichash_update(&h, (const uint8_t *)&s.fixed_bytes, sizeof(s.fixed_bytes));
			sum += od_round_up(s.fixed_bytes, OD_FIXED_ALIGN);
			continue;
		}
		n = od_state_row_bytes(kind->config, kind->profile, i, row);
		crypto_generichash_update(&h, (const uint8_t *)&n, sizeof(n));
		for (uint32_t j = 0; j < n; j++) {
			const uint32_t width = (uint32_t)(row[j] / each);

			crypto_generichash_update(&h, (const uint8_t *)&width, sizeof(width));
			sum += row[j] * OD_KV_PAGE;
		}
	}
	if (kind->config->prior.recent > 0) /* it changes what rows hold */
		crypto_generichash_update(&h, (const uint8_t *)&kind->config->prior, sizeof(kind->config->prior));
	crypto_generichash_final(&h, hash, SUM_BYTES);
	return sum;
}

void odm_prefix_id_init(struct odm_prefix_id *id, const struct odm_prefix_kind *kind, enum odm_prefix_what what)
{
	const uint32_t version = VERSION, profile = kind->profile, mixed = kind->mixed;
	char class[CLASS_BYTES] = { 0 };
	uint8_t layout[SUM_BYTES], *to = id->bytes;
	uint64_t rows;

	memset(id, 0, sizeof(*id));
	id->rows_bytes = rows = hash_layout(layout, kind, what);
	memcpy(class, kind->kernel_class, strnlen(kind->kernel_class, sizeof(class)));
	to = put(to, magic[what], MAGIC_BYTES);
	to = put(to, &version, sizeof(version));
	to = put(to, &profile, sizeof(profile));
	to = put(to, kind->fingerprint, sizeof(kind->fingerprint));
	to = put(to, class, sizeof(class));
	to = put(to, layout, sizeof(layout));
	to = put(to, &rows, sizeof(rows));
	to = put(to, &mixed, sizeof(mixed));
	assert(to == id->bytes + ID_BYTES);
}

void odm_prefix_key_begin(struct odm_prefix_key *key, const struct odm_prefix_id *id, bool is_long)
{
	crypto_generichash(key->bytes, sizeof(key->bytes), id->bytes, ID_BYTES, NULL, 0);
	if (is_long)
		crypto_generichash(key->bytes, sizeof(key->bytes), id->bytes, ID_BYTES, key->bytes, sizeof(key->bytes));
}

void odm_prefix_key_next(struct odm_prefix_key *key, const int32_t token[OD_KV_PAGE])
{
	crypto_generichash(key->bytes, sizeof(key->bytes), (const uint8_t *)token, OD_KV_PAGE * sizeof(*token),
			   key->bytes, sizeof(key->bytes));
}

static size_t text_bytes(uint32_t page)
{
	return ((size_t)page + 1) * OD_KV_PAGE * sizeof(int32_t);
}

size_t odm_prefix_file_bytes(const struct odm_prefix_id *id, uint32_t page)
{
	return ODM_PREFIX_HEADER_BYTES + text_bytes(page) + id->rows_bytes + SUM_BYTES;
}

uint8_t *odm_prefix_file_rows(uint8_t *file, uint32_t page)
{
	return file + ODM_PREFIX_HEADER_BYTES + text_bytes(page);
}

static void make_header(uint8_t header[ODM_PREFIX_HEADER_BYTES], const struct odm_prefix_id *id,
			const struct odm_prefix_key *key, uint32_t page)
{
	const uint32_t tokens = (page + 1) * OD_KV_PAGE;

	memcpy(header, id->bytes, ID_BYTES);
	memcpy(header + AT_TOKENS, &tokens, sizeof(tokens));
	memcpy(header + AT_KEY, key->bytes, sizeof(key->bytes));
}

static void make_sum(uint8_t sum[SUM_BYTES], const uint8_t *file, size_t len)
{
	crypto_generichash(sum, SUM_BYTES, file, len, NULL, 0);
}

void odm_prefix_file_seal(uint8_t *file, const struct odm_prefix_id *id, const struct odm_prefix_key *key,
			  const int32_t *text, uint32_t page)
{
	const size_t len = odm_prefix_file_bytes(id, page) - SUM_BYTES;

	make_header(file, id, key, page);
	memcpy(file + ODM_PREFIX_HEADER_BYTES, text, text_bytes(page));
	make_sum(file + len, file, len);
}

int odm_prefix_file_check(const uint8_t *file, size_t len, const struct odm_prefix_id *id,
			  const struct odm_prefix_key *key, const int32_t *text, uint32_t page, struct od_err *err)
{
	const size_t expected = odm_prefix_file_bytes(id, page);
	uint8_t header[ODM_PREFIX_HEADER_BYTES], sum[SUM_BYTES];

	if (len != expected)
		return od_fail(err, OD_ERR_FORMAT, "expected %zu bytes, found %zu", expected, len);
	make_header(header, id, key, page);
	if (memcmp(file, header, sizeof(header)) != 0)
		return od_fail(err, OD_ERR_FORMAT, "its header is not that of a page of this model and text");
	if (memcmp(file + sizeof(header), text, text_bytes(page)) != 0)
		return od_fail(err, OD_ERR_FORMAT, "it has another text");
	make_sum(sum, file, len - SUM_BYTES);
	if (memcmp(file + len - SUM_BYTES, sum, SUM_BYTES) != 0)
		return od_fail(err, OD_ERR_CORRUPT, "its checksum is wrong");
	return OD_OK;
}

enum odm_prefix_look odm_prefix_file_look(const uint8_t *head, size_t len, const struct odm_prefix_id *id)
{
	if (len < ODM_PREFIX_HEADER_BYTES || memcmp(head, id->bytes, MAGIC_BYTES) != 0)
		return ODM_PREFIX_UNKNOWN;
	return memcmp(head, id->bytes, ID_BYTES) == 0 ? ODM_PREFIX_OURS : ODM_PREFIX_OTHER;
}
