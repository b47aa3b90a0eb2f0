include common/base/rules.mk common/compute/rules.mk common/text/rules.mk common/grammar/rules.mk common/model/rules.mk common/pack/rules.mk \
	common/net/rules.mk common/pair/rules.mk common/daemon/rules.mk common/predict/rules.mk common/residency/rules.mk
