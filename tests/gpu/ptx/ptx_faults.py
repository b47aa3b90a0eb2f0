#!/usr/bin/env python3
"""TAP: the interpreter of PTX (tests/gpu/ptx) finds faults. Each case changes one instruction of a kernel in a copy of the PTX. The test that
runs the kernel must then fail, and say why.

  ptx_faults.py FOLDER TESTS    FOLDER: with PTX; TESTS: with unit tests, e.g. build/tests

OD_DEVICE and OD_CUDA_PLUGIN say what runs the tests."""
import os
import re
import subprocess
import sys
import tempfile

# What is wrong; file, kernel, instruction, what replaces it; the test, and a part of what it says.
CASES = [
    ("a barrier is missing", "k_many", "gpu_many_products", r"bar\.sync\s+0;", "", "ops_float64", "RACE: a read after a write"),
    ("a wait for copies is missing", "k_products", "gpu_products_GPU_BF16_8", r"cp\.async\.wait_group\s+\d+;", "", "ops",
     "RACE: a read of what is being copied"),
    ("bits are chosen the other way round", "k_load", "gpu_merge", r"\b0xe4;", "0xe2;", "ops_loads", "not ok 1 - op_merge"),
    ("an instruction is not known", "k_many", "gpu_many_products", r"bar\.sync\s+0;", "bar.arrive 0;", "ops_float64",
     "instruction bar.arrive is not known"),
]


def changed(text, kernel, instruction, new):
    """The text with the first such instruction of the kernel replaced; None: there is none."""
    begin = text.find(f".entry _Z{len(kernel) + 7}{kernel}_kernel")
    end = text.find(".entry", begin + 1)
    found = re.compile(instruction).search(text, begin, end if end >= 0 else len(text)) if begin >= 0 else None
    return text[:found.start()] + new + text[found.end():] if found else None


def run(folder, tests, case):
    """What is wrong with the interpreter; None: nothing."""
    _, file, kernel, instruction, new, test, message = case
    with tempfile.TemporaryDirectory() as copy:
        for name in os.listdir(folder):
            os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(copy, name))
        path = os.path.join(copy, file + ".ptx")
        with open(path, encoding="utf-8") as f:
            text = changed(f.read(), kernel, instruction, new)
        if text is None:
            return f"{file}.ptx has no {instruction} in {kernel}"
        os.unlink(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run([os.path.join(tests, "test_" + test)], env=dict(os.environ, OD_PTX=copy, CMOCKA_MESSAGE_OUTPUT="TAP"),
                              capture_output=True, text=True, timeout=600, check=False)
        said = done.stdout + done.stderr
        if done.returncode == 0:
            return f"test_{test} passed"
        return None if message in said else f"test_{test} did not say: {message}\n{said}"


def main(folder, tests):
    bad = 0
    for i, case in enumerate(CASES, 1):
        if os.path.basename(folder) == "75" and "cp" in case[3]:
            print(f"ok {i} - {case[0]} # SKIP PTX 75 has no cp.async")
            continue
        problem = run(folder, tests, case)
        bad += problem is not None
        print(f"{'ok' if problem is None else 'not ok'} {i} - {case[0]}", flush=True)
        if problem is not None:
            print("# " + problem.replace("\n", "\n# "))
    return 1 if bad else 0


sys.exit(main(*sys.argv[1:]))
