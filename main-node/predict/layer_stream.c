#include "main-node/predict/layer_stream.h"

#include <math.h>

#define RECENT_STEPS 4 /* the mean is over about so many; it follows texts that come and go */
#define LEAST_CHOSEN 0.6 /* docs/BENCHMARKS.md, "Many texts and their experts in one budget" */
#define SLACK 0.1 /* a change moves memory between slots and the cache, so it is not undone at once */
/* Every so many steps `least` moves by STEP, if more than this share of their time was spent waiting: down, or up if
 * the disk was busy for nearly all of it. */
#define LOOK_STEPS 4
#define STEP 0.05
#define WAITED 0.02
#define BUSY 0.95

void odm_layer_stream_routed(struct odm_layer_stream *s, uint32_t n_moe, size_t n, size_t n_chosen)
{
	s->n_layers += s->n_layers < RECENT_STEPS * n_moe;
	s->chosen += ((double)n_chosen / (double)n - s->chosen) / s->n_layers;
}

bool odm_layer_stream_pays(double chosen)
{
	return chosen >= LEAST_CHOSEN;
}

bool odm_layer_stream_next(struct odm_layer_stream *s)
{
	s->on = s->n_layers > 0 && s->chosen >= LEAST_CHOSEN - (s->on ? SLACK : 0);
	return s->on;
}

void odm_layer_stream_ended(struct odm_layer_stream *s, uint64_t ns, uint64_t stall_ns, uint64_t loading_ns)
{
	s->ns += ns;
	s->stall_ns += stall_ns;
	s->loading_ns += loading_ns;
	if (++s->n_steps < LOOK_STEPS)
		return;
	if (s->on && (double)s->stall_ns > WAITED * (double)s->ns)
		s->least += (double)s->loading_ns > BUSY * (double)s->ns ? STEP : -STEP;
	s->least = fmin(fmax(s->least, 0), 1);
	s->n_steps = 0;
	s->ns = s->stall_ns = s->loading_ns = 0;
}
