# Everything of the worker but its wiring, so that tests can drive its parts.
ODW_SRCS := $(addprefix worker-node/,memory_plan.c run_check.c schedule.c step_marks.c worker_engine.c \
	$(addprefix cache/,cache_planner.c expert_bufs.c expert_cache.c) \
	$(addprefix load/,load_profile.c load_stages.c loader.c paced_reader.c run_order.c) \
	$(addprefix pull/,pull_plan.c puller.c spool_begin.c store_client.c))

PROGRAMS += od-worker
od-worker_SRCS := worker-node/od_worker.c $(ODW_SRCS)

test_schedule_OBJS := $(addprefix $(B)/obj/worker-node/,schedule.o step_marks.o cache/expert_bufs.o cache/expert_cache.o \
	load/load_stages.o load/run_order.o)
test_schedule_random_OBJS := $(test_schedule_OBJS) $(addprefix $(B)/obj/worker-node/,cache/cache_planner.o load/load_profile.o load/loader.o)
test_expert_cache_OBJS := $(test_schedule_random_OBJS)
test_load_profile_OBJS := $(test_schedule_OBJS) $(addprefix $(B)/obj/worker-node/,load/load_profile.o load/loader.o)
test_od_worker_OBJS := $(B)/obj/tests/unit/worker_world.o
test_memory_plan_OBJS := $(test_schedule_random_OBJS) $(B)/obj/worker-node/memory_plan.o
test_run_check_OBJS := $(B)/obj/worker-node/run_check.o
test_pull_plan_OBJS := $(addprefix $(B)/obj/,worker-node/pull/pull_plan.o tests/unit/tiny_files.o)
test_store_client_OBJS := $(B)/obj/worker-node/pull/store_client.o
test_worker_cache_OBJS := $(B)/obj/tests/unit/worker_world.o
test_loader_cache_OBJS := $(test_schedule_random_OBJS)
test_paced_reader_OBJS := $(test_schedule_random_OBJS) $(B)/obj/worker-node/load/paced_reader.o
