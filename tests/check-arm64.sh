#!/bin/bash
# Builds everything for aarch64 and runs the tests under qemu-user, on a machine of another kind.
#   tests/check-arm64.sh [FILTER]    only tests whose path contains FILTER
# All of it lies in build-arm64/: sysroot/ has Debian's arm64 libraries, fetched once (no root, no change to the system);
# bin/ and tests/ what was built; qemu/bin/ the same programs, each behind a script that emulates it.
#   OD_DEBIAN_MIRROR   where the libraries come from (deploy/sysroot-arm64.sh)
#   OD_ARM64_SLOW=1    also runs what is skipped only because an emulator takes long; wants an idle machine, because
#                      daemons that are not heard for 1.5 s count as lost here, too
set -eu
cd "$(dirname "$0")/.."
out=$PWD/build-arm64
sysroot=$out/sysroot
cross=aarch64-linux-gnu
libs=$sysroot/usr/lib/$cross:$sysroot/lib/$cross

build() {
	PKG_CONFIG_LIBDIR=$sysroot/usr/lib/$cross/pkgconfig:$sysroot/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$sysroot \
		make -s -j"$(nproc)" B=build-arm64 CC=$cross-gcc AR=$cross-ar \
		LDFLAGS="-Wl,-rpath-link,$libs" check-build
}

# A file of this name beside each program, so that programs that start others find the scripts too.
emulated() { # script, program, processor
	cat >"$1" <<-END
		#!/bin/sh
		exec qemu-aarch64 -cpu $3 -L /usr/$cross -E LD_LIBRARY_PATH='$libs' -0 "\$0" '$2' "\$@"
	END
	chmod +x "$1"
}

make_scripts() {
	rm -rf "$out/qemu"
	mkdir -p "$out/qemu/bin" "$out/qemu/tests" "$out/qemu/started"
	ln -s "$out/lib" "$out/qemu/lib" # plugins
	for p in "$out"/bin/*; do
		ln "$p" "$out/qemu/bin/${p##*/}.arm64"
		emulated "$out/qemu/bin/${p##*/}" "$out/qemu/bin/${p##*/}.arm64" max
	done
	for p in "$out"/tests/od-*; do
		ln "$p" "$out/qemu/started/${p##*/}.arm64"
		emulated "$out/qemu/started/${p##*/}" "$out/qemu/started/${p##*/}.arm64" max
	done
	for t in "$out"/tests/test_*; do
		ln "$t" "$out/qemu/started/${t##*/}"
		emulated "$out/qemu/tests/${t##*/}" "$out/qemu/started/${t##*/}" max
	done
	# What has another path on processors of the first version of the architecture, like those of a Raspberry Pi 4.
	emulated "$out/qemu/tests/test_compute_quant-armv8.0" "$out/tests/test_compute_quant" cortex-a72
}

# "name reason" of what is not run: run.sh counts and shows it. Of the programs' tests those are run that hold their
# results to independent ones; the others are about clusters and messages, the same on every processor.
skips() {
	echo "test_bench_plot asks for a program that is not there, which qemu-user answers with success"
	if [ "${OD_ARM64_SLOW:-0}" = 1 ]; then
		return
	fi
	echo "test_od_worker computes for ten minutes when emulated; OD_ARM64_SLOW=1 runs it"
	for t in tests/integ/test_*.py; do
		case $t in
		*/test_conform.py | */test_f8.py | */test_pack.py | */test_pack_refuse.py | */test_pack_scaled.py) ;;
		*/test_scaled.py | */test_synth.py) ;;
		*) echo "${t#tests/} takes long when emulated, and the processor hardly matters; OD_ARM64_SLOW=1 runs it" ;;
		esac
	done
}

# make's own words are for its children, not for the build here.
unset MAKEFLAGS MAKELEVEL MFLAGS
deploy/install-deps.sh qemu-user
deploy/sysroot-arm64.sh
build
make_scripts
SKIPS=$(skips) B=build-arm64/qemu MACHINE=aarch64 tests/run.sh "$@"
