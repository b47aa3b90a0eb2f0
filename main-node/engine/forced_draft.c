#include "main-node/engine/forced_draft.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FORCED_BYTES 256

/* Tokens of the text that are allowed in turn from this state on. */
static size_t take_allowed(struct od_constraint *c, uint32_t state, const int32_t *ids, size_t n, int32_t *out,
			   size_t max)
{
	size_t taken = 0;

	for (; taken < n && taken < max; taken++) {
		state = od_constraint_step(c, state, ids[taken]);
		if (state == OD_STATE_DEAD)
			break;
		out[taken] = ids[taken];
	}
	return taken;
}

size_t odm_forced_draft(struct od_constraint *c, uint32_t state, const struct od_tokenizer *t, int32_t last,
			int32_t *out, size_t max)
{
	const struct od_vocab *v = od_constraint_vocab(c);
	char text[MAX_FORCED_BYTES + OD_MAX_TOKEN_BYTES];
	size_t n_last = 0, n_forced, n_ids, n = 0;
	const char *bytes;
	int32_t *ids;

	if (last >= 0 && (uint32_t)last < v->n_tokens)
		n_last = od_vocab_bytes(v, last, &bytes);
	if (n_last > 0 && (uint8_t)bytes[0] != (uint8_t)OD_SYMBOL[0])
		memcpy(text, bytes, n_last);
	else
		n_last = 0;
	n_forced = od_constraint_forced(c, state, text + n_last, MAX_FORCED_BYTES);
	if (n_forced == 0)
		return 0;
	if (n_last > 0 && od_tokenizer_encode(t, text, n_last + n_forced, 0, &ids, &n_ids, NULL) == OD_OK) {
		if (n_ids > 1 && ids[0] == last)
			n = take_allowed(c, state, ids + 1, n_ids - 1, out, max);
		free(ids);
	}
	if (n == 0 && od_tokenizer_encode(t, text + n_last, n_forced, 0, &ids, &n_ids, NULL) == OD_OK) {
		n = take_allowed(c, state, ids, n_ids, out, max);
		free(ids);
	}
	return n;
}
