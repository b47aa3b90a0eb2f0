libod_SRCS += $(addprefix common/net/,daemon.c daemon_args.c data_port.c endpoint.c gate.c handshake.c hosts.c keys.c liveness.c store_wire.c uv_socket.c wire.c)
