# Everything of main but the wiring of its program, so that tests and od-bench can drive its parts.
libodm_SRCS := $(addprefix main-node/step/,figures.c step_requests.c timeline.c)
libodm_SRCS += $(addprefix main-node/predict/,layer_stream.c predict_check.c predict_tally.c predict_trial.c prediction_drafts.c prediction_wants.c predictions.c \
	predictor_link.c step_uses.c want_gate.c)
libodm_SRCS += $(addprefix main-node/cluster/,batch_rows.c cluster.c cluster_figures.c cluster_service.c cluster_view.c copy_check.c data_link.c deal_homes.c layer_pieces.c \
	link_cost.c members.c members_address.c members_facts.c members_hosts.c members_links.c members_look.c members_machine.c members_news.c members_shadow.c \
	members_times.c name_lookup.c placement.c prompt_rows.c recovery.c result_check.c row_source.c shadow_link.c unsent.c want_backlog.c want_target.c \
	welcome_check.c wire_rows.c worker_times.c)
libodm_SRCS += $(addprefix main-node/engine/,batch.c draft_policy.c engine.c engine_report.c forced_draft.c host_experts.c host_rates.c lookup_draft.c mask_ahead.c model.c \
	pass.c pass_size.c resident_service.c reuse.c sampling_config.c sequence.c state_plan.c tier_admission.c tier_plan.c tier_pressure.c tier_store.c tiered_service.c)
libodm_SRCS += $(addprefix main-node/engine/prefix/,marks.c prefix_cache.c prefix_file.c prefix_folder.c \
	prefix_store.c snapshots.c)
libodm_SRCS += $(addprefix main-node/store/,store_queue.c store_server.c)
libodm_SRCS += $(addprefix main-node/node/,engine_args.c host_keys.c local_nodes.c main_node.c main_opts.c node_keys.c)
libodm_SRCS += $(addprefix main-node/chat/,answer.c answer_grammar.c answer_harmony.c answer_print.c answer_space.c call_args.c \
	call_reader.c call_schema.c call_stream.c chat_forks.c chat_format.c chat_messages.c chat_order.c chat_probe.c \
	chat_template.c first_time.c gemma_args.c json_text.c part_text.c)
libodm_SRCS += $(addprefix main-node/serve/,server.c)
libodm_SRCS += $(addprefix main-node/serve/http/,access_log.c api_error.c connections.c exchange.c http.c http_guard.c \
	http_header.c json_fields.c ready_queue.c request_threads.c)
libodm_SRCS += $(addprefix main-node/serve/jobs/,choices.c engine_thread.c generation.c job.c reply.c token_list.c \
	token_text.c)
libodm_SRCS += $(addprefix main-node/serve/api/,anthropic.c anthropic_messages.c api.c call_file.c call_memory.c chat_build.c \
	chat_completion.c chat_turn.c choice_prompts.c choice_scores.c client_fields.c completion.c dialog.c fim_prompt.c infill.c \
	models.c ollama.c ollama_models.c ollama_request.c output_form.c \
	props.c refused.c response_items.c responses.c thinking.c tokenize.c)
libodm_SRCS += $(addprefix main-node/serve/ops/,cluster_events.c cluster_state.c health.c metric_table.c metrics.c metrics_page.c process_metrics.c service_watch.c step_json.c)

# The page, as an object: the assembler takes its files in. Its folder counts, too: a file may be gone.
libodm_SRCS += $(addprefix main-node/serve/page/,page.c)
PAGE_FILES := $(sort $(wildcard $(addprefix main-node/serve/page/*,.html .css .js .svg)))
libodm_OBJS := $(B)/obj/gen/page_data.o
$(B)/gen/page_data.c: main-node/serve/page/embed.sh $(PAGE_FILES) main-node/serve/page
	@mkdir -p $(@D)
	@echo "EMBED   main-node/serve/page"
	@$< $(PAGE_FILES) >$@
$(B)/obj/gen/page_data.o: $(B)/gen/page_data.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) $(CFLAGS) -c $< -o $@

PROGRAMS += od-main
od-main_SRCS := $(addprefix main-node/,od_main.c keygen_command.c pair_child.c pair_command.c pair_host.c prompt_file.c schema_file.c serve_command.c template_command.c token_json.c)
od-main_USES := libodm

# od-chat is a program of its own, so that no other needs libedit and libcurl.
libodt_SRCS := $(addprefix main-node/terminal/,chat_answer.c chat_client.c chat_commands.c chat_complete.c chat_reply.c chat_session.c \
	chat_settings.c conversation.c event_reader.c interrupt.c line_input.c message_input.c plain_text.c screen.c)

PROGRAMS += od-chat
od-chat_SRCS := main-node/terminal/od_chat.c
od-chat_USES := libodt
od-chat_LIBS := $(TERMINAL_LIBS)

# What tests put in the place of functions and system calls.
test_prefix_store_LDFLAGS := -Wl,--wrap=od_file_pread -Wl,--wrap=od_file_write_private -Wl,--wrap=clock_gettime
test_name_lookup_LDFLAGS := -Wl,--wrap=getaddrinfo -Wl,--wrap=freeaddrinfo
test_recovery_LDFLAGS := -Wl,--wrap=clock_gettime
test_host_tier_LDFLAGS := -Wl,--wrap=od_shards_read
test_tiered_LDFLAGS := -Wl,--wrap=od_shards_read -Wl,--wrap=od_dense_read -Wl,--wrap=od_available_ram_bytes -Wl,--wrap=odm_host_rates_choose \
	-Wl,--wrap=od_ref_commit
# What the pack says goes through sum_pack.c; the daemons of --local are looked for beside the program.
SUM_LDFLAGS := -Wl,--wrap=od_pack_config -Wl,--wrap=od_dense_get -Wl,--wrap=od_dense_free
test_draft_LDFLAGS := $(SUM_LDFLAGS)
# od-main, with layers of fixed state, for tests/integ.
$(B)/tests/od-main-sum: $(call obj,$(od-main_SRCS) tests/unit/sum_main.c) $(B)/libtests.a $(ARCHIVES) | $(B)/tests/od-worker $(B)/tests/od-shadow
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(SUM_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka
$(B)/tests/test_draft $(B)/tests/test_batch $(B)/tests/test_tokens: | $(B)/tests/od-worker $(B)/tests/od-shadow
