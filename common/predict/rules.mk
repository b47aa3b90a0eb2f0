LIBOD_SRCS += $(addprefix common/predict/,)
