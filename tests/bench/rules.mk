# od-bench: every figure we publish. A subcommand is one bench_<name>.c in a room and a line in od_bench.c's table.
PROGRAMS += od-bench
od-bench_SRCS := tests/bench/od_bench.c
od-bench_USES := libodb libodpl libodm libods libodw

libodb_SRCS := tests/bench/bench_list.c

# micro: kernels, codecs and memory by themselves.
libodb_SRCS += $(addprefix tests/bench/micro/,bandwidth.c bench_codec.c bench_gemv.c bench_gpu.c bench_masks.c bench_precision.c \
	bench_tokenize.c bench_wire.c codec_data.c gpu_work.c)

# live: a running model, in this process or on a cluster, and what main's own predictors are compared with.
libodb_SRCS += $(addprefix tests/bench/live/,history_predictor.c popularity_predictor.c random_predictor.c rivals.c)
libodb_SRCS += $(addprefix tests/bench/live/,ablate_plan.c bench_ablate.c bench_cache_record.c \
	 bench_decode.c bench_load.c bench_parallel.c bench_prompts.c bench_recall.c bench_residency.c bench_routing.c \
	bench_texts.c child_args.c \
	decode_common.c load_run.c load_source.c parallel_texts.c recall_board.c recall_config.c \
	recall_live.c recall_models.c recall_progress.c recall_record.c recall_rival.c recall_run.c recall_shadow.c recall_stats.c \
	recall_sweep.c route_policy.c route_record.c routing_service.c)

# sim: clusters and caches in virtual time, with rules that nothing but od-bench has.
libodb_SRCS += $(addprefix tests/bench/sim/,bench_cache.c cache_budget.c cache_replay.c cache_routes.c cache_rule.c cache_state.c \
	planner.c pool_policy.c rank_dispatch.c rank_list.c recall_served.c recall_tape.c route_file.c selection.c served_cluster.c served_trace.c)

# report: tables; draw_plots.py draws pictures of them. synth: models of any size.
libodb_SRCS += $(addprefix tests/bench/report/,ablate_report.c ablate_summary.c bench_stats.c bench_table.c \
	recall_report.c)
libodb_SRCS += $(addprefix tests/bench/synth/,bench_synth.c synth_family.c synth_files.c synth_model.c synth_weights.c)
libodb_SRCS += $(addprefix tests/conform/,bench_conform.c golden_compare.c golden_file.c)

# OD-MoE's ten machines on this one: an hour, as root, on a machine that does nothing else. TESTBED: options of od_moe_testbed.py.
$(B)/tests/od-shadow-wrong: $(call obj,$(od-shadow_SRCS) tests/bench/live/wrong_predictions.c) $(B)/libods.a $(B)/libod.a
$(B)/tests/od-shadow-wrong: WRAPPED := ods_publisher_sink
$(B)/tests/od-main-late: $(call obj,$(od-main_SRCS) tests/bench/live/late_prompts.c) $(ARCHIVES)
$(B)/tests/od-testbed-sim: $(call obj,tests/bench/live/testbed_sim.c tests/bench/live/late_prompts.c) $(ARCHIVES)
$(B)/tests/od-main-late $(B)/tests/od-testbed-sim: WRAPPED := odm_predictions_require_all
TESTBED_PROGRAMS := $(addprefix $(B)/tests/,od-shadow-wrong od-main-late od-testbed-sim)
$(TESTBED_PROGRAMS):
	@mkdir -p $(@D)
	@echo "LD      $@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) -Wl,--wrap=$(WRAPPED) $(LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: testbed
testbed: programs $(B)/lib/libod_paced.so $(TESTBED_PROGRAMS)
	@B=$(B) tests/bench/live/od_moe_testbed.py $(TESTBED)
