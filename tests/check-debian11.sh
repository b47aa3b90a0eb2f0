#!/bin/bash
# Builds everything with the libraries and the gcc of Debian 11, of which none is newer than Ubuntu 22.04's, which Jetsons run (JetPack 6),
# and runs the unit tests and some whole clusters. Needs root.
#   tests/check-debian11.sh [FILTER]    only tests whose path contains FILTER
# All of it lies in build-debian11/: a Debian 11, fetched once, 300 MB with its packages, and a copy of this tree in its folder /od.
#   OD_DEBIAN_MIRROR   where the packages come from (default: http://deb.debian.org/debian)
set -eu
cd "$(dirname "$0")/.."
root=$PWD/build-debian11
mirror=${OD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
if [ "$(id -u)" -ne 0 ]; then
	echo "check-debian11: it changes its root folder, for which it has to be root" >&2
	exit 1
fi
deploy/install-deps.sh debootstrap debian-archive-keyring git
if [ ! -e "$root/filled" ]; then
	rm -rf "$root"
	echo "check-debian11: fetching Debian 11 into ${root#"$PWD/"}, once, from $mirror"
	debootstrap --variant=minbase --include=make,git,ca-certificates,procps,openssl bullseye "$root" "$mirror" >"$root.log" 2>&1 ||
		{ cat "$root.log" >&2; exit 1; }
	rm "$root.log"
	touch "$root/filled"
fi
mkdir -p "$root/od"
git ls-files -z | tar --null --ignore-failed-read -T - -c | tar -x -C "$root/od"
cp /etc/resolv.conf "$root/etc"

# "name reason" of what is not run.
skips() {
	for t in test_tok_unicode test_tok_scan; do
		echo "$t knows characters that Debian 11's libraries do not know yet"
	done
	for t in tests/integ/test_*.py; do
		case $t in
		*/test_chat.py | */test_cluster.py | */test_conform.py | */test_logprobs.py | */test_pack_families.py | */test_template.py) ;;
		*) echo "${t#tests/} is run with the libraries of Debian 12" ;;
		esac
	done
}

# $OD_DEVICE: not once more on the other devices.
# make's own words are for its children, not for the build here. gcc 10 takes sums that are used in part for uninitialized.
unset MAKEFLAGS MAKELEVEL MFLAGS
SKIPS=$(skips)
export SKIPS
# shellcheck disable=SC2016 # the inner shell expands them
exec unshare --mount --pid --fork sh -c '
	mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs none "$0/tmp" && exec chroot "$0" sh -c "
		cd /od && make deps && make -s -j$(nproc) && make -s -j$(nproc) check-build CFLAGS=-Wno-maybe-uninitialized &&
		OD_DEVICE=cpu tests/run.sh $1"' "$root" "${1:-}"
