libod_SRCS += $(addprefix common/base/,args.c cgroup.c counters.c descriptors.c file.c hangup.c id_table.c json.c log.c mem.c notify.c pool.c pulse.c \
	status.c strbuf.c trace.c)
