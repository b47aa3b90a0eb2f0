#include "deploy/plan/check_words.h"

#include "common/base/clock.h"

#include <string.h>

#define UNIT 1e10 /* weights, or multiply-adds, a second: 1 of speed= and many= */
#define LEAST_FIXED_MS 1e-4 /* a word says more than none */

struct od_host_words odp_words_of(const struct odp_rates *r, double memory_bytes, double byte_share)
{
	const double fixed_ms = r->fixed_ns / OD_NS_PER_MS;

	return (struct od_host_words){
		.memory_bytes = memory_bytes,
		.read_rate = r->read_rate,
		.speed = r->speed * byte_share / UNIT,
		.many = r->many / UNIT,
		.link_bits = r->link_rate * 8,
		.latency_ms = r->latency_ns / OD_NS_PER_MS,
		.fixed_ms = r->speed <= 0	      ? 0 :
			    fixed_ms > LEAST_FIXED_MS ? fixed_ms :
							LEAST_FIXED_MS,
		.recall = r->recall,
		.accept = r->accept,
	};
}

static double share_of(const char *name, size_t len)
{
	static const struct {
		const char *name;
		double share;
	} precisions[] = { { "int8", 0.5 }, { "nf4", 0.25 } };

	for (size_t i = 0; i < sizeof(precisions) / sizeof(precisions[0]); i++)
		if (len == strlen(precisions[i].name) && memcmp(name, precisions[i].name, len) == 0)
			return precisions[i].share;
	return 1;
}

double odp_byte_share(const char *precision, double expert_share)
{
	const char *plus = strchr(precision, '+'), *dense = plus != NULL ? plus + 1 : precision;
	const size_t len = plus != NULL ? (size_t)(plus - precision) : strlen(precision);

	return expert_share * share_of(precision, len) + (1 - expert_share) * share_of(dense, strlen(dense));
}
