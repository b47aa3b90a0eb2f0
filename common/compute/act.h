/* act.h - the activation of a gated feed-forward network, as data (OD_OP_FFN and OD_OP_EXPERTS in ops.h; a model's in
 * config.h).
 *
 * Thread: any; plain data. */
#ifndef OD_COMPUTE_ACT_H
#define OD_COMPUTE_ACT_H

/* Activations: the input of the down matrix, from g (the gate matrix's output) and u (up's). */
enum od_act {
	OD_ACT_SILU, /* silu(g) * u */
	OD_ACT_GELU, /* gelu(g) * u, with tanh: 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) */
	OD_ACT_CLAMPED, /* (u + 1) * g * sigmoid(1.702 g), g at most limit, u from -limit to limit (gpt-oss) */
};

struct od_act_spec {
	enum od_act kind;
	float limit; /* OD_ACT_CLAMPED */
};

#endif
