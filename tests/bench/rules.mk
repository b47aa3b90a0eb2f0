# od-bench: every figure we publish. A subcommand is one bench_<name>.c in a room and a line in od_bench.c's table.
PROGRAMS += od-bench
od-bench_SRCS := tests/bench/od_bench.c $(ODM_SRCS) $(ODS_SRCS)

# micro: kernels, codecs and memory by themselves.
od-bench_SRCS += $(addprefix tests/bench/micro/,bandwidth.c bench_codec.c bench_deal.c bench_gemv.c bench_gpu.c bench_membw.c bench_precision.c \
	bench_sample.c bench_tokenize.c bench_wire.c codec_data.c gpu_work.c)

# live: a running model, in this process or on a cluster, and what main's own predictors are compared with.
RIVAL_SRCS := $(addprefix tests/bench/live/,history_predictor.c popularity_predictor.c random_predictor.c rivals.c)
od-bench_SRCS += $(RIVAL_SRCS) $(addprefix tests/bench/live/,ablate_plan.c bench_ablate.c bench_beside.c bench_cache_live.c \
	bench_cache_record.c bench_decode.c bench_load.c bench_parallel.c bench_prompts.c bench_recall.c cache_live.c child_args.c \
	decode_common.c load_crowd.c load_run.c load_source.c load_together.c parallel_texts.c recall_board.c recall_config.c \
	recall_live.c recall_models.c recall_progress.c recall_record.c recall_rival.c recall_run.c recall_shadow.c recall_stats.c \
	recall_sweep.c route_record.c)

# sim: clusters, caches and orders of loads in virtual time, with rules that nothing but od-bench has.
od-bench_SRCS += $(addprefix tests/bench/sim/,bench_cache.c bench_order.c cache_replay.c cache_routes.c cache_rule.c \
	load_optimum.c load_order.c load_sim.c recall_served.c recall_tape.c route_file.c served_sim.c)

# report: tables and pictures. synth: models of any size.
od-bench_SRCS += $(addprefix tests/bench/report/,ablate_draw.c ablate_report.c ablate_summary.c bench_plot.c bench_stats.c \
	bench_table.c cache_draw.c load_draw.c recall_draw.c recall_report.c)
od-bench_SRCS += $(addprefix tests/bench/synth/,bench_synth.c synth_family.c synth_files.c synth_model.c synth_weights.c)
od-bench_SRCS += $(addprefix tests/conform/,bench_conform.c golden_compare.c golden_file.c)

# The worker's own schedule and loading path.
od-bench_SRCS += $(addprefix worker-node/,schedule.c step_marks.c) $(addprefix worker-node/cache/,expert_bufs.c expert_cache.c) \
	$(addprefix worker-node/load/,load_profile.c load_stages.c loader.c paced_reader.c run_order.c)

# What the unit tests of these files link beyond libod.
BENCH := $(B)/obj/tests/bench
test_bench_stats_OBJS := $(BENCH)/report/bench_stats.o
test_bench_table_OBJS := $(BENCH)/report/bench_table.o
test_bench_plot_OBJS := $(BENCH)/report/bench_plot.o
test_ablate_OBJS := $(BENCH)/live/ablate_plan.o $(BENCH)/report/ablate_summary.o $(BENCH)/report/bench_stats.o \
	$(RIVAL_SRCS:%.c=$(B)/obj/%.o) $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_bench_prompts_OBJS := $(BENCH)/live/bench_prompts.o
test_bandwidth_OBJS := $(BENCH)/micro/bandwidth.o
test_synth_model_OBJS := $(addprefix $(BENCH)/synth/,synth_family.o synth_model.o synth_weights.o)
test_golden_file_OBJS := $(B)/obj/tests/conform/golden_file.o
test_golden_compare_OBJS := $(B)/obj/tests/conform/golden_compare.o
test_recall_stats_OBJS := $(BENCH)/live/recall_stats.o
test_recall_config_OBJS := $(BENCH)/live/recall_config.o
test_recall_board_OBJS := $(addprefix $(BENCH)/live/,recall_board.o recall_stats.o) $(BENCH)/sim/recall_tape.o
test_recall_progress_OBJS := $(BENCH)/live/recall_progress.o
test_recall_tape_OBJS := $(BENCH)/sim/recall_tape.o
test_cache_rule_OBJS := $(BENCH)/sim/cache_rule.o
test_route_file_OBJS := $(BENCH)/sim/route_file.o
test_served_sim_OBJS := $(BENCH)/sim/served_sim.o $(addprefix $(B)/obj/main-node/cluster/,placement.o predict_tally.o prediction_wants.o \
	predictions.o want_place.o) $(test_schedule_OBJS)
test_load_order_OBJS := $(BENCH)/sim/load_order.o $(B)/obj/worker-node/load/run_order.o
test_load_sim_OBJS := $(addprefix $(BENCH)/sim/,load_optimum.o load_order.o load_sim.o) $(B)/obj/worker-node/load/run_order.o
PREDICTOR_OBJS := $(B)/obj/tests/unit/predictor_world.o $(RIVAL_SRCS:%.c=$(B)/obj/%.o)
test_predictor_OBJS := $(PREDICTOR_OBJS)
test_history_predictor_OBJS := $(PREDICTOR_OBJS)
test_trajectory_predictor_OBJS := $(PREDICTOR_OBJS)
test_random_predictor_OBJS := $(RIVAL_SRCS:%.c=$(B)/obj/%.o)
