# Debian 12 packages, in build/deb: make deb, make deb DEB_ARCHS="amd64 arm64". CUDA=0: without od-moe-cuda.
.PHONY: deb
deb: deps
	@CUDA=$(filter 0,$(CUDA)) deploy/make-deb.sh $(DEB_ARCHS)
