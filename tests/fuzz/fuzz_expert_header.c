/* Any bytes at all as an expert's header, with the magic and the checksum that somebody who forges it would give it:
 * what is accepted lies within the file, covers the matrices, and is the same when it is written again. Input: room
 * behind the header in pages (2 bytes, of which the top bit says whether experts have biases), then the header from the
 * schema version on. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/pack/pack_layout.h"
#include "tests/fuzz/fuzz.h"

#define OFFSET 8192u /* the expert's in its file */
#define SIGNED_FROM 16u

/* Shards of a third of a matrix and less. */
static struct od_config config = { .n_moe = 2, .n_experts = 3, .hidden = 1100, .intermediate = 1000 };

static void check_chunk(const struct od_chunk *c, uint64_t begin, uint64_t end)
{
	check(c->offset >= begin && od_within(c->offset - begin, c->stored_bytes, end - begin));
	check(c->stored_bytes <= c->raw_bytes && c->codec < OD_N_CODECS);
	check(c->codec != OD_CODEC_RAW || c->stored_bytes == c->raw_bytes);
}

static void check_entry(const struct od_expert_entry *e, uint64_t file_bytes)
{
	uint64_t weights = 0, n_out, n_in, expected = 0;

	check(e->x.offset == OFFSET && od_within(e->x.offset, e->x.bytes, file_bytes));
	check(e->x.n_shards == od_expert_shards(&config));
	for (uint32_t i = 0; i < e->x.n_shards; i++) {
		const struct od_shard *s = &e->x.shard[i];

		check_chunk(&s->sm, e->sm_offset, e->e_offset);
		check_chunk(&s->e, e->e_offset, e->x.offset + e->x.bytes);
		od_expert_mat_shape(&config, (enum od_expert_mat)s->mat, &n_out, &n_in);
		check(s->sm.raw_bytes ==
		      s->n_rows * n_in * od_codec_sm_bytes(od_tensor_coding(s->mat, &e->type[s->mat])));
		check(s->sm.raw_bytes + s->e.raw_bytes ==
		      od_mat_bytes(&e->type[s->mat], n_in, s->row_begin, s->n_rows));
		check(s->e.raw_bytes <= od_shard_max_e_bytes(&config));
		check(od_mat_memory_bytes(&e->type[s->mat], s->n_rows, n_in) <= od_shard_max_memory(&config));
		weights += s->n_rows * n_in;
	}
	for (int mat = 0; mat < od_expert_tensors(&config); mat++) {
		od_expert_mat_shape(&config, (enum od_expert_mat)mat, &n_out, &n_in);
		expected += n_out * n_in;
	}
	check(weights == expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_expert_entry e;
	size_t len;
	struct od_err err = { 0 };
	uint64_t file_bytes, sum;
	uint8_t *buf, *again;

	if (size < 2)
		return 0;
	config.expert_bias = data[1] >> 7;
	len = od_expert_header_bytes(&config);
	file_bytes = OFFSET + ((uint64_t)data[0] | (uint64_t)(data[1] & 0x7f) << 8) * OD_PAGE_BYTES;
	buf = calloc(1, len);
	memcpy(buf, OD_EXPERT_MAGIC, 8);
	memcpy(buf + SIGNED_FROM, data + 2, size - 2 < len - SIGNED_FROM ? size - 2 : len - SIGNED_FROM);
	sum = XXH3_64bits(buf + SIGNED_FROM, len - SIGNED_FROM);
	memcpy(buf + 8, &sum, sizeof(sum));
	if (od_expert_header_parse(&e, &config, 1, 2, buf, OFFSET, file_bytes, "experts.bin", &err) != OD_OK) {
		check(err.msg[0] != '\0' && e.x.shard == NULL);
	} else {
		check_entry(&e, file_bytes);
		again = malloc(len);
		od_expert_header_write(&e, &config, 1, 2, again);
		check(memcmp(buf, again, len) == 0);
		free(again);
		free((void *)e.x.shard);
	}
	free(buf);
	return 0;
}
