# Everything of main but its wiring, so that od-bench can drive the same engine.
ODM_SRCS := $(addprefix main-node/,cluster.c cluster_links.c cluster_service.c engine.c engine_args.c figures.c generate.c layer_pieces.c load_tally.c local_nodes.c \
	members.c members_look.c placement.c predictions.c predictor_link.c resident_service.c sampling_config.c shadow_link.c store_queue.c store_server.c want_place.c worker_link.c)

PROGRAMS += od-main
od-main_SRCS := main-node/od_main.c $(ODM_SRCS)

test_placement_OBJS := $(B)/obj/main-node/placement.o
test_load_tally_OBJS := $(B)/obj/main-node/load_tally.o
test_want_place_OBJS := $(addprefix $(B)/obj/main-node/,want_place.o placement.o)
test_predictions_OBJS := $(B)/obj/main-node/predictions.o
test_engine_args_OBJS := $(ODM_SRCS:%.c=$(B)/obj/%.o)
test_figures_OBJS := $(B)/obj/main-node/figures.o
test_sampling_config_OBJS := $(B)/obj/main-node/sampling_config.o
test_layer_pieces_OBJS := $(addprefix $(B)/obj/main-node/,layer_pieces.o placement.o)
test_store_queue_OBJS := $(B)/obj/main-node/store_queue.o
test_share_OBJS := $(B)/obj/main-node/placement.o
