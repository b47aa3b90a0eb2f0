LIBOD_SRCS += $(addprefix common/compute/,cpu.c cpu_scalar.c dtype.c sincos.c)
