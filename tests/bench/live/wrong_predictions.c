/* Wrong predictions for the testbed (od_moe_testbed.py): linked into od-shadow in front of its publisher, by the
 * linker's --wrap. $OD_WRONG="SHARE TOP_K SEED" replaces so large a share of the first TOP_K experts of a prediction by
 * a runner-up. What is replaced depends on the row, its layer and the seed alone. Tokens and drafts stay as they are.
 *
 * Thread: the emulator's. */
#include "shadow-node/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ods_sink publisher;
static double share;
static size_t top_k;
static uint64_t wrong_seed;

struct ods_sink __real_ods_publisher_sink(struct ods_publisher *p);
struct ods_sink __wrap_ods_publisher_sink(struct ods_publisher *p);

static uint64_t mix(uint64_t x) /* splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t draw(const struct od_prediction *p, size_t expert)
{
	return mix(mix(mix(mix(wrong_seed + p->sequence) + p->position) + p->m) + expert);
}

static void replace_some(const struct od_prediction *p, uint16_t *expert)
{
	memcpy(expert, p->expert, p->n * sizeof(*expert));
	for (size_t i = 0; i < top_k && top_k < p->n; i++) {
		const uint64_t x = draw(p, i);
		const size_t other = top_k + (size_t)(mix(x) % (p->n - top_k));
		const uint16_t e = expert[i];

		if ((double)(x >> 11) * 0x1p-53 >= share)
			continue;
		expert[i] = expert[other];
		expert[other] = e;
	}
}

static void predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	static uint16_t expert[ODS_MAX_STEP_ROWS][OD_MAX_CANDIDATES];
	static struct od_prediction changed[ODS_MAX_STEP_ROWS];

	for (size_t i = 0; i < n; i++) {
		changed[i] = p[i];
		changed[i].expert = expert[i];
		replace_some(&p[i], expert[i]);
	}
	publisher.predict(arg, m, changed, n);
}

struct ods_sink __wrap_ods_publisher_sink(struct ods_publisher *p)
{
	const char *words = getenv("OD_WRONG");
	struct ods_sink sink;
	unsigned long long seed;

	if (words == NULL || sscanf(words, "%lf %zu %llu", &share, &top_k, &seed) != 3) {
		fprintf(stderr, "OD_WRONG: expected SHARE TOP_K SEED\n");
		exit(1);
	}
	wrong_seed = seed;
	publisher = sink = __real_ods_publisher_sink(p);
	sink.predict = predict;
	return sink;
}
