#!/bin/bash
# Debian's arm64 libraries in build-arm64/sysroot, to build for arm64 on a machine of another kind: fetched once, without root and
# without a change to the system but for the cross compiler. sysroot/dpkg says which package each library is of, as /var/lib/dpkg does.
#   OD_DEBIAN_MIRROR   where the libraries come from (default: http://deb.debian.org/debian)
set -eu
cd "$(dirname "$0")/.."
out=$PWD/build-arm64
sysroot=$out/sysroot
mirror=${OD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=bookworm
cross=aarch64-linux-gnu

# apt with a state of its own, for another architecture.
apt_arm64() {
	local dir=$1
	shift
	apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
		-o Dir::State="$dir/state" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" \
		-o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=- -o Acquire::Languages=none "$@"
}

# What dpkg-shlibdeps asks dpkg about a library: where its files are here, and which version has which symbols.
note_package() { # file, where its libraries lie, folder like /var/lib/dpkg
	local deb=$1 where=$2 db=$3 name control
	control=$(dpkg-deb -f "$deb")
	grep -qx 'Multi-Arch: same' <<<"$control" || return 0
	name=$(sed -n 's/^Package: //p' <<<"$control"):arm64
	printf '%s\nStatus: install ok installed\n\n' "$control" >>"$db/status"
	dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n "s|^\.\(.*/$cross/[^/]*\.so[^/]*\)$|\1|p" | sed "s|^$where" >"$db/info/$name.list"
	dpkg-deb --ctrl-tarfile "$deb" | tar -x -C "$db" --wildcards './s[yh]*s' 2>/dev/null || :
	for file in symbols shlibs; do
		[ ! -e "$db/$file" ] || mv "$db/$file" "$db/info/$name.$file"
	done
}

# The libraries and what they need. C and C++ libraries are the cross compiler's own: these would not match its headers.
fill() {
	local apt=$out/apt new=$out/sysroot.new db=$out/sysroot.new/dpkg deb
	echo "sysroot-arm64: fetching into ${sysroot#"$PWD/"}, once, 48 MB from $mirror: arm64 packages of $packages"
	rm -rf "$apt" "$new"
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$db/info" "$db/updates"
	: >"$apt/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$apt/sources.list"
	# shellcheck disable=SC2086
	{ apt_arm64 "$apt" -o APT::Update::Error-Mode=any update &&
		apt_arm64 "$apt" install --download-only --no-install-recommends $packages; } >"$apt/log" 2>&1 ||
		{ cat "$apt/log" >&2; echo "sysroot-arm64: cannot fetch from $mirror; OD_DEBIAN_MIRROR names another" >&2; exit 1; }
	echo 1 >"$db/info/format"
	printf '%s\narm64\n' "$(dpkg --print-architecture)" >"$db/arch"
	for deb in "$apt"/cache/archives/*.deb; do
		case ${deb##*/} in
		libc6* | libc-dev* | linux-libc-dev* | gcc-* | libgcc-s1* | libstdc++*)
			note_package "$deb" ".*/|/usr/$cross/lib/|" "$db"
			;;
		*)
			note_package "$deb" "/|$sysroot/|" "$db"
			dpkg-deb -x "$deb" "$new"
			;;
		esac
	done
	echo "$sysroot $suite $packages" >"$new/filled"
	rm -rf "$sysroot" "$apt"
	mv "$new" "$sysroot"
}

deploy/install-deps.sh gcc-$cross libc6-dev-arm64-cross libstdc++6-arm64-cross debian-archive-keyring
packages=$(deploy/install-deps.sh --libraries)
if [ "$(cat "$sysroot/filled" 2>/dev/null)" != "$sysroot $suite $packages" ]; then
	fill
fi
