# od.proto becomes C under $(B)/gen/proto; what is generated does not follow our warnings.
PROTO_HDRS := $(B)/gen/proto/od.pb-c.h
PROTO_OBJS := $(B)/obj/gen/proto/od.pb-c.o
libod_OBJS := $(PROTO_OBJS)

$(B)/gen/proto/od.pb-c.c: proto/od.proto
	@mkdir -p $(@D)
	@echo "PROTOC  $<"
	@protoc-c --c_out=$(B)/gen $<
$(PROTO_HDRS): $(B)/gen/proto/od.pb-c.c ;

$(PROTO_OBJS): $(B)/gen/proto/od.pb-c.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) -w $(PKG_CFLAGS) -c $< -o $@
