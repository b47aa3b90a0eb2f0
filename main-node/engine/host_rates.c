#include "main-node/engine/host_rates.h"

#include <math.h>

#define SHARE 0.125 /* a new time has this share of the mean */
/* A time that nothing measures any more shrinks, so that it is measured again: by half in 138 layers. */
#define FADING 0.995

static size_t class_of(double n_rows)
{
	size_t i = 0;

	while (i + 1 < ODM_HOST_CLASSES && n_rows >= (double)(2u << i))
		i++;
	return i;
}

/* 0: nothing has been measured. Rows of no class that was measured take as long as the nearest, or twice that for each
 * class between. */
static double compute_ns(const struct odm_host_rates *r, uint32_t n_rows)
{
	const size_t at = class_of(n_rows);
	double factor = 1;

	for (size_t i = at + 1; i-- > 0; factor *= 2)
		if (r->compute_ns[i] > 0)
			return factor * r->compute_ns[i];
	for (size_t i = at; i < ODM_HOST_CLASSES; i++)
		if (r->compute_ns[i] > 0)
			return r->compute_ns[i];
	return 0;
}

static void learn(double *mean, double ns)
{
	*mean = *mean > 0 ? *mean + SHARE * (ns - *mean) : ns;
}

/* The first try: an expert with few rows. */
static size_t try_one(struct odm_host_candidate *c, size_t n)
{
	struct odm_host_candidate *least = &c[0];

	for (size_t i = 1; i < n; i++)
		if (c[i].n_rows < least->n_rows)
			least = &c[i];
	least->on_host = true;
	return 1;
}

/* Both work at once. Experts go to the card, those that it gains most from first, while the later of the two ends
 * earlier for it. */
static size_t balance(const struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads)
{
	double host_ns = 0;
	size_t n_host = 0;

	for (size_t i = 0; i < n; i++) {
		n_host += c[i].on_host;
		host_ns += c[i].on_host ? compute_ns(r, c[i].n_rows) : 0;
	}
	n_loads += n - n_host;
	for (;;) {
		struct odm_host_candidate *most = NULL;
		double less;

		for (size_t i = 0; i < n; i++)
			if (c[i].on_host && (most == NULL || c[i].gain > most->gain))
				most = &c[i];
		if (most == NULL)
			return n_host;
		less = host_ns - compute_ns(r, most->n_rows);
		if (fmax(less, (double)(n_loads + 1) * r->load_ns) >= fmax(host_ns, (double)n_loads * r->load_ns))
			return n_host;
		most->on_host = false;
		host_ns = less;
		n_loads++;
		n_host--;
	}
}

/* A load costs more than a computation, but what is loaded is kept: it is worth as many computations as the expert's
 * gain. */
static bool is_cheaper_here(const struct odm_host_rates *r, const struct odm_host_candidate *c)
{
	return (fmax(c->gain, 0) + 1) * compute_ns(r, c->n_rows) < r->load_ns;
}

size_t odm_host_rates_choose(struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads)
{
	size_t n_host;

	for (size_t i = 0; i < n; i++)
		c[i].on_host = false;
	if (n == 0 || r->load_ns <= 0)
		return 0;
	if (compute_ns(r, c[0].n_rows) <= 0)
		return try_one(c, n);
	for (size_t i = 0; i < n; i++)
		c[i].on_host = is_cheaper_here(r, &c[i]);
	n_host = balance(r, c, n, n_loads);
	for (size_t i = 0; n_host == 0 && i < ODM_HOST_CLASSES; i++)
		r->compute_ns[i] *= FADING;
	if (n_host == n && n_loads == 0)
		r->load_ns *= FADING;
	return n_host;
}

void odm_host_rates_computed(struct odm_host_rates *r, size_t n, size_t n_rows, uint64_t ns)
{
	if (n > 0)
		learn(&r->compute_ns[class_of((double)n_rows / (double)n)], (double)ns / (double)n);
}

void odm_host_rates_loaded(struct odm_host_rates *r, size_t n, uint64_t ns)
{
	if (n > 0)
		learn(&r->load_ns, (double)ns / (double)n);
}
