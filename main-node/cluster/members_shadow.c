#include "main-node/cluster/members_internal.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

/* Finds the shadows of the hosts file that make up the model together. */

/* A lost shadow counts with the layers that it held. */
static bool holds(const struct member *m, uint32_t layer)
{
	return m->pub.role == OD_NODE_SHADOW && m->pub.first_layer <= layer && layer < m->pub.end_layer;
}

/* The shadow that holds this layer as its first one; NULL: none. lost: also one that is not connected now. */
static const struct member *shadow_from(const struct odm_members *ms, uint32_t layer, bool lost)
{
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (holds(m, layer) && m->pub.first_layer == layer && (lost || m->pub.session != 0))
			return m;
	}
	return NULL;
}

void odm_members_find_shadow(const struct odm_members *ms, struct odm_view *v)
{
	const struct member *m = shadow_from(ms, 0, false);
	uint32_t end = 0;

	v->n_parts = 0;
	for (; m != NULL && v->n_parts < OD_MAX_SHADOWS; m = shadow_from(ms, end, false)) {
		if (end == 0) {
			v->shadow = m->pub;
		} else {
			v->part[v->n_parts++] = m->pub;
			v->shadow.others = (v->shadow.others + m->pub.session) * 0x9e3779b97f4a7c15u + m->pub.id;
		}
		end = m->pub.end_layer;
	}
	v->has_shadow = end == ms->o.cluster->config->n_layers;
}

/* "0-3, 5-11" */
static void add_span(char *buf, size_t size, uint32_t begin, uint32_t end)
{
	const size_t len = strlen(buf);

	snprintf(buf + len, size - len, "%s%u-%u", len > 0 ? ", " : "", begin, end > 0 ? end - 1 : 0);
}

/* The layers of all shadows, in the order of the file. Returns how many there are. */
static uint32_t list_layers(const struct odm_members *ms, char *buf, size_t size)
{
	uint32_t n = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct odm_member *s = &ms->listed[i]->pub;

		if (s->role != OD_NODE_SHADOW)
			continue;
		add_span(buf, size, s->first_layer, s->end_layer);
		n++;
	}
	return n;
}

int odm_members_check_shadows(const struct odm_members *ms, struct od_err *err)
{
	const uint32_t n_layers = ms->o.cluster->config->n_layers;
	const struct member *m;
	uint32_t used = 0, end = 0;
	char found[400];
	const uint32_t n = list_layers(ms, found, sizeof(found));

	for (m = shadow_from(ms, 0, false); m != NULL; m = shadow_from(ms, end, false), used++)
		end = m->pub.end_layer;
	if (n == 0 || (used == n && end == n_layers))
		return OD_OK;
	return od_fail(err, OD_ERR_MISMATCH,
		       "the shadow%s of the hosts file hold%s layers %s: expected %s layers 0-%u (od-shadow --layers)",
		       n > 1 ? "s" : "", n > 1 ? "" : "s", found, n > 1 ? "parts that make up" : "all", n_layers - 1);
}

/* Two parts whose precisions differ: the first one, and one that is not like it. False: there are none. */
static bool find_unlike(const struct odm_members *ms, const struct member **first, const struct member **other)
{
	*first = *other = shadow_from(ms, 0, true);
	while (*other != NULL && strcmp((*other)->precision, (*first)->precision) == 0)
		*other = shadow_from(ms, (*other)->pub.end_layer, true);
	return *other != NULL;
}

/* They work, but the less precise one spoils what the other computes. */
static void watch_precisions(struct odm_members *ms)
{
	const struct member *first, *other;
	char name[300], other_name[300];
	const bool differ = find_unlike(ms, &first, &other);

	if (differ && !ms->told_precisions)
		od_log(OD_LOG_WARN,
		       "%s has precision %s, but %s has %s: recall will be lower than with the better one; start both with the "
		       "same precision",
		       odm_member_name(first, name, sizeof(name)), first->precision,
		       odm_member_name(other, other_name, sizeof(other_name)), other->precision);
	ms->told_precisions = differ;
}

/* Under the lock: one of them was never connected, and has not had its time yet. Until they have made up the model
 * once, it has all time: that it is missing has been said. */
static bool is_awaited(const struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		const struct member *m = ms->listed[i];

		if (m->pub.role == OD_NODE_SHADOW && m->pub.end_layer == 0 && (m->why[0] == '\0' || !ms->had_shadow))
			return true;
	}
	return false;
}

static bool is_held(const struct odm_members *ms, uint32_t layer)
{
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		if (holds(ms->listed[i], layer))
			return true;
	}
	return false;
}

/* Why the shadows do not make up the model; "": they do. Those that are lost count: they are expected back. */
static void find_gap(const struct odm_members *ms, char *gap, size_t size)
{
	const uint32_t n_layers = ms->o.cluster->config->n_layers;
	const struct member *m;
	char layers[150] = "";
	uint32_t end = 0;

	gap[0] = '\0';
	for (m = shadow_from(ms, 0, true); m != NULL; m = shadow_from(ms, end, true))
		end = m->pub.end_layer;
	if (end == n_layers)
		return;
	for (uint32_t layer = 0; layer < n_layers; layer = end) {
		for (end = layer + 1; end < n_layers && is_held(ms, end) == is_held(ms, layer);)
			end++;
		if (!is_held(ms, layer))
			add_span(layers, sizeof(layers), layer, end);
	}
	if (layers[0] != '\0') {
		snprintf(gap, size, "none holds layers %s", layers);
		return;
	}
	list_layers(ms, layers, sizeof(layers));
	snprintf(gap, size, "their layers overlap (%s)", layers);
}

static void watch_layers(struct odm_members *ms)
{
	const struct od_predictor_kind *own = ms->o.cluster->own;
	char gap[sizeof(ms->gap)];
	bool awaited;

	pthread_mutex_lock(&ms->lock);
	awaited = is_awaited(ms);
	pthread_mutex_unlock(&ms->lock);
	if (awaited)
		return;
	find_gap(ms, gap, sizeof(gap));
	ms->had_shadow = ms->had_shadow || gap[0] == '\0';
	if ((!ms->had_shadow && !ms->started) || strcmp(gap, ms->gap) == 0)
		return; /* at the start it is an error: odm_members_check_shadows */
	memcpy(ms->gap, gap, sizeof(gap));
	if (gap[0] == '\0')
		od_log(OD_LOG_INFO, "the shadows of the hosts file make up the model again");
	else
		od_log(OD_LOG_WARN,
		       "the shadows of the hosts file do not make up the model: %s. Until they do, predictions come from "
		       "main's own predictor (%s)",
		       gap, own != NULL ? own->name : "none");
}

void odm_members_watch_shadows(struct odm_members *ms)
{
	if (!ms->o.cluster->shadow)
		return;
	watch_layers(ms);
	watch_precisions(ms);
}
