.PHONY: deps
deps:
	@deploy/install-deps.sh
