LIBOD_SRCS += $(addprefix common/model/,config.c family.c forward.c resident.c rope.c sampler.c \
	seq_state.c families/mixtral.c)
test_forward_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_expert_ffn_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_route_OBJS := $(B)/obj/tests/unit/tiny_model.o
