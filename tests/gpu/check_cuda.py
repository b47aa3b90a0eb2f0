#!/usr/bin/env python3
"""Reads what ptxas says of the kernels (-Xptxas -v) and fails when one spills registers or has local memory.

  check_cuda.py LOG...    build/cuda/**/*.log

Local memory is the GPU's own, far slower than registers, and a spill costs its bandwidth without a word. Each kernel counts with its worst
architecture."""
import collections
import re
import sys

# Above that a multiprocessor has fewer than 16 warps of it.
MANY_REGISTERS = 128

ENTRY = re.compile(r"Compiling entry function '(\w+?)(?:_kernel)?' for '(sm_\d+)'")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
C_NAME = re.compile(r"_Z\d+(\w+?)_kernel")  # C++ adds the type of the argument


def kernels(lines):
    """(name, architecture, stack, spill stores, spill loads, registers) of each kernel."""
    name = arch = frame = None
    for line in lines:
        if m := ENTRY.search(line):
            name, arch = C_NAME.match(m.group(1) + "_kernel").group(1) if m.group(1).startswith("_Z") else m.group(1), m.group(2)
        elif (m := PROPERTIES.search(line)) and name:
            frame = [int(x) for x in m.groups()]
        elif (m := USED.search(line)) and name and frame:
            yield name, arch, *frame, int(m.group(1))
            name = frame = None


def main(logs):
    found = collections.defaultdict(dict)
    for log in logs:
        with open(log, encoding="utf-8") as f:
            for name, arch, *figures in kernels(f):
                found[name][arch] = figures
    archs = sorted({a for by_arch in found.values() for a in by_arch})
    bad = 0
    for name, by_arch in sorted(found.items()):
        if missing := [a for a in archs if a not in by_arch]:
            print(f"check-cuda: {name}: not compiled for {', '.join(missing)}")
            bad += 1
        stack, stores, loads, registers = (max(f[i] for f in by_arch.values()) for i in range(4))
        if registers > MANY_REGISTERS:
            print(f"check-cuda: {name}: {registers} registers")
        if stack == stores == loads == 0:
            continue
        worst = max(by_arch, key=lambda a: by_arch[a][:3])
        print(f"check-cuda: {name}: {stack} bytes of local memory, {stores} and {loads} bytes of spills (worst: {worst})")
        bad += 1
    if not found:
        print("check-cuda: no kernels found in the logs of ptxas")
        bad += 1
    print(f"check-cuda: {len(found)} kernels for {', '.join(archs)}: {bad} problem{'s' * (bad != 1)}")
    return 1 if bad else 0


sys.exit(main(sys.argv[1:]))
