# Devices for tests. They are plugins, which programs open as they open libod_cuda.so:
#   OD_DEVICE=cuda OD_CUDA_PLUGIN=build/lib/libod_far.so od-main ...

# A CPU device whose memory the host cannot touch. Some unit tests have it without the plugin.
FAR_OBJS := $(call obj,tests/gpu/far_device.c tests/gpu/late_queues.c)
FAR_PLUGIN_OBJS := $(FAR_OBJS) $(call obj,tests/gpu/far_plugin.c)
$(FAR_PLUGIN_OBJS): CFLAGS_OD += -fPIC
$(call obj,tests/gpu/far_plugin.c): | $(B)/gen/plugin_version.h

# A CPU device that takes the time of a given machine: for tests of unequal machines and the testbed (tests/bench/live/od_moe_testbed.py).
PACED_OBJS := $(call obj,tests/gpu/paced_device.c)
PACED_PLUGIN_OBJS := $(PACED_OBJS) $(call obj,tests/gpu/paced_plugin.c)
$(PACED_PLUGIN_OBJS): CFLAGS_OD += -fPIC
$(call obj,tests/gpu/paced_plugin.c): | $(B)/gen/plugin_version.h

$(B)/lib/libod_far.so: $(FAR_PLUGIN_OBJS) $(B)/libod.a
$(B)/lib/libod_paced.so: $(PACED_PLUGIN_OBJS) $(B)/libod.a
$(B)/lib/libod_far.so $(B)/lib/libod_paced.so:
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -shared -o $@ $^ -lm

# The emulated GPU: the sources of libod_cuda.so but for gpu_cuda.cu, and kernels that are compiled as C.
GPU_HOST_SRCS := $(addprefix tests/gpu/,gpu_emulated_warps.c gpu_host.c late_queues.c)
GPU_KERNEL_OBJS := $(patsubst %,$(B)/pic/%.o,$(GPU_HOST_SRCS) $(CUDA_KERNELS))
GPU_HOST_OBJS := $(PLUGIN_OBJS) $(GPU_KERNEL_OBJS)

# Tests wait for the emulated GPU longer than for anything else, and nothing but tests of this machine uses it: it is optimized more
# than the rest, and calls neither libm for fmaf() nor the linker for the fibre that runs.
ifeq ($(SANITIZE),)
FMA_HERE := $(if $(filter x86_64-%,$(MACHINE)),$(shell grep -qw fma /proc/cpuinfo && echo -mfma))
$(GPU_KERNEL_OBJS): EMULATED_FLAGS := -O3 -ftls-model=initial-exec $(FMA_HERE)
endif

$(B)/pic/%.c.o: %.c | deps-check
	@mkdir -p $(@D)
	@echo "CC      $<"
	@$(CC) $(CFLAGS_OD) -fPIC $(EMULATED_FLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/pic/%.cu.o: %.cu | deps-check
	@mkdir -p $(@D)
	@echo "CC      $<"
	@$(CC) $(CFLAGS_OD) -Itests/gpu -fPIC $(EMULATED_FLAGS) $(CFLAGS) -MMD -MP -x c -c $< -o $@

$(B)/lib/libod_gpu_host.so: $(GPU_HOST_OBJS)
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -shared -o $@ $^ -lm

# What tests preload to lose a real GPU.
$(B)/tests/lose_gpu.so: $(B)/pic/tests/gpu/lose_gpu.c.o
	@mkdir -p $(@D)
	@$(CC) -shared $(LDFLAGS_OD) $(LDFLAGS) -o $@ $^ -ldl -lpthread

# A driver that a GPU's plugin cannot use.
$(B)/tests/wrong_driver/libcuda.so.1: $(B)/pic/tests/gpu/wrong_driver.c.o
	@mkdir -p $(@D)
	@$(CC) -shared $(LDFLAGS_OD) $(LDFLAGS) -o $@ $^

# All tests on a device whose memory the host cannot touch (tests/gpu/far_device.h).
.PHONY: check-far
check-far: check-build
	@OD_DEVICE=cuda OD_CUDA_PLUGIN=$(CURDIR)/$(B)/lib/libod_far.so B=$(B) tests/run.sh

# The GPU plugin for all of CUDA_ARCHS, and that no kernel spills registers: minutes, with nvcc.
.PHONY: check-cuda
check-cuda:
ifeq ($(NVCC),)
	@echo "check-cuda: SKIP: nvcc is not installed (CUDA toolkit)"
else
	@$(MAKE) --no-print-directory CUDA=1 CUDA_DIR=$(B)/cuda-check $(B)/cuda-check/libod_cuda.so
	@python3 tests/gpu/check_cuda.py $(CUDA_OBJS:$(CUDA_DIR)/%.o=$(B)/cuda-check/%.log)
endif

# The GPU's tests on the PTX that nvcc makes of the kernels for the plugin: tests/gpu/ptx runs it, in place of the emulated GPU's fibres.
# Minutes, with nvcc.
PTX_OBJS := $(patsubst %,$(B)/pic/tests/gpu/ptx/%.o,ptx_blocks.c ptx_execute.c ptx_host_kernels.c ptx_meet.c ptx_memory.c ptx_modules.c \
	ptx_parse.c ptx_races.c ptx_text.c)
PTX_FILES = $(foreach v,$(CUDA_PTX),$(CUDA_KERNELS:common/compute/cuda/%.cu=$(B)/ptx/$(v)/%.ptx))
ifeq ($(SANITIZE),)
$(PTX_OBJS): EMULATED_FLAGS := -O3 $(FMA_HERE)
endif

$(B)/lib/libod_gpu_ptx.so: $(filter-out %/gpu_emulated_warps.c.o,$(GPU_HOST_OBJS)) $(PTX_OBJS)
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -shared -o $@ $^ -lm

$(B)/ptx/flags: cuda-flags
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS)' >$@

# $(1): the PTX's version
define ptx_rule
$(B)/ptx/$(1)/%.ptx: common/compute/cuda/%.cu $(B)/ptx/flags
	@mkdir -p $$(@D)
	@echo "PTX $(1)  $$<"
	@$$(NVCC) $$(NVCC_FLAGS) -ptx -arch=compute_$(1) -MMD -MP -MF $$@.d -o $$@ $$<
endef
$(foreach v,75 80 90,$(eval $(call ptx_rule,$(v))))

.PHONY: check-ptx check-ptx-build
check-ptx-build: check-build $(B)/lib/libod_gpu_ptx.so $(PTX_FILES)

check-ptx:
ifeq ($(NVCC),)
	@echo "check-ptx: SKIP: nvcc is not installed (CUDA toolkit)"
else
	@$(MAKE) --no-print-directory -j$$(nproc) check-ptx-build
	@B=$(B) PTX="$(strip $(CUDA_PTX))" tests/run.sh --ptx
endif

# The GPU device on this machine's GPU; without one it says so. OD_CUDA_PLUGIN=build/lib/libod_gpu_host.so: on the emulated one.
.PHONY: gpu-check
gpu-check:
	@B=$(B) tests/gpu/gpu-check.sh

-include $(GPU_KERNEL_OBJS:.o=.d) $(PTX_OBJS:.o=.d) $(wildcard $(B)/ptx/*/*.d)
