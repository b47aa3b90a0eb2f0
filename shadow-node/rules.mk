# Everything of the shadow but its wiring, so that tests can drive it.
ODS_SRCS := $(addprefix shadow-node/,align_apply.c emulator.c publish.c)

PROGRAMS += od-shadow
od-shadow_SRCS := shadow-node/od_shadow.c $(ODS_SRCS)

test_align_apply_OBJS := $(B)/obj/shadow-node/align_apply.o
test_emulator_OBJS := $(addprefix $(B)/obj/,shadow-node/align_apply.o shadow-node/emulator.o \
	tests/unit/emulator_world.o)
