libod_SRCS += $(addprefix common/cache/,cache_state.c planner.c pool_policy.c queue_policy.c rank_dispatch.c rank_list.c \
	selection.c)
