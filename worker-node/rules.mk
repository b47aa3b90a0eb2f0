# Everything of the worker but its wiring, so that tests and od-bench can drive its parts.
libodw_SRCS := $(addprefix worker-node/,memory_plan.c run_check.c schedule.c step_marks.c sum_reports.c worker_engine.c \
	$(addprefix cache/,cache_costs.c cache_planner.c expert_bufs.c expert_cache.c) \
	$(addprefix load/,load_stages.c loader.c paced_reader.c read_mode.c) \
	$(addprefix pull/,pull_plan.c puller.c spool_begin.c store_client.c))

PROGRAMS += od-worker
od-worker_SRCS := worker-node/od_worker.c
od-worker_USES := libodw
