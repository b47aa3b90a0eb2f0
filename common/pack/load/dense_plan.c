#include "common/pack/load/dense_plan.h"

#include "common/base/mem.h"

#define LEVELS 64 /* shares of a stage that are tried */
#define SIZES 16 /* sizes of the ring that are tried, up to twice the smallest */

/* The next part from `at` on that is read in each step, round the end; n: there is none. */
static size_t next_streamed(const struct od_dense_part *part, size_t n, size_t at)
{
	for (size_t i = 0; i < n; i++)
		if (!part[(at + i) % n].stays)
			return (at + i) % n;
	return n;
}

/* The first part behind the stage of part i. */
static size_t stage_end(const struct od_dense_part *part, size_t n, size_t i)
{
	size_t end = i;

	while (end < n && part[end].stage == part[i].stage)
		end++;
	return end;
}

static uint64_t streamed_bytes(const struct od_dense_part *part, size_t begin, size_t end)
{
	uint64_t sum = 0;

	for (size_t i = begin; i < end; i++)
		sum += part[i].stays ? 0 : part[i].bytes;
	return sum;
}

/* The most that two stages which follow one another need. */
static uint64_t most_of_two(const struct od_dense_part *part, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0, end; i < n; i = end) {
		size_t next;
		uint64_t sum;

		end = stage_end(part, n, i);
		sum = streamed_bytes(part, i, end);
		next = next_streamed(part, n, end % n);
		if (sum > 0 && part[next].stage != part[i].stage)
			sum += streamed_bytes(part, next, stage_end(part, n, next));
		most = sum > most ? sum : most;
	}
	return most;
}

static bool overlap(const struct od_dense_part *a, const struct od_dense_part *b)
{
	return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static bool any_overlap(const struct od_dense_part *part, size_t begin, size_t end, size_t from, size_t to)
{
	for (size_t i = begin; i < end; i++)
		for (size_t j = from; j < to; j++)
			if (i != j && !part[i].stays && !part[j].stays && overlap(&part[i], &part[j]))
				return true;
	return false;
}

enum fit { NO_FIT, ALONE, BESIDE }; /* a stage has its place; and the next one has another */

/* One part behind the other, round the ring's end. */
static enum fit place(struct od_dense_part *part, size_t n, uint64_t ring_bytes)
{
	enum fit fit = BESIDE;
	uint64_t at = 0;

	for (size_t i = 0; i < n; i++) {
		if (part[i].stays)
			continue;
		if (part[i].bytes > ring_bytes)
			return NO_FIT;
		part[i].at = at + part[i].bytes <= ring_bytes ? at : 0;
		at = part[i].at + part[i].bytes;
	}
	for (size_t i = next_streamed(part, n, 0), end; i < n; i = end) {
		const size_t begin = i;
		size_t next;

		end = stage_end(part, n, i);
		next = next_streamed(part, n, end % n);
		if (any_overlap(part, begin, end, begin, end))
			return NO_FIT;
		if (part[next].stage != part[i].stage && any_overlap(part, begin, end, next, stage_end(part, n, next)))
			fit = ALONE;
		while (end < n && part[end].stays)
			end++;
	}
	return fit;
}

/* The smallest ring that lets a stage be read beside the one before; else any that holds a stage. */
static uint64_t place_all(struct od_dense_part *part, size_t n)
{
	const uint64_t least = most_of_two(part, n);
	uint64_t alone = 0;

	for (uint64_t i = 0; i <= SIZES; i++) {
		const uint64_t bytes = least + od_round_up(least / SIZES * i, OD_PAGE_BYTES);
		const enum fit fit = place(part, n, bytes);

		if (fit == BESIDE)
			return bytes;
		if (fit == ALONE && alone == 0)
			alone = bytes;
	}
	if (alone == 0) /* a part that does not fit before the end leaves less free than the largest stage takes */
		alone = 2 * least + OD_PAGE_BYTES;
	(void)place(part, n, alone);
	return alone;
}

/* At most limit_bytes of each stage are read, the largest parts first: few large reads. */
static void cut_stages(struct od_dense_part *part, size_t n, uint64_t limit_bytes)
{
	for (size_t i = 0; i < n; i++)
		part[i].stays = true;
	for (size_t i = 0, end; i < n; i = end) {
		uint64_t sum = 0;

		end = stage_end(part, n, i);
		for (;;) {
			struct od_dense_part *best = NULL;

			for (size_t j = i; j < end; j++)
				if (part[j].stays && sum + part[j].bytes <= limit_bytes &&
				    (best == NULL || part[j].bytes > best->bytes))
					best = &part[j];
			if (best == NULL)
				break;
			best->stays = false;
			sum += best->bytes;
		}
	}
}

static uint64_t sum_up(struct od_dense_plan *plan, struct od_dense_part *part, size_t n)
{
	*plan = (struct od_dense_plan){ .streamed_bytes = streamed_bytes(part, 0, n) };
	for (size_t i = 0; i < n; i++)
		plan->kept_bytes += part[i].stays ? part[i].bytes : 0;
	plan->ring_bytes = plan->streamed_bytes > 0 ? place_all(part, n) : 0;
	return plan->ring_bytes + plan->kept_bytes;
}

/* Steps through [0, n) so that those visited first lie far apart. */
static size_t far_step(size_t n)
{
	size_t step = n * 5 / 8 + 1, a, b;

	for (;; step++) {
		for (a = n, b = step % n; b > 0;) {
			const size_t rest = a % b;

			a = b;
			b = rest;
		}
		if (a == 1)
			return step;
	}
}

/* Further parts stay in the memory that is left, those of stages far apart first. */
static void keep_more(struct od_dense_part *part, size_t n, uint64_t left)
{
	const size_t step = far_step(n);

	for (size_t i = 0, at = 0; i < n; i++, at = (at + step) % n)
		if (!part[at].stays && part[at].bytes <= left) {
			part[at].stays = true;
			left -= part[at].bytes;
		}
}

/* The plan with at most limit_bytes of a stage read; it takes at most most_bytes, or false. */
static bool plan_level(struct od_dense_plan *plan, struct od_dense_part *part, size_t n, uint64_t limit_bytes,
		       uint64_t most_bytes)
{
	uint64_t sum;

	cut_stages(part, n, limit_bytes);
	sum = sum_up(plan, part, n);
	if (sum > most_bytes)
		return false;
	keep_more(part, n, most_bytes - sum);
	if (sum_up(plan, part, n) <= most_bytes)
		return true;
	cut_stages(part, n, limit_bytes); /* fewer parts were placed worse */
	(void)sum_up(plan, part, n);
	return true;
}

/* One further part after the other stays, as long as the ring lies well without it. */
static void keep_each(struct od_dense_plan *plan, struct od_dense_part *part, size_t n, uint64_t most_bytes)
{
	const size_t step = far_step(n);

	for (size_t i = 0, at = 0; i < n; i++, at = (at + step) % n) {
		if (part[at].stays || plan->kept_bytes + part[at].bytes > most_bytes)
			continue;
		part[at].stays = true;
		if (sum_up(plan, part, n) > most_bytes) {
			part[at].stays = false;
			(void)sum_up(plan, part, n);
		}
	}
}

/* How many parts were read since one that lies where this one goes; of its own last time if there is none. */
static void find_behind(struct od_dense_part *part, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t at = i;

		part[i].behind = 0;
		if (part[i].stays)
			continue;
		do {
			at = at > 0 ? at - 1 : n - 1;
			part[i].behind += !part[at].stays;
		} while (at != i && (part[at].stays || !overlap(&part[at], &part[i])));
	}
}

bool od_dense_plan_make(struct od_dense_plan *plan, struct od_dense_part *part, size_t n, uint64_t most_bytes)
{
	uint64_t largest = 0, least = UINT64_MAX, level = 0;
	bool fits = false;

	for (size_t i = 0, end; i < n; i = end) {
		uint64_t sum = 0;

		for (end = i; end < n && part[end].stage == part[i].stage; end++)
			sum += part[end].bytes;
		largest = sum > largest ? sum : largest;
	}
	for (uint64_t i = 0; i <= LEVELS; i++) {
		const uint64_t limit = i < LEVELS ? largest / LEVELS * i : largest;

		if (!plan_level(plan, part, n, limit, most_bytes) || plan->streamed_bytes >= least)
			continue;
		fits = true;
		least = plan->streamed_bytes;
		level = limit;
	}
	if (fits) {
		(void)plan_level(plan, part, n, level, most_bytes);
		keep_each(plan, part, n, most_bytes);
	} else {
		cut_stages(part, n, largest);
		(void)sum_up(plan, part, n);
	}
	find_behind(part, n);
	return fits;
}
