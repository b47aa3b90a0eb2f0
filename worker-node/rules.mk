# Everything of the worker but its wiring, so that tests can drive its parts.
ODW_SRCS := $(addprefix worker-node/,load_schedule.c loader.c run_check.c slots.c step_marks.c worker_engine.c)

PROGRAMS += od-worker
od-worker_SRCS := worker-node/od_worker.c $(ODW_SRCS)

test_load_schedule_OBJS = $(call obj,$(addprefix worker-node/,load_schedule.c step_marks.c))
test_slots_OBJS = $(call obj,worker-node/slots.c worker-node/load_schedule.c worker-node/step_marks.c)
test_run_check_OBJS = $(call obj,worker-node/run_check.c)
