# Everything of the worker but its wiring, so that tests can drive its parts.
ODW_SRCS := $(addprefix worker-node/,cache_planner.c expert_bufs.c expert_cache.c load_profile.c \
	load_stages.c loader.c memory_plan.c paced_reader.c pull_plan.c puller.c run_check.c run_order.c schedule.c spool_begin.c \
	step_marks.c store_client.c worker_engine.c)

PROGRAMS += od-worker
od-worker_SRCS := worker-node/od_worker.c $(ODW_SRCS)

test_schedule_OBJS := $(addprefix $(B)/obj/worker-node/,expert_bufs.o expert_cache.o load_stages.o run_order.o schedule.o \
	step_marks.o)
test_schedule_random_OBJS := $(test_schedule_OBJS) $(addprefix $(B)/obj/worker-node/,cache_planner.o load_profile.o loader.o)
test_expert_cache_OBJS := $(test_schedule_random_OBJS)
test_load_profile_OBJS := $(test_schedule_OBJS) $(addprefix $(B)/obj/worker-node/,load_profile.o loader.o)
test_od_worker_OBJS := $(B)/obj/tests/unit/worker_world.o
test_memory_plan_OBJS := $(test_schedule_random_OBJS) $(B)/obj/worker-node/memory_plan.o
test_run_check_OBJS := $(B)/obj/worker-node/run_check.o
test_pull_plan_OBJS := $(addprefix $(B)/obj/,worker-node/pull_plan.o tests/unit/tiny_files.o)
test_store_client_OBJS := $(B)/obj/worker-node/store_client.o
test_worker_cache_OBJS := $(B)/obj/tests/unit/worker_world.o
test_loader_cache_OBJS := $(test_schedule_random_OBJS)
test_paced_reader_OBJS := $(test_schedule_random_OBJS) $(B)/obj/worker-node/paced_reader.o
