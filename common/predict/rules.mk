LIBOD_SRCS += $(addprefix common/predict/,gate_predictor.c history_predictor.c popularity_predictor.c predictor.c random_predictor.c \
	recall.c trajectory_predictor.c want_policy.c)
test_predictor_OBJS := $(B)/obj/tests/unit/predictor_world.o
test_history_predictor_OBJS := $(B)/obj/tests/unit/predictor_world.o
test_trajectory_predictor_OBJS := $(B)/obj/tests/unit/predictor_world.o
