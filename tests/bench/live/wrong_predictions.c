/* Wrong predictions for the testbed (od_moe_testbed.py): linked into od-shadow in front of its publisher, by the
 * linker's --wrap. $OD_WRONG="NOISE SEED" adds normal noise of this standard deviation to the logarithm of each expert's
 * probability, as a quantized shadow has it (want_policy.h), and sorts the experts anew: mistakes happen where margins
 * are small, and the router's choice is then nearly always the next one in the order. The noise depends on the row, its
 * layer and the seed alone. Tokens and drafts stay as they are.
 *
 * Thread: the emulator's. */
#include "shadow-node/publish.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 1e-30f /* a probability of 0 has a logarithm, too */

static struct ods_sink publisher;
static double noise;
static uint64_t noise_seed;

struct ods_sink __real_ods_publisher_sink(struct ods_publisher *p);
struct ods_sink __wrap_ods_publisher_sink(struct ods_publisher *p);

static uint64_t mix(uint64_t x) /* splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static double uniform(uint64_t x) /* above 0, below 1 */
{
	return ((double)(x >> 12) + 0.5) * 0x1p-52;
}

/* Normal, by Box and Muller. */
static double draw(const struct od_prediction *p, uint16_t expert)
{
	const uint64_t x = mix(mix(mix(mix(noise_seed + p->sequence) + p->position) + p->m) + expert);

	return sqrt(-2 * log(uniform(x))) * cos(6.283185307179586 * uniform(mix(x)));
}

/* probability [n]: logarithms, in descending order; out: probabilities, which have the same sum as before. */
static void to_probabilities(float *probability, size_t n, double sum)
{
	const float most = probability[0];
	double now = 0;

	for (size_t i = 0; i < n; i++)
		now += probability[i] = expf(probability[i] - most);
	for (size_t i = 0; i < n; i++)
		probability[i] *= (float)(sum / now);
}

/* expert, probability: [p->n] */
static void add_noise(const struct od_prediction *p, uint16_t *expert, float *probability)
{
	double sum = 0;

	for (size_t i = 0; i < p->n; i++) {
		const double own = fmax(p->probability[i], LEAST);
		const float x = (float)(log(own) + noise * draw(p, p->expert[i]));
		size_t at = i;

		sum += own;
		for (; at > 0 && probability[at - 1] < x; at--) {
			probability[at] = probability[at - 1];
			expert[at] = expert[at - 1];
		}
		probability[at] = x;
		expert[at] = p->expert[i];
	}
	to_probabilities(probability, p->n, sum);
}

static void predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	static uint16_t expert[ODS_MAX_STEP_ROWS][OD_MAX_CANDIDATES];
	static float probability[ODS_MAX_STEP_ROWS][OD_MAX_CANDIDATES];
	static struct od_prediction changed[ODS_MAX_STEP_ROWS];

	for (size_t i = 0; i < n; i++) {
		changed[i] = p[i];
		if (noise <= 0 || p[i].probability == NULL)
			continue;
		add_noise(&p[i], expert[i], probability[i]);
		changed[i].expert = expert[i];
		changed[i].probability = probability[i];
	}
	publisher.predict(arg, m, changed, n);
}

struct ods_sink __wrap_ods_publisher_sink(struct ods_publisher *p)
{
	const char *words = getenv("OD_WRONG");
	struct ods_sink sink;
	unsigned long long seed;

	if (words == NULL || sscanf(words, "%lf %llu", &noise, &seed) != 2) {
		fprintf(stderr, "OD_WRONG: expected NOISE SEED\n");
		exit(1);
	}
	noise_seed = seed;
	publisher = sink = __real_ods_publisher_sink(p);
	sink.predict = predict;
	return sink;
}
