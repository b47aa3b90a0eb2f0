LIBOD_SRCS += $(addprefix common/pack/,)
