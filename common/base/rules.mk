LIBOD_SRCS += $(addprefix common/base/,args.c counters.c file.c json.c log.c mem.c pool.c status.c strbuf.c trace.c)
