# Everything of the worker but its wiring, so that tests and od-bench can drive its parts.
libodw_SRCS := $(addprefix worker-node/,memory_plan.c paced_reader.c run_check.c sum_reports.c worker_engine.c \
	$(addprefix pull/,pull_plan.c puller.c spool_begin.c store_client.c))

PROGRAMS += od-worker
od-worker_SRCS := worker-node/od_worker.c
od-worker_USES := libodw
