libod_SRCS += $(addprefix common/residency/,expert_bufs.c expert_cache.c host_tier.c load_stages.c loader.c read_mode.c \
	residency.c schedule.c step_marks.c)
