#!/bin/sh
# Installs what od-moe builds and tests with, from Debian's (or Ubuntu's) own packages. Says what first.
# gnuplot-nox draws docs/plots (tests/bench/report/draw_plots.py): nothing else needs it.
#   install-deps.sh [PACKAGE...]    these too
#   install-deps.sh --libraries     only prints the names of the libraries
set -eu
libraries="libzmq3-dev libprotobuf-c-dev libzstd-dev liblz4-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
libsodium-dev libmicrohttpd-dev libsystemd-dev libedit-dev libcurl4-gnutls-dev libcmocka-dev"
if [ "${1:-}" = --libraries ]; then
	# shellcheck disable=SC2086
	echo $libraries
	exit 0
fi
# The variants of libcurl for developers exclude each other. Any of them will do, so one that is there stays.
if pkg-config --exists libcurl 2>/dev/null; then
	libraries=$(echo "$libraries" | sed "s/libcurl4-gnutls-dev//")
fi
packages="gcc make pkg-config libc6-dev protobuf-c-compiler $libraries python3 iproute2 gnuplot-nox $*"

missing=""
for p in $packages; do
	if ! dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed'; then
		missing="$missing $p"
	fi
done
if [ -z "$missing" ]; then
	exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "install-deps: no apt-get here; please install by hand:$missing" >&2
	exit 1
fi
echo "install-deps: installing with apt-get:$missing"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "install-deps: not root and no sudo; run as root: apt-get install$missing" >&2
		exit 1
	fi
	sudo="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q
# shellcheck disable=SC2086
$sudo apt-get install -y -q --no-install-recommends $missing
