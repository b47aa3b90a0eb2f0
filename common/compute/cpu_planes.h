/* cpu_planes.h - decoding of planes (planes.h) in plain C: the oracle's, and that of tables without their own.
 * Included by cpu_kernels.h. */

/* The plane words of codes [i, i + 64) of a level; bits behind its last code are zero. */
static inline void planes_words(const uint8_t *level, size_t n, size_t i, uint64_t plane[2])
{
	size_t m = n - i < 64 ? n - i : 64, bytes = (m + 7) / 8;

	plane[0] = plane[1] = 0;
	memcpy(&plane[0], level + i / 4, bytes);
	memcpy(&plane[1], level + i / 4 + bytes, bytes);
}

/* Codes [i, i + 64) of a level, as far as there are any, to out; *below: the next byte of what is below, moved on. */
static void planes_expand(const uint8_t *level, size_t n, size_t i, const uint8_t *symbol, const uint8_t **below,
			  uint8_t *out)
{
	size_t m = n - i < 64 ? n - i : 64;
	uint64_t plane[2];

	planes_words(level, n, i, plane);
	for (size_t j = 0; j < m; j++) {
		size_t code = (plane[0] >> j & 1) | (plane[1] >> j & 1) << 1;

		out[j] = code < OD_PLANES_ESCAPE ? symbol[code] : *(*below)++;
	}
}

/* Levels 3 and 2 of a block to deep [OD_PLANES_BLOCK]: what its level 1 expands. */
static const uint8_t *planes_deep(const struct od_planes_block *k, const uint8_t *symbol, uint8_t *deep)
{
	uint8_t third[OD_PLANES_BLOCK];
	const uint8_t *below = k->plain;

	for (size_t i = 0; i < k->n[2]; i += 64)
		planes_expand(k->level[2], k->n[2], i, symbol + 2 * OD_PLANES_SYMBOLS, &below, third + i);
	below = third;
	for (size_t i = 0; i < k->n[1]; i += 64)
		planes_expand(k->level[1], k->n[1], i, symbol + OD_PLANES_SYMBOLS, &below, deep + i);
	return deep;
}

static void planes_decode(const uint8_t *chunk, size_t n, size_t row, size_t b, uint8_t *e)
{
	const struct od_planes_block k = od_planes_at(chunk, n, row, b);
	const uint8_t *symbol = od_planes_symbols(chunk), *below;
	uint8_t deep[OD_PLANES_BLOCK];

	if (k.raw) {
		memcpy(e, k.plain, k.n[0]);
		return;
	}
	below = planes_deep(&k, symbol, deep);
	for (size_t i = 0; i < k.n[0]; i += 64)
		planes_expand(k.level[0], k.n[0], i, symbol, &below, e + i);
}

static void planes_merge(const uint8_t *chunk, size_t n, size_t row, size_t b, const uint8_t *sm, uint16_t *w)
{
	const struct od_planes_block k = od_planes_at(chunk, n, row, b);
	const uint8_t *symbol = od_planes_symbols(chunk), *below;
	uint8_t deep[OD_PLANES_BLOCK], e[64];

	below = k.raw ? k.plain : planes_deep(&k, symbol, deep);
	for (size_t i = 0; i < k.n[0]; i += 64) {
		size_t m = k.n[0] - i < 64 ? k.n[0] - i : 64;
		uint16_t out[64];

		if (k.raw)
			memcpy(e, k.plain + i, m);
		else
			planes_expand(k.level[0], k.n[0], i, symbol, &below, e);
		for (size_t j = 0; j < m; j++) {
			uint16_t r = (uint16_t)(e[j] << 8 | sm[i + j]);

			out[j] = (uint16_t)(r >> 1 | r << 15);
		}
		memcpy(w + i, out, m * sizeof(*w)); /* sm may begin where this ends */
	}
}
