#include "common/text/text_spans.h"

#include <stdlib.h>
#include <string.h>

int od_text_spans_add(struct od_text_spans *s, size_t begin, size_t end)
{
	struct od_text_span *grown;

	if (begin >= end)
		return OD_OK;
	if (s->n > 0 && s->v[s->n - 1].end == begin) {
		s->v[s->n - 1].end = end;
		return OD_OK;
	}
	if (s->n == s->cap) {
		/* far below SIZE_MAX: spans are apart within one text */
		const size_t cap = s->cap > 0 ? 2 * s->cap : 16;

		grown = realloc(s->v, cap * sizeof(*grown));
		if (grown == NULL)
			return OD_ERR_NOMEM;
		s->v = grown;
		s->cap = cap;
	}
	s->v[s->n++] = (struct od_text_span){ begin, end };
	return OD_OK;
}

void od_text_spans_cut(struct od_text_spans *s, size_t end)
{
	while (s->n > 0 && s->v[s->n - 1].begin >= end)
		s->n--;
	if (s->n > 0 && s->v[s->n - 1].end > end)
		s->v[s->n - 1].end = end;
}

void od_text_spans_fini(struct od_text_spans *s)
{
	free(s->v);
	memset(s, 0, sizeof(*s));
}
