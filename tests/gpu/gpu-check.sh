#!/bin/bash
# make gpu-check: the tests of the GPU device on the GPU of this machine: operations against the CPU's bits, golden tokens of models,
# clusters on one card, too little memory, a lost GPU; and a part of the operations' runs under compute-sanitizer, if that is installed.
#   OD_CUDA_PLUGIN   a plugin to test instead of this build's, which then needs neither nvcc nor a GPU:
#                    build/lib/libod_gpu_host.so is the emulated GPU
# Without nvcc or a GPU it says so and succeeds.
set -u
cd "$(dirname "$0")/../.." || exit 2
B=${B:-build}
skip() { echo "gpu-check: SKIP: $*"; exit 0; }

if [ -n "${OD_CUDA_PLUGIN:-}" ]; then
	make --no-print-directory B="$B" -j"$(nproc)" check-build || exit 1
else
	compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/nvhost-gpu ] || [ -e /dev/nvgpu ] || skip "this machine has no NVIDIA GPU"
	[ -n "$(command -v nvcc; ls /usr/local/cuda/bin/nvcc 2>/dev/null)" ] || skip "nvcc is not installed (CUDA toolkit)"
	make --no-print-directory B="$B" -j"$(nproc)" CUDA=auto check-build || exit 1
	OD_CUDA_PLUGIN=$PWD/$B/lib/libod_cuda.so
fi
export OD_CUDA_PLUGIN
# A card whose driver does not work is a fault, not a reason to skip.
"$B/bin/od-bench" gpu --tiny --ms 0 --runs 1 || exit 1
B=$B exec tests/run.sh --gpu
