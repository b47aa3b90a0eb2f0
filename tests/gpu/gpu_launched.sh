#!/bin/bash
# TAP: every kernel of the emulated GPU was launched by a test.
#   tests/gpu/gpu_launched.sh PLUGIN NAMES    NAMES: a file that $OD_GPU_KERNELS named while the tests ran
set -u
all=$(grep -aoE '\bgpu_\w+_fibre\b' "$1" | sed 's/_fibre$//' | sort -u) # not nm: it may be of another processor
missed=$(comm -23 <(echo "$all") <(sort -u "$2"))
if [ -z "$all" ]; then
	echo "not ok 1 - there are no kernels in $1"
elif [ -n "$missed" ]; then
	echo "not ok 1 - all $(wc -l <<<"$all") kernels are launched by tests; these are not: ${missed//$'\n'/ }"
else
	echo "ok 1 - all $(wc -l <<<"$all") kernels are launched by tests"
fi
[ -n "$all" ] && [ -z "$missed" ]
