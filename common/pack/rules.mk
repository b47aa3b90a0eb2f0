libod_SRCS += $(addprefix common/pack/,checksum.c codec.c expert_sums.c given.c manifest.c mat_type.c models_folder.c pack.c pack_data.c pack_info.c \
	pack_layout.c pack_verify.c shape_pack.c share.c sums.c team.c)
libod_SRCS += $(addprefix common/pack/gguf/,gguf.c gguf_config.c gguf_fingerprint.c gguf_folder.c gguf_map.c gguf_pack.c gguf_sums.c gguf_tokenizer.c gguf_vocab.c)
libod_SRCS += $(addprefix common/pack/import/,safetensors.c source.c)
libod_SRCS += $(addprefix common/pack/load/,dense_load.c dense_parts.c dense_piece.c dense_plan.c dense_stream.c device_check.c expert_form.c expert_load.c table_rows.c)
libod_SRCS += $(addprefix common/pack/shadow/,quant_rows.c shadow_add.c shadow_file.c shadow_layout.c shadow_load.c shadow_write.c)
libod_SRCS += $(addprefix common/pack/spool/,spool.c spool_source.c spool_state.c)
libod_SRCS += $(addprefix common/pack/write/,expert_write.c fingerprint.c pack_write.c partial.c share_write.c)

# Plain loops over bytes that the compiler turns into vector code.
CFLAGS_common_pack_codec := -O3
CFLAGS_common_pack_shadow_quant_rows := -O3
