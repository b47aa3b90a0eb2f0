# Random blocks of each of GGUF's formats under the undefined-behaviour sanitizer, by all decoders and PyPI's gguf: BLOCKS of each, minutes.
# FORMAT="Q4_K IQ2_S": these only.
BLOCKS ?= 1000000
BLOCKS_VENV := build/blocks
BLOCKS_DECODERS := $(if $(filter x86_64-%,$(MACHINE)),decoders_avx2.c decoders_avx512.c) $(if $(filter aarch64-%,$(MACHINE)),decoders_neon.c)
CFLAGS_tests_blocks_decoders_avx2 := -mavx2 -mfma -mf16c
CFLAGS_tests_blocks_decoders_avx512 := $(AVX512_FLAGS)
$(B)/tests/random_blocks: $(call obj,$(addprefix tests/blocks/,random_blocks.c $(BLOCKS_DECODERS)) $(PLUGIN_SRCS))
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: check-blocks blocks-venv
check-blocks:
	@$(MAKE) --no-print-directory SANITIZE=undefined build-undefined/tests/random_blocks
	@$(MAKE) --no-print-directory blocks-venv || echo "PyPI's gguf cannot be installed: decoders are compared with each other only." >&2
	@python=$(BLOCKS_VENV)/bin/python; [ -f $(BLOCKS_VENV)/installed ] || python=python3; \
		$$python tests/blocks/check_blocks.py build-undefined/tests/random_blocks $(BLOCKS) $(FORMAT)

blocks-venv: $(BLOCKS_VENV)/installed
$(BLOCKS_VENV)/installed: tests/blocks/requirements.txt
	@rm -rf $(BLOCKS_VENV)
	@python3 -m venv $(BLOCKS_VENV)
	@$(BLOCKS_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@
