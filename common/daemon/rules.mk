libod_SRCS += $(addprefix common/daemon/,daemon.c daemon_args.c data_port.c)
