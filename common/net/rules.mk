LIBOD_SRCS += $(addprefix common/net/,)
