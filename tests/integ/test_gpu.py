#!/usr/bin/env python3
"""The GPU device with an emulated GPU, or with the one of $OD_CUDA_PLUGIN (make gpu-check): whole models of every family, resident and on
clusters, give what the reference gives, the bits of the CPUs, and text beside them; and what a user sees where there is no GPU, or too
little memory. Expected values are the golden files' own, and the CPUs'."""
import atexit
import concurrent.futures
import ctypes.util
import json
import os
import re
from unittest import mock

from cluster_util import BIN, FAR, TMP, Daemon, Skip, hosts_file, pack, run_tests, test, tool, worker_args
from gpu_util import EMULATED, PLUGIN
from serve_util import Server, stop_servers

atexit.register(stop_servers)
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
FAMILIES = os.path.join(GOLDEN, "families")
NAMES = sorted(n for n in os.listdir(FAMILIES) if os.path.isdir(os.path.join(FAMILIES, n)))
SECOND = "cuda:1" if EMULATED else "cuda"
STORY = "Once upon a time there was a king who had"
TOKENS = 8 if EMULATED else 40  # an emulated GPU is slow


def emulated(f):
    """A test that needs the emulated GPU's knobs."""
    def run():
        if not EMULATED:
            raise Skip("for an emulated GPU")
        f()
    run.__name__ = f.__name__
    return run


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


@test
def models_of_other_goldens_conform():
    """On a GPU all that there are; the emulated one is too slow for more than the families."""
    if EMULATED:
        raise Skip("takes minutes on an emulated GPU")
    for name in "talebook", "talebook-fine":
        path = os.path.join(TMP, name + "-golden.pack")
        tool("od-pack", os.path.join("deploy", "models", name), path)
        for args in (["--resident"], ["--local", 2, "--draft", 4]):
            p = tool("od-bench", "conform", "--golden", os.path.join(GOLDEN, name), "--pack", path, "--json", "--device", "cuda", *args)
            r = json.loads(p.stdout)
            assert r["n_conform"] == len(r["prompts"]), (name, args, r)


@test
def so_do_clusters_with_a_shadow_and_drafts():
    for name in ("deepseek_v2_lite", "gpt_oss_mxfp4", "qwen3_next_plain", "gemma4_own_v", "gemma4_shared_kv"):
        conforms(name, "--local", 2, "--device", "cuda", "--threads", 1, "--draft", 4, "--prefill-rows", 3)


@test
@emulated
def a_model_is_split_over_two_cards():
    """The emulated GPUs, and the check that each operation finds its operands on one card."""
    for i, name in enumerate(("deepseek_v2_lite", "deepseek_v3_groups", "glm4_moe_air", "gpt_oss_mxfp4", "gemma4_own_v",
                              "gemma4_layer_inputs", "gemma4_shared_kv", "qwen3_next_plain", "qwen3_5_moe_stacked", "minimax_m2_plain",
                              "phimoe_crossing", "olmoe_clip", "qwen2_moe_plain")):
        os.environ["OD_GPU_SEED"] = str(100 + i)
        conforms(name, "--resident", "--device", "cuda:1,0", "--threads", 1, "--prefill-rows", (256, 1, 7)[i % 3])
    os.environ.pop("OD_GPU_SEED")
    # Clusters: the shadow, too, is split, in each precision; workers take a card each. Prompts, drafts, main's own predictors.
    for name, args in (("deepseek_v2_lite", ("--draft", 4)), ("gpt_oss_mxfp4", ("--draft", 4)), ("qwen3_next_plain", ("--draft", 4)), ("gemma4_own_v", ("--predictor", "next-gate")),
                       ("mixtral_top3", ("--predictor", "trajectory")), ("olmoe_plain", ("--predictor", "next-gate"))):
        conforms(name, "--local", 2, "--device", "cuda:0,1", "--threads", 1, "--prefill-rows", 3, *args)


@test
def a_part_of_the_experts_is_enough():
    """Every family, with room for few experts beside texts."""
    for i, name in enumerate(NAMES):
        if i % 4 != 1 and EMULATED:
            continue
        least = tool("od-bench", "conform", "--golden", os.path.join(FAMILIES, name), "--pack", family(name), "--device", "cuda", "--threads", 1,
                     "--ctx-size", 128, "--memory", 4096, ok=False).stderr
        least = int(re.search(r"at least .* \((\d+) bytes\) are needed", least).group(1))
        conforms(name, "--device", "cuda", "--threads", 1, "--ctx-size", 128, "--memory", least + (i % 3) * 10000, "--prefill-rows", (256, 1, 7)[i % 3])
    want = text("--resident", "--cpu", "scalar").stdout
    for more in (), ("--resident-form", "planes"), ("--predictor", "next-gate"), ("--draft", "lookup"):
        p = text("--device", "cuda", "--memory", "45MB", "--ctx-size", 256, *more)
        assert p.stdout == want and "of pinned host memory" in p.stderr, (more, p)
        taken = float(re.search(r"has taken ([\d.]+) MiB", p.stderr).group(1)) * 2**20
        assert not EMULATED or 20e6 < taken < 45e6, (more, taken)  # experts that were not loaded have none
    p = text("--device", "cuda", "--memory", "900TB", ok=False)
    assert "expected at most what is free on cuda:0" in p.stderr, p
    p = text("--device", f"cuda:0,{SECOND[5:] or 0}", "--memory", "45MB", ok=False)
    assert not EMULATED or "a part of the experts is kept on one GPU: name one (--device cuda:0)" in p.stderr, p


@test
@emulated
def split_shadows_have_all_precisions():
    tool("od-pack", "shadow", pack(), "int8,nf4,fp16")
    want = text("--resident", "--cpu", "scalar").stdout
    for precision in "int8", "nf4+int8", "fp16", "bf16":
        experts, _, dense = precision.partition("+")
        more = ("--shadow-arg=--dense-precision=" + dense,) if dense else ()
        assert text("--local", 2, "--device", "cuda:0,1", "--draft", 4, "--shadow-arg=--precision=" + experts, *more).stdout == want
    # The shadow runs rows of which it has main's keys and values already, and keeps those aside.
    shadow, w = Daemon("shadow", "--device", "cuda:0,1"), Daemon("worker")
    assert text("--workers", hosts_file([shadow, w]), "--draft", 4, "--align-token", 2).stdout == want
    assert shadow.alive(), shadow.text()
    for d in shadow, w:
        d.kill()
    for env, args in ({}, ("--device", "cuda:0,1")), ({"OD_DEVICE": "cuda:0,1"}, ()):
        os.environ.update(env)
        p = tool("od-worker", "--pack", pack(), "--port", 0, *args, ok=False)
        os.environ.pop("OD_DEVICE", None)
        assert p.returncode == 2 and "2 x cuda:0 emulated GPU: a worker uses one card: start a worker for each" in p.stderr, p
    p = text("--resident", "--device", "cuda:1,1", ok=False)
    assert p.returncode == 2 and "--device: cuda:1 is named twice" in p.stderr, p
    p = text("--resident", "--device", "cuda:0,7", ok=False)
    assert "cuda:7: there are 3 emulated GPUs" in p.stderr, p


@test
@emulated
def cards_of_unequal_size_get_the_layers_that_fit():
    """With three cards of 60, 33 and 33 MiB, say, a split in proportion to their memory would not fit."""
    want = text("--resident", "--cpu", "scalar").stdout
    for sizes, devices in ((40, 80), "0,1"), ((80, 40), "1,0"), ((60, 33, 33), "0,1,2"), ((33, 60, 33), "0,1,2"), ((70, 28, 34), "0,1,2"):
        os.environ["OD_GPU_BYTES"] = ",".join(str(n << 20) for n in sizes)
        p = text("--resident", "--resident-form", "bf16", "--device", "cuda:" + devices)
        assert p.stdout == want, (sizes, p)
        split = re.findall(r"cuda:(\d): (?:layers (\d+)-(\d+)|layer (\d+)|no layer): ([\d.]+) MiB needed, ([\d.]+) MiB free", p.stderr)
        assert [s[0] for s in split] == devices.split(",") and all(float(s[4]) <= float(s[5]) for s in split), p.stderr
        taken = re.findall(r"has taken ([\d.]+) MiB", p.stderr)
        assert all(abs(float(s[4]) - float(t)) < 0.2 for s, t in zip(split, taken, strict=True)), p.stderr
    # What is needed, and what is free, of each card.
    os.environ["OD_GPU_BYTES"] = f"{40 << 20},{45 << 20}"
    p = text("--resident", "--resident-form", "bf16", "--device", "cuda:0,1", ok=False)
    assert re.search(r"needs [\d.]+ MiB of memory on 2 x cuda:0 emulated GPU, 83.7 MiB are available .*; "
                     r"cuda:0: layers 0-\d: 3\d.\d MiB needed, 39.4 MiB free; "
                     r"cuda:1: layers \d-11: [4-7]\d.\d MiB needed, 44.3 MiB free", p.stderr), p
    # A shadow, too.
    os.environ["OD_GPU_BYTES"] = f"{44 << 20},{64 << 20}"
    shadow, worker = Daemon("shadow", "--device", "cuda:0,1", "--precision", "bf16"), Daemon("worker", "--device", "cpu")
    assert recall_of(hosts_file([shadow, worker])) == 1
    for d in shadow, worker:
        d.kill()
    assert "the model is split by layers; cuda:0: layers 0-" in shadow.text(), shadow.text()
    os.environ["OD_GPU_BYTES"] = f"{24 << 20},{38 << 20}"
    p = tool("od-shadow", "--pack", pack(), "--device", "cuda:0,1", "--precision", "bf16", "--port", 0, ok=False)
    assert re.search(r"layers 0-11 of the bf16 model of \S+ do not fit one after the other; cuda:0: layers 0-\d: "
                     r"[\d.]+ MiB needed, 23.6 MiB free; cuda:1: layers \d-11: [\d.]+ MiB needed, 37.4 MiB free", p.stderr), p
    # BF16 is faster, but its experts fit only as planes.
    os.environ["OD_GPU_BYTES"] = f"{28 << 20},{50 << 20}"
    shadow = Daemon("shadow", "--device", "cuda:0,1", "--precision", "bf16")
    assert "experts stay compressed in memory: as BF16 the model and its context would not fit" in shadow.text(), shadow.text()
    shadow.kill()


def recall_of(hosts):
    """Of a shadow that is as precise as main. Main does not wait for it: on a busy machine it may be through first."""
    for _ in range(60):
        r = json.loads(text("--workers", hosts, "--json", "--draft", 4).stdout)
        if r["predicted_uses"] > 0:
            return r["recall"]


@test
@emulated
def a_part_of_a_shadow_is_split_over_cards():
    worker = Daemon("worker", "--device", "cpu")
    for cut, devices in (5, ("cuda:0,1", "cuda:0,1")), (11, ("cuda:1,0,2", "cuda:0,1")), (6, ("cpu", "cuda:0,1")):
        parts = [Daemon("shadow", "--precision", "bf16", "--layers", layers, "--device", device)
                 for layers, device in zip((f"0-{cut - 1}", f"{cut}-11"), devices)]
        assert recall_of(hosts_file([*parts, worker])) == 1
        for p, device in zip(parts, devices):
            assert p.alive() and ("the model is split by layers" in p.text()) == (device != "cpu"), p.text()
            p.kill()


def text(*args, ok=True):
    return tool("od-main", "--pack", pack(), "--prompt", STORY, "--max-tokens", TOKENS, "--temperature", 0, *args, ok=ok)


@test
def the_text_is_that_of_the_cpus():
    for profile in "f32", "bf16":
        # In profile bf16 the widest CPUs have a kernel class of their own.
        want = text("--resident", "--profile", profile, "--cpu", "scalar").stdout
        for form in "bf16", "planes":
            assert text("--resident", "--profile", profile, "--device", "cuda", "--resident-form", form).stdout == want
        assert text("--local", 2, "--profile", profile, "--device", SECOND).stdout == want


@test
@emulated
def steps_of_decoding_become_graphs():
    """By the second step of equal launches; a prompt and its first token have none."""
    want = text("--resident", "--cpu", "scalar").stdout
    os.environ["OD_GPU_KERNELS"] = os.path.join(TMP, "launched")
    for args, graphs in (("--max-tokens", 1), False), ((), True):
        got = text("--resident", "--device", "cuda", "--resident-form", "bf16", *args).stdout
        assert args or got == want
        with open(os.environ["OD_GPU_KERNELS"]) as f:
            launched = f.read().split()
        assert "gpu_norm" in launched and ("graph" in launched) == graphs, launched


@test
@emulated
def the_form_of_experts_is_the_faster_one_or_asked_for():
    """The GPU says so of itself: 2 multiprocessors of 1 GHz decode 5.3 billion weights a second."""
    want = text("--resident", "--cpu", "scalar").stdout
    for bandwidth, form in (None, "bf16"), (10_500_000_000, "planes"), (10_700_000_000, "bf16"):
        if bandwidth is not None:
            os.environ["OD_GPU_BANDWIDTH"] = str(bandwidth)
        for args, used in ((), form), (("--resident-form", "bf16"), "bf16"), (("--resident-form", "planes"), "planes"):
            worker = Daemon("worker", "--device", "cuda", "--slots", 3, *args)
            assert text("--workers", hosts_file([worker])).stdout == want
            assert f"({used}) within" in worker.text(), (bandwidth, args, worker.text())
            worker.kill()
    os.environ.pop("OD_GPU_BANDWIDTH")


@test
@emulated
def memory_that_is_the_hosts_needs_no_copy():
    os.environ["OD_GPU_HOST_UNIFIED"] = "1"
    for name in "mixtral_top3", "gpt_oss_mxfp4", "qwen3_next_plain":
        conforms(name, "--resident", "--device", "cuda", "--threads", 1, "--prefill-rows", 7)
        conforms(name, "--local", 2, "--device", "cuda", "--threads", 1, "--draft", 4, "--prefill-rows", 3)
    want = text("--resident", "--cpu", "scalar").stdout
    for form in "bf16", "planes":
        args = "--device", "cuda", "--resident-form", form
        assert text("--resident", *args).stdout == want
        assert text("--local", 2, *args, *worker_args("--slots=2")).stdout == want
        assert text("--local", 1, *args, *worker_args("--cache-mib=20")).stdout == want


@test
def a_cache_on_a_gpu_changes_no_token():
    want = text("--resident", "--cpu", "scalar").stdout
    for form in "bf16", "planes":
        assert text("--local", 1, "--device", "cuda", "--resident-form", form, *worker_args("--cache-mib=20")).stdout == want


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
def other_kernel_classes_need_mixed():
    """Of a GPU and of CPUs with BF16 dot products, in profile bf16 only."""
    with open("/proc/cpuinfo") as f:
        if " avx512_bf16" not in f.read():
            raise Skip("this CPU has no BF16 dot products")
    on_gpu, on_cpu = Daemon("worker", "--device", "cuda"), Daemon("worker", "--cpu", "avx512bf16")
    hosts = hosts_file([on_gpu, on_cpu])
    for main, refused, ours in ("cpu", on_gpu, "bf16dot-2"), ("cuda", on_cpu, "fma16-2"):
        args = "--workers", hosts, "--profile", "bf16", "--device", main, "--cpu", "avx512bf16"
        theirs, kernels = {"bf16dot-2": ("fma16-2", "cuda"), "fma16-2": ("bf16dot-2", "avx512bf16")}[ours]  # what --cpu names
        p = text(*args, ok=False)
        assert p.returncode == 1 and not p.stdout, p
        said = f"kernel_class: expected {ours}, found {theirs} ({kernels} kernels on this worker)"
        assert f"worker 127.0.0.1:{refused.port} refused: {said}" in p.stderr, p
        assert "allow it with od-main's --mixed" in p.stderr, p
        p = text(*args, "--mixed")
        assert f"{TOKENS} generated" in p.stderr, p
        assert p.stderr.count("(--mixed)") == 1, p
        assert f"worker 127.0.0.1:{refused.port} has kernel class {theirs}, od-main {ours} (--mixed)" in p.stderr, p
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
    p = text("--resident", "--device", "auto", "--resident-form", "bf16")
    assert "computing on cuda:0 " in p.stderr, p
    p = text("--resident", "--device", "cuda:7", ok=False)
    no_seventh = "there are 3 emulated GPUs" if EMULATED else "there is no such GPU; expected cuda:0"
    assert p.returncode == 1 and "cuda:7: " + no_seventh in p.stderr, p
    for wrong in "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999999999999", "cuda:0,", "cuda:,1", "cuda,1", "cuda:0,1,2,3,4,5,6,7,8", "cuda:1024":
        p = text("--resident", "--device", wrong, ok=False)
        assert p.returncode == 2 and "--device: expected auto, cpu, cuda, cuda:N or cuda:N,M (N to 1023, at most 8 GPUs), found" in p.stderr, p
    for program, *args in ("od-main", "serve", "--resident"), ("od-shadow", "--port", 0), ("od-worker", "--port", 0):  # services: 2 is not tried again
        p = tool(program, *args, "--pack", pack(), "--device", "cuda:x", ok=False)
        assert p.returncode == 2 and "--device: expected auto, cpu, cuda, cuda:N or cuda:N,M" in p.stderr, p
        p = tool(program, *args, "--pack", pack(), "--device", "cuda:1023", ok=False)
        assert p.returncode == 1 and "cuda:1023: " in p.stderr, p
    os.environ["OD_CUDA_PLUGIN"] = ""  # as if it were not set: the plugin beside the program, if there is one
    p = text("--resident", "--device", "auto")
    # That may be of an older build, and is refused then; the program itself it is not.
    assert "computing on " in p.stderr and ("another version" not in p.stderr or "libod_cuda.so is of another version" in p.stderr), p
    os.environ["OD_CUDA_PLUGIN"] = "libc.so.6"
    p = text("--resident", "--device", "cuda", ok=False)
    assert p.returncode == 1 and "is of another version than this program" in p.stderr, p


@test
@emulated
def a_plugin_that_was_built_with_other_headers_is_refused():
    """Its version is a checksum of what both sides declare; here the two are built from one tree, so another's has another checksum."""
    with open(os.path.join(BIN, "..", "gen", "plugin_version.h")) as f:
        version = int(re.search(r" (\d+)u", f.read()).group(1))
    with open(PLUGIN, "rb") as f:
        plugin = f.read()
    at = plugin.index(version.to_bytes(4, "little"))
    other = os.path.join(TMP, "other.so")
    with open(other, "wb") as f:
        f.write(plugin[:at] + (version ^ 1).to_bytes(4, "little") + plugin[at + 4:])
    os.environ["OD_CUDA_PLUGIN"] = other
    for program, *args in ("od-main", "--resident", "--prompt", STORY), ("od-shadow", "--port", 0), ("od-worker", "--port", 0):
        p = tool(program, "--pack", pack(), "--device", "cuda", *args, ok=False)
        assert p.returncode == 1 and not p.stdout and f"{other} is of another version than this program" in p.stderr, p


@test
def a_driver_that_cannot_be_used_is_told():
    """By the plugin as nvcc makes it, with a driver of tests; and, on most machines without a GPU, with none."""
    plugin = os.path.join(BIN, "..", "cuda-check", "libod_cuda.so") if EMULATED else PLUGIN  # make check has made it before
    if not os.path.exists(plugin):
        raise Skip("nvcc is not installed (CUDA toolkit)")
    os.environ.update(OD_CUDA_PLUGIN=os.path.abspath(plugin), LD_LIBRARY_PATH=os.path.join(BIN, "..", "tests", "wrong_driver"))
    for driver, told in (("12010 0", "the driver is too old: it supports CUDA 12.1, and this program needs "),
                         ("99000 100", "this machine has no GPU that CUDA can use, or"),
                         ("99000 801", "this machine has no GPU that CUDA can use, or"), ("99000 3", "initialization error")):
        os.environ["OD_DRIVER"] = driver
        p = text("--resident", "--device", "cuda", ok=False)
        assert p.returncode == 1 and not p.stdout and "cuda:0: " + told in p.stderr, (driver, p)
        p = text("--resident", "--device", "auto")
        assert p.stdout == text("--resident").stdout and "computing on the CPUs: cuda:0: " + told in p.stderr, (driver, p)
    os.environ["OD_DRIVER"] = "12010 0"
    p = tool("od-worker", "--pack", pack(), "--port", 0, "--device", "cuda", ok=False)
    assert p.returncode == 1 and "; update the NVIDIA driver, or build the plugin with an older CUDA toolkit" in p.stderr, p
    os.environ.pop("LD_LIBRARY_PATH")
    if EMULATED and ctypes.util.find_library("cuda") is None:
        p = text("--resident", "--device", "cuda", ok=False)
        assert p.returncode == 1 and "cuda:0: no NVIDIA driver is installed" in p.stderr, p


@test
@emulated
def too_little_memory_is_told():
    for mib, told in (10, "too little memory: "), (30, "of memory on cuda:0 emulated GPU, 29.5 MiB are available"), (60, ", 59.1 MiB are"):
        os.environ["OD_GPU_BYTES"] = str(mib << 20)
        p = text("--resident", "--ctx-size", 1024, "--device", "cuda", ok=False)
        assert p.returncode == 1 and told in p.stderr, p
        p = text("--resident", "--ctx-size", 1024, "--device", "cuda", "--resident-form", "bf16", ok=False)
        advised = "(--resident-form planes needs less; without --resident the experts stay on the workers)" in p.stderr
        assert p.returncode == 1 and advised == (mib > 16), p
        p = text("--resident", "--ctx-size", 1024, "--device", "cuda", "--resident-form", "planes", ok=False)
        advised = "available (without --resident the experts stay on the workers)" in p.stderr
        assert p.returncode == 1 and advised == (mib > 16), p
        if mib > 16:
            p = tool("od-shadow", "--pack", pack(), "--device", "cuda", "--port", 0, ok=False)
            assert re.search(r"int8 model .* available on cuda:0 emulated GPU are \d+ bytes", p.stderr), p
        if mib == 30:
            p = tool("od-worker", "--pack", pack(), "--device", "cuda", "--port", 0, "--resident-form", "bf16", "--slots", 64, ok=False)
            assert re.search(r"64 slots do not fit \(see --memory-limit and --slots\): buffer \d+ of 64: cuda:0 emulated GPU: no memory for "
                             r"an expert: 1 MiB needed, 0 MiB free", p.stderr), p
    os.environ["OD_GPU_BYTES"] = str(74 << 20)  # BF16 is faster, but only planes fit
    assert not text("--resident", "--ctx-size", 1024, "--device", "cuda", "--resident-form", "bf16", ok=False).stdout
    p = text("--resident", "--ctx-size", 1024, "--device", "cuda")
    assert "experts stay compressed in memory: as BF16 the model would not fit" in p.stderr, p
    assert p.stdout == text("--resident", "--cpu", "scalar").stdout, p
    os.environ.pop("OD_GPU_BYTES")
    p = tool("od-shadow", "--pack", pack(), "--device", "cuda", "--port", 0, "--memory-limit", "1MiB", ok=False)
    assert "--memory-limit is 1048576 bytes" in p.stderr, p


@test
@emulated
def auto_computes_on_the_cpus_if_the_gpu_has_too_little_memory():
    want = text("--resident", "--cpu", "scalar").stdout
    instead = "computing on the CPUs instead of cuda:0 emulated GPU: "
    os.environ["OD_GPU_BYTES"] = str(10 << 20)  # too little for the device itself
    p = text("--resident", "--device", "auto")
    assert p.stdout == want and "computing on the CPUs: cuda:0 emulated GPU: too little memory" in p.stderr, p
    os.environ["OD_GPU_BYTES"] = str(30 << 20)
    p = text("--resident", "--device", "auto")
    assert p.stdout == want and instead in p.stderr and " MiB are available" in p.stderr, p
    shadow, worker = Daemon("shadow", "--device", "auto"), Daemon("worker", "--device", "auto", "--slots", 64)
    assert instead + "the int8 model of " in shadow.text(), shadow.text()
    assert instead + "64 slots do not fit" in worker.text() and "64 slots of " in worker.text(), worker.text()
    hosts = hosts_file([shadow, worker])
    os.environ.pop("OD_GPU_BYTES")
    assert text("--workers", hosts).stdout == want
    shadow.kill()
    worker.kill()
    os.environ["OD_GPU_BYTES"] = str(17 << 20)  # main's layers do not fit; which of the children fit, does not matter
    p = text("--local", 2, "--device", "auto")
    assert p.stdout == want and instead in p.stderr, p
    # The CPUs' own kernels of bf16 may be of another class than those of a process that has room on the GPU.
    bf16 = text("--resident", "--profile", "bf16", "--cpu", "scalar").stdout
    for mib in 19, 40:  # room for workers; for main, too
        os.environ["OD_GPU_BYTES"] = str(mib << 20)
        p = text("--local", 2, "--device", "auto", "--profile", "bf16")
        assert p.stdout == bf16 and instead in p.stderr, (mib, p)
    os.environ["OD_GPU_BYTES"] = str(22000000)  # there is room for these slots, but not for the threads that load
    worker = Daemon("worker", "--device", "auto", "--slots", 8)
    assert instead in worker.text() and "no memory for rows and loads, beside the slots" in worker.text(), worker.text()
    assert text("--workers", hosts_file([worker])).stdout == want
    worker.kill()
    os.environ["OD_GPU_BYTES"] = str(120000000)  # the shadow's model fits; a session of it does not
    p = text("--local", 1, "--device", "auto")
    assert p.stdout == want and instead + "ctx_tokens: " in p.stderr, p
    os.environ["OD_GPU_BYTES"] = str(17 << 20)
    os.environ["OD_GPU_HOST_UNIFIED"] = "1"  # the CPUs have no more
    p = text("--resident", "--device", "auto", ok=False)
    assert p.returncode == 1 and instead not in p.stderr and "cuda:0 emulated GPU" in p.stderr, p


@test
@emulated
def a_worker_has_as_many_slots_as_the_gpu_has_room_for():
    short = "--prompt", "Once upon", "--max-tokens", 3
    want = text("--resident", "--cpu", "scalar", *short).stdout
    seen = []
    for mib, args in (28, ()), (30, ()), (40, ()), (40, ("--cache-mib", 10)), (30, ("--cache-mib", 100)), (200, ()):
        for form in "bf16", "planes":
            os.environ["OD_GPU_BYTES"] = str(mib << 20)
            worker = Daemon("worker", "--device", "cuda", "--resident-form", form, *args)
            os.environ.pop("OD_GPU_BYTES")
            assert text("--workers", hosts_file([worker]), "--prefill-rows", 1, *short).stdout == want
            seen.append(int(re.search(r"(\d+) slots? of ", worker.text())[1]))
            assert " level=error " not in worker.text(), worker.text()
            worker.kill()
    bf16, planes = seen[::2], seen[1::2]
    assert 1 < bf16[0] < bf16[1] < bf16[2] < 64 and bf16[3] < bf16[2] and bf16[4:] == [1, 64], seen
    assert all(p >= b for b, p in zip(bf16, planes)) and planes[0] > bf16[0], seen
    os.environ["OD_GPU_BYTES"] = str(17 << 20)
    p = tool("od-worker", "--pack", pack(), "--device", "cuda", "--port", 0, ok=False)
    assert "cuda:0 emulated GPU: no memory for " in p.stderr, p


@test
@emulated
def caches_take_what_the_gpu_has_free():
    """Not what the host has: the model leaves too little for the contexts of all texts, and for the largest prefix cache."""
    want = text("--resident", "--cpu", "scalar").stdout
    for device, mib in ("cuda", 82), ("cuda:0,1", 50):
        os.environ["OD_GPU_BYTES"] = str(mib << 20)
        s = Server("--device", device, "--resident-form", "bf16", "--parallel", 8)
        answers = [s.complete(STORY, TOKENS, temperature=0)["choices"][0]["text"] for _ in range(2)]
        assert [a + "\n" for a in answers] == [want] * 2, (answers, want)
        assert s.stop() == 0


@test
def files_of_the_prefix_cache_are_for_any_device():
    """A text whose first page, and recurrent state, another device has computed, is the text of the CPU alone."""
    several = "cuda:0,1" if EMULATED else "cuda"
    ids = [(7 * i * i + 3 * i) % 251 for i in range(100)]
    for name in "deepseek_v2_lite", "qwen3_moe_window", "qwen3_next_plain":
        want = None
        for n, devices in enumerate((("cpu", "cuda"), ("cuda", several), (several, "cpu"))):
            for i, device in enumerate(devices):
                s = Server("--device", device, "--prefix-cache", os.path.join(TMP, f"{name}-{n}"), pack_dir=family(name))
                o = s.complete(ids, 12, temperature=0, logprobs=2)
                restored = s.metric("od_main_restored_prompt_tokens_total")
                assert restored == 64 * i, (name, devices, device, restored, s.log)
                want = want or o["choices"]
                assert o["choices"] == want, (name, devices, device, o, want)
                assert s.stop() == 0, s.log


def needed_bytes(program, *args):
    p = tool(program, "--pack", pack(), "--port", 0, "--memory-limit", "1MiB", *args, ok=False)
    return int(re.search(r"needs? (\d+) bytes", p.stderr)[1])


@test
@emulated
def memory_limits_count_the_scratch_memory_of_each_card():
    scratch = 16 << 20
    worker = "od-worker", "--resident-form", "bf16", "--device", "cuda"
    with mock.patch.dict(os.environ, FAR):  # which has stages as a GPU has
        far = needed_bytes(*worker)
    assert needed_bytes(*worker) == far + scratch, far
    shadow = [needed_bytes("od-shadow", "--device", d) for d in ("cpu", "cuda", "cuda:0,1")]
    assert [n - shadow[0] for n in shadow] == [0, scratch, 2 * scratch], shadow


def without_memory(process, page):
    """Addresses of sparse buffers that have no memory. A guard behind a buffer or a stack is smaller than a page of the card."""
    with open(f"/proc/{process.pid}/maps") as f:
        sizes = [int(end, 16) - int(begin, 16) for begin, end in (line.split()[0].split("-") for line in f if " ---p " in line)]
    return sum(n for n in sizes if n >= page)


def sparse_worker(*args):
    """Other threads' heaps would have addresses without memory, too."""
    with mock.patch.dict(os.environ, MALLOC_ARENA_MAX="1"):
        return Daemon("worker", "--device", "cuda", "--slots", 2, *args)


@test
@emulated
def slots_and_caches_take_whole_pages_of_a_card():
    """An expert is 384 KiB and padding, in four pages, or 192 KiB of SM bytes and 64 to 128 KiB of exponents, in two and one. A cache
    that is full keeps as many as fit in whole pages; a slot's pages may be there or not."""
    page, cache = 1 << 17, 6 << 20
    for form, n in ("bf16", 4), ("planes", 3):
        os.environ["OD_GPU_PAGE_BYTES"] = str(page)
        needs = [needed_bytes("od-worker", "--resident-form", form, "--device", "cuda", "--slots", slots) for slots in (1, 11)]
        assert needs[1] - needs[0] == 10 * n * page, (form, needs)
        worker = sparse_worker("--resident-form", form, "--cache-mib", cache >> 20)
        os.environ.pop("OD_GPU_PAGE_BYTES")
        before = without_memory(worker.process, page)
        text("--workers", hosts_file([worker]), "--max-tokens", 70)
        grown = before - without_memory(worker.process, page)
        assert cache - 2 * n * page <= grown <= cache, (form, grown)
        worker.kill()


@test
@emulated
def programs_say_how_much_of_the_card_they_have():
    """The emulated card counts what it gives."""
    says = re.compile(r"has taken ([\d.]+) MiB of its memory; 0 B were in use before")
    for form, page in ("bf16", 0), ("planes", 0), ("bf16", 1 << 17), ("planes", 1 << 17):
        args = "--device", "cuda", "--slots", 20, "--resident-form", form
        os.environ["OD_GPU_PAGE_BYTES"] = str(page)
        d = Daemon("worker", *args)
        mib = float(says.search(d.text())[1])
        d.kill()
        for part, has in (0.99, "MiB needed"), (1.01, "has taken"):
            os.environ["OD_GPU_BYTES"] = str(int(part * mib * 2**20))
            try:
                d = Daemon("worker", *args)
                said = d.text()
                d.kill()
            except AssertionError as e:
                said = str(e)
            assert has in said, (mib, part, said)
        os.environ.pop("OD_GPU_BYTES")
    os.environ.pop("OD_GPU_PAGE_BYTES")
    d = Daemon("shadow", "--device", "cuda")
    assert float(says.search(d.text())[1]) > 16 and says.search(text("--resident", "--device", "cuda").stderr), d.text()
    d.kill()


@test
@emulated
def stages_of_the_load_threads_share_their_pages():
    """Each load thread has two, and a buffer of its own: only that may take a part of a page more than it needs."""
    page, grows = 1 << 17, []
    for size in 0, page:
        os.environ["OD_GPU_PAGE_BYTES"] = str(size)
        taken = []
        for threads in 1, 13:
            d = Daemon("worker", "--device", "cuda", "--resident-form", "bf16", "--slots", 2, "--load-threads", threads)
            taken.append(float(re.search(r"has taken ([\d.]+) MiB", d.text())[1]) * 2**20)
            d.kill()
        grows.append(taken[1] - taken[0])
    os.environ.pop("OD_GPU_PAGE_BYTES")
    assert grows[0] > 24 * page / 2, grows  # else nothing takes whole pages
    assert grows[1] - grows[0] < (12 + 1) * page, (grows, page)


def memory_of(process, field):
    with open(f"/proc/{process.pid}/status") as f:
        return int(re.search(rf"{field}:\s+(\d+) kB", f.read())[1]) << 10


@test
@emulated
def a_shadow_is_not_on_the_host_twice_while_it_is_read():
    """A Jetson has one memory for both, and other machines may have less than their GPU. The file's experts take 18 MiB."""
    for unified in "0", "1":
        os.environ["OD_GPU_HOST_UNIFIED"] = unified
        d = Daemon("shadow", "--device", "cuda")
        os.environ.pop("OD_GPU_HOST_UNIFIED")
        peak = memory_of(d.process, "VmHWM") - memory_of(d.process, "VmRSS")
        d.kill()
        assert peak < 12 << 20, (unified, peak)


@test
@emulated
def a_cache_takes_what_the_card_has():
    """Its experts give way to those that are loaded."""
    want = text("--resident", "--cpu", "scalar").stdout
    total, page = 30 << 20, 1 << 12
    os.environ["OD_GPU_BYTES"] = str(total)
    worker = sparse_worker("--resident-form", "planes", "--cache-mib", 20)
    os.environ.pop("OD_GPU_BYTES")
    before = without_memory(worker.process, 2 * page)
    left = total - float(re.search(r"has taken ([\d.]+) MiB", worker.text())[1]) * 2**20
    assert left < 20 << 20, left
    for more in [], ["--max-tokens", 140]:
        p = text("--workers", hosts_file([worker]), *more)
        assert p.stdout.startswith(want.rstrip("\n")), (p, want)
    grown = before - without_memory(worker.process, 2 * page)
    assert left / 2 < grown <= left + 2**20 / 100, (left, grown)
    assert "cannot be loaded" not in worker.text(), worker.text()
    worker.kill()


@test
def more_than_a_card_has_is_refused():
    p = tool("od-bench", "gpu", "--size", "100TiB", ok=False)
    assert p.returncode == 1 and "52428801 MiB needed" in p.stderr and "MiB free" in p.stderr, p


@test
@emulated
def too_little_memory_for_copies_is_told():
    os.environ["OD_GPU_PINNED_BYTES"] = str(1 << 16)
    for name, args in ("od-main", ("--resident", "--prompt", STORY)), ("od-worker", ("--port", 0)):
        p = tool(name, "--pack", pack(), "--device", "cuda", *args, ok=False)
        assert p.returncode == 1 and "cuda:0 emulated GPU: no host memory for copies: " in p.stderr, p
        assert "MiB needed, pinned" in p.stderr, p


run_tests()
