#!/bin/bash
# make image: a container image od-moe of the packages that make deb made for this machine, by podman or buildah. Needs root.
#   OD_DEB_OUT=DIR   where the packages are
#   IMAGE_ARGS   for "build": e.g. "--storage-driver vfs --isolation chroot" inside of a container
set -eu
cd "$(dirname "$0")/.."
arch=$(dpkg --print-architecture)
version=$(sed -nE 's/^#define OD_VERSION "(.*)"$/\1/p' common/base/version.h)
debs=${OD_DEB_OUT:-build/deb}
context=build/image
tool=$(command -v podman || command -v buildah) || { echo "make-image: podman or buildah is needed: apt install podman" >&2; exit 1; }
deploy/debian-root.sh
rm -rf "$context"
mkdir -p "$context/debs"
ln build/debian/rootfs.tar "$context/rootfs.tar"
for package in od-moe od-chat od-moe-tools; do
	cp "$debs/${package}_${version}_$arch.deb" "$context/debs"
done
if [ -e "$debs/od-moe-cuda_${version}_$arch.deb" ]; then
	cp "$debs/od-moe-cuda_${version}_$arch.deb" "$context/debs"
fi
read -ra args <<<"${IMAGE_ARGS:-}"
"$tool" build --layers=false "${args[@]}" -t "od-moe:$version" -f deploy/Containerfile "$context"
