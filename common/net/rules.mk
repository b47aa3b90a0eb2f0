libod_SRCS += $(addprefix common/net/,endpoint.c gate.c handshake.c hosts.c key_files.c keys.c line_file.c liveness.c members_file.c store_wire.c uv_socket.c wire.c)
