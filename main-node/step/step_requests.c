#include "main-node/step/step_requests.h"

#include <string.h>

/* Looks among the parts before this one. */
static bool is_named(const struct odm_step *step, size_t part)
{
	for (size_t i = 0; i < part; i++)
		if (step->part[i].request != NULL && strcmp(step->part[i].request, step->part[part].request) == 0)
			return true;
	return false;
}

const char *odm_join_requests(const struct odm_step *step, char *buf, size_t size)
{
	size_t used = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < step->n_parts; i++) {
		const char *name = step->part[i].request;
		const size_t len = name != NULL ? strlen(name) : 0, comma = used > 0;

		if (len == 0 || used + comma + len >= size || is_named(step, i))
			continue;
		buf[used] = ',';
		memcpy(buf + used + comma, name, len + 1);
		used += comma + len;
	}
	return buf;
}

/* Numbers of sequences are never used again. */
static uint64_t mark_of(const struct odm_step *step)
{
	uint64_t mark = UINT64_MAX - step->n_parts;

	for (size_t i = 0; i < step->n_parts; i++)
		mark = (mark ^ step->part[i].sequence) * 0x9e3779b97f4a7c15u;
	return mark;
}

void odm_step_requests_follow(struct odm_step_requests *r, const struct odm_step *step)
{
	const uint64_t mark = mark_of(step);
	char text[sizeof(r->text)];

	if (mark == r->mark)
		return;
	r->mark = mark;
	odm_join_requests(step, text, sizeof(text));
	if (text[0] == '\0' && r->version > 0) /* an empty text would mean that nothing has changed */
		memcpy(text, "-", sizeof("-"));
	if (strcmp(text, r->text) == 0)
		return;
	memcpy(r->text, text, sizeof(text));
	r->version++;
}
