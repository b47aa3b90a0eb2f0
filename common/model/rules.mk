LIBOD_SRCS += $(addprefix common/model/,config.c family.c forward.c forward_open.c generation_config.c logprobs.c mixer.c resident.c rope.c sampler.c seq_state.c) \
	$(addprefix common/model/families/,deepseek_v2.c deepseek_v3.c gemma4.c glm4_moe.c glm4_moe_lite.c gpt_oss.c minimax_m2.c mixtral.c olmoe.c \
		parse.c parse_gated.c phimoe.c qwen2_moe.c qwen3_5_moe.c qwen3_moe.c qwen3_next.c) \
	$(addprefix common/model/mixers/,mix_delta.c mix_gqa.c mix_mla.c)
# No exception flag is ever read; without them loops with a choice in them become vectors.
CFLAGS_common_model_sampler := -O3 -fno-trapping-math
CFLAGS_common_model_logprobs := $(CFLAGS_common_model_sampler)
test_families_OBJS := $(B)/obj/tests/unit/family_util.o
test_family_settings_OBJS := $(test_families_OBJS)
test_family_gemma4_OBJS := $(B)/obj/tests/unit/family_util.o
test_family_refusals_OBJS := $(test_families_OBJS)
test_family_gated_OBJS := $(test_families_OBJS)
test_forward_OBJS := $(addprefix $(B)/obj/tests/unit/,forward_world.o tiny_model.o naive_model.o)
test_forward_steps_OBJS := $(addprefix $(B)/obj/tests/unit/,forward_world.o tiny_model.o)
test_forward_many_OBJS := $(addprefix $(B)/obj/tests/unit/,forward_world.o tiny_model.o sum_mixer.o)
test_expert_ffn_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_route_OBJS := $(B)/obj/tests/unit/tiny_model.o
test_fixed_state_OBJS := $(addprefix $(B)/obj/tests/unit/,tiny_model.o sum_mixer.o)
test_mixers_OBJS := $(addprefix $(B)/obj/tests/unit/,tiny_model.o naive_model.o)
