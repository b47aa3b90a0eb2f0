LIBOD_SRCS += $(addprefix common/model/,config.c family.c mixtral.c)
