#!/bin/sh
# Prints a C file that holds the page's files, in this order: embed.sh FILE... The assembler reads them as they are, so this works with
# any compiler and for any target, and the same files give the same bytes.
set -eu
MOST_BYTES=204800
bytes=$(cat "$@" | wc -c)
if [ "$bytes" -gt "$MOST_BYTES" ]; then
	echo "embed.sh: the page's files have $bytes bytes: expected at most $MOST_BYTES" >&2
	exit 1
fi
echo '#include "main-node/serve/page/page.h"'
number=0
for file; do
	printf '__asm__(".section .rodata\\n"\n\t"odm_page_%d: .incbin \\"%s\\"\\n"\n\t"odm_page_end_%d: .byte 0\\n"\n\t".previous\\n");\n' \
		"$number" "$file" "$number"
	printf 'extern const char odm_page_%d[] __attribute__((visibility("hidden")));\n' "$number"
	printf 'extern const char odm_page_end_%d[] __attribute__((visibility("hidden")));\n' "$number"
	number=$((number + 1))
done
echo 'const struct odm_page_file odm_page_files[] = {'
number=0
for file; do
	printf '\t{ "%s", "\\"%.32s\\"", odm_page_%d, odm_page_end_%d },\n' \
		"${file##*/}" "$(sha256sum "$file")" "$number" "$number"
	number=$((number + 1))
done
printf '\t{ 0 },\n};\n'
