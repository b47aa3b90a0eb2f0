# libFuzzer programs, tests/fuzz/fuzz_<what>.c, each linked with libod less its kernels; they need clang, and have a
# build of their own.
#   make fuzz         builds them; run one: build-fuzz/fuzz/fuzz_wire build-fuzz/corpus/fuzz_wire tests/fuzz/seeds/fuzz_wire
#   make fuzz-smoke   runs each for FUZZ_SECONDS, beginning with its seeds and what earlier runs found
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 10
FUZZ_MAKE := $(MAKE) --no-print-directory CC=clang CFLAGS=-Wno-unknown-warning-option \
	SANITIZE=fuzzer-no-link,address,undefined B=build-fuzz

# Clang 14 does not know all names that gcc's __builtin_cpu_supports takes.
FUZZ_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(filter-out common/compute/%,$(LIBOD_SRCS)))

$(B)/fuzz/libod.a: $(FUZZ_OBJS) $(PROTO_OBJS)
	@mkdir -p $(@D)
	@rm -f $@
	@$(AR) rcs $@ $^

$(B)/fuzz/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/fuzz/libod.a
	@mkdir -p $(@D)
	@$(CC) -fsanitize=fuzzer,address,undefined -pthread -o $@ $^ $(LIBS)

.PHONY: fuzz fuzz-smoke
.SECONDARY: $(FUZZERS:%=$(B)/obj/tests/fuzz/%.o)
fuzz:
	@if command -v clang >/dev/null; then $(FUZZ_MAKE) $(FUZZERS:%=build-fuzz/fuzz/%); \
		else echo "SKIP: the fuzzers need clang"; fi

fuzz-smoke: fuzz
	@for f in $(FUZZERS); do \
		[ -x build-fuzz/fuzz/$$f ] || continue; \
		mkdir -p build-fuzz/corpus/$$f; \
		seeds=; [ -d tests/fuzz/seeds/$$f ] && seeds=tests/fuzz/seeds/$$f; \
		build-fuzz/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=1024 -print_final_stats=0 \
			-artifact_prefix=build-fuzz/$$f- build-fuzz/corpus/$$f $$seeds >build-fuzz/$$f.log 2>&1 || \
			{ tail -40 build-fuzz/$$f.log; echo "FAIL: $$f"; exit 1; }; \
		echo "$$f: $$(grep -E '^Done' build-fuzz/$$f.log)"; \
	done
