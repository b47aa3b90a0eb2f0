LIBOD_SRCS += $(addprefix common/predict/,random_predictor.c recall.c)
