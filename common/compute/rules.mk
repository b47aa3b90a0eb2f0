LIBOD_SRCS += $(addprefix common/compute/,device.c dtype.c far/far_device.c far/late_queues.c open_device.c planes.c quant.c rank.c sincos.c)
LIBOD_SRCS += $(addprefix common/compute/cpu/,cpu.c cpu_delta.c cpu_device.c cpu_exec.c cpu_route.c cpu_scalar.c matmul.c)

# Kernels are compiled for the instruction set in their file's name; cpu.c composes the tables at run time. Other
# architectures have the scalar table. For sanitizers kernels are small: inlined into every shape they take gcc minutes.
TABLE_FLAGS := $(if $(SANITIZE),-DOD_SMALL_KERNELS -Wno-maybe-uninitialized)
MACHINE := $(shell $(CC) -dumpmachine)
ifneq ($(filter x86_64-%,$(MACHINE)),)
LIBOD_SRCS += $(addprefix common/compute/cpu/,cpu_avx2.c cpu_avx512.c cpu_avx512bf16.c cpu_avx512bf16vbmi2.c \
	cpu_avx512vbmi2.c cpu_avx512vnni.c)
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
VBMI2_FLAGS := $(AVX512_FLAGS) -mavx512vbmi -mavx512vbmi2 -mgfni
CFLAGS_common_compute_cpu_cpu := -DOD_X86_TABLES
CFLAGS_common_compute_cpu_cpu_avx2 := -mavx2 -mfma -mf16c $(TABLE_FLAGS)
CFLAGS_common_compute_cpu_cpu_avx512 := $(AVX512_FLAGS) $(TABLE_FLAGS)
CFLAGS_common_compute_cpu_cpu_avx512vnni := $(AVX512_FLAGS) -mavx512vnni $(TABLE_FLAGS)
CFLAGS_common_compute_cpu_cpu_avx512vbmi2 := $(VBMI2_FLAGS) $(TABLE_FLAGS)
CFLAGS_common_compute_cpu_cpu_avx512bf16 := $(AVX512_FLAGS) -mavx512bf16 $(TABLE_FLAGS)
CFLAGS_common_compute_cpu_cpu_avx512bf16vbmi2 := $(VBMI2_FLAGS) -mavx512bf16 $(TABLE_FLAGS)
endif
ifneq ($(filter aarch64-%,$(MACHINE)),)
LIBOD_SRCS += $(addprefix common/compute/cpu/,cpu_neon.c cpu_neondot.c)
CFLAGS_common_compute_cpu_cpu := -DOD_ARM_TABLES
CFLAGS_common_compute_cpu_cpu_neondot := -march=armv8.2-a+dotprod
endif
