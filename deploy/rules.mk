.PHONY: deps
deps:
	@deploy/install-deps.sh

PROGRAMS += od-pack
od-pack_SRCS := deploy/od_pack.c
