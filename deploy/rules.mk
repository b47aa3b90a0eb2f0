include deploy/packages.mk

# What od-pack is beyond the wiring; libcurl is od-pack's and od-chat's alone.
libodp_SRCS := deploy/model_list.c deploy/rate.c $(addprefix deploy/hub/,git_sum.c gguf_begin.c hub_choose.c hub_fetch.c hub_file.c hub_http.c hub_listing.c hub_name.c \
	hub_repo.c hub_token.c)

# What the planner and the simulator are: od-plan, and od-bench. They use the daemons' own code.
libodpl_SRCS := $(addprefix deploy/plan/,model_cost.c plan.c plan_local.c plan_machine.c plan_memory.c plan_report.c plan_speed.c sim.c sim_clock.c \
	sim_deal.c sim_engine.c sim_layer.c sim_measure.c sim_next_gate.c sim_shadow.c sim_stream.c sim_trace.c sim_worker.c synthetic_routes.c)
libodpl_SRCS += $(addprefix deploy/plan/,check_findings.c check_fit.c check_guesses.c check_hosts.c check_main.c check_report.c check_run.c \
	check_shadow.c check_steps.c check_text.c check_words.c check_worker.c disk_rate.c plan_check.c)

PROGRAMS += od-plan
od-plan_SRCS := deploy/plan/od_plan.c
od-plan_USES := libodpl libodm libods libodw

PROGRAMS += od-pack
od-pack_SRCS := deploy/od_pack.c
od-pack_USES := libodp
od-pack_LIBS := $(CURL_LIBS)

.PHONY: deps demo install uninstall
deps:
	@deploy/install-deps.sh

# A story from a demo checkpoint on a cluster of this machine's own processes; then the model is served, with its page, until Ctrl-C:
# make demo, make demo MODEL=talebook-fine. Where the port is in use the next free one is taken.
MODEL := talebook
DEMO_PORT := 8080
DEMO_PACK = $(B)/$(MODEL).pack
DEMO_PROMPT := Once upon a time there was a king who had three daughters, and the

demo: deps
	@$(MAKE) --no-print-directory -j$$(nproc) programs
	@[ -d $(DEMO_PACK) ] || $(B)/bin/od-pack deploy/models/$(MODEL) $(DEMO_PACK)
	@printf '\n%s ...\n' "$(DEMO_PROMPT)"
	@$(B)/bin/od-main --pack $(DEMO_PACK) --local 4 --max-tokens 160 --temperature 0.6 --top-p 0.9 \
		--repetition-penalty 1.1 --seed 1 --prompt "$(DEMO_PROMPT)"
	@port=$(DEMO_PORT); while (: </dev/tcp/127.0.0.1/$$port) 2>/dev/null; do port=$$((port + 1)); done; \
	[ $$port = $(DEMO_PORT) ] || printf '\nPort $(DEMO_PORT) is in use here; the page gets port %s.\n' $$port; \
	printf '\nThe model is served now. In another terminal:  %s\n' \
		"$(B)/bin/od-chat --url http://127.0.0.1:$$port --temperature 0.7 --max-tokens 200"; \
	printf 'A page with a chat and a view of the cluster (Ctrl-C here ends it):  http://127.0.0.1:%s/\n' $$port; \
	exec $(B)/bin/od-main serve --pack $(DEMO_PACK) --local 4 --quiet --listen 127.0.0.1:$$port

# Programs, documents and systemd units; a pack is made where it is used, with od-pack. Options that were edited in SYSCONFDIR
# are kept, also by uninstall. The programs themselves look for their keys in /etc/od-moe.
SYSCONFDIR ?= /etc
BINDIR := $(DESTDIR)$(PREFIX)/bin
LIBDIR := $(DESTDIR)$(PREFIX)/lib
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/od-moe
MANDIR := $(DESTDIR)$(PREFIX)/share/man/man1
COMPLETIONDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
CONFDIR := $(DESTDIR)$(SYSCONFDIR)/od-moe
SERVICES := od-main od-worker od-shadow
install: pages
	install -d $(BINDIR) $(MANDIR) $(COMPLETIONDIR) $(DOCDIR)/docs/plots $(LIBDIR)/systemd/system $(LIBDIR)/sysusers.d $(LIBDIR)/od-moe $(CONFDIR)
	install -m 755 $(PROGRAMS:%=$(B)/bin/%) $(BINDIR)
	$(if $(PLUGINS),install -m 644 $(PLUGINS) $(LIBDIR)/od-moe)
	install -m 644 $(B)/pages/man1/* $(MANDIR)
	install -m 644 $(B)/pages/completions/* $(COMPLETIONDIR)
	install -m 644 README.md SECURITY.md CHANGELOG.md LICENSE $(DOCDIR)
	install -m 644 $(wildcard docs/*.md) $(DOCDIR)/docs
	install -m 644 $(wildcard docs/plots/*.svg) $(DOCDIR)/docs/plots
	install -m 755 deploy/systemd/restart-delay $(LIBDIR)/od-moe
	install -m 644 deploy/systemd/gpu.conf $(LIBDIR)/od-moe
	install -m 644 deploy/systemd/od-moe.sysusers $(LIBDIR)/sysusers.d/od-moe.conf
	@for s in $(SERVICES); do \
		echo "unit $(LIBDIR)/systemd/system/$$s.service, options $(CONFDIR)/$$s.conf"; \
		sed 's|/usr/local/|$(PREFIX)/|; s|/etc/od-moe/|$(SYSCONFDIR)/od-moe/|' deploy/systemd/$$s.service \
			>$(LIBDIR)/systemd/system/$$s.service && chmod 644 $(LIBDIR)/systemd/system/$$s.service || exit 1; \
		[ -e $(CONFDIR)/$$s.conf ] || install -m 644 deploy/systemd/$$s.conf $(CONFDIR) || exit 1; \
	done
	@echo 'For the services: systemd-sysusers && systemctl daemon-reload (README, "As services")'

uninstall:
	rm -f $(PROGRAMS:%=$(BINDIR)/%) $(PROGRAMS:%=$(MANDIR)/%.1) $(PROGRAMS:%=$(MANDIR)/%-*.1) $(PROGRAMS:%=$(COMPLETIONDIR)/%) $(SERVICES:%=$(LIBDIR)/systemd/system/%.service) $(LIBDIR)/sysusers.d/od-moe.conf
	rm -rf $(DOCDIR) $(LIBDIR)/od-moe
