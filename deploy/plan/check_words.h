/* check_words.h - what was measured, as words of the hosts file.
 *
 * Thread: any. Owner: the caller. */
#ifndef ODP_CHECK_WORDS_H
#define ODP_CHECK_WORDS_H

#include "common/net/hosts.h"
#include "deploy/plan/check_facts.h"

/* memory_bytes: that the daemon may use; 0: not known. byte_share: the bytes that the daemon reads for a weight, over
 * those of BF16: speed= is that of BF16 weights. */
struct od_host_words odp_words_of(const struct odp_rates *r, double memory_bytes, double byte_share);
/* Bytes of a weight in a shadow's precision ("int8", or "nf4+int8": experts, then the rest) over those of BF16.
 * expert_share: of the weights that a row is multiplied with. */
double odp_byte_share(const char *precision, double expert_share);

#endif
