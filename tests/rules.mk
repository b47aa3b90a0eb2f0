include tests/bench/rules.mk tests/blocks/rules.mk tests/fuzz/rules.mk tests/gpu/rules.mk

# Unit tests: tests/unit/test_<module>.c, each a cmocka program. The other sources there are what several of them use. A test takes what it
# needs from the archives, so nothing is listed; what is in no archive stands in test_<module>_OBJS.
UNIT_TESTS += $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
$(B)/libtests.a: $(call obj,$(filter-out tests/unit/test_%,$(wildcard tests/unit/*.c))) $(FAR_OBJS) $(PACED_OBJS)
	@rm -f $@
	@$(AR) rcs $@ $^

# What is only in the GPU's plugins.
test_gpu_form_OBJS := $(call obj,common/compute/cuda/gpu_form.c)
test_gpu_graphs_OBJS := $(call obj,common/compute/cuda/gpu_graphs.c)
test_gpu_host_OBJS := $(call obj,common/compute/cuda/gpu_graphs.c) $(addprefix $(B)/pic/tests/gpu/,gpu_emulated_warps.c.o gpu_host.c.o)
CFLAGS_tests_unit_test_gpu_host := -Itests/gpu

# Daemons that unit tests start, and tests with daemons of --local: for them a process without CPU is not a dead one.
PATIENT := $(B)/obj/tests/patient_liveness.o
$(B)/tests/od-worker: $(PATIENT) $(call obj,$(od-worker_SRCS)) $(B)/libodw.a $(B)/libod.a
$(B)/tests/od-shadow: $(PATIENT) $(call obj,$(od-shadow_SRCS)) $(B)/libods.a $(B)/libod.a
$(B)/tests/od-worker $(B)/tests/od-shadow:
	@mkdir -p $(@D)
	@rm -f $@
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -o $@ $^ $(LIBS)
test_daemon_LDFLAGS := -Wl,--wrap=od_liveness_check
test_wrong_predictions_OBJS := $(call obj,tests/bench/live/wrong_predictions.c)
test_gguf_open_LDFLAGS := -Wl,--wrap=pread,--wrap=preadv,--wrap=od_data_add
test_batch_OBJS := $(PATIENT)
test_draft_OBJS := $(PATIENT)
test_tokens_OBJS := $(PATIENT)
$(B)/tests/test_od_worker $(B)/tests/test_worker_cache: | $(B)/tests/od-worker
$(B)/tests/test_od_shadow: | $(B)/tests/od-shadow
$(B)/tests/test_expert_form: | $(B)/bin/od-bench
# A plugin of another build is refused.
$(B)/tests/test_tiered: | $(B)/lib/libod_gpu_host.so

define unit_rule
$(B)/tests/$(1): $(B)/obj/tests/unit/$(1).o $($(1)_OBJS) $(B)/libtests.a $(ARCHIVES)
	@mkdir -p $$(@D)
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $($(1)_LDFLAGS) $(LDFLAGS) -o $$@ $$^ $(LIBS) -lcmocka
endef
$(foreach t,$(UNIT_TESTS),$(eval $(call unit_rule,$(t))))

# JSON schemas as the server enforces them, for tests in other languages.
$(B)/tests/od-schema: $(B)/obj/tests/conform/od_schema.o $(B)/libod.a
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -o $@ $^ $(LIBS)

# The page of what clients send, from the table that the server reads requests by.
.PHONY: docs/CLIENTS.md
docs/CLIENTS.md: $(B)/tests/test_client_fields
	@$< --write $@

.PHONY: check-build check-build-quick check-source
check-build-quick: programs $(UNIT_TESTS:%=$(B)/tests/%) $(B)/tests/od-main-sum $(B)/tests/od-testbed-sim \
	$(B)/lib/libod_far.so $(B)/lib/libod_paced.so
check-build: check-build-quick $(B)/tests/lose_gpu.so $(B)/tests/wrong_driver/libcuda.so.1 \
	$(B)/lib/libod_gpu_host.so

check-source:
	@tests/check-source.sh

# The official clients of the APIs that od-main serves, and Python's jsonschema, from PyPI, for tests/integ.
CLIENTS := build/clients
.PHONY: api-clients
api-clients: $(CLIENTS)/installed
$(CLIENTS)/installed: tests/integ/clients.txt
	@rm -rf $(CLIENTS)
	@python3 -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# The JSON-Schema-Test-Suite, as the source package of Python's jsonschema has it, against the schemas that the server enforces.
JSON_SCHEMA := $(shell sed -n 's/^jsonschema\[.*==/jsonschema-/p' tests/integ/clients.txt)
SCHEMA_SUITE := build/schema-suite
.PHONY: schema-suite random-schemas
schema-suite: $(B)/tests/od-schema api-clients $(SCHEMA_SUITE)/$(JSON_SCHEMA)
	@B=$(B) $(CLIENTS)/bin/python tests/conform/schema_suite.py $(SCHEMA_SUITE)/$(JSON_SCHEMA)/json/tests
$(SCHEMA_SUITE)/$(JSON_SCHEMA): | api-clients
	@rm -rf $(SCHEMA_SUITE)
	@$(CLIENTS)/bin/pip download -q --disable-pip-version-check --no-binary :all: --no-deps -d $(SCHEMA_SUITE) \
		$(subst schema-,schema==,$(JSON_SCHEMA))
	@tar -xf $@.tar.gz -C $(SCHEMA_SUITE)

# CPU time of schemas that are made to cost much: 100 ms for each. TOKENIZER: tokenizer.json of a model with a large vocabulary.
.PHONY: hostile-schemas
hostile-schemas: $(B)/tests/od-schema
	@B=$(B) python3 tests/conform/hostile_schemas.py $(TOKENIZER)

# A thousand random schemas, answered at temperature 1.5 by the demo checkpoint. A minute; SEED=n: others.
random-schemas: programs api-clients
	@B=$(B) OD_SCHEMAS=1000 $(if $(SEED),OD_SEED=$(SEED)) python3 tests/integ/test_random_schemas.py

# The programs that people use with od-main serve, from PyPI (about 4 GB), each in a conversation with tools; and published chat
# templates and tokenisers as they are. Ten minutes and more. CLIENT=test_agents.py: one of them. As root: programs run where there
# is no network but loopback.
CLIENT_PROGRAMS := build/client-programs
.PHONY: clients
clients: programs
	@deploy/install-deps.sh python3-venv chromium chromium-driver
	@tests/clients/install.sh $(CLIENT_PROGRAMS)
	@for t in $(or $(CLIENT:%=tests/clients/%),tests/clients/test_*.py tests/clients/published_*.py); do \
		echo "$$t"; B=$(B) OD_PUBLISHED=$(CLIENT_PROGRAMS)/published $(CLIENT_PROGRAMS)/agents/bin/python $$t || exit 1; done

# The page that od-main serves, in headless Chromium: a minute. fuzz-page gives its parsers hostile texts for SECONDS; SEED=n: others.
.PHONY: check-page fuzz-page
check-page: programs
	@deploy/install-deps.sh chromium cmark-gfm
	@B=$(B) tests/run.sh --page
fuzz-page:
	@deploy/install-deps.sh chromium
	@SECONDS=$(or $(SECONDS),600) OD_SEED=$(or $(SEED),$$RANDOM) python3 tests/page/test_page_hostile.py random_texts_do_nothing \
		events_are_read_as_the_standard_says

# Hugging Face transformers, pinned, for what is compared with it live; about 6 GB, and no test of make check needs it.
REFERENCE := build/reference
.PHONY: reference-venv check-reference
reference-venv: $(REFERENCE)/installed
$(REFERENCE)/installed: tests/reference/requirements.txt
	@rm -rf $(REFERENCE)
	@python3 -m venv $(REFERENCE)
	@$(REFERENCE)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# Random checkpoints of every family against transformers, and recall of their shadows; SEED=n repeats one.
check-reference: programs $(B)/lib/libod_far.so reference-venv
	@$(REFERENCE)/bin/python tests/reference/compare.py --bin $(B)/bin $(if $(SEED),--seed $(SEED))
	@$(REFERENCE)/bin/python tests/reference/recall.py --bin $(B)/bin $(if $(SEED),--seed $(SEED))

# Three tiers. make check is for every change: what it runs is chosen in tests/tiers.txt, so that two cores need ten minutes. make check-ci,
# which .ci/run calls, also runs what the emulated GPU and the device far add: twenty minutes. make check-all runs everything, before an
# issue is resolved. The last line of each is the sum of all that it ran.
# Each installs first, then starts over, so that the new libraries are seen. What is built and fetched shares the cores.
.PHONY: check check-ci check-all check-clients check-prometheus check-cuda-one
check check-ci check-all: deps
check: CHECK_BUILD := check-clients check-build-quick
check: CHECK_PARTS := --source --check
check-ci: CHECK_BUILD := check-clients check-build
check-ci: CHECK_PARTS := --source --check --far --emulated
check-all: CHECK_BUILD := check-clients check-prometheus fuzz check-cuda-one check-build
check-all: CHECK_PARTS := --source --check --rest --page --fuzz --far --emulated

# check-source needs clang-format and shellcheck, only the fuzzers need clang, and the units' test systemd.
check check-ci check-all:
	@deploy/install-deps.sh clang-format-14 shellcheck python3-venv $(if $(filter fuzz,$(CHECK_BUILD)),clang libclang-rt-dev systemd chromium cmark-gfm)
	@$(MAKE) --no-print-directory -j$$(nproc) $(CHECK_BUILD)
	@B=$(B) tests/run.sh $(CHECK_PARTS)

check-clients:
	@$(MAKE) --no-print-directory api-clients || echo "The official API clients cannot be installed: their tests will be skipped." >&2

check-prometheus:
	@B=$(B) tests/get-prometheus.sh

# How much of what check-all finds check finds, by mistakes that are planted into the commit: many hours. tests/mutate.py has options.
.PHONY: mutations
mutations:
	@python3 tests/mutate.py $(if $(COUNT),--count $(COUNT))

# Of the GPU's architectures the one with the largest kernels: less than a minute; make check-cuda compiles all. What it shares with
# the emulated GPU is compiled before, so that no two makes write the same file.
check-cuda-one: $(PLUGIN_OBJS)
	@$(MAKE) --no-print-directory check-cuda CUDA_ARCHS=90

# The tests once more on an emulated aarch64: minutes, and packages to fetch when it is called first.
.PHONY: check-arm64
check-arm64: deps
	@tests/check-arm64.sh

# With libraries that are as old as those of Jetsons. As root.
.PHONY: check-debian11
check-debian11:
	@tests/check-debian11.sh

# What a user does on three bare Debian machines: packages, six lines, a page that answers, a power cut, upgrades. As root; minutes, and
# more the first time: it fetches Debian, and builds the packages twice.
.PHONY: stranger
stranger: deb
	@deploy/install-deps.sh debootstrap dpkg-dev chromium
	@tests/stranger/next_release.sh $(B)/stranger/next
	@B=$(B) python3 tests/stranger/stranger.py $(B)/deb $(B)/stranger/next/deb

# Every cluster shape, faults at 100 random moments, and a few faults of a network: minutes, not seconds.
.PHONY: soak
soak: programs
	@B=$(B) python3 tests/soak/soak.py
	@B=$(B) python3 tests/soak/batch_faults.py --faults 15

# Verified drafts of every length and kind, of every model, 100 prompts each: the texts of plain decoding. About 40 minutes.
.PHONY: soak-drafts
soak-drafts: programs $(B)/tests/od-main-sum
	@B=$(B) OD_PROMPTS=100 python3 tests/integ/test_drafts.py

# The server under many clients, good and bad, on one process and on a cluster: minutes.
.PHONY: soak-serve
soak-serve: programs
	@B=$(B) python3 tests/soak/serve_soak.py
	@B=$(B) python3 tests/soak/serve_soak.py --mode "--local 2"

# Every test three times, while one of its processes after another gets no CPU for 1.5 to 2 s. Hours; as root. ONLY="FILE...": these.
.PHONY: soak-freeze
soak-freeze: check-build
	@B=$(B) python3 tests/soak/freeze.py --jobs $$(nproc) $(or $(ONLY),tests/integ/test_*.py $(UNIT_TESTS:%=$(B)/tests/%))
