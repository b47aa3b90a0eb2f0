#!/bin/bash
# Formats all C as .clang-format says (make format), or with --check names the files that are not. Tables that scripts write are left
# as they are. Other versions of clang-format break lines otherwise, so it is that of Debian 12.
set -eu
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14) || { echo "format: SKIP: clang-format-14 is not installed (make deps)"; exit 0; }
files() {
	git ls-files --cached --others --exclude-standard | grep -E '\.(c|h|cu)$' | while read -r f; do
		[ ! -e "$f" ] || head -1 "$f" | grep -q '^/\* Made by ' || echo "$f"
	done
}
if [ "${1:-}" = --check ]; then
	files | xargs -P"$(nproc)" -n64 "$tool" --dry-run 2>&1 | sed -nE 's/^([^:]+):[0-9]+:.*/\1/p' | sort -u |
		sed 's/^/format: not formatted (make format): /'
else
	files | xargs -P"$(nproc)" -n64 "$tool" -i
fi
