LIBOD_SRCS += $(addprefix common/model/,config.c family.c mixtral.c router.c seq_state.c attention.c expert_ffn.c \
	resident.c forward.c)
test_forward_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_expert_ffn_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_router_OBJS := $(B)/obj/tests/unit/tiny_model.o

LIBOD_SRCS += $(addprefix common/model/,tokenizer.c tok_text.c tok_regex.c tok_bpe.c tok_added.c tok_normalize.c \
	tok_pretokenize.c tok_decode.c sampler.c stopper.c)
