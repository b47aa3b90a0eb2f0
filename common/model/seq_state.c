#include "common/model/seq_state.h"

#include "common/base/mem.h"
#include "common/compute/cards.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A layer's pages in the pool. */
struct state_layer {
	uint32_t n_streams;
	unsigned card; /* whose buffer it is in */
	struct {
		uint64_t at; /* its first page, in that buffer */
		size_t row_bytes;
		uint64_t page_bytes; /* from a page to the next */
	} stream[OD_MAX_STREAMS];
	uint64_t fixed_at, fixed_bytes; /* in the card's share of a copy of a sequence's fixed state */
};

struct od_state_pool {
	/* Each card's [its layers][stream][n_pages][OD_KV_PAGE][row]. Where memory is committed, one card's
	 * [n_pages][layer][stream][OD_KV_PAGE][row], with pages of commit_bytes, so that a page is one range. */
	struct od_buf *pages[OD_MAX_CARDS];
	uint64_t commit_bytes; /* 0: pages have memory when they are written */
	/* Each card's [n_sequences][n_copies][card_fixed], then card_fixed of zeros; [n_snapshots][card_fixed]. NULL:
	 * none. */
	struct od_buf *fixed[OD_MAX_CARDS], *snapshots[OD_MAX_CARDS];
	uint64_t card_fixed[OD_MAX_CARDS]; /* bytes of one copy on each card */
	uint32_t n_snapshots;
	uint64_t fixed_bytes; /* bytes of one copy on all cards */
	uint32_t n_copies;
	enum od_dtype dtype;
	uint32_t n_layers, ctx, n_sequences, open;
	uint32_t short_ctx; /* longest short sequence: at most ctx */
	uint32_t n_pages;
	uint32_t *spare; /* [n_pages]: unused pages; the next to be taken is the last */
	uint32_t n_cold; /* lent: the first of these have no memory */
	bool lent;
	struct od_state_sharing with; /* all NULL: no one */
	uint32_t n_spare, n_owed; /* owed: promised and not yet taken; never more than there are spare */
	uint32_t *users; /* [n_pages]: sequences that have the page */
	bool *kept; /* [n_pages] */
	uint32_t n_idle, n_aside; /* kept without users; spare or idle, and not to be promised */
	bool *taken; /* [n_sequences]: indices of sequences */
	struct state_layer layer[]; /* [n_layers] */
};

struct od_seq_state {
	struct od_state_pool *pool;
	uint32_t length, n_pages;
	bool is_long;
	uint32_t promised; /* pages, those that it has included */
	uint32_t index; /* among the open ones; its fixed state is there */
	bool mirror; /* its pages are another process's to count */
	/* Copies of its fixed state after texts of these lengths, the shortest first; the last is the committed one. */
	struct {
		uint32_t length, copy;
	} kept[OD_MAX_COPIES];
	uint32_t n_kept;
	uint32_t next; /* the copy that a step writes */
	struct {
		uint32_t length, snapshot;
	} mark[OD_MAX_MARKS];
	uint32_t n_marks;
	uint32_t page[]; /* [pages of ctx] */
};

static enum od_dtype dtype_of(enum od_profile profile)
{
	return profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;
}

static struct od_state_spec state_of(const struct od_config *cfg, uint32_t layer)
{
	const struct od_layer_spec *spec = od_config_layer(cfg, layer);
	struct od_state_spec s = { 0 };

	spec->mixer->state(&spec->mix, &s);
	return s;
}

uint32_t od_state_row_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t layer,
			    uint64_t bytes[OD_MAX_STREAMS])
{
	const struct od_state_spec s = state_of(cfg, layer);
	uint32_t n = 0;

	for (; n < s.n_streams; n++)
		bytes[n] = (uint64_t)s.width[n] * od_dtype_bytes(dtype_of(profile));
	if (cfg->prior.recent > 0 && od_config_layer(cfg, layer)->ffn == OD_FFN_MOE)
		bytes[n++] = od_recent_bytes(cfg->prior.recent);
	return n;
}

uint32_t od_state_pages(uint32_t positions)
{
	return positions / OD_KV_PAGE + (positions % OD_KV_PAGE != 0);
}

/* Pages are the innermost, so that attention reads one stream: were a page's layers together, pages of a layer would
 * lie a multiple of large powers of two apart and evict each other from a CPU's cache. layer NULL: counts alone; d
 * NULL: as if for one card. More than 64 bits can say is more than anybody has. */
static bool lay_out_layers(const struct od_config *cfg, enum od_profile profile, uint64_t n_pages,
			   const struct od_device *d, struct state_layer *layer, uint64_t page_bytes[OD_MAX_CARDS],
			   uint64_t fixed_bytes[OD_MAX_CARDS])
{
	bool fits = true;

	memset(page_bytes, 0, OD_MAX_CARDS * sizeof(*page_bytes));
	memset(fixed_bytes, 0, OD_MAX_CARDS * sizeof(*fixed_bytes));
	for (uint32_t i = 0; i < cfg->n_layers; i++) {
		struct state_layer l = { .card = d != NULL ? od_device_card_of(d, i) : 0 };
		uint64_t *end = &page_bytes[l.card], *fixed_end = &fixed_bytes[l.card], row[OD_MAX_STREAMS], bytes;

		l.fixed_at = *fixed_end;
		if (od_config_holds(cfg, i)) {
			l.fixed_bytes = state_of(cfg, i).fixed_bytes;
			l.n_streams = od_state_row_bytes(cfg, profile, i, row);
		}
		for (uint32_t j = 0; j < l.n_streams; j++) {
			l.stream[j].at = *end;
			l.stream[j].row_bytes = (size_t)row[j];
			fits = fits && od_mul(row[j], OD_KV_PAGE, &l.stream[j].page_bytes) &&
			       od_mul(l.stream[j].page_bytes, n_pages, &bytes) && od_add(*end, bytes, end);
		}
		fits = fits && od_add(*fixed_end, od_round_up(l.fixed_bytes, OD_FIXED_ALIGN), fixed_end);
		if (layer != NULL)
			layer[i] = l;
	}
	return fits;
}

/* Bytes of the buffer of fixed state. */
static bool all_fixed(uint64_t fixed_bytes, uint32_t n, uint32_t copies, uint64_t *bytes)
{
	return od_mul(fixed_bytes, (uint64_t)copies * n + 1, bytes);
}

uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint64_t n_pages,
			     uint32_t n_sequences)
{
	uint64_t pages[OD_MAX_CARDS], copy[OD_MAX_CARDS], fixed, sum;

	if (!lay_out_layers(cfg, profile, n_pages, NULL, NULL, pages, copy) ||
	    !all_fixed(copy[0], n_sequences, 2, &fixed) || !od_add(pages[0], fixed, &sum) ||
	    !od_add(sum, OD_PAD_BYTES, &sum))
		return UINT64_MAX;
	return sum;
}

uint64_t od_state_page_bytes(const struct od_config *cfg, enum od_profile profile, const struct od_device *lent_by)
{
	uint64_t pages[OD_MAX_CARDS], copy[OD_MAX_CARDS];

	if (!lay_out_layers(cfg, profile, 1, NULL, NULL, pages, copy))
		return UINT64_MAX;
	return od_device_granules(lent_by, pages[0]);
}

uint64_t od_state_fixed_bytes(const struct od_config *cfg)
{
	uint64_t pages[OD_MAX_CARDS], copy[OD_MAX_CARDS];

	return lay_out_layers(cfg, OD_PROFILE_F32, 0, NULL, NULL, pages, copy) ? copy[0] : UINT64_MAX;
}

void od_state_split(const struct od_config *cfg, enum od_profile profile, struct od_split *s)
{
	for (uint32_t i = s->begin; i < s->end; i++) {
		const struct od_layer_spec *spec = od_config_layer(cfg, i);
		uint64_t row[OD_MAX_STREAMS];
		const uint32_t n = od_state_row_bytes(cfg, profile, i, row);

		for (uint32_t j = 0; j < n; j++)
			od_split_add(&s->layer[i].page, row[j] * OD_KV_PAGE);
		od_split_add(&s->layer[i].copy, od_round_up(state_of(cfg, i).fixed_bytes, OD_FIXED_ALIGN));
		for (uint32_t j = spec->mix.kv_of; j > 0 && j <= i; j++) /* whose keys a layer uses is kv_of - 1 */
			s->joined[j] = true;
	}
}

/* Room for the copies that the pool has now. */
static int open_fixed(struct od_state_pool *p, struct od_device *d, struct od_err *err)
{
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(d); i++) {
		uint64_t bytes;

		if (p->card_fixed[i] == 0)
			continue;
		if (!all_fixed(p->card_fixed[i], p->n_sequences, p->n_copies, &bytes))
			return od_fail(err, OD_ERR_NOMEM, "%u copies of %" PRIu64 " bytes of recurrent state",
				       p->n_copies, p->card_fixed[i]);
		rc = od_buf_new(&p->fixed[i], od_device_card(d, i), bytes, "recurrent state", err);
	}
	return rc;
}

/* A page's streams lie together, and the next page lies commit_bytes behind it. */
static uint64_t lay_out_granules(struct od_state_pool *p, const struct od_config *cfg, enum od_profile profile,
				 uint64_t n_pages, const struct od_device *d)
{
	uint64_t page[OD_MAX_CARDS], fixed[OD_MAX_CARDS], bytes;

	(void)!lay_out_layers(cfg, profile, 1, NULL, p->layer, page, fixed); /* n_pages fit */
	p->commit_bytes = od_state_page_bytes(cfg, profile, d);
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t j = 0; j < p->layer[i].n_streams; j++)
			p->layer[i].stream[j].page_bytes = p->commit_bytes;
	return od_mul(p->commit_bytes, n_pages, &bytes) ? bytes : UINT64_MAX;
}

static int open_pool(struct od_state_pool *p, struct od_device *d, const struct od_config *cfg, enum od_profile profile,
		     uint64_t n_pages, struct od_err *err)
{
	const uint64_t sum = od_state_pool_bytes(cfg, profile, n_pages, p->n_sequences);
	uint64_t bytes[OD_MAX_CARDS];
	int rc = OD_OK;

	if (sum != UINT64_MAX && n_pages <= UINT32_MAX) {
		p->spare = malloc(n_pages * sizeof(*p->spare) + 1);
		p->users = calloc(n_pages + 1, sizeof(*p->users));
		p->kept = calloc(n_pages + 1, sizeof(*p->kept));
		p->taken = calloc(p->n_sequences, sizeof(*p->taken));
	}
	if (p->spare == NULL || p->users == NULL || p->kept == NULL || p->taken == NULL)
		return od_fail(err, OD_ERR_NOMEM,
			       "keys and values of %" PRIu64 " pages of %d positions: %" PRIu64 " bytes", n_pages,
			       OD_KV_PAGE, sum);
	(void)!lay_out_layers(cfg, profile, n_pages, d, p->layer, bytes, p->card_fixed); /* it fits: the sum says so */
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		p->fixed_bytes += p->card_fixed[i];
	if (p->lent && od_device_commits(d))
		bytes[0] = lay_out_granules(p, cfg, profile, n_pages, d);
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(d); i++)
		rc = (p->lent ? od_buf_new_sparse : od_buf_new)(&p->pages[i], od_device_card(d, i), bytes[i],
								"keys and values", err);
	if (rc == OD_OK)
		rc = open_fixed(p, d, err);
	if (rc != OD_OK)
		return rc;
	p->n_pages = p->n_spare = (uint32_t)n_pages;
	p->n_cold = p->lent ? p->n_spare : 0;
	for (uint32_t i = 0; i < p->n_pages; i++)
		p->spare[i] = p->n_pages - 1 - i;
	return OD_OK;
}

static int new_pool(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
		    enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages, bool lent,
		    struct od_err *err)
{
	struct od_state_pool *p;
	int rc;

	*out = NULL;
	if (ctx == 0 || ctx > cfg->ctx_max)
		return od_fail(err, OD_ERR_RANGE,
			       "context: expected 1 to %u positions (max_position_embeddings), found %u", cfg->ctx_max,
			       ctx);
	p = calloc(1, sizeof(*p) + cfg->n_layers * sizeof(p->layer[0]));
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "keys and values of %u sequences", n_sequences);
	p->dtype = dtype_of(profile);
	p->n_layers = cfg->n_layers;
	p->ctx = ctx;
	p->short_ctx = od_config_short_ctx(cfg) < ctx ? od_config_short_ctx(cfg) : ctx;
	p->n_sequences = n_sequences;
	p->n_copies = 2;
	p->lent = lent;
	rc = open_pool(p, d, cfg, profile, n_pages, err);
	if (rc != OD_OK) {
		od_state_pool_free(p);
		return rc;
	}
	*out = p;
	return OD_OK;
}

int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
		      enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages, struct od_err *err)
{
	return new_pool(out, d, cfg, profile, ctx, n_sequences, n_pages, false, err);
}

int od_state_pool_new_lent(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
			   enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages,
			   struct od_err *err)
{
	assert(od_device_cards(d) == 1 && od_device_lends(d, od_state_page_bytes(cfg, profile, NULL)));
	return new_pool(out, d, cfg, profile, ctx, n_sequences, n_pages, true, err);
}

int od_state_pool_set_copies(struct od_state_pool *p, struct od_device *d, uint32_t n, struct od_err *err)
{
	assert(n >= 2 && n <= OD_MAX_COPIES && p->open == 0);
	p->n_copies = n;
	for (unsigned i = 0; i < OD_MAX_CARDS; i++) {
		od_buf_free(p->fixed[i]);
		p->fixed[i] = NULL;
	}
	return open_fixed(p, d, err);
}

int od_state_pool_set_snapshots(struct od_state_pool *p, struct od_device *d, uint32_t n, struct od_err *err)
{
	int rc = OD_OK;

	assert(p->fixed_bytes > 0 && p->n_snapshots == 0);
	p->n_snapshots = n;
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(d); i++) {
		uint64_t bytes;

		if (!od_mul(p->card_fixed[i], n, &bytes))
			return od_fail(err, OD_ERR_NOMEM, "%u snapshots of %" PRIu64 " bytes", n, p->card_fixed[i]);
		if (bytes > 0)
			rc = od_buf_new(&p->snapshots[i], od_device_card(d, i), bytes, "snapshots of recurrent state",
					err);
	}
	return rc;
}

struct od_ref od_state_pool_snapshot(const struct od_state_pool *p, unsigned card, uint32_t snapshot)
{
	assert(snapshot < p->n_snapshots);
	return od_buf_ref(p->snapshots[card], snapshot * p->card_fixed[card]);
}

uint64_t od_state_pool_card_bytes(const struct od_state_pool *p, unsigned card)
{
	return p->card_fixed[card];
}

void od_state_pool_free(struct od_state_pool *p)
{
	if (p == NULL)
		return;
	for (unsigned i = 0; i < OD_MAX_CARDS; i++) {
		od_buf_free(p->pages[i]);
		od_buf_free(p->fixed[i]);
		od_buf_free(p->snapshots[i]);
	}
	free(p->spare);
	free(p->users);
	free(p->kept);
	free(p->taken);
	free(p);
}

bool od_state_pool_fits(const struct od_state_pool *p, const struct od_config *cfg)
{
	const enum od_profile profile = p->dtype == OD_BF16 ? OD_PROFILE_BF16 : OD_PROFILE_F32;
	uint64_t fixed[OD_MAX_CARDS] = { 0 }, sum = 0;

	if (cfg->n_layers != p->n_layers)
		return false;
	for (uint32_t i = 0; i < cfg->n_layers; i++) {
		const struct state_layer *l = &p->layer[i];
		uint64_t row[OD_MAX_STREAMS], copy = 0;
		uint32_t n = 0;

		if (od_config_holds(cfg, i)) {
			n = od_state_row_bytes(cfg, profile, i, row);
			copy = od_round_up(state_of(cfg, i).fixed_bytes, OD_FIXED_ALIGN);
		}
		if (l->n_streams != n || l->fixed_at != fixed[l->card])
			return false;
		for (uint32_t j = 0; j < n; j++)
			if (l->stream[j].row_bytes != row[j])
				return false;
		fixed[l->card] += copy;
		sum += copy;
	}
	return sum == p->fixed_bytes;
}

enum od_dtype od_state_pool_dtype(const struct od_state_pool *p)
{
	return p->dtype;
}

uint32_t od_state_pool_ctx(const struct od_state_pool *p)
{
	return p->ctx;
}

uint32_t od_state_pool_sequences(const struct od_state_pool *p)
{
	return p->n_sequences;
}

/* With more idle pages than were set aside there may be fewer than none. */
uint32_t od_state_pool_free_pages(const struct od_state_pool *p)
{
	const uint64_t all = (uint64_t)p->n_spare + p->n_idle, gone = (uint64_t)p->n_owed + p->n_aside;

	return all > gone ? (uint32_t)(all - gone) : 0;
}

void od_state_pool_share(struct od_state_pool *p, const struct od_state_sharing *with)
{
	assert(p->lent && p->n_cold == p->n_pages);
	p->with = *with;
}

/* Where memory is committed. */
static struct od_ref page_at(const struct od_state_pool *p, uint32_t page)
{
	return od_buf_ref(p->pages[0], page * p->commit_bytes);
}

/* n pages with numbers in a row. */
static void release_pages(const struct od_state_pool *p, uint32_t first, uint32_t n)
{
	if (p->commit_bytes > 0)
		od_ref_release(page_at(p, first), n * p->commit_bytes);
	for (uint32_t i = 0; p->commit_bytes == 0 && i < p->n_layers; i++)
		for (uint32_t j = 0; j < p->layer[i].n_streams; j++)
			od_ref_release(od_state_pool_row(p, i, j, first, 0), n * p->layer[i].stream[j].page_bytes);
}

/* After work that may use pages that are released, also of a step that failed. An error is left for the next wait to
 * report. */
static void settle(const struct od_state_pool *p)
{
	struct od_device *d = od_buf_device(p->pages[0]);

	(void)!od_device_wait(d, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE), NULL);
}

static int commit_pages(const struct od_state_pool *p, const uint32_t *page, uint32_t n, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t i = 0; p->commit_bytes > 0 && rc == OD_OK && i < n; i++)
		rc = od_ref_commit(page_at(p, page[i]), p->commit_bytes, "keys and values", err);
	return rc;
}

/* Memory for the next n pages that have none. */
static int warm_pages(struct od_state_pool *p, uint32_t n, struct od_err *err)
{
	const uint32_t *page = p->spare + p->n_cold - n;
	int rc;

	if (p->with.take != NULL)
		p->with.take(p->with.arg, n);
	do
		rc = commit_pages(p, page, n, err);
	while (rc == OD_ERR_NOMEM && p->with.give_way != NULL && p->with.give_way(p->with.arg, n * p->commit_bytes));
	if (rc == OD_OK) {
		p->n_cold -= n;
		return OD_OK;
	}
	for (uint32_t i = 0; i < n; i++)
		release_pages(p, page[i], 1);
	if (p->with.give != NULL)
		p->with.give(p->with.arg, n);
	if (rc == OD_ERR_NOMEM)
		(void)od_fail_within(err, OD_LACKS_MEMORY);
	return rc;
}

void od_state_pool_give_back(struct od_state_pool *p, uint32_t keep)
{
	const uint32_t n = p->n_spare - p->n_cold > keep ? p->n_spare - p->n_cold - keep : 0;

	if (p->with.give == NULL || n == 0)
		return;
	settle(p);
	/* A text's pages are spare from its last to its first one, so most numbers fall by one. */
	for (uint32_t i = 0, run; i < n; i += run) {
		const uint32_t *at = &p->spare[p->n_cold + i];

		for (run = 1; i + run < n && at[run] + run == at[0];)
			run++;
		release_pages(p, at[run - 1], run);
	}
	p->n_cold += n;
	p->with.give(p->with.arg, n);
}

void od_state_pool_set_aside(struct od_state_pool *p, uint32_t n)
{
	assert(p->n_spare == p->n_pages && n <= p->n_pages);
	p->n_aside = n;
}

void od_state_pool_keep(struct od_state_pool *p, uint32_t page)
{
	assert(page < p->n_pages && p->users[page] > 0);
	p->kept[page] = true;
}

void od_state_pool_drop(struct od_state_pool *p, uint32_t page)
{
	assert(page < p->n_pages && p->kept[page]);
	p->kept[page] = false;
	if (p->users[page] > 0)
		return;
	p->n_idle--;
	p->spare[p->n_spare++] = page;
}

uint32_t od_state_pool_idle_pages(const struct od_state_pool *p)
{
	return p->n_idle;
}

uint32_t od_state_pool_streams(const struct od_state_pool *p, uint32_t layer, struct od_stream out[OD_MAX_STREAMS])
{
	const struct state_layer *l = &p->layer[layer];

	for (uint32_t i = 0; i < l->n_streams; i++)
		out[i] = (struct od_stream){
			.pages = od_buf_ref(p->pages[l->card], l->stream[i].at),
			.page_bytes = l->stream[i].page_bytes,
			.row_bytes = l->stream[i].row_bytes,
			.dtype = p->dtype,
		};
	return l->n_streams;
}

size_t od_state_pool_row_bytes(const struct od_state_pool *p, uint32_t layer)
{
	size_t sum = 0;

	for (uint32_t i = 0; i < p->layer[layer].n_streams; i++)
		sum += p->layer[layer].stream[i].row_bytes;
	return sum;
}

size_t od_state_pool_most_bytes(const struct od_state_pool *p)
{
	size_t most = 0;

	for (uint32_t l = 0; l < p->n_layers; l++)
		most = od_state_pool_row_bytes(p, l) > most ? od_state_pool_row_bytes(p, l) : most;
	return most;
}

bool od_state_pool_mapped(const struct od_state_pool *p)
{
	return od_ref_map(od_buf_ref(p->pages[0], 0)) != NULL;
}

uint64_t od_state_pool_fixed_bytes(const struct od_state_pool *p)
{
	return p->fixed_bytes;
}

uint64_t od_state_pool_layer_bytes(const struct od_state_pool *p, uint32_t layer)
{
	return p->layer[layer].fixed_bytes;
}

int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err)
{
	struct od_seq_state *s;

	*out = NULL;
	if (p->open == p->n_sequences)
		return od_fail(err, OD_ERR_BUSY, "sequences: all %u of the pool are open", p->n_sequences);
	s = calloc(1, sizeof(*s) + od_state_pages(p->ctx) * sizeof(s->page[0]));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sequence");
	s->pool = p;
	while (p->taken[s->index])
		s->index++;
	p->taken[s->index] = true;
	p->open++;
	s->n_kept = 1;
	s->next = 1;
	*out = s;
	return OD_OK;
}

void od_seq_state_free(struct od_seq_state *s)
{
	struct od_state_pool *p;

	if (s == NULL)
		return;
	p = s->pool;
	if (s->mirror)
		s->n_pages = 0;
	p->n_owed -= s->promised - s->n_pages;
	/* The first page is spare last and taken next: memory that was touched is used again before other memory is. */
	while (s->n_pages > 0) {
		const uint32_t page = s->page[--s->n_pages];

		if (--p->users[page] > 0)
			continue;
		if (p->kept[page])
			p->n_idle++;
		else
			p->spare[p->n_spare++] = page;
	}
	p->taken[s->index] = false;
	p->open--;
	free(s);
}

void od_seq_state_set_long(struct od_seq_state *s, bool is_long)
{
	assert(s->n_pages == 0);
	s->is_long = is_long;
}

bool od_seq_state_is_long(const struct od_seq_state *s)
{
	return s->is_long;
}

/* So many more pages may be promised, if memory is shared. */
static uint32_t shared_room(const struct od_state_pool *p)
{
	const uint32_t gone = p->n_pages - p->n_spare - p->n_idle + p->n_owed + p->n_aside;
	uint32_t most;

	if (p->with.most == NULL || gone == p->n_aside)
		return UINT32_MAX;
	most = p->with.most(p->with.arg);
	return most > gone ? most - gone : 0;
}

int od_seq_state_promise(struct od_seq_state *s, uint32_t positions)
{
	const uint32_t pages = od_state_pages(positions);

	assert(positions <= s->pool->ctx);
	if (pages <= s->promised)
		return OD_OK;
	if (pages - s->promised > od_state_pool_free_pages(s->pool) || pages - s->promised > shared_room(s->pool))
		return OD_ERR_BUSY;
	s->pool->n_owed += pages - s->promised;
	s->promised = pages;
	return OD_OK;
}

void od_seq_state_attach(struct od_seq_state *s, const uint32_t *page, uint32_t n)
{
	struct od_state_pool *p = s->pool;

	assert(s->n_pages == 0 && n <= p->ctx / OD_KV_PAGE);
	for (uint32_t i = 0; i < n; i++) {
		assert(page[i] < p->n_pages && (p->users[page[i]] > 0 || p->kept[page[i]]));
		s->page[i] = page[i];
		p->n_idle -= p->users[page[i]]++ == 0;
	}
	p->n_owed -= s->promised < n ? s->promised : n;
	s->promised = s->promised > n ? s->promised : n;
	s->n_pages = n;
	s->length = n * OD_KV_PAGE;
}

void od_seq_state_share(struct od_seq_state *s, const struct od_seq_state *from, uint32_t n)
{
	assert(s->pool == from->pool && s->is_long == from->is_long && n <= from->n_pages);
	od_seq_state_attach(s, from->page, n);
}

uint32_t od_seq_state_index(const struct od_seq_state *s)
{
	return s->index;
}

uint32_t od_seq_state_ctx(const struct od_seq_state *s)
{
	return s->is_long ? s->pool->ctx : s->pool->short_ctx;
}

uint32_t od_seq_state_length(const struct od_seq_state *s)
{
	return s->length;
}

/* The fixed state is that of a new text. */
static void forget_fixed(struct od_seq_state *s)
{
	s->n_kept = 1;
	s->kept[0].length = 0;
	s->kept[0].copy = s->next == 0 ? 1 : 0;
}

void od_seq_state_set_length(struct od_seq_state *s, uint32_t length)
{
	assert(s->pool->fixed_bytes == 0 || length == 0 || length >= s->length);
	s->length = length;
	if (length == 0)
		forget_fixed(s);
}

struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s)
{
	return s->pool;
}

int od_seq_state_reserve(struct od_seq_state *s, uint32_t n, struct od_err *err)
{
	struct od_state_pool *p = s->pool;
	const uint32_t n_pages = od_state_pages(n);

	assert(n <= p->ctx && n_pages <= (s->mirror ? s->n_pages : s->promised));
	if (s->n_pages < n_pages && n_pages - s->n_pages > p->n_spare - p->n_cold) {
		const int rc = warm_pages(p, n_pages - s->n_pages - (p->n_spare - p->n_cold), err);

		if (rc != OD_OK)
			return rc;
	}
	while (s->n_pages < n_pages) {
		const uint32_t page = p->spare[--p->n_spare]; /* there is one: it is owed */

		p->n_owed--;
		p->users[page] = 1;
		s->page[s->n_pages++] = page;
	}
	return OD_OK;
}

const uint32_t *od_seq_state_pages(const struct od_seq_state *s)
{
	return s->page;
}

uint32_t od_seq_state_n_pages(const struct od_seq_state *s)
{
	return s->n_pages;
}

struct od_ref od_state_pool_row(const struct od_state_pool *p, uint32_t layer, uint32_t stream, uint32_t page,
				uint32_t position)
{
	assert(page < p->n_pages && position < OD_KV_PAGE && layer < p->n_layers && stream < p->layer[layer].n_streams);
	return od_buf_ref(p->pages[p->layer[layer].card], p->layer[layer].stream[stream].at +
								  page * p->layer[layer].stream[stream].page_bytes +
								  position * p->layer[layer].stream[stream].row_bytes);
}

struct od_ref od_seq_state_row(const struct od_seq_state *s, uint32_t layer, uint32_t stream, uint32_t position)
{
	assert(position / OD_KV_PAGE < s->n_pages);
	return od_state_pool_row(s->pool, layer, stream, s->page[position / OD_KV_PAGE], position % OD_KV_PAGE);
}

size_t od_seq_state_row_bytes(const struct od_seq_state *s, uint32_t layer, uint32_t stream)
{
	assert(layer < s->pool->n_layers);
	return stream < s->pool->layer[layer].n_streams ? s->pool->layer[layer].stream[stream].row_bytes : 0;
}

uint32_t od_state_pool_n_pages(const struct od_state_pool *p)
{
	return p->n_pages;
}

uint32_t od_state_pool_copies(const struct od_state_pool *p)
{
	return p->n_copies;
}

void od_seq_state_mirror(struct od_seq_state *s, const struct od_seq_mirror *m)
{
	assert(s->promised == 0 && m->n_pages <= od_state_pages(s->pool->ctx) && m->committed != m->next &&
	       m->committed < s->pool->n_copies && m->next < s->pool->n_copies);
	memcpy(s->page, m->page, m->n_pages * sizeof(*s->page));
	s->mirror = true;
	s->n_pages = m->n_pages;
	s->length = m->length;
	s->is_long = m->is_long;
	s->n_kept = 1;
	s->kept[0].length = m->length;
	s->kept[0].copy = m->committed;
	s->next = m->next;
}

struct od_seq_mirror od_seq_state_mirror_of(const struct od_seq_state *s)
{
	return (struct od_seq_mirror){ .page = s->page,
				       .n_pages = s->n_pages,
				       .length = s->length,
				       .is_long = s->is_long,
				       .committed = s->kept[s->n_kept - 1].copy,
				       .next = s->next };
}

struct od_fixed od_seq_state_fixed(const struct od_seq_state *s, uint32_t layer)
{
	const struct od_state_pool *p = s->pool;
	const struct state_layer *l = &p->layer[layer];
	const uint64_t each = p->card_fixed[l->card], at = (uint64_t)p->n_copies * s->index * each + l->fixed_at;

	return (struct od_fixed){ .committed = od_buf_ref(p->fixed[l->card], at + s->kept[s->n_kept - 1].copy * each),
				  .next = od_buf_ref(p->fixed[l->card], at + s->next * each) };
}

/* Queues that a card's share of the committed copy becomes what is at `from`. */
static void copy_fixed(const struct od_seq_state *s, unsigned card, struct od_ref from)
{
	const struct od_state_pool *p = s->pool;
	const uint64_t copy = (uint64_t)p->n_copies * s->index + s->kept[s->n_kept - 1].copy;
	const struct od_op op = { .kind = OD_OP_COPY,
				  .profile = p->dtype == OD_BF16 ? OD_PROFILE_BF16 : OD_PROFILE_F32,
				  .n_rows = 1,
				  .copy = { .from = from,
					    .to = od_buf_ref(p->fixed[card], copy * p->card_fixed[card]),
					    .n = p->card_fixed[card] } };

	od_device_run(od_buf_device(p->fixed[card]), OD_QUEUE_COMPUTE, &op);
}

void od_seq_state_clear_fixed(struct od_seq_state *s)
{
	const struct od_state_pool *p = s->pool;

	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		if (p->fixed[i] != NULL) /* zeros follow the copies */
			copy_fixed(s, i,
				   od_buf_ref(p->fixed[i], (uint64_t)p->n_copies * p->n_sequences * p->card_fixed[i]));
}

void od_seq_state_load(struct od_seq_state *s, uint32_t snapshot)
{
	forget_fixed(s);
	s->kept[0].length = s->length;
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		if (s->pool->fixed[i] != NULL)
			copy_fixed(s, i, od_state_pool_snapshot(s->pool, i, snapshot));
}

void od_seq_state_mark(struct od_seq_state *s, uint32_t length, uint32_t snapshot)
{
	assert(s->n_marks < OD_MAX_MARKS && snapshot < s->pool->n_snapshots && length > s->length &&
	       (s->n_marks == 0 || length > s->mark[s->n_marks - 1].length));
	s->mark[s->n_marks].length = length;
	s->mark[s->n_marks++].snapshot = snapshot;
}

void od_seq_state_unmark(struct od_seq_state *s)
{
	s->n_marks = 0;
}

bool od_seq_state_mark_of(const struct od_seq_state *s, uint32_t layer, uint32_t i, uint32_t *length, struct od_ref *to)
{
	if (i >= s->n_marks)
		return false;
	*length = s->mark[i].length;
	*to = od_ref_at(od_state_pool_snapshot(s->pool, s->pool->layer[layer].card, s->mark[i].snapshot),
			s->pool->layer[layer].fixed_at);
	return true;
}

static void drop_copy(struct od_seq_state *s, uint32_t i)
{
	s->n_kept--;
	memmove(&s->kept[i], &s->kept[i + 1], (s->n_kept - i) * sizeof(s->kept[0]));
}

static bool is_kept(const struct od_seq_state *s, uint32_t copy)
{
	for (uint32_t i = 0; i < s->n_kept; i++)
		if (s->kept[i].copy == copy)
			return true;
	return false;
}

void od_seq_state_take_next(struct od_seq_state *s)
{
	/* The oldest one stays: it is as far as a text was sure. */
	if (s->n_kept == s->pool->n_copies - 1)
		drop_copy(s, s->n_kept > 1 ? 1 : 0);
	s->kept[s->n_kept].length = s->length;
	s->kept[s->n_kept++].copy = s->next;
	for (s->next = 0; is_kept(s, s->next);)
		s->next++;
}

void od_seq_state_settle(struct od_seq_state *s, uint32_t length)
{
	while (s->n_kept > 1 && s->kept[1].length <= length)
		drop_copy(s, 0);
}

uint32_t od_seq_state_rewind(struct od_seq_state *s, uint32_t length)
{
	while (s->n_kept > 0 && s->kept[s->n_kept - 1].length > length)
		s->n_kept--;
	if (s->n_kept == 0)
		forget_fixed(s);
	s->length = s->kept[s->n_kept - 1].length;
	return s->length;
}
