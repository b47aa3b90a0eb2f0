#!/usr/bin/env python3
"""The GPU device with an emulated GPU: whole models of every family, resident and on clusters, give what the reference gives, the bits
of the CPUs, and text beside them; and what a user sees where there is no GPU, or too little memory. Expected values are the golden
files' own, and the CPUs'."""
import json
import os

from cluster_util import BIN, TMP, Daemon, pack, run_tests, test, tool

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = os.path.join(HERE, "..", "golden", "families")
NAMES = sorted(n for n in os.listdir(FAMILIES) if os.path.isdir(os.path.join(FAMILIES, n)))
PLUGIN = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_gpu_host.so"))
STORY = "Once upon a time there was a king who had"
os.environ.pop("OD_DEVICE", None)
os.environ["OD_CUDA_PLUGIN"] = PLUGIN


def family(name):
    path = os.path.join(TMP, name + ".pack")
    if not os.path.exists(path):
        tool("od-pack", os.path.join(FAMILIES, name), path)
    return path


def conforms(name, *args):
    p = tool("od-bench", "conform", "--golden", os.path.join(FAMILIES, name), "--pack", family(name), "--json", *args)
    r = json.loads(p.stdout)
    assert r["n_conform"] == len(r["prompts"]) and 0 < r["max_logit_error"] < 1e-4, (name, args, r)


@test
def families_conform():
    for i, name in enumerate(NAMES):
        os.environ["OD_GPU_SEED"] = str(i + 1)
        conforms(name, "--resident", "--device", "cuda", "--threads", 1, "--prefill-rows", (256, 1, 7)[i % 3])
    os.environ.pop("OD_GPU_SEED")


@test
def so_do_clusters_with_a_shadow_and_drafts():
    for name in ("deepseek_v2_lite", "gpt_oss_mxfp4", "qwen3_next_plain", "gemma4_own_v", "gemma4_shared_kv"):
        conforms(name, "--local", 2, "--device", "cuda", "--threads", 1, "--draft", 4, "--prefill-rows", 3)


def text(*args, ok=True):
    return tool("od-main", "--pack", pack(), "--prompt", STORY, "--max-tokens", 12, "--temperature", 0, *args, ok=ok)


@test
def the_text_is_that_of_the_cpus():
    for profile in "f32", "bf16":
        # In profile bf16 the widest CPUs have a kernel class of their own.
        want = text("--resident", "--profile", profile, "--cpu", "scalar").stdout
        for form in "bf16", "planes":
            assert text("--resident", "--profile", profile, "--device", "cuda", "--resident-form", form).stdout == want
        assert text("--local", 2, "--profile", profile, "--device", "cuda:1").stdout == want


@test
def cpus_and_gpus_work_together_without_mixed():
    on_gpu, on_cpu = Daemon("worker", "--device", "cuda"), Daemon("worker", "--cpu", "scalar")
    hosts = os.path.join(TMP, "mixed.txt")
    with open(hosts, "w") as f:
        f.write("".join(f"127.0.0.1:{d.port}\n" for d in (on_gpu, on_cpu)))
    want = text("--resident", "--cpu", "scalar").stdout
    for device in "cpu", "cuda":
        assert text("--workers", hosts, "--device", device, "--cpu", "scalar").stdout == want
    for d in on_gpu, on_cpu:
        d.kill()


@test
def no_plugin_no_gpu():
    os.environ["OD_CUDA_PLUGIN"] = "/nowhere/libod_cuda.so"
    try:
        p = text("--resident", "--device", "cuda", ok=False)
        assert p.returncode == 1 and "the GPU plugin cannot be opened (it is built by make CUDA=1)" in p.stderr, p
        p = text("--resident", "--device", "auto")
        assert p.stdout == text("--resident").stdout and "computing on the CPUs: cuda: the GPU plugin" in p.stderr, p
    finally:
        os.environ["OD_CUDA_PLUGIN"] = PLUGIN
    p = text("--resident", "--device", "cuda:7", ok=False)
    assert p.returncode == 1 and "cuda:7: there are 2 emulated GPUs" in p.stderr, p
    for wrong in "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999999999999":
        p = text("--resident", "--device", wrong, ok=False)
        assert "--device: expected auto, cpu, cuda or cuda:N" in p.stderr, p
    os.environ["OD_CUDA_PLUGIN"] = "libc.so.6"
    p = text("--resident", "--device", "cuda", ok=False)
    assert p.returncode == 1 and "is of another version than this program" in p.stderr, p
    os.environ["OD_CUDA_PLUGIN"] = PLUGIN


@test
def too_little_memory_is_told():
    for mib in 10, 30, 60:
        os.environ["OD_GPU_BYTES"] = str(mib << 20)
        p = text("--resident", "--device", "cuda", ok=False)
        assert p.returncode == 1 and "MiB needed" in p.stderr and "MiB free" in p.stderr or "too little memory" in p.stderr, p
    os.environ.pop("OD_GPU_BYTES")


run_tests()
