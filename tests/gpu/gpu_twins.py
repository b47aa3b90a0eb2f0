#!/usr/bin/env python3
"""What is written for CUDA has a twin on the host, so that tests on an emulated GPU run what a GPU runs (part of make check-source).

gpu.h: every function, macro and type of its branch for CUDA is in gpu_emulated.h or gpu_emulated_warps.h. gpu_runtime.h: every function is in
gpu_cuda.cu and in gpu_host.c. Kernels are defined by GPU_KERNEL alone, which makes both, and nothing else in their files, or in other
headers than gpu.h, is CUDA's own language; every kernel file is built for both."""
import glob
import os
import re
import sys

FOLDER, HOST = "common/compute/cuda", "tests/gpu"
ONLY_CUDA = {"GPU_PRAGMA", "GPU_BOUND_KERNEL", "gpu_after_previous"}  # what gpu.h itself uses there
LANGUAGE = re.compile(r"\b(__global__|__device__|__shared__|__constant__|__host__|__CUDACC__|__CUDA_ARCH__|__syncthreads|__syncwarp|"
                      r"__shfl\w*|__ballot\w*|__ld(g|cs|cg|ca|lu|cv)|__popc\w*|__byte_perm|atomic[A-Z]\w*|threadIdx|blockIdx|blockDim|gridDim|asm)\b")
problems = []


def read(name, folder=FOLDER):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return re.sub(r"/\*.*?\*/|//[^\n]*", "", f.read(), flags=re.S)


def names(text):
    """Macros, types, and functions that are defined or declared."""
    found = set(re.findall(r"^#define (\w+)", text, re.M))
    found |= set(re.findall(r"^(?:typedef \w+ |\} )(gpu_\w+);", text, re.M))
    found |= set(re.findall(r"^(?:[A-Za-z_][\w \"]*[ *])(gpu_\w+)\(", text, re.M))
    return found


def for_cuda(text):
    text = re.sub(r"^#if [^\n]*__CUDA_ARCH__.*?^#endif$", lambda inner: re.sub(r"^#(if|else|endif).*$", "", inner.group(), flags=re.M), text,
                  flags=re.M | re.S)
    m = re.search(r"^#ifdef __CUDACC__$(.*?)^#else$", text, re.M | re.S)
    return m.group(1) if m else ""


cuda_names = names(for_cuda(read("gpu.h"))) - ONLY_CUDA
host_names = names(read("gpu_emulated.h", HOST)) | names(read("gpu_emulated_warps.h", HOST))
if len(cuda_names) < 20:
    problems.append(f"gpu.h: only {len(cuda_names)} names found for CUDA: tests/gpu/gpu_twins.py does not understand it")
for name in sorted(cuda_names - host_names):
    problems.append(f"gpu.h: {name} is for CUDA only: it needs a twin for the host, in {HOST}/gpu_emulated.h")

calls = names(read("gpu_runtime.h"))
for name, folder in ("gpu_cuda.cu", FOLDER), ("gpu_host.c", HOST):
    for call in sorted(c for c in calls - names(read(name, folder)) if c.startswith("gpu_")):
        problems.append(f"{name}: {call} of gpu_runtime.h is missing")

kernels = sorted(os.path.basename(p) for p in glob.glob(os.path.join(FOLDER, "k_*.cu")))
headers = {os.path.basename(p) for p in glob.glob(os.path.join(FOLDER, "*.h"))} - {"gpu.h"}
for name in kernels + sorted(headers):
    for hit in LANGUAGE.finditer(read(name)):
        problems.append(f"{name}: {hit.group()} belongs into gpu.h, with a twin for the host")
    if name in kernels and not re.search(r"\bGPU_((ROOMY|DENSE)_)?KERNEL\b", read(name)):
        problems.append(f"{name}: there is no GPU_KERNEL in it")
for kernel in set(re.findall(r"\b__global__\s+void\s+(\w+)", read("gpu_cuda.cu"))) - {"probe"}:  # that one is empty
    problems.append(f"gpu_cuda.cu: the kernel {kernel} belongs into a file k_*.cu, with a twin for the host")
with open("common/compute/rules.mk", encoding="utf-8") as f:
    listed = re.search(r"^CUDA_KERNELS := \$\(addprefix common/compute/cuda/,((?:[^)\\]|\\\n)*)\)", f.read(), re.M)
for name in sorted(set(kernels) ^ set(listed.group(1).replace("\\\n", " ").split() if listed else [])):
    problems.append(f"{name}: files k_*.cu and CUDA_KERNELS of common/compute/rules.mk differ")

for p in problems:
    print(f"gpu_twins: {p}", file=sys.stderr)
sys.exit(1 if problems else 0)
