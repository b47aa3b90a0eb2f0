# Everything of the shadow but its wiring, so that tests can drive it.
ODS_SRCS := $(addprefix shadow-node/,align_apply.c shadow_sequence.c emulator.c emulator_plan.c emulator_messages.c emulator_layers.c \
	chain.c part.c saved_rows.c publish.c)

PROGRAMS += od-shadow
od-shadow_SRCS := shadow-node/od_shadow.c $(ODS_SRCS)

test_align_apply_OBJS := $(B)/obj/shadow-node/align_apply.o
EMULATOR_OBJS := $(addprefix $(B)/obj/,shadow-node/align_apply.o shadow-node/shadow_sequence.o shadow-node/emulator.o \
	shadow-node/emulator_plan.o shadow-node/emulator_messages.o shadow-node/emulator_layers.o shadow-node/chain.o \
	shadow-node/saved_rows.o tests/unit/emulator_world.o \
	tests/unit/emulator_model.o)
test_emulator_OBJS := $(EMULATOR_OBJS)
test_emulator_fixed_OBJS := $(EMULATOR_OBJS)
test_emulator_sequences_OBJS := $(EMULATOR_OBJS) $(B)/obj/tests/unit/emulator_cast.o
test_emulator_drafts_OBJS := $(EMULATOR_OBJS) $(B)/obj/tests/unit/emulator_mirror.o
test_chain_OBJS := $(addprefix $(B)/obj/,shadow-node/chain.o tests/unit/emulator_model.o)
test_part_OBJS := $(addprefix $(B)/obj/,shadow-node/part.o shadow-node/saved_rows.o tests/unit/emulator_model.o)
test_od_shadow_OBJS := $(B)/obj/tests/unit/shadow_process.o $(B)/obj/tests/unit/played_main.o
# Both sides of it.
test_alignment_OBJS := $(EMULATOR_OBJS) $(ODM_SRCS:%.c=$(B)/obj/%.o)
