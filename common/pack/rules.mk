LIBOD_SRCS += $(addprefix common/pack/,checksum.c codec.c dense_load.c expert_form.c expert_load.c expert_write.c fingerprint.c \
	manifest.c mat_type.c pack.c pack_info.c pack_layout.c pack_verify.c pack_write.c partial.c quant_rows.c safetensors.c shadow_add.c \
	shadow_file.c shadow_layout.c shadow_load.c shadow_write.c share.c share_write.c source.c spool.c spool_state.c sums.c team.c)

# Plain loops over bytes that the compiler turns into vector code.
CFLAGS_common_pack_codec := -O3
CFLAGS_common_pack_quant_rows := -O3

test_safetensors_OBJS := $(B)/obj/tests/unit/tiny_files.o
test_mat_type_OBJS := $(B)/obj/tests/unit/tiny_files.o
test_pack_OBJS := $(B)/obj/tests/unit/tiny_files.o
test_spool_OBJS := $(B)/obj/tests/unit/tiny_files.o
test_expert_form_OBJS := $(B)/obj/tests/unit/tiny_files.o
