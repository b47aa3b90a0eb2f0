libod_SRCS += $(addprefix common/model/,candidates.c config.c dry.c family.c forward.c forward_open.c generation_config.c logprobs.c mixer.c resident.c rope.c sampler.c seq_state.c) \
	$(addprefix common/model/families/,deepseek_v2.c deepseek_v3.c gemma4.c glm4_moe.c glm4_moe_lite.c gpt_oss.c minimax_m2.c mixtral.c olmoe.c \
		parse.c parse_gated.c phimoe.c qwen2_moe.c qwen3_5_moe.c qwen3_moe.c qwen3_next.c) \
	$(addprefix common/model/mixers/,mix_delta.c mix_gqa.c mix_mla.c)
# No exception flag is ever read; without them loops with a choice in them become vectors.
CFLAGS_common_model_sampler := -O3 -fno-trapping-math
CFLAGS_common_model_candidates := $(CFLAGS_common_model_sampler)
CFLAGS_common_model_logprobs := $(CFLAGS_common_model_sampler)
