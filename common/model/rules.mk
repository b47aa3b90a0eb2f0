LIBOD_SRCS += $(addprefix common/model/,attention.c config.c expert_ffn.c family.c forward.c resident.c router.c sampler.c \
	seq_state.c families/mixtral.c)
test_forward_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_expert_ffn_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_router_OBJS := $(B)/obj/tests/unit/tiny_model.o
