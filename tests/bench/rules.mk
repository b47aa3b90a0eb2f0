# od-bench: every figure we publish. A subcommand is one bench_<name>.c and a line in od_bench.c's table.
PROGRAMS += od-bench
od-bench_SRCS := $(addprefix tests/bench/,od_bench.c bandwidth.c bench_codec.c bench_conform.c bench_gemv.c bench_membw.c \
	bench_plot.c bench_precision.c bench_stats.c bench_synth.c bench_table.c codec_data.c golden_compare.c golden_file.c synth_files.c \
	synth_model.c synth_weights.c)
# Main's engine, for what is measured on a running model.
od-bench_SRCS += $(addprefix tests/bench/,ablate_draw.c ablate_plan.c ablate_report.c ablate_summary.c \
	bench_ablate.c bench_decode.c bench_prompts.c bench_recall.c child_args.c) $(ODM_SRCS)
# The shadow's emulator beside the true model.
od-bench_SRCS += $(addprefix tests/bench/,recall_board.c recall_config.c recall_draw.c recall_live.c recall_models.c recall_progress.c \
	recall_record.c recall_report.c recall_rival.c recall_run.c recall_shadow.c recall_stats.c \
	recall_sweep.c) $(ODS_SRCS)
# What main's own predictors are compared with.
RIVAL_SRCS := $(addprefix tests/bench/,history_predictor.c popularity_predictor.c random_predictor.c rivals.c)
od-bench_SRCS += $(RIVAL_SRCS)

# A cluster in virtual time: the worker's own schedule.
od-bench_SRCS += $(addprefix tests/bench/,recall_served.c recall_tape.c served_sim.c) $(addprefix worker-node/,schedule.c \
	step_marks.c cache/expert_bufs.c cache/expert_cache.c load/load_stages.c load/run_order.c)

# Routes: recorded, and through the caches of workers.
od-bench_SRCS += $(addprefix tests/bench/,bench_cache.c bench_cache_live.c bench_cache_record.c cache_draw.c cache_live.c \
	cache_replay.c cache_routes.c cache_rule.c route_file.c route_record.c) worker-node/load/load_profile.c

# Experts through the worker's loading path.
od-bench_SRCS += $(addprefix tests/bench/,bench_load.c load_crowd.c load_draw.c load_run.c load_source.c load_together.c) worker-node/load/loader.c \
	worker-node/load/paced_reader.c

# Orders of loads in virtual time: the worker's own rule and others.
od-bench_SRCS += $(addprefix tests/bench/,bench_order.c load_optimum.c load_order.c load_sim.c)

# What the unit tests of these files link beyond libod.
test_bench_stats_OBJS := $(B)/obj/tests/bench/bench_stats.o
test_bench_table_OBJS := $(B)/obj/tests/bench/bench_table.o
test_ablate_OBJS := $(addprefix $(B)/obj/tests/bench/,ablate_plan.o ablate_summary.o bench_stats.o) \
	$(RIVAL_SRCS:%.c=$(B)/obj/%.o) $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_cache_rule_OBJS := $(B)/obj/tests/bench/cache_rule.o
test_bench_plot_OBJS := $(B)/obj/tests/bench/bench_plot.o
test_bench_prompts_OBJS := $(B)/obj/tests/bench/bench_prompts.o
test_bandwidth_OBJS := $(B)/obj/tests/bench/bandwidth.o
test_route_file_OBJS := $(B)/obj/tests/bench/route_file.o
test_synth_model_OBJS := $(B)/obj/tests/bench/synth_model.o $(B)/obj/tests/bench/synth_weights.o
test_golden_file_OBJS := $(B)/obj/tests/bench/golden_file.o
test_golden_compare_OBJS := $(B)/obj/tests/bench/golden_compare.o
test_recall_stats_OBJS := $(B)/obj/tests/bench/recall_stats.o
test_recall_config_OBJS := $(B)/obj/tests/bench/recall_config.o
test_recall_board_OBJS := $(addprefix $(B)/obj/tests/bench/,recall_board.o recall_tape.o recall_stats.o)
test_recall_progress_OBJS := $(B)/obj/tests/bench/recall_progress.o
test_served_sim_OBJS := $(B)/obj/tests/bench/served_sim.o $(addprefix $(B)/obj/main-node/,cluster/placement.o cluster/predictions.o cluster/want_place.o) \
	$(test_schedule_OBJS)
test_load_order_OBJS := $(B)/obj/tests/bench/load_order.o $(B)/obj/worker-node/load/run_order.o
test_load_sim_OBJS := $(addprefix $(B)/obj/tests/bench/,load_optimum.o load_order.o load_sim.o) $(B)/obj/worker-node/load/run_order.o
test_recall_tape_OBJS := $(B)/obj/tests/bench/recall_tape.o
PREDICTOR_OBJS := $(B)/obj/tests/unit/predictor_world.o $(RIVAL_SRCS:%.c=$(B)/obj/%.o)
test_predictor_OBJS := $(PREDICTOR_OBJS)
test_history_predictor_OBJS := $(PREDICTOR_OBJS)
test_trajectory_predictor_OBJS := $(PREDICTOR_OBJS)
test_random_predictor_OBJS := $(RIVAL_SRCS:%.c=$(B)/obj/%.o)
