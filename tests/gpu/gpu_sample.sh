#!/bin/bash
# TAP: a test of the GPU that does only some runs of its operations (run_in_steps of tests/unit/ops_bench.h), for sanitizers, which would
# take hours for all. The emulated GPU does all of them before, and says which run launches a kernel first. These are chosen, so that each
# kernel of the test is among them, and of the others each third, or eight if that is fewer. Without TOOL, on the emulated GPU, it says
# whether the sample has launched all kernels.
#   tests/gpu/gpu_sample.sh PROGRAM [TOOL...]    TOOL...: a command that runs the program; $OD_TEST: the only test of it to run
set -u
B=${B:-build}
names=$(mktemp)
trap 'rm -f "$names" "$names".*' EXIT
export OD_GPU_SM=132 # of the emulated GPU: an H100's or H200's; they decide how attention is cut
if ! env OD_CUDA_PLUGIN="$PWD/$B/lib/libod_gpu_host.so" OD_GPU_KERNELS="$names" OD_TEST_MARKS="$names" "$1" >"$names.log" 2>&1; then
	cat "$names.log"
	echo "not ok - $1 fails on the emulated GPU, which has to say which of its runs launch which kernels"
	exit 1
fi
runs=$(awk '$0 == "run" { n++; next } { first[n] = 1 }
	END { step = n > 24 ? int((n + 7) / 8) : 3; for (i = 1; i <= n; i++) printf "%d", first[i] || i % step == 1 }' "$names")
[ $# -gt 1 ] || export OD_GPU_KERNELS=$names.sample
OD_TEST_RUNS=$runs "${@:2}" "$1" || exit
if [ $# -eq 1 ]; then
	missed=$(comm -23 <(grep '^gpu_' "$names" | sort -u) <(sort -u "$names.sample"))
	chosen=${runs//0/}
	if [ -n "$missed" ] || [ "$chosen" = "$runs" ]; then
		echo "not ok - ${#chosen} of ${#runs} runs launch all kernels that the test has; these are missing: ${missed//$'\n'/ }"
		exit 1
	fi
	echo "ok - ${#chosen} of ${#runs} runs launch all kernels that the test has"
fi
