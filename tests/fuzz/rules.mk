# libFuzzer programs, tests/fuzz/fuzz_<what>.c, each linked with libod; they need clang, and have a build of their own.
#   make fuzz         builds them; run one: build-fuzz/fuzz/fuzz_wire build-fuzz/corpus/fuzz_wire tests/fuzz/seeds/fuzz_wire
#   make fuzz-smoke   runs each on its seeds and FUZZ_RUNS inputs (2000), always the same: seconds, part of make check-all
#   make fuzz-run     runs each for FUZZ_SECONDS, beginning with its seeds and what earlier runs found
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60
# A make that already runs more than one job gives its own to this one. Fuzzers read files and messages, and multiply nothing: without a
# machine's name the processor has only the scalar table, and kernels need not be compiled.
FUZZ_MAKE = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$$(nproc)) CC=clang MACHINE=any \
	SANITIZE=fuzzer-no-link,address,undefined B=build-fuzz

# What a fuzzer needs beyond libod. They are few, and clang compiles no more than this for them.
fuzz_config_OBJS := $(B)/obj/tests/fuzz/json_mix.o
fuzz_gbnf_OBJS := $(B)/obj/tests/unit/token_vocab.o
fuzz_regex_OBJS := $(fuzz_gbnf_OBJS)
fuzz_gguf_OBJS := $(addprefix $(B)/obj/tests/fuzz/,gguf_bytes.o gguf_mix.o)
fuzz_gguf_text_OBJS := $(fuzz_gguf_OBJS)
fuzz_hub_OBJS := $(addprefix $(B)/obj/deploy/hub/,gguf_begin.o hub_choose.o hub_listing.o hub_name.o)
fuzz_pack_OBJS := $(B)/obj/tests/unit/tiny_files.o
fuzz_part_OBJS := $(addprefix $(B)/obj/,shadow-node/part.o shadow-node/saved_rows.o tests/unit/emulator_model.o)
fuzz_part_LIBS := -lcmocka
fuzz_prefix_OBJS := $(B)/obj/main-node/engine/prefix/prefix_file.o
fuzz_routes_OBJS := $(B)/obj/tests/bench/sim/route_file.o
fuzz_spool_OBJS := $(addprefix $(B)/obj/,worker-node/pull/spool_begin.o tests/unit/tiny_files.o)
fuzz_schema_OBJS := $(B)/obj/tests/fuzz/json_mix.o
fuzz_tokenizer_OBJS := $(B)/obj/tests/fuzz/json_mix.o
fuzz_wire_OBJS := $(B)/obj/main-node/cluster/result_check.o
ODM_CHAT_OBJS := $(call obj,$(filter main-node/chat/%,$(libodm_SRCS)))
fuzz_answer_OBJS := $(ODM_CHAT_OBJS)
fuzz_messages_OBJS := $(ODM_CHAT_OBJS)
fuzz_requests_OBJS := $(addprefix $(B)/obj/main-node/,$(addprefix serve/api/,anthropic_messages.o call_file.o call_memory.o chat_build.o \
	ollama_request.o response_items.o) \
	$(addprefix serve/http/,api_error.o json_fields.o) $(addprefix chat/,first_time.o json_text.o part_text.o))
fuzz_store_OBJS := $(B)/obj/main-node/store/store_queue.o
fuzz_chat_stream_OBJS := $(addprefix $(B)/obj/main-node/terminal/,chat_reply.o event_reader.o plain_text.o)

define fuzz_rule
$(B)/fuzz/$(1): $(B)/obj/tests/fuzz/$(1).o $($(1)_OBJS) $(B)/libod.a
	@mkdir -p $$(@D)
	@$(CC) -fsanitize=fuzzer,address,undefined -pthread -o $$@ $$^ $(LIBS) $($(1)_LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_rule,$(f))))

.PHONY: fuzz fuzz-smoke fuzz-run
fuzz:
	+@if command -v clang >/dev/null; then $(FUZZ_MAKE) $(FUZZERS:%=build-fuzz/fuzz/%); \
		else echo "SKIP: the fuzzers need clang"; fi

fuzz-smoke: fuzz
	@tests/run.sh --fuzz

fuzz-run: fuzz
	@tests/fuzz/run.sh all -max_total_time=$(FUZZ_SECONDS)
