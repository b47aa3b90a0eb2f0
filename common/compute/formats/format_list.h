/* format_list.h - the table of number formats as a list: dtype.h makes its enum of it, format.c the rows that other code
 * reads (format.h). A new format is a row here, a decoder, and tests. */
#ifndef OD_COMPUTE_FORMAT_LIST_H
#define OD_COMPUTE_FORMAT_LIST_H

/* X(NAME, name, number, text, weights, bytes, rule, uses): the number is pinned (packs, wire); the text is safetensors'
 * own name where it has one; a block of so many weights of a row takes so many bytes; enum od_rule and OD_USE_* are
 * explained in format.h, and the values are those of od_decode_<name>. */
#define OD_FORMATS(X) \
	X(BF16, bf16, 1, "BF16", 1, 2, OD_RULE_BF16, OD_USE_ALONE | OD_USE_VECTOR | OD_USE_SCALE) \
	X(F16, f16, 2, "F16", 1, 2, OD_RULE_F32, OD_USE_ALONE | OD_USE_VECTOR | OD_USE_SCALE) \
	X(F32, f32, 3, "F32", 1, 4, OD_RULE_F32, OD_USE_ALONE | OD_USE_VECTOR | OD_USE_SCALE) \
	X(INT8, int8, 4, "I8", 1, 1, OD_RULE_ROW, OD_USE_SCALED) \
	X(NF4, nf4, 5, NULL, 128, 64, OD_RULE_GROUP, 0) \
	X(F8_E4M3, e4m3, 6, "F8_E4M3", 1, 1, OD_RULE_BF16, OD_USE_ALONE | OD_USE_SCALED | OD_USE_SCALE) \
	X(F8_E5M2, e5m2, 7, "F8_E5M2", 1, 1, OD_RULE_BF16, OD_USE_ALONE | OD_USE_SCALED) \
	X(U4B8, u4b8, 8, "U4B8", 2, 1, OD_RULE_F32, OD_USE_SCALED) \
	X(U8B128, u8b128, 9, "U8B128", 1, 1, OD_RULE_F32, OD_USE_SCALED) \
	X(F4_E2M1, e2m1, 10, "F4_E2M1", 2, 1, OD_RULE_F32, OD_USE_SCALED) \
	X(F8_E8M0, e8m0, 11, "F8_E8M0", 1, 1, OD_RULE_F32, OD_USE_SCALE)
#define OD_DTYPE_LAST 11

#endif
