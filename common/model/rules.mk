LIBOD_SRCS += $(addprefix common/model/,config.c family.c mixtral.c router.c seq_state.c attention.c expert_ffn.c \
	resident.c forward.c)
test_forward_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_expert_ffn_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_router_OBJS := $(B)/obj/tests/unit/tiny_model.o
