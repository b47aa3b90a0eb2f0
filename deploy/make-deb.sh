#!/bin/bash
# make deb: Debian 12 packages of this tree, in build/deb. Nothing is written into the source: the build works in a copy of it.
#   deploy/make-deb.sh [ARCHITECTURE...]    amd64, arm64 (default: this machine's)
#   CUDA=0          without od-moe-cuda; else it is built where nvcc is
#   OD_DEB_OUT=DIR  where the packages go
# Version: common/base/version.h. Dates: those of the last commit, or $SOURCE_DATE_EPOCH, so that two builds are the same bytes.
set -eu
cd "$(dirname "$0")/.."
out=${OD_DEB_OUT:-$PWD/build/deb}
here=$(dpkg --print-architecture)
version=$(sed -nE 's/^#define OD_VERSION "(.*)"$/\1/p' common/base/version.h)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
	SOURCE_DATE_EPOCH=$([ -e .git ] && git log -1 --format=%ct) || {
		echo "make-deb: no git history here: set SOURCE_DATE_EPOCH to the release's date, in seconds since 1970" >&2
		exit 2
	}
fi
export SOURCE_DATE_EPOCH
# make's own words are for its children, not for the build in the copy.
unset MAKEFLAGS MAKELEVEL MFLAGS DESTDIR

copy_source() { # into a folder
	if [ -e .git ]; then
		git ls-files -z --cached --others --exclude-standard -- ':!tests/golden' ':!deploy/models'
	else
		find . -path './build*' -prune -o -path ./tests/golden -prune -o -path ./deploy/models -prune -o -type f -print0
	fi | tar -c --null --no-recursion --ignore-failed-read -T - | tar -x -C "$1"
	cp -a deploy/debian "$1/debian"
	cat >"$1/debian/changelog" <<-END
		od-moe ($version) unstable; urgency=medium

		  * Release $version.

		 -- $(sed -n 's/^Maintainer: //p' deploy/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
	END
	find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# Says why there is no plugin for an architecture, or nothing.
no_cuda() { # architecture
	local nvcc
	nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
	if [ "${CUDA:-}" = 0 ]; then
		echo "CUDA=0"
	elif [ -z "$nvcc" ]; then
		echo "there is no nvcc here"
	elif [ "$1" != "$here" ]; then
		echo "a plugin for $1 is built on $1: make deb there, where nvcc is"
	fi
}

build() { # architecture
	local arch=$1 work=$out/work-$1 profiles="" why options=()
	why=$(no_cuda "$arch")
	if [ -n "$why" ]; then
		echo "make-deb: $arch: without od-moe-cuda: $why"
		profiles=pkg.od-moe.nocuda
	fi
	rm -rf "$work"
	mkdir -p "$work/od-moe-$version"
	copy_source "$work/od-moe-$version"
	if [ "$arch" != "$here" ]; then
		if [ "$arch" != arm64 ]; then
			echo "make-deb: $arch: only arm64 is built on another architecture" >&2
			exit 2
		fi
		deploy/sysroot-arm64.sh
		export OD_SYSROOT=$PWD/build-arm64/sysroot
		options=(-a "$arch" -d) # its libraries are no packages of this machine
	fi
	echo "make-deb: $arch: od-moe $version; log in ${work#"$PWD/"}/log"
	(cd "$work/od-moe-$version" && DEB_BUILD_PROFILES=$profiles DEB_BUILD_OPTIONS="parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}" \
		dpkg-buildpackage -b -nc -us -uc "${options[@]}") >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
	rm -f "$out"/*_"$arch".*
	mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out"
	(cd "$out" && ls -1 -- *_"$version"_"$arch".*deb)
}

deploy/install-deps.sh debhelper dpkg-dev fakeroot
mkdir -p "$out"
for arch in "${@:-$here}"; do
	build "$arch"
done
