#include "common/compute/card_split.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void od_split_add(uint64_t *sum, uint64_t bytes)
{
	if (!od_add(*sum, bytes, sum))
		*sum = UINT64_MAX;
}

int od_split_init(struct od_split *s, const struct od_device *d, uint32_t n_layers, uint32_t begin, uint32_t end,
		  uint64_t limit_bytes, struct od_err *err)
{
	*s = (struct od_split){ .begin = begin, .end = end, .n_layers = n_layers, .n_cards = od_device_cards(d) };
	s->layer = calloc(n_layers, sizeof(*s->layer));
	s->joined = calloc(n_layers, sizeof(*s->joined));
	for (unsigned i = 0; i < s->n_cards && s->n_cards > 1; i++)
		s->card[i].free = od_device_free_bytes(od_device_card((struct od_device *)d, i));
	s->card[s->n_cards].free = limit_bytes;
	if (s->n_cards == 1)
		s->card[0].free = limit_bytes;
	return s->layer != NULL && s->joined != NULL ?
		       OD_OK :
		       od_fail(err, OD_ERR_NOMEM, "no memory to plan %u layers", n_layers);
}

int od_split_copy(struct od_split *s, const struct od_split *of, struct od_err *err)
{
	*s = *of;
	s->layer = malloc(s->n_layers * sizeof(*s->layer));
	s->joined = malloc(s->n_layers * sizeof(*s->joined));
	if (s->layer == NULL || s->joined == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to plan %u layers", s->n_layers);
	memcpy(s->layer, of->layer, s->n_layers * sizeof(*s->layer));
	memcpy(s->joined, of->joined, s->n_layers * sizeof(*s->joined));
	return OD_OK;
}

void od_split_fini(struct od_split *s)
{
	free(s->layer);
	free(s->joined);
	s->layer = NULL;
	s->joined = NULL;
}

static void add_sum(struct od_split_sum *to, const struct od_split_sum *n)
{
	od_split_add(&to->bytes, n->bytes);
	od_split_add(&to->page, n->page);
	od_split_add(&to->copy, n->copy);
}

static uint64_t need_of(const struct od_split_sum *n, uint64_t pages, uint64_t copies)
{
	uint64_t p, c, sum = n->bytes;

	if (!od_mul(n->page, pages, &p) || !od_mul(n->copy, copies, &c))
		return UINT64_MAX;
	od_split_add(&sum, p);
	od_split_add(&sum, c);
	return sum;
}

uint64_t od_split_need(const struct od_split *s, unsigned card, uint64_t pages, uint64_t copies)
{
	return need_of(&s->card[card].sum, pages, copies);
}

static bool fits(uint64_t need, uint64_t free_bytes)
{
	return need != UINT64_MAX && need <= free_bytes;
}

bool od_split_fits(const struct od_split *s, uint64_t pages, uint64_t copies)
{
	bool all = true;

	for (unsigned i = 0; i <= s->n_cards; i++)
		all = all && fits(od_split_need(s, i, pages, copies), s->card[i].free);
	return all;
}

uint64_t od_split_most_pages(const struct od_split *s, uint64_t copies)
{
	uint64_t most = UINT64_MAX;

	for (unsigned i = 0; i <= s->n_cards; i++) {
		const uint64_t need = od_split_need(s, i, 0, copies), page = s->card[i].sum.page;
		const uint64_t n = !fits(need, s->card[i].free) ? 0 :
				   page > 0			? (s->card[i].free - need) / page :
								  UINT64_MAX;

		most = n < most ? n : most;
	}
	return most;
}

/* Layers [begin, *end) that belong together are put on a card, which has `sum` already. */
static struct od_split_sum with_run(const struct od_split *s, const struct od_split_sum *sum, uint32_t begin,
				    bool has_first, uint32_t *end)
{
	struct od_split_sum n = *sum;

	*end = begin;
	do
		add_sum(&n, &s->layer[*end]);
	while (++*end < s->end && s->joined[*end]);
	if (begin == s->begin)
		od_split_add(&n.bytes, s->first);
	if (*end == s->end)
		od_split_add(&n.bytes, s->last);
	if (*end == s->end && !has_first && begin != s->begin)
		od_split_add(&n.bytes, s->tied);
	return n;
}

/* Each card takes as many of the layers that are left as fit; the last one takes all. Returns whether they fit: if not
 * like this, then not at all, because a card that takes fewer leaves more to those behind it. */
static bool take_layers(const struct od_split *s, const struct od_device *d, uint64_t pages, uint64_t copies,
			uint32_t end[OD_MAX_CARDS])
{
	uint32_t at = s->begin, next;
	bool ok = true;

	for (unsigned i = 0; i < s->n_cards; i++) {
		struct od_split_sum sum = s->each;
		const uint32_t from = at;

		od_split_add(&sum.bytes, od_device_own_bytes(od_device_card((struct od_device *)d, i)));
		ok = ok && fits(need_of(&sum, pages, copies), s->card[i].free);
		while (at < s->end) {
			const struct od_split_sum more = with_run(s, &sum, at, from == s->begin, &next);
			const bool fit = fits(need_of(&more, pages, copies), s->card[i].free);

			if (!fit && i + 1 < s->n_cards)
				break;
			ok = ok && fit;
			sum = more;
			at = next;
		}
		end[i] = at;
	}
	return ok;
}

/* The largest number of pages that still can be dealt; at least `low`, which can. */
static uint64_t most_dealt(const struct od_split *s, const struct od_device *d, uint64_t low, uint64_t copies)
{
	uint64_t page = 0, all = 0, high, free_bytes = 0;
	uint32_t end[OD_MAX_CARDS];

	for (uint32_t i = s->begin; i < s->end; i++)
		od_split_add(&page, s->layer[i].page);
	for (unsigned i = 0; i < s->n_cards; i++)
		od_split_add(&free_bytes, s->card[i].free);
	all = page > 0 ? free_bytes / page : 0;
	for (high = all > low ? all : low; low < high;) {
		const uint64_t n = high - (high - low) / 2;

		if (take_layers(s, d, n, copies, end))
			low = n;
		else
			high = n - 1;
	}
	return low;
}

void od_split_deal(struct od_split *s, struct od_device *d, uint64_t pages, uint64_t copies)
{
	uint32_t end[OD_MAX_CARDS];

	if (take_layers(s, d, pages, copies, end) && s->n_cards > 1)
		(void)take_layers(s, d, most_dealt(s, d, pages, copies), copies, end);
	od_device_split(d, end);
	od_split_count(s, d);
}

void od_split_count(struct od_split *s, const struct od_device *d)
{
	const unsigned first = od_device_card_of(d, s->begin), last = od_device_card_of(d, s->end - 1);

	for (unsigned i = 0; i < s->n_cards; i++) {
		s->card[i].sum = s->each;
		od_split_add(&s->card[i].sum.bytes, od_device_own_bytes(od_device_card((struct od_device *)d, i)));
	}
	for (uint32_t i = s->begin; i < s->end; i++)
		add_sum(&s->card[od_device_card_of(d, i)].sum, &s->layer[i]);
	od_split_add(&s->card[first].sum.bytes, s->first);
	od_split_add(&s->card[last].sum.bytes, s->last);
	od_split_add(&s->card[last].sum.bytes, first != last ? s->tied : 0);
	s->card[s->n_cards].sum = s->beside;
	for (unsigned i = 0; i < s->n_cards; i++)
		add_sum(&s->card[s->n_cards].sum, &s->card[i].sum);
}

const char *od_split_text(const struct od_split *s, const struct od_device *d, uint64_t pages, uint64_t copies,
			  char *text, size_t size)
{
	size_t n = 0;

	text[0] = '\0';
	if (s->n_cards > 1)
		for (unsigned i = 0; i < s->n_cards && n < size; i++) {
			const uint32_t begin =
				od_device_card_begin(d, i) > s->begin ? od_device_card_begin(d, i) : s->begin;
			const uint32_t last =
				(od_device_card_end(d, i) < s->end ? od_device_card_end(d, i) : s->end) - 1;
			const char *name = od_device_name(od_device_card((struct od_device *)d, i));
			char need[32], have[32], layers[32] = "no layer";
			int len;

			if (last + 1 > begin)
				snprintf(layers, sizeof(layers), begin < last ? "layers %u-%u" : "layer %u", begin,
					 last);
			len = snprintf(text + n, size - n, "; %.*s: %s: %s needed, %s free", (int)strcspn(name, " "),
				       name, layers,
				       od_format_bytes(od_split_need(s, i, pages, copies), need, sizeof(need)),
				       od_format_bytes(s->card[i].free, have, sizeof(have)));
			n += len > 0 ? (size_t)len : 0;
		}
	return text;
}

void od_split_log(const struct od_split *s, const struct od_device *d, uint64_t pages, uint64_t copies)
{
	char text[OD_SPLIT_TEXT_BYTES];

	if (s->n_cards > 1)
		od_log(OD_LOG_INFO, "the model is split by layers%s",
		       od_split_text(s, d, pages, copies, text, sizeof(text)));
}
