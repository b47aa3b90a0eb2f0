# od-moe: make, make check, make demo, make install. Every folder lists its own sources in rules.mk.
#   SANITIZE=address|undefined|thread   a build of its own under build-<name>/
#   CUDA=auto|0|1                       the GPU plugin: where nvcc and a GPU are (for that GPU), never, or for all of CUDA_ARCHS
comma := ,
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:

SANITIZE ?=
CUDA ?= auto
ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA=$(CUDA): expected auto, 0 or 1)
endif
DESTDIR ?=
PREFIX ?= /usr/local
B := build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))

PKGS := libzmq libprotobuf-c libzstd liblz4 libuv jansson libpcre2-8 libutf8proc libxxhash libsodium libmicrohttpd libsystemd
TERMINAL_PKGS := libedit libcurl
HAVE_PKGS := $(shell pkg-config --exists $(PKGS) $(TERMINAL_PKGS) cmocka 2>/dev/null && command -v protoc-c >/dev/null && echo yes)

CC ?= gcc
OPT ?= -O2
# gcc says nothing of a -Wno- option that it does not know, and clang is told to: no compiler need be asked what it has.
CFLAGS_OD := -std=gnu11 $(OPT) -g -pthread -ffp-contract=off -fno-math-errno -fvisibility=hidden \
	-Wall -Wextra -Wswitch-enum -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wvla -Wno-unknown-warning-option -Wno-format-truncation -Werror -D_GNU_SOURCE -I. -I$(B)/gen
ifneq ($(SANITIZE),)
CFLAGS_OD += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS_OD += -fsanitize=$(SANITIZE)
endif
ifneq ($(findstring thread,$(SANITIZE)),)
# Short copies that gcc makes without a call are not looked at; calls are.
CFLAGS_OD += -fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset -fno-builtin-memcmp
endif
ifeq ($(HAVE_PKGS),yes)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) $(TERMINAL_PKGS))
PKG_LIBS := $(shell pkg-config --libs $(PKGS))
TERMINAL_LIBS := $(shell pkg-config --libs $(TERMINAL_PKGS))
CURL_LIBS := $(shell pkg-config --libs libcurl)
endif
LIBS := $(PKG_LIBS) -lm -ldl

.PHONY: all
all: programs

# Each rules.mk adds to these: what an archive is made of, and what is built. Archives follow each other in this order when a program is
# linked, and take from those behind them.
LIBRARIES := libodb libodpl libodm libodt libodp libods libodw libod
ARCHIVES := $(LIBRARIES:%=$(B)/%.a)
obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
PROGRAMS :=
UNIT_TESTS :=
include common/rules.mk proto/rules.mk main-node/rules.mk shadow-node/rules.mk worker-node/rules.mk \
	deploy/rules.mk tests/rules.mk

# Programs and plugins share libod's objects.
$(call obj,$(libod_SRCS)): CFLAGS_OD += -fPIC

define archive_rule
$(B)/$(1).a: $(call obj,$($(1)_SRCS)) $($(1)_OBJS)
	@rm -f $$@
	@$(AR) rcs $$@ $$^
endef
$(foreach l,$(LIBRARIES),$(eval $(call archive_rule,$(l))))

$(B)/obj/%.o: %.c | $(PROTO_HDRS) deps-check
	@mkdir -p $(@D)
	@echo "CC      $<"
	@$(CC) $(CFLAGS_OD) $(PKG_CFLAGS) $(CFLAGS_$(subst /,_,$(basename $<))) $(CFLAGS) -MMD -MP -c $< -o $@

# A program P has its wiring in P_SRCS, the archives that it is made of (beyond libod) in P_USES, libraries of its own in P_LIBS.
define program_rule
$(B)/bin/$(1): $(call obj,$($(1)_SRCS)) $($(1)_USES:%=$(B)/%.a) $(B)/libod.a
	@mkdir -p $$(@D)
	@echo "LD      $$@"
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(LDFLAGS) -o $$@ $$^ $(LIBS) $($(1)_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

.PHONY: programs
programs: $(PROGRAMS:%=$(B)/bin/%) $(PLUGINS)

.PHONY: deps-check
deps-check:
ifneq ($(HAVE_PKGS),yes)
	@echo "Libraries are missing. Install them with: make deps   (deploy/install-deps.sh)" >&2; exit 1
endif

.PHONY: format
format:
	@tests/format.sh

.PHONY: clean distclean help
clean:
	rm -rf build build-*
distclean: clean

help:
	@sed -n '1,3p' Makefile | cut -c3-
	@echo "Targets: all deps demo format check check-all check-ci check-arm64 check-blocks check-cuda check-deb check-debian11 check-far check-page check-ptx check-reference check-source api-clients clients deb image pages gpu-check hostile-schemas mutations random-schemas schema-suite soak soak-drafts soak-freeze soak-serve stranger testbed fuzz fuzz-page fuzz-smoke fuzz-run install uninstall clean"

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
