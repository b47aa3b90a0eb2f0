/* seq_state.h - the KV cache: per-sequence state as each layer's mixer declares it (mixer.h). Streams, with a row per
 * position, are in pages of device memory; fixed state does not grow with the text.
 *
 * A page covers OD_KV_PAGE positions and has the same number in every stream of every layer. Sequences take pages from
 * a pool, the lowest free numbers first. Memory is touched only when used, so a short text in a long context stays
 * small; in a pool of 32 MiB and more in huge pages, so in steps of 2 MiB per stream. Rows are f32 in profile f32, BF16
 * in profile bf16. Positions [0, length) are committed and do not change until truncated. A sequence first reserves a
 * number of pages (promise) and takes them when it uses them; the pool never promises more than it has. Pages are
 * reference-counted, so sequences with a common prefix share them. Truncating into a shared page and writing another
 * text would change all sequences that share it. A page can be kept beyond its sequences; it is idle while only the
 * keeper has it.
 * Pages may share memory with others (od_state_pool_share): then they take it when they are used, and give it back.
 * With long RoPE (layer_spec.h) a sequence is of one kind, short or long, from its first row on: rows of the two kinds
 * do not go together.
 * Fixed state has two copies: a step reads the committed one and writes the next, so abandoning a step needs no undo.
 * With more of them, a sequence can return to where it was some steps ago. Beside them there may be snapshots, which
 * belong to no sequence: a step writes them where it passes marks, and other sequences can begin from them.
 * Thread: the one that runs the forward pass. Owner: the caller of new; sequences are freed before their pool. */
#ifndef OD_MODEL_SEQ_STATE_H
#define OD_MODEL_SEQ_STATE_H

#include "common/compute/card_split.h"
#include "common/model/mixer.h"

struct od_state_pool;
struct od_seq_state;

/* Fixed state of a sequence: a step reads the committed copy and writes the next one. */
struct od_fixed {
	struct od_ref committed, next;
};

/* The streams of a layer, whether this process holds it or not: bytes of a position in each. A mixer's come first; in a
 * MoE layer, if the configuration has a prior, recent experts come last (struct od_recent). Returns their number. */
uint32_t od_state_row_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t layer,
			    uint64_t bytes[OD_MAX_STREAMS]);
/* Memory of a page in all layers. lent_by: of pages that this device lends, in whole granules; NULL: of others. */
uint64_t od_state_page_bytes(const struct od_config *cfg, enum od_profile profile, const struct od_device *lent_by);
/* Memory of n_pages pages and of the fixed state of n_sequences, in bytes. */
uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint64_t n_pages,
			     uint32_t n_sequences);
/* Adds what a page and a copy of fixed state take in each layer, and says which layers use the keys of others. */
void od_state_split(const struct od_config *cfg, enum od_profile profile, struct od_split *s);
/* Bytes of a sequence's fixed state in all layers; UINT64_MAX: more than 64 bits can say. */
uint64_t od_state_fixed_bytes(const struct od_config *cfg);
/* A pool for at most n_sequences open sequences of at most ctx positions each, with n_pages pages (at most UINT32_MAX).
 * For all of them to reach ctx at once, n_pages must be n_sequences * od_state_pages(ctx). */
OD_MUST_CHECK int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
				    enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages,
				    struct od_err *err);
/* As od_state_pool_new, where one card lends a page's memory (od_device_lends): pages have memory only when they are
 * used. od_state_pool_share says who has it meanwhile. */
OD_MUST_CHECK int od_state_pool_new_lent(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
					 enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages,
					 struct od_err *err);
#define OD_MAX_COPIES 8
/* Before any sequence is open: n copies of fixed state, 2 to OD_MAX_COPIES, take n / 2 times the memory. */
OD_MUST_CHECK int od_state_pool_set_copies(struct od_state_pool *p, struct od_device *d, uint32_t n,
					   struct od_err *err);
/* Once: room for n snapshots of fixed state, od_state_pool_fixed_bytes each. */
OD_MUST_CHECK int od_state_pool_set_snapshots(struct od_state_pool *p, struct od_device *d, uint32_t n,
					      struct od_err *err);
/* A card's share of a snapshot, and its bytes: of the card's layers, in order. */
struct od_ref od_state_pool_snapshot(const struct od_state_pool *p, unsigned card, uint32_t snapshot);
uint64_t od_state_pool_card_bytes(const struct od_state_pool *p, unsigned card);
void od_state_pool_free(struct od_state_pool *p); /* NULL ok */
/* True: the pool's layout is the one of this configuration. */
bool od_state_pool_fits(const struct od_state_pool *p, const struct od_config *cfg);
enum od_dtype od_state_pool_dtype(const struct od_state_pool *p);
uint32_t od_state_pool_ctx(const struct od_state_pool *p);
uint32_t od_state_pool_sequences(const struct od_state_pool *p); /* limit of open sequences */
uint32_t od_state_pages(uint32_t positions); /* pages for this number of positions */
/* neither taken nor promised, nor set aside for idle ones */
uint32_t od_state_pool_free_pages(const struct od_state_pool *p);
/* Pages lend their memory to another user while texts do not need it. */
struct od_state_sharing {
	uint32_t (*most)(void *arg); /* so many pages may have memory now */
	/* n pages that have no memory are about to take it: no more than `most` were promised. */
	void (*take)(void *arg, uint32_t n);
	void (*give)(void *arg, uint32_t n); /* n pages have no memory any more */
	/* The device does not have the memory that was taken, n bytes at most, because another program has it: others
	 * give back some of theirs. False: they have no more. */
	bool (*give_way)(void *arg, uint64_t n);
	void *arg;
};
/* Once, before any page of a lent pool is taken. The first text gets its promise whatever `most` is. */
void od_state_pool_share(struct od_state_pool *p, const struct od_state_sharing *with);
/* Gives back the memory of unused pages, but for that of `keep` of them. Waits for the compute queue; the load queue
 * does not use them any more. */
void od_state_pool_give_back(struct od_state_pool *p, uint32_t keep);
/* Before any page is taken: sets n pages aside for idle ones. Whoever keeps pages drops some as soon as more are idle;
 * so promises never depend on what is kept. */
void od_state_pool_set_aside(struct od_state_pool *p, uint32_t n);
/* Keeps a page of a sequence until it is dropped. */
void od_state_pool_keep(struct od_state_pool *p, uint32_t page);
void od_state_pool_drop(struct od_state_pool *p, uint32_t page);
uint32_t od_state_pool_idle_pages(const struct od_state_pool *p); /* kept pages that no sequence has */
/* Fills a layer's streams and returns their number; the step fills in tables and table_pages. */
uint32_t od_state_pool_streams(const struct od_state_pool *p, uint32_t layer, struct od_stream out[OD_MAX_STREAMS]);
/* Bytes per position in all streams of a layer; the maximum over all layers. */
size_t od_state_pool_row_bytes(const struct od_state_pool *p, uint32_t layer);
size_t od_state_pool_most_bytes(const struct od_state_pool *p);
/* True: the host reads and writes rows in place. */
bool od_state_pool_mapped(const struct od_state_pool *p);
#define OD_FIXED_ALIGN 64u /* bytes; each layer's range of a sequence's fixed state begins at a multiple */
/* Bytes of a sequence's fixed state in all layers. */
uint64_t od_state_pool_fixed_bytes(const struct od_state_pool *p);
uint64_t od_state_pool_layer_bytes(const struct od_state_pool *p, uint32_t layer); /* one layer's share */

/* A new sequence without pages; OD_ERR_BUSY: the pool's n_sequences are already open. */
OD_MUST_CHECK int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err);
/* Before it has pages: with long RoPE its text is longer than the original context. New sequences are short. */
void od_seq_state_set_long(struct od_seq_state *s, bool is_long);
bool od_seq_state_is_long(const struct od_seq_state *s);
/* NULL ok. Returns its promise and the pages that no other sequence shares. */
void od_seq_state_free(struct od_seq_state *s);

/* Guarantees pages for positions [0, positions), at most ctx, so that od_seq_state_reserve finds some. A promise only
 * grows. OD_ERR_BUSY: the pool has too few free pages; nothing changed. */
OD_MUST_CHECK int od_seq_state_promise(struct od_seq_state *s, uint32_t positions);
/* Gives s, which has no pages, n pages of a sequence of the same pool and kind, or kept ones: those of its first
 * positions, all committed. The length of s becomes n * OD_KV_PAGE. They count against the promise of s; its remaining
 * promised pages stay promised. With fixed state, od_seq_state_load is next. */
void od_seq_state_attach(struct od_seq_state *s, const uint32_t *page, uint32_t n);
/* od_seq_state_attach with the first n pages of `from`. */
void od_seq_state_share(struct od_seq_state *s, const struct od_seq_state *from, uint32_t n);
/* Queues that its fixed state, with a text as long as it is now, becomes that of a snapshot. */
void od_seq_state_load(struct od_seq_state *s, uint32_t snapshot);

#define OD_MAX_MARKS 8
/* A step that passes this length also writes the fixed state there to the snapshot, which is then that of these tokens
 * if the step commits them. In order of length, above the committed one. Before the step begins. */
void od_seq_state_mark(struct od_seq_state *s, uint32_t length, uint32_t snapshot);
void od_seq_state_unmark(struct od_seq_state *s); /* all of them */
/* Mark i, and its address in a layer; false: there are no more. */
bool od_seq_state_mark_of(const struct od_seq_state *s, uint32_t layer, uint32_t i, uint32_t *length,
			  struct od_ref *to);

uint32_t od_seq_state_index(const struct od_seq_state *s); /* below n_sequences, distinct among open sequences */
/* the pool's, and no more than the original context when short */
uint32_t od_seq_state_ctx(const struct od_seq_state *s);
uint32_t od_seq_state_length(const struct od_seq_state *s);
/* Commits or truncates; truncating keeps the pages. With fixed state the only shorter length allowed is 0. */
void od_seq_state_set_length(struct od_seq_state *s, uint32_t length);
struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s);

/* Takes the pages of positions [0, n), which were promised or are shared. Call it before their rows are written or
 * read. OD_ERR_NOMEM, only in a lent pool: the device has no memory for them; nothing changed. */
OD_MUST_CHECK int od_seq_state_reserve(struct od_seq_state *s, uint32_t n, struct od_err *err);
/* [od_seq_state_n_pages]: the numbers of its pages in the pool. */
const uint32_t *od_seq_state_pages(const struct od_seq_state *s);
uint32_t od_seq_state_n_pages(const struct od_seq_state *s);

/* The stored row of a position that has a page; rows of a page are contiguous, od_seq_state_row_bytes each. */
struct od_ref od_seq_state_row(const struct od_seq_state *s, uint32_t layer, uint32_t stream, uint32_t position);
size_t od_seq_state_row_bytes(const struct od_seq_state *s, uint32_t layer, uint32_t stream); /* 0: no such stream */

/* A sequence whose text another process has, which holds other layers of it: makes it that of the text with these
 * pages, which are not counted, of this length, and with these copies of fixed state. Pages and copies are the other
 * process's choice, so they are the same in both. n_pages: at least those of the rows that a step adds; all below the
 * pool's number. */
struct od_seq_mirror {
	const uint32_t *page; /* [n_pages] */
	uint32_t n_pages, length;
	bool is_long;
	uint32_t committed, next; /* copies: distinct, below the pool's number */
};
void od_seq_state_mirror(struct od_seq_state *s, const struct od_seq_mirror *m);
/* Its side of that; page is borrowed. */
struct od_seq_mirror od_seq_state_mirror_of(const struct od_seq_state *s);
uint32_t od_state_pool_n_pages(const struct od_state_pool *p);
uint32_t od_state_pool_copies(const struct od_state_pool *p); /* copies of fixed state */
/* As od_seq_state_row, in a page of the pool. */
struct od_ref od_state_pool_row(const struct od_state_pool *p, uint32_t layer, uint32_t stream, uint32_t page,
				uint32_t position);

/* A layer's fixed state; on a card that of all its layers is contiguous. */
struct od_fixed od_seq_state_fixed(const struct od_seq_state *s, uint32_t layer);
/* Queues that the committed copy becomes that of a new text. */
void od_seq_state_clear_fixed(struct od_seq_state *s);
/* Makes the next copy the committed one, for the text as long as it is now. One more copy is kept of each earlier
 * commit, as far as there are copies; the oldest one and the newest ones stay. */
void od_seq_state_take_next(struct od_seq_state *s);
/* The text will not be rewound to less than this length: older copies than the newest one up to there are free. */
void od_seq_state_settle(struct od_seq_state *s, uint32_t length);
/* Returns to the longest text up to this length whose fixed state is kept, else to an empty one; returns its length. */
uint32_t od_seq_state_rewind(struct od_seq_state *s, uint32_t length);

#endif
