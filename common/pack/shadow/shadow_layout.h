/* shadow_layout.h - the precisions of shadows and the byte layout of a shadow's file, the model's quantised copy in one
 * precision beside a pack's own files: docs/PACK-FORMAT.md in C.
 *
 * As in pack_layout.h the configuration fixes every offset, so that verify can account for every byte. compute/quant.h
 * specifies the layout of matrices and scales.
 * Thread: pure functions. Owner: the caller; od_shadow_table_fini frees the table. */
#ifndef OD_PACK_SHADOW_LAYOUT_H
#define OD_PACK_SHADOW_LAYOUT_H

#include <stdbool.h>

#include "common/compute/quant.h"
#include "common/pack/pack_layout.h"

/* BF16 is the pack itself and has no file. A file stores another number (shadow_layout.c). */
enum od_precision {
	OD_PRECISION_BF16 = 1,
	OD_PRECISION_INT8 = 2, /* one scale per row */
	OD_PRECISION_FP16 = 3,
	OD_PRECISION_NF4 = 4,
};
#define OD_N_PRECISIONS 4
extern const char *const od_precision_names[]; /* index precision - 1; ends with NULL */
extern const char *const od_shadow_file_names[]; /* "shadow-int8.bin" ..., by the same index; NULL for BF16 */
extern const char *const od_shadow_temp_names[]; /* names while the files are being written */
extern const char *const od_shadow_old_names[]; /* files of precisions that are gone, never read; ends with NULL */

/* Sets of precisions that have files: bit (1 << precision). */
#define OD_SHADOW_BIT(precision) (1u << (precision))
#define OD_SHADOW_ALL 0x1cu
/* Parses "int8,nf4" or "none". OD_ERR_ARG lists the names. */
OD_MUST_CHECK int od_shadow_set_parse(const char *text, unsigned *set, struct od_err *err);
const char *od_shadow_set_text(unsigned set, char *buf, size_t size); /* the reverse; returns buf */

/* A file starts with this header, its tensor table and zeros up to a page. */
#define OD_SHADOW_MAGIC "ODSHADOW"
#define OD_SHADOW_SCHEMA 1
struct od_disk_shadow {
	char magic[8];
	uint64_t xxh3; /* checksum of the bytes behind it, up to header_bytes */
	uint32_t schema, precision, n_tensors, zero;
	uint64_t header_bytes, file_bytes;
	uint8_t fingerprint[OD_FINGERPRINT_CHARS / 2]; /* the pack's that it was made from */
	uint64_t more_zero[6];
};

struct od_disk_shadow_tensor {
	uint64_t n_out, n_in, offset, bytes, xxh3;
};

_Static_assert(sizeof(struct od_disk_shadow) == 128 && sizeof(struct od_disk_shadow_tensor) == 40, "PACK-FORMAT.md");

/* The sections of a record (one quantised tensor); offsets from its start. A precision without scales has n_scales
 * 0. */
struct od_shadow_sections {
	uint64_t data_bytes;
	uint64_t scale_at, n_scales; /* f32 */
	uint64_t bytes; /* the whole record */
};

uint64_t od_shadow_row_bytes(enum od_precision precision, uint64_t n_in);
uint64_t od_shadow_row_scales(enum od_precision precision, uint64_t n_in);
struct od_shadow_sections od_shadow_sections(enum od_precision precision, uint64_t n_out, uint64_t n_in);

struct od_shadow_table {
	enum od_precision precision;
	/* [n]: the n_dense dense ones (od_role_quantised) layer by layer, then gate, up, down of each expert. */
	struct od_disk_shadow_tensor *tensor;
	struct {
		enum od_role role;
		uint32_t layer;
	} * dense; /* [n_dense]: which they are */
	size_t n, n_dense;
	uint64_t header_bytes, file_bytes;
};

/* Makes the table from the configuration; checksums are 0. */
OD_MUST_CHECK int od_shadow_table_init(struct od_shadow_table *t, const struct od_config *cfg,
				       enum od_precision precision, struct od_err *err);
void od_shadow_table_fini(struct od_shadow_table *t);
uint64_t od_shadow_weights(const struct od_shadow_table *t);
/* Bytes of all files of a set, for progress. */
uint64_t od_shadow_set_bytes(const struct od_config *cfg, unsigned set);
size_t od_shadow_expert_index(const struct od_shadow_table *t, const struct od_config *cfg, uint32_t m, uint32_t expert,
			      enum od_expert_mat mat);

/* buf [header_bytes] */
void od_shadow_header_write(const struct od_shadow_table *t, const char *fingerprint, uint8_t *buf);
/* Checks the header in buf against t, made by od_shadow_table_init, and fills in t's checksums. */
OD_MUST_CHECK int od_shadow_header_parse(struct od_shadow_table *t, const char *fingerprint, const uint8_t *buf,
					 const char *path, struct od_err *err);

#endif
