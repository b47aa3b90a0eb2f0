libod_SRCS += $(addprefix common/net/,endpoint.c gate.c handshake.c hosts.c keys.c liveness.c store_wire.c uv_socket.c wire.c)
