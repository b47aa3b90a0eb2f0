# Everything of main but its wiring, so that od-bench can drive the same engine.
ODM_SRCS := $(addprefix main-node/,engine.c figures.c generate.c resident_service.c sampling_config.c)

#PROGRAMS += od-main
od-main_SRCS := main-node/od_main.c $(ODM_SRCS)
