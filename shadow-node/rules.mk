# Everything of the shadow but its wiring, so that tests and od-bench can drive it.
libods_SRCS := $(addprefix shadow-node/,align_apply.c shadow_sequence.c emulator.c emulator_plan.c emulator_messages.c emulator_layers.c \
	chain.c part.c saved_rows.c publish.c)

PROGRAMS += od-shadow
od-shadow_SRCS := shadow-node/od_shadow.c
od-shadow_USES := libods
