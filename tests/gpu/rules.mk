# Devices for tests. They are plugins, which programs open as they open libod_cuda.so:
#   OD_DEVICE=cuda OD_CUDA_PLUGIN=build/lib/libod_far.so od-main ...

# A CPU device whose memory the host cannot touch. Some unit tests have it without the plugin.
FAR_OBJS := $(call obj,tests/gpu/far_device.c tests/gpu/late_queues.c)
FAR_PLUGIN_OBJS := $(FAR_OBJS) $(call obj,tests/gpu/far_plugin.c)
$(FAR_PLUGIN_OBJS): CFLAGS_OD += -fPIC
$(call obj,tests/gpu/far_plugin.c): | $(B)/gen/plugin_version.h

$(B)/lib/libod_far.so: $(FAR_PLUGIN_OBJS) $(B)/libod.a
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -shared -o $@ $^ -lm

# The emulated GPU: the sources of libod_cuda.so but for gpu_cuda.cu, and kernels that are compiled as C.
GPU_HOST_SRCS := $(addprefix tests/gpu/,gpu_fibres.c gpu_host.c late_queues.c)
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

-include $(GPU_KERNEL_OBJS:.o=.d)
