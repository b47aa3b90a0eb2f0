#!/bin/bash
# Packages of this source as a later release with another protocol, which this one's daemons have to refuse by name.
#   next_release.sh FOLDER    the source goes there, the packages into FOLDER/deb
set -eu
cd "$(dirname "$0")/../.."
out=$1
rm -rf "$out/source"
mkdir -p "$out/source"
git ls-files -z --cached --others --exclude-standard -- ':!tests/golden' ':!deploy/models' |
	tar -c --null --no-recursion --ignore-failed-read -T - | tar -x -C "$out/source"
out=$(realpath "$out")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
protocol=$(sed -nE 's/^#define OD_PROTOCOL_VERSION ([0-9]+)$/\1/p' common/net/wire.h)
cd "$out/source"
sed -i -E "s/^(#define OD_PROTOCOL_VERSION) [0-9]+$/\1 $((protocol + 1))/" common/net/wire.h
sed -i -E "s/^(#define OD_VERSION \"[^\"]*)/\1+protocol$((protocol + 1))/" common/base/version.h
CUDA=0 OD_DEB_OUT=$out/deb deploy/make-deb.sh
