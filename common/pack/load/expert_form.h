/* expert_form.h - how an expert is held in memory: forms, the buffers of each, and an expert's matrices in them.
 *
 * Thread: any; an open pack (pack.h) does not change. */
#ifndef OD_PACK_EXPERT_FORM_H
#define OD_PACK_EXPERT_FORM_H

#include "common/pack/pack.h"

/* The form of an expert in memory. PLAIN: weights as published, matrix after matrix, each padded. PLANES: compressed as
 * stored, SM bytes and coded exponents, two thirds of that; matmuls decode on the fly (cpu/matmul.h). */
enum od_form { OD_FORM_PLAIN, OD_FORM_PLANES };
#define OD_N_FORMS 2
#define OD_FORM_AUTO (-1)
extern const char *const od_form_names[]; /* index enum od_form: "bf16", "planes", NULL */

/* OD_OK: all experts can have this form. OD_ERR_UNSUPPORTED names one that cannot, the reason, and what to do. */
OD_MUST_CHECK int od_pack_can_form(const struct od_pack *p, enum od_form form, struct od_err *err);
/* asked: an enum od_form, or OD_FORM_AUTO: planes if the pack has them and the device computes on them faster
 * (od_device_likes_planes). */
OD_MUST_CHECK int od_pack_choose_form(const struct od_pack *p, const struct od_device *d, int asked, enum od_form *form,
				      struct od_err *err);
/* The buffers of an expert's memory: SM bytes and coded exponents as stored (OD_FORM_PLANES), and weights as published
 * (OD_FORM_PLAIN). Separate buffers, so that each can be kept without the others. */
enum od_expert_buf { OD_BUF_SM, OD_BUF_E, OD_BUF_PLAIN };
#define OD_N_EXPERT_BUFS 3
/* Sets of them. */
#define OD_SET_SM (1u << OD_BUF_SM)
#define OD_SET_E (1u << OD_BUF_E)
#define OD_SET_STORED (OD_SET_SM | OD_SET_E)
#define OD_SET_PLAIN (1u << OD_BUF_PLAIN)

struct od_expert_mem {
	struct od_ref at[OD_N_EXPERT_BUFS]; /* aligned to 64 bytes; nowhere: no such buffer */
};

/* Bytes of one buffer of each kind. */
struct od_buf_sizes {
	uint64_t bytes[OD_N_EXPERT_BUFS];
};
/* [n_moe]: enough for any expert of the layer: layers may have other formats. */
const struct od_buf_sizes *od_pack_layer_sizes(const struct od_pack *p);
/* Bytes of a buffer, enough for any expert; the set of buffers of a form; the bytes of a slot, which has that set. */
uint64_t od_pack_buf_bytes(const struct od_pack *p, enum od_expert_buf buf);
unsigned od_form_bufs(enum od_form form);
uint64_t od_pack_slot_bytes(const struct od_pack *p, enum od_form form);
/* The buffers of a form, cut from one block of od_pack_slot_bytes. */
struct od_expert_mem od_pack_slot_mem(const struct od_pack *p, enum od_form form, struct od_ref slot);
/* Slots for experts of layer m alone, for memory that keeps its experts. */
uint64_t od_layer_slot_bytes(const struct od_pack *p, enum od_form form, uint32_t m);
struct od_expert_mem od_layer_slot_mem(const struct od_pack *p, enum od_form form, uint32_t m, struct od_ref slot);

/* Memory for an expert of layer m in its buffers, before anything is put there (od_ref_commit). */
OD_MUST_CHECK int od_expert_mem_commit(const struct od_pack *p, uint32_t m, const struct od_expert_mem *mem,
				       struct od_err *err);

/* Points w's matrices and biases into an expert's memory: to plain weights if it has them, else to planes. w borrows
 * tables of p. */
void od_pack_bind(const struct od_pack *p, uint32_t m, uint32_t expert, const struct od_expert_mem *mem,
		  struct od_expert *w);

#endif
