/* card_split.h - which layers of a model go to which card: in order, so that most sequence state fits beside them.
 *
 * Whoever loads a model adds up what it takes (od_dense_split and the like), deals, and plans its state with what that
 * leaves. A device that is one card has everything; the sums are the same.
 * Thread: any, one at a time. Owner: od_split_init's caller. */
#ifndef OD_COMPUTE_CARD_SPLIT_H
#define OD_COMPUTE_CARD_SPLIT_H

#include "common/compute/cards.h"
#include "common/compute/device.h"

/* Bytes. State grows by pages of the KV cache, and by copies of fixed state: of further sequences, or snapshots. */
struct od_split_sum {
	uint64_t bytes, page, copy;
};

struct od_split {
	uint32_t begin, end, n_layers; /* layers [begin, end) are dealt */
	struct od_split_sum *layer, each; /* layer: [n_layers]; each: on every card, as the rows of a step */
	struct od_split_sum beside; /* on the host: it counts for the limit of all together */
	bool *joined; /* [n_layers]: it must be where the layer before it is */
	/* Besides: with the first layer; with the last; with that, unless the first is there too (at most as much as
	 * first). */
	uint64_t first, last, tied;
	unsigned n_cards;
	struct od_split_card {
		struct od_split_sum sum;
		uint64_t free;
	} card[OD_MAX_CARDS + 1]; /* [n_cards]: all together */
};

/* limit_bytes: of all cards together, and the host. After any return od_split_fini is valid. */
OD_MUST_CHECK int od_split_init(struct od_split *s, const struct od_device *d, uint32_t n_layers, uint32_t begin,
				uint32_t end, uint64_t limit_bytes, struct od_err *err);
/* as od_split_init */
OD_MUST_CHECK int od_split_copy(struct od_split *s, const struct od_split *of, struct od_err *err);
void od_split_fini(struct od_split *s);
void od_split_add(uint64_t *sum, uint64_t bytes); /* UINT64_MAX: more than 64 bits can say */

/* Gives the layers to the cards of d, so that most pages fit beside so many copies, and counts. If not even `pages`
 * fit: in order, as many as fit with those, and all others to the last card, so that od_split_check can say what is
 * missing. */
void od_split_deal(struct od_split *s, struct od_device *d, uint64_t pages, uint64_t copies);
/* Counts again, with the layers where they are. */
void od_split_count(struct od_split *s, const struct od_device *d);

/* The functions below need counted sums. */
bool od_split_fits(const struct od_split *s, uint64_t pages, uint64_t copies);
uint64_t od_split_most_pages(const struct od_split *s, uint64_t copies); /* UINT64_MAX: pages take nothing */
/* UINT64_MAX: it is too much to say */
uint64_t od_split_need(const struct od_split *s, unsigned card, uint64_t pages, uint64_t copies);
/* "; cuda:0: layers 0-3: 4 GiB needed, 5 GiB free; ..."; one card: "". Without the names of GPUs, so that eight fit an
 * od_err. */
#define OD_SPLIT_TEXT_BYTES (OD_MAX_CARDS * 64)
/* Only with several cards. */
void od_split_log(const struct od_split *s, const struct od_device *d, uint64_t pages, uint64_t copies);
const char *od_split_text(const struct od_split *s, const struct od_device *d, uint64_t pages, uint64_t copies,
			  char *text, size_t size);

#endif
