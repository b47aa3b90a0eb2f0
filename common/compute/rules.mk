LIBOD_SRCS += $(addprefix common/compute/,)
