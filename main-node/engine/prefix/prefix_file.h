/* prefix_file.h - the bytes of a file of the prefix cache: all tokens up to a page's end, and the rows of that page of
 * the KV cache, or the fixed state behind it.
 *
 *   header  ODM_PREFIX_HEADER_BYTES: magic, version, the model and numbers that the rows are of, number of tokens, key
 *   tokens  int32 [(page + 1) * OD_KV_PAGE]
 *   rows    as the state pool has them: [layer][stream][OD_KV_PAGE][row]; or a snapshot
 *   sum     BLAKE2b, 32 bytes, of all before it
 *
 * A key is a hash of the model, the numbers, the kind of text with long RoPE and the tokens; it names the files of a
 * page. Both kinds differ in their magic. Little-endian, as all hosts are.
 * Whoever reads a file knows what it must be: all but the rows is compared, and the rows are checked by the sum. The
 * sum finds damage, not malice; the folder is its owner's alone.
 * Thread: any. Owner: the caller. */
#ifndef ODM_PREFIX_FILE_H
#define ODM_PREFIX_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/model/seq_state.h"

#define ODM_PREFIX_KEY_BYTES 32u
#define ODM_PREFIX_HEADER_BYTES 144u

/* All that rows depend on besides tokens. */
struct odm_prefix_kind {
	uint8_t fingerprint[32]; /* the pack's */
	enum od_profile profile;
	const char *kernel_class;
	bool mixed; /* other classes may have computed a part */
	const struct od_config *config;
};

enum odm_prefix_what { ODM_PREFIX_PAGE, ODM_PREFIX_STATE, ODM_N_PREFIX_WHAT };

/* A kind as the first bytes of each header. */
struct odm_prefix_id {
	uint8_t bytes[ODM_PREFIX_HEADER_BYTES];
	size_t rows_bytes; /* a page's, or a snapshot's */
};

struct odm_prefix_key {
	uint8_t bytes[ODM_PREFIX_KEY_BYTES];
};

void odm_prefix_id_init(struct odm_prefix_id *id, const struct odm_prefix_kind *kind, enum odm_prefix_what what);
/* The key of no tokens, by the id of pages; that of one more page. */
void odm_prefix_key_begin(struct odm_prefix_key *key, const struct odm_prefix_id *id, bool is_long);
void odm_prefix_key_next(struct odm_prefix_key *key, const int32_t token[OD_KV_PAGE]);

size_t odm_prefix_file_bytes(const struct odm_prefix_id *id, uint32_t page);
uint8_t *odm_prefix_file_rows(uint8_t *file, uint32_t page);
/* Fills in all but the rows, which are there. text: [(page + 1) * OD_KV_PAGE]. */
void odm_prefix_file_seal(uint8_t *file, const struct odm_prefix_id *id, const struct odm_prefix_key *key,
			  const int32_t *text, uint32_t page);
/* OD_OK: the rows of file [len] are those of this text's page. err says what differs. */
OD_MUST_CHECK int odm_prefix_file_check(const uint8_t *file, size_t len, const struct odm_prefix_id *id,
					const struct odm_prefix_key *key, const int32_t *text, uint32_t page,
					struct od_err *err);

/* By the first bytes of a file. */
enum odm_prefix_look {
	ODM_PREFIX_OURS,
	ODM_PREFIX_OTHER, /* belongs to another model, to other numbers, or to another version */
	ODM_PREFIX_UNKNOWN, /* no file of a prefix cache */
};
enum odm_prefix_look odm_prefix_file_look(const uint8_t *head, size_t len, const struct odm_prefix_id *id);

#endif
