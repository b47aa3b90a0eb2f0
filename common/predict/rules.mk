libod_SRCS += $(addprefix common/predict/,gate_predictor.c prediction.c predictor.c predictor_base.c recall.c recent_experts.c trajectory_predictor.c want_policy.c)
