/* Dense weights that main reads in each step, through a ring of two stages; as dense_stream.c does it. */
#include "deploy/plan/sim_internal.h"

#include <math.h>

static double stage_bytes(const struct odp_sim *s, uint32_t stage)
{
	return stage < s->model.n_layers ? s->block[stage].stream_bytes : s->model.head_stream_bytes;
}

/* Stages that stay in memory are none. */
static uint32_t stage_after(const struct odp_sim *s, uint32_t stage)
{
	do
		stage = stage < s->model.n_layers ? stage + 1 : 0;
	while (stage_bytes(s, stage) <= 0);
	return stage;
}

/* When a stage that is taken now has been read. Reading goes on as far as the ring has room; out of order it begins
 * anew. */
static double take(struct odp_sim *s, uint32_t stage, double bytes, double now_ns)
{
	struct sim_stream *t = &s->engine.stream;
	const double ns = bytes * 1e9 / s->cluster.main.read_rate;

	if (stage != t->next)
		t->read_ns = t->given_ns[0] = now_ns;
	t->next = stage_after(s, stage);
	t->read_ns = fmax(t->read_ns, t->given_ns[0]);
	if (s->cluster.one_disk)
		t->read_ns = fmax(t->read_ns, s->disk_ns);
	t->read_ns += ns;
	s->disk_ns = t->read_ns;
	s->node[MAIN].busy.read_ns += (uint64_t)llround(ns);
	return t->read_ns;
}

static void give(struct odp_sim *s, double at_ns)
{
	struct sim_stream *t = &s->engine.stream;

	t->given_ns[0] = t->given_ns[1];
	t->given_ns[1] = at_ns;
}

void odp_stream_give(struct odp_sim *s, uint32_t layer)
{
	if (stage_bytes(s, layer) > 0)
		give(s, (double)odp_clock_ns());
}

double odp_stream_layer_ns(struct odp_sim *s, uint32_t layer)
{
	const double now = (double)odp_clock_ns();

	return stage_bytes(s, layer) > 0 ? fmax(take(s, layer, s->block[layer].stream_bytes, now) - now, 0) : 0;
}

/* The head is cut into pieces of the largest layer's size. */
static uint32_t head_pieces(const struct odp_sim *s)
{
	double most = 0;

	for (uint32_t i = 0; i < s->model.n_layers; i++)
		most = fmax(most, s->block[i].stream_bytes);
	return most > 0 && s->model.head_stream_bytes > most ? (uint32_t)ceil(s->model.head_stream_bytes / most) : 1;
}

double odp_stream_head_ns(struct odp_sim *s, double compute_ns)
{
	const uint32_t n = head_pieces(s), head = s->model.n_layers;
	const double begin = (double)odp_clock_ns();
	double at = begin;

	if (stage_bytes(s, head) <= 0)
		return compute_ns;
	for (uint32_t i = 0; i < n; i++) {
		if (i > 0)
			s->engine.stream.next = head;
		at = fmax(at, take(s, head, s->model.head_stream_bytes / n, at)) + compute_ns / n;
		give(s, at);
	}
	return at - begin;
}
