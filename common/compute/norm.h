/* norm.h - the kinds of norms, as data (OD_OP_NORM in ops.h; a model's in config.h).
 *
 * Thread: any; plain data. */
#ifndef OD_COMPUTE_NORM_H
#define OD_COMPUTE_NORM_H

enum od_norm {
	OD_NORM_RMS, /* x / sqrt(mean(x^2) + eps) * weight */
	OD_NORM_LAYER, /* (x - mean) / sqrt(variance + eps) * weight + bias */
};

#endif
