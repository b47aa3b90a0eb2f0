libod_SRCS += $(addprefix common/compute/,card_split.c cards.c device.c open_device.c ops.c planes.c quant.c rank.c scratch.c sincos.c)
libod_SRCS += $(addprefix common/compute/formats/,blocks.c codebooks.c format.c)
libod_SRCS += $(addprefix common/compute/cpu/,cpu.c cpu_delta.c cpu_device.c cpu_exec.c cpu_route.c cpu_scalar.c matmul.c)

# Kernels are compiled for the instruction set in their file's name; cpu.c composes the tables at run time. Other
# architectures have the scalar table. For sanitizers kernels are small: inlined into every shape they take gcc minutes.
TABLE_FLAGS := $(if $(SANITIZE),-DOD_SMALL_KERNELS -Wno-maybe-uninitialized)
MACHINE := $(shell $(CC) -dumpmachine)
ifneq ($(filter x86_64-%,$(MACHINE)),)
libod_SRCS += $(addprefix common/compute/cpu/,cpu_avx2.c cpu_avx512.c cpu_avx512bf16.c cpu_avx512bf16vbmi2.c \
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
libod_SRCS += $(addprefix common/compute/cpu/,cpu_neon.c cpu_neondot.c)
CFLAGS_common_compute_cpu_cpu := -DOD_ARM_TABLES
CFLAGS_common_compute_cpu_cpu_neondot := -march=armv8.2-a+dotprod
endif

# The GPU device is a plugin.
CUDA_DEVICE_SRCS := $(addprefix common/compute/cuda/,cuda_attend.c cuda_delta.c cuda_device.c cuda_exec.c cuda_experts.c cuda_load.c \
	cuda_products.c gpu_form.c gpu_graphs.c)
CUDA_KERNELS := $(addprefix common/compute/cuda/,k_attend.cu k_blocks.cu k_delta.cu k_experts.cu k_load.cu k_many.cu k_planes.cu k_products.cu \
	k_route.cu k_rows.cu)
PLUGIN_SRCS := common/base/cgroup.c common/base/mem.c common/base/status.c $(addprefix common/compute/formats/,blocks.c codebooks.c format.c) common/compute/planes.c \
	common/compute/quant.c common/compute/scratch.c
CUDA_DIR ?= $(B)/cuda

# A program and its plugin pass each other what these headers declare, so the version of both is a checksum of them.
PLUGIN_HDRS := $(sort $(wildcard common/compute/*.h common/compute/formats/*.h)) common/compute/cuda/cuda_plugin.h common/base/status.h
.PHONY: plugin-version
$(B)/gen/plugin_version.h: plugin-version
	@mkdir -p $(@D)
	@line="#define OD_CUDA_PLUGIN_VERSION $$(cat $(PLUGIN_HDRS) | cksum | cut -d' ' -f1)u"; \
		echo "$$line" | cmp -s - $@ || echo "$$line" >$@
$(call obj,common/compute/open_device.c common/compute/cuda/cuda_device.c): | $(B)/gen/plugin_version.h

$(call obj,$(CUDA_DEVICE_SRCS)): CFLAGS_OD += -fPIC
PLUGIN_OBJS := $(call obj,$(CUDA_DEVICE_SRCS) $(PLUGIN_SRCS))
CUDA_OBJS := $(patsubst %.cu,$(CUDA_DIR)/%.o,$(CUDA_KERNELS) common/compute/cuda/gpu_cuda.cu)

# Nothing may be contracted or approximated: results are specified to the bit. Orin is 87, Thor 110: code of other GPUs does not run on a
# Jetson. 100 and 120 are where nvcc knows them, from CUDA 12.8 on, 110 from 13.0 on.
NVCC ?= $(firstword $(shell command -v nvcc; ls /usr/local/cuda/bin/nvcc 2>/dev/null))
CUDA_NEWEST := $(if $(NVCC),$(filter 100 110 120,$(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code 2>/dev/null))))
CUDA_ARCHS ?= 75 80 86 87 89 90 $(CUDA_NEWEST)
CUDA_HERE := $(if $(wildcard /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/nvgpu),yes)
# Copies to shared memory that a thread need not wait for begin with 80, kernels that start early with 90 (gpu.h): so there is PTX for 75,
# for 80 and for 90. The newest of them is in the plugin, for the driver of a still newer GPU to compile.
empty :=
space := $(empty) $(empty)
CUDA_AMPERE = $(filter 8%,$(CUDA_ARCHS))
CUDA_NEWER = $(filter-out 75 8%,$(CUDA_ARCHS))
CUDA_PTX = $(filter 75,$(CUDA_ARCHS)) $(if $(CUDA_AMPERE),80) $(if $(CUDA_NEWER),90)
CUDA_CODE = $(if $(filter 75,$(CUDA_ARCHS)),-gencode arch=compute_75$(comma)code=sm_75) \
	$(if $(CUDA_AMPERE),-gencode arch=compute_80$(comma)code=[$(subst $(space),$(comma),$(strip $(if $(CUDA_NEWER),,compute_80) $(CUDA_AMPERE:%=sm_%)))]) \
	$(if $(CUDA_NEWER),-gencode arch=compute_90$(comma)code=[$(subst $(space),$(comma),compute_90 $(CUDA_NEWER:%=sm_%))])
# Sanitizers name the line of an instruction. Packages leave that out: it holds the path of the source. -objtemp: the names of temporary
# files, which objects keep, are the same each time.
CUDA_LINES ?= -lineinfo
NVCC_FLAGS = -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false $(CUDA_LINES) -objtemp -I. -Xcompiler -fPIC,-fvisibility=hidden
PLUGINS :=
ifneq ($(filter 1,$(CUDA))$(if $(and $(filter auto,$(CUDA)),$(NVCC),$(CUDA_HERE)),yes),)
PLUGINS += $(B)/lib/libod_cuda.so
CUDA_FOR = $(if $(filter auto,$(CUDA)),-arch=native,$(CUDA_CODE))
endif
CUDA_FOR ?= $(CUDA_CODE)

.PHONY: cuda-flags
$(CUDA_DIR)/flags: cuda-flags
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_FLAGS) $(CUDA_FOR)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS) $(CUDA_FOR)' >$@

# What ptxas says of each kernel, tests/gpu/check_cuda.py reads.
$(CUDA_DIR)/%.o: %.cu $(CUDA_DIR)/flags
	@mkdir -p $(@D)
	@echo "NVCC    $<"
	@$(NVCC) $(NVCC_FLAGS) -Xptxas -v $(CUDA_FOR) -MMD -MP -c $< -o $@ 2>$(@:.o=.log) || { cat $(@:.o=.log) >&2; exit 1; }
	@grep -vE "^ptxas info|^ +[0-9]+ bytes|^$$" $(@:.o=.log) >&2 || true

$(B)/lib/libod_cuda.so $(CUDA_DIR)/libod_cuda.so: $(PLUGIN_OBJS) $(CUDA_OBJS)
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(NVCC) -shared -cudart static $(patsubst -Wl$(comma)%,-Xlinker %,$(filter -Wl$(comma)%,$(LDFLAGS))) -o $@ $^

-include $(CUDA_OBJS:.o=.d)
