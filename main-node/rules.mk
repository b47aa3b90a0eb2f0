# Everything of main but its wiring, so that od-bench can drive the same engine.
ODM_SRCS := main-node/engine_args.c
ODM_SRCS += $(addprefix main-node/engine/,batch.c draft_policy.c engine.c engine_keys.c engine_report.c figures.c \
	lookup_draft.c pass.c prefix_cache.c prefix_file.c prefix_folder.c prefix_reuse.c prefix_store.c \
	resident_service.c sampling_config.c sequence.c snapshot_marks.c snapshots.c step_requests.c)
ODM_SRCS += $(addprefix main-node/cluster/,cluster.c cluster_service.c cluster_view.c data_link.c host_keys.c layer_pieces.c link_cost.c local_nodes.c \
	members.c members_address.c members_links.c members_look.c members_news.c members_shadow.c name_lookup.c placement.c predict_tally.c prediction_drafts.c prediction_wants.c predictions.c \
	predictor_link.c recovery.c result_check.c row_source.c shadow_link.c step_uses.c unsent.c want_place.c welcome_check.c)
ODM_SRCS += $(addprefix main-node/store/,store_queue.c store_server.c)
ODM_CHAT_SRCS := $(addprefix main-node/chat/,answer.c answer_harmony.c answer_print.c answer_space.c call_args.c call_reader.c call_schema.c call_stream.c chat_form.c \
	chat_messages.c chat_order.c chat_probe.c chat_template.c first_time.c gemma_args.c json_text.c part_text.c)

PROGRAMS += od-main
ODM_SERVE_SRCS := $(addprefix main-node/serve/,access_log.c anthropic.c anthropic_messages.c api.c api_error.c call.c \
	call_memory.c chat_build.c chat_completion.c chat_turn.c client_fields.c completion.c dialog.c engine_thread.c exchange.c \
	generation.c health.c http.c http_guard.c http_header.c job.c json_fields.c metric_table.c metrics.c process_metrics.c \
	reply.c request_threads.c response_items.c responses.c server.c service_watch.c thinking.c token_list.c token_text.c \
	utf8_text.c)
od-main_SRCS := $(addprefix main-node/,od_main.c keygen_command.c prompt_file.c serve_command.c template_command.c \
	token_json.c) $(ODM_CHAT_SRCS) $(ODM_SERVE_SRCS) $(ODM_SRCS)

# od-main chat. Only it needs libedit and libcurl, so other programs do without them.
ODM_TERMINAL_SRCS := $(addprefix main-node/terminal/,chat_answer.c chat_client.c chat_commands.c chat_complete.c chat_reply.c chat_session.c \
	chat_settings.c conversation.c event_reader.c interrupt.c line_input.c message_input.c plain_text.c screen.c)
od-main_SRCS += main-node/chat_command.c $(ODM_TERMINAL_SRCS)
od-main_LIBS := $(TERMINAL_LIBS)

ODM_CHAT_OBJS := $(ODM_CHAT_SRCS:%.c=$(B)/obj/%.o)
test_answer_OBJS := $(ODM_CHAT_OBJS) $(B)/obj/tests/unit/answer_cases.o
test_answer_stream_OBJS := $(ODM_CHAT_OBJS) $(B)/obj/tests/unit/answer_cases.o
test_chat_messages_OBJS := $(ODM_CHAT_OBJS) $(B)/obj/tests/unit/answer_cases.o
test_call_schema_OBJS := $(B)/obj/main-node/chat/call_schema.o
test_json_fields_OBJS := $(addprefix $(B)/obj/main-node/serve/,json_fields.o api_error.o utf8_text.o)
ODM_CHAT_BUILD_OBJS := $(addprefix $(B)/obj/main-node/,serve/chat_build.o serve/json_fields.o serve/api_error.o serve/utf8_text.o \
	chat/first_time.o chat/json_text.o chat/part_text.o)
test_anthropic_messages_OBJS := $(addprefix $(B)/obj/main-node/serve/,client_fields.o anthropic_messages.o call_memory.o) $(ODM_CHAT_BUILD_OBJS)
test_call_memory_OBJS := $(addprefix $(B)/obj/main-node/,serve/call_memory.o chat/json_text.o)
test_response_items_OBJS := $(addprefix $(B)/obj/main-node/serve/,client_fields.o response_items.o) $(ODM_CHAT_BUILD_OBJS)
test_client_fields_OBJS := $(addprefix $(B)/obj/main-node/serve/,client_fields.o api_error.o utf8_text.o)
test_thinking_OBJS := $(addprefix $(B)/obj/main-node/serve/,thinking.o json_fields.o api_error.o utf8_text.o)
test_event_reader_OBJS := $(B)/obj/main-node/terminal/event_reader.o
ODM_REPLY_OBJS := $(addprefix $(B)/obj/main-node/,terminal/chat_reply.o terminal/plain_text.o serve/utf8_text.o)
test_chat_reply_OBJS := $(ODM_REPLY_OBJS)
test_message_input_OBJS := $(addprefix $(B)/obj/main-node/,terminal/message_input.o terminal/plain_text.o serve/utf8_text.o)
test_conversation_OBJS := $(addprefix $(B)/obj/main-node/,terminal/conversation.o terminal/chat_settings.o serve/utf8_text.o)
test_http_guard_OBJS := $(B)/obj/main-node/serve/http_guard.o
test_metrics_OBJS := $(addprefix $(B)/obj/main-node/serve/,metric_table.o metrics.o process_metrics.o) $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_engine_thread_OBJS := $(addprefix $(B)/obj/main-node/serve/,engine_thread.o job.o token_list.o) $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_step_uses_OBJS := $(B)/obj/main-node/cluster/step_uses.o
test_lookup_draft_OBJS := $(B)/obj/main-node/engine/lookup_draft.o
test_prefix_cache_OBJS := $(B)/obj/main-node/engine/prefix_cache.o
test_prefix_store_OBJS := $(addprefix $(B)/obj/main-node/engine/,prefix_file.o prefix_folder.o prefix_store.o) \
	$(B)/obj/tests/unit/sum_mixer.o
test_snapshots_OBJS := $(B)/obj/main-node/engine/snapshots.o
test_prefix_store_LDFLAGS := -Wl,--wrap=od_file_pread -Wl,--wrap=od_file_write_private
test_draft_policy_OBJS := $(B)/obj/main-node/engine/draft_policy.o
test_placement_OBJS := $(B)/obj/main-node/cluster/placement.o
test_want_place_OBJS := $(addprefix $(B)/obj/main-node/,cluster/want_place.o cluster/placement.o)
test_predictions_OBJS := $(addprefix $(B)/obj/main-node/cluster/,predict_tally.o prediction_drafts.o prediction_wants.o \
	predictions.o)
test_prediction_table_OBJS := $(test_predictions_OBJS)
test_prediction_drafts_OBJS := $(test_predictions_OBJS)
test_draft_table_OBJS := $(test_predictions_OBJS)
test_engine_args_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_generate_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o) $(B)/obj/tests/unit/tiny_files.o
test_tokens_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_batch_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o)
# What the pack says goes through sum_pack.c; the daemons of --local are looked for beside the program.
SUM_OBJS := $(B)/obj/tests/unit/sum_mixer.o $(B)/obj/tests/unit/sum_pack.o
SUM_LDFLAGS := -Wl,--wrap=od_pack_config -Wl,--wrap=od_dense_get -Wl,--wrap=od_dense_free
test_draft_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o) $(SUM_OBJS)
test_draft_LDFLAGS := $(SUM_LDFLAGS)
# od-main, with layers of fixed state, for tests/integ.
$(B)/tests/od-main-sum: $(od-main_SRCS:%.c=$(B)/obj/%.o) $(B)/obj/tests/unit/sum_main.o $(SUM_OBJS) $(B)/libod.a \
		| $(B)/tests/od-worker $(B)/tests/od-shadow
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS_OD) $(LDFLAGS_OD) $(SUM_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS) $(od-main_LIBS) -lcmocka
$(B)/tests/test_draft $(B)/tests/test_batch $(B)/tests/test_tokens: | $(B)/bin/od-worker $(B)/bin/od-shadow $(B)/tests/od-worker $(B)/tests/od-shadow
$(B)/tests/od-worker $(B)/tests/od-shadow:
	@mkdir -p $(@D)
	@ln -sf ../bin/$(@F) $@
test_shadow_link_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_step_requests_OBJS := $(B)/obj/main-node/engine/step_requests.o
test_figures_OBJS := $(B)/obj/main-node/engine/figures.o
test_sampling_config_OBJS := $(B)/obj/main-node/engine/sampling_config.o
test_result_check_OBJS := $(B)/obj/main-node/cluster/result_check.o
test_name_lookup_OBJS := $(B)/obj/main-node/cluster/name_lookup.o
test_name_lookup_LDFLAGS := -Wl,--wrap=getaddrinfo -Wl,--wrap=freeaddrinfo
test_welcome_check_OBJS := $(B)/obj/main-node/cluster/welcome_check.o
test_layer_pieces_OBJS := $(addprefix $(B)/obj/main-node/,cluster/layer_pieces.o cluster/placement.o)
test_link_cost_OBJS := $(B)/obj/main-node/cluster/link_cost.o
test_recovery_OBJS := $(addprefix $(B)/obj/main-node/,cluster/recovery.o cluster/layer_pieces.o cluster/placement.o)
test_recovery_LDFLAGS := -Wl,--wrap=clock_gettime
test_store_queue_OBJS := $(B)/obj/main-node/store/store_queue.o
test_share_OBJS := $(B)/obj/main-node/cluster/placement.o
