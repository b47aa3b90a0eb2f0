/* candidates.h - tokens that may be drawn, with their weights, and the filters that leave some of them out.
 *
 * A filter moves what it keeps to the front and returns how many. It keeps at least one of one or more. Ties go to the
 * lower id. Typical sampling: Meister et al. 2022, "Locally Typical Sampling". XTC: "exclude top choices"; it and
 * dynamic temperature as llama.cpp has them.
 * Thread: any. Owner: the caller. */
#ifndef OD_MODEL_CANDIDATES_H
#define OD_MODEL_CANDIDATES_H

#include <stddef.h>
#include <stdint.h>

/* Loops over the whole vocabulary: also compiled for the vectors of later CPUs. The bits are the same, since nothing is
 * contracted. (The thread sanitizer cannot yet run where the C library chooses among them.) */
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define OD_VECTORS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define OD_VECTORS
#endif

struct od_candidate {
	double p; /* weight: exp of the distance to the best, over temperature */
	float logit;
	int32_t id;
};

/* p[i]: the weight of logits [n]; that of a logit of `best`, the highest, is 1. */
void od_weights(double *p, const float *logits, uint32_t n, double best, double temperature);
/* Gives candidates their weights; returns the sum. */
double od_candidates_weigh(struct od_candidate *c, size_t n, double best, double temperature);
/* A candidate stays while those that are better weigh less than `enough`, which is more than 0. */
size_t od_candidates_keep(struct od_candidate *c, size_t n, double enough);
/* A candidate stays while those whose surprise is nearer to the mean surprise weigh at most typical_p of all. Weights
 * are of temperature 1, the best one's is 1. logits: of the vocabulary. */
size_t od_candidates_typical(struct od_candidate *c, size_t n, double typical_p, const float *logits);
/* Keeps those of at least min_p times the greatest weight. */
size_t od_candidates_min_p(struct od_candidate *c, size_t n, double min_p);
/* Keeps all below this probability, and of the others only the last. */
size_t od_candidates_xtc(struct od_candidate *c, size_t n, double threshold);
/* Entropy over the greatest possible one: 0 to 1; of one candidate 0. Weights are of temperature 1, the best one's is
 * 1. */
double od_candidates_entropy(const struct od_candidate *c, size_t n);
/* The best of at least one. */
const struct od_candidate *od_candidates_best(const struct od_candidate *c, size_t n);

#endif
