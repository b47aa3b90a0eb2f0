/* format_list.h - the table of number formats as a list: dtype.h makes its enum of it, format.c the rows that other
 * code reads (format.h). A new format is a row here, a decoder, and tests. */
#ifndef OD_COMPUTE_FORMAT_LIST_H
#define OD_COMPUTE_FORMAT_LIST_H

/* X(NAME, name, number, text, weights, bytes, rule, uses): the number is pinned (packs, wire); the text is safetensors'
 * own name where it has one; a block of so many weights of a row takes so many bytes; enum od_rule and OD_USE_* are
 * explained in format.h, and the values are those of od_decode_<name>. */
#define OD_PLAIN_FORMATS(X) \
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

/* GGUF's formats of blocks (blocks.c): 64 and ggml's number. Scales are in the blocks. Other than OD_F4_E2M1 with
 * OD_F8_E8M0 and OD_F8_E4M3, MXFP4 and NVFP4 have scales that are never NaN. */
#define OD_BLOCK_FORMATS(X) \
	X(Q4_0, q4_0, 66, "Q4_0", 32, 18, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q4_1, q4_1, 67, "Q4_1", 32, 20, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q5_0, q5_0, 70, "Q5_0", 32, 22, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q5_1, q5_1, 71, "Q5_1", 32, 24, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q8_0, q8_0, 72, "Q8_0", 32, 34, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q2_K, q2_k, 74, "Q2_K", 256, 84, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q3_K, q3_k, 75, "Q3_K", 256, 110, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q4_K, q4_k, 76, "Q4_K", 256, 144, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q5_K, q5_k, 77, "Q5_K", 256, 176, OD_RULE_F32, OD_USE_BLOCKS) \
	X(Q6_K, q6_k, 78, "Q6_K", 256, 210, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ2_XXS, iq2_xxs, 80, "IQ2_XXS", 256, 66, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ2_XS, iq2_xs, 81, "IQ2_XS", 256, 74, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ3_XXS, iq3_xxs, 82, "IQ3_XXS", 256, 98, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ1_S, iq1_s, 83, "IQ1_S", 256, 50, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ4_NL, iq4_nl, 84, "IQ4_NL", 32, 18, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ3_S, iq3_s, 85, "IQ3_S", 256, 110, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ2_S, iq2_s, 86, "IQ2_S", 256, 82, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ4_XS, iq4_xs, 87, "IQ4_XS", 256, 136, OD_RULE_F32, OD_USE_BLOCKS) \
	X(IQ1_M, iq1_m, 93, "IQ1_M", 256, 56, OD_RULE_F32, OD_USE_BLOCKS) \
	X(TQ1_0, tq1_0, 98, "TQ1_0", 256, 54, OD_RULE_F32, OD_USE_BLOCKS) \
	X(TQ2_0, tq2_0, 99, "TQ2_0", 256, 66, OD_RULE_F32, OD_USE_BLOCKS) \
	X(MXFP4, mxfp4, 103, "MXFP4", 32, 17, OD_RULE_F32, OD_USE_BLOCKS) \
	X(NVFP4, nvfp4, 104, "NVFP4", 64, 36, OD_RULE_F32, OD_USE_BLOCKS)
#define OD_DTYPE_LAST 104

#define OD_FORMATS(X) OD_PLAIN_FORMATS(X) OD_BLOCK_FORMATS(X)

#endif
