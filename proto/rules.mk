# The .proto files become C under $(B)/gen/proto; what is generated does not follow our warnings.
PROTOS := od pair
PROTO_HDRS := $(PROTOS:%=$(B)/gen/proto/%.pb-c.h)
PROTO_OBJS := $(PROTOS:%=$(B)/obj/gen/proto/%.pb-c.o)
libod_OBJS := $(PROTO_OBJS)

$(PROTOS:%=$(B)/gen/proto/%.pb-c.c): $(B)/gen/proto/%.pb-c.c: proto/%.proto
	@mkdir -p $(@D)
	@echo "PROTOC  $<"
	@protoc-c --c_out=$(B)/gen $<
$(PROTO_HDRS): %.h: %.c ;

$(PROTO_OBJS): $(B)/obj/gen/%.o: $(B)/gen/%.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) -w $(PKG_CFLAGS) $(CFLAGS) -c $< -o $@
