LIBOD_SRCS += $(addprefix common/model/,)
