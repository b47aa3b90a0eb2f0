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


@test
def a_model_is_split_over_two_cards():
    """The emulated GPUs, and the check that each operation finds its operands on one card."""
    one_card = []
    for i, name in enumerate(("deepseek_v2_lite", "deepseek_v3_groups", "glm4_moe_air", "gpt_oss_mxfp4", "gemma4_own_v",
                              "gemma4_layer_inputs", "gemma4_shared_kv", "qwen3_next_plain", "qwen3_5_moe_stacked", "minimax_m2_plain",
                              "phimoe_crossing", "olmoe_clip", "qwen2_moe_plain")):
        os.environ["OD_GPU_SEED"] = str(100 + i)
        p = tool("od-bench", "conform", "--golden", os.path.join(FAMILIES, name), "--pack", family(name), "--json", "--resident",
                 "--device", "cuda:1,0", "--threads", 1, "--prefill-rows", (256, 1, 7)[i % 3], ok=None)
        if p.returncode != 0:
            assert "attends to the keys of layer" in p.stderr and "which is on another card" in p.stderr, (name, p.stderr)
            one_card.append(name)
            continue
        r = json.loads(p.stdout)
        assert r["n_conform"] == len(r["prompts"]) and 0 < r["max_logit_error"] < 1e-4, (name, r)
    os.environ.pop("OD_GPU_SEED")
    assert one_card == ["gemma4_shared_kv"], one_card
    # Clusters: the shadow, too, is split, in each precision; workers take a card each. Prompts, drafts, main's own predictors.
    for name, args in (("deepseek_v2_lite", ("--draft", 4)), ("gpt_oss_mxfp4", ("--draft", 4)), ("qwen3_next_plain", ("--draft", 4)), ("gemma4_own_v", ("--predictor", "multi-gate")),
                       ("mixtral_top3", ("--predictor", "trajectory")), ("olmoe_plain", ("--predictor", "next-gate"))):
        conforms(name, "--local", 2, "--device", "cuda:0,1", "--threads", 1, "--prefill-rows", 3, *args)


@test
def split_shadows_have_all_precisions():
    tool("od-pack", "shadow", pack(), "int8,nf4,int8-g64,fp16")
    want = text("--resident", "--cpu", "scalar").stdout
    for precision in "int8", "nf4+int8", "fp16", "bf16":
        experts, _, dense = precision.partition("+")
        more = ("--shadow-arg=--dense-precision=" + dense,) if dense else ()
        assert text("--local", 2, "--device", "cuda:0,1", "--draft", 4, "--shadow-arg=--precision=" + experts, *more).stdout == want
    p = tool("od-worker", "--pack", pack(), "--device", "cuda:0,1", "--port", 0, ok=False)
    assert "--device cuda:0,1: a worker uses one card: start a worker for each" in p.stderr, p
    p = text("--resident", "--device", "cuda:1,1", ok=False)
    assert "--device: cuda:1 is named twice" in p.stderr, p
    p = text("--resident", "--device", "cuda:0,7", ok=False)
    assert "cuda:7: there are 2 emulated GPUs" in p.stderr, p


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
    for wrong in "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999999999999", "cuda:0,", "cuda:,1", "cuda,1", "cuda:0,1,2,3,4,5,6,7,8":
        p = text("--resident", "--device", wrong, ok=False)
        assert "--device: expected auto, cpu, cuda, cuda:N or cuda:N,M" in p.stderr, p
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
