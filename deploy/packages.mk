# Man pages and completions for bash, from the programs' --help. HELP_BIN: programs that run here, of the same source (cross builds).
HELP_BIN ?= $(B)/bin
.PHONY: pages
pages: programs
	@rm -rf $(B)/pages
	@python3 deploy/help_pages.py $(HELP_BIN) $(B)/pages

# Debian 12 packages, in build/deb: make deb, make deb DEB_ARCHS="amd64 arm64". CUDA=0: without od-moe-cuda.
.PHONY: deb
deb: deps
	@CUDA=$(filter 0,$(CUDA)) deploy/make-deb.sh $(DEB_ARCHS)

# A container image of the packages, on a Debian 12 of our own. IMAGE_ARGS: for podman build.
.PHONY: image
image: deb
	@IMAGE_ARGS="$(IMAGE_ARGS)" deploy/make-image.sh

# The packages: built twice, installed in a Debian of their own, upgraded, purged. As root; many minutes. DEB_ARCHS="amd64": this alone.
.PHONY: check-deb
check-deb: deps
	@deploy/install-deps.sh debhelper dpkg-dev fakeroot lintian debootstrap
	@CUDA=$(filter 0,$(CUDA)) tests/deb/check_deb.py
