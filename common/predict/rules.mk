LIBOD_SRCS += $(addprefix common/predict/,gate_predictor.c history_predictor.c popularity_predictor.c predictor.c random_predictor.c \
	recall.c trajectory_predictor.c)
