#!/bin/sh
# A minimal Debian 12 as build/debian/rootfs.tar, made once, for make image and make check-deb. Needs root.
#   OD_DEBIAN_MIRROR   where its packages come from (default: http://deb.debian.org/debian)
set -eu
cd "$(dirname "$0")/.."
out=$PWD/build/debian
mirror=${OD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
if [ -e "$out/rootfs.tar" ]; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "debian-root: debootstrap changes its root folder, for which it has to be root" >&2
	exit 1
fi
deploy/install-deps.sh debootstrap debian-archive-keyring
rm -rf "$out"
mkdir -p "$out"
echo "debian-root: fetching Debian 12 into build/debian, once, from $mirror"
debootstrap --variant=minbase bookworm "$out/root" "$mirror" >"$out/log" 2>&1 || { tail "$out/log" >&2; exit 1; }
rm -rf "$out"/root/var/cache/apt/archives/*.deb "$out"/root/var/lib/apt/lists/* "$out"/root/var/log/*.log
tar -c --sort=name --numeric-owner -f "$out/rootfs.new" -C "$out/root" .
rm -rf "$out/root"
mv "$out/rootfs.new" "$out/rootfs.tar"
