PROGRAMS += od-pack
od-pack_SRCS := deploy/od_pack.c

.PHONY: deps demo install uninstall
deps:
	@deploy/install-deps.sh

# A story from a demo checkpoint on a cluster of this machine's own processes: make demo, make demo MODEL=talebook-fine
MODEL := talebook
DEMO_PACK = $(B)/$(MODEL).pack
DEMO_PROMPT := Once upon a time there was a king who had three daughters, and the

demo: deps
	@$(MAKE) --no-print-directory -j$$(nproc) programs
	@[ -d $(DEMO_PACK) ] || $(B)/bin/od-pack deploy/models/$(MODEL) $(DEMO_PACK)
	@printf '\n%s ...\n' "$(DEMO_PROMPT)"
	@$(B)/bin/od-main --pack $(DEMO_PACK) --local 4 --max-tokens 160 --temperature 0.6 --top-p 0.9 \
		--repetition-penalty 1.1 --seed 1 --prompt "$(DEMO_PROMPT)"

# Programs only: a pack is made where it is used, with od-pack.
BINDIR := $(DESTDIR)$(PREFIX)/bin
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/od-moe
install: programs
	install -d $(BINDIR) $(DOCDIR)/docs/plots
	install -m 755 $(PROGRAMS:%=$(B)/bin/%) $(BINDIR)
	install -m 644 README.md LICENSE $(DOCDIR)
	install -m 644 $(wildcard docs/*.md) $(DOCDIR)/docs
	install -m 644 $(wildcard docs/plots/*.svg) $(DOCDIR)/docs/plots

uninstall:
	rm -f $(PROGRAMS:%=$(BINDIR)/%)
	rm -rf $(DOCDIR)
