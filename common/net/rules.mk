LIBOD_SRCS += $(addprefix common/net/,daemon.c data_port.c endpoint.c hosts.c liveness.c uv_socket.c wire.c)
