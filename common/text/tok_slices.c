/* Where Kimi's published code cuts long texts before tiktoken sees them: every 400,000 characters, and within those
 * where a run of white space, or of other characters, has had 25,000. No token goes across a cut. Where an added token
 * stands a new text begins, as in transformers, so no cut goes through one. */
#include "common/text/jinja/jinja_unicode.h"
#include "common/text/tok_internal.h"

#include <stdlib.h>

#define SLICE_CHARS 400000u
#define RUN_CHARS 25000u

struct slices {
	struct tok_piece *v;
	size_t n, cap;
};

static int add(struct slices *s, const struct tok_piece *p, size_t begin, size_t end)
{
	int rc = tok_grow(&s->v, s->n, &s->cap, sizeof(*s->v));

	if (rc == OD_OK)
		s->v[s->n++] = (struct tok_piece){
			.at = p->at + begin, .len = end - begin, .id = p->id, .first = p->first && begin == 0
		};
	return rc;
}

static int cut_piece(struct slices *s, const struct tok_piece *p, const char *text)
{
	size_t begin = 0, chars = 0, run = 0;
	bool space = false;
	int rc = OD_OK;

	for (size_t at = 0, n; at < p->len && rc == OD_OK; at += n) {
		bool is_space;
		int32_t cp;

		n = tok_char(text + at, p->len - at, &cp);
		is_space = jinja_is_space((uint32_t)cp);
		run = run > 0 && is_space == space ? run + 1 : 1;
		space = is_space;
		if (chars == SLICE_CHARS || run > RUN_CHARS) {
			rc = add(s, p, begin, at);
			begin = at;
			run = 1;
			chars = chars == SLICE_CHARS ? 0 : chars;
		}
		chars++;
	}
	return rc == OD_OK ? add(s, p, begin, p->len) : rc;
}

int tok_slices_cut(struct tok_pieces *pieces)
{
	struct slices s = { 0 };
	bool is_long = false;
	int rc = OD_OK;

	for (size_t i = 0; i < pieces->n; i++)
		is_long = is_long || pieces->v[i].len > RUN_CHARS;
	if (!is_long)
		return OD_OK;
	for (size_t i = 0; i < pieces->n && rc == OD_OK; i++)
		rc = pieces->v[i].id >= 0 ? add(&s, &pieces->v[i], 0, pieces->v[i].len) :
					    cut_piece(&s, &pieces->v[i], pieces->text.data + pieces->v[i].at);
	if (rc != OD_OK) {
		free(s.v);
		return rc;
	}
	free(pieces->v);
	pieces->v = s.v;
	pieces->n = s.n;
	pieces->cap = s.cap;
	return OD_OK;
}
