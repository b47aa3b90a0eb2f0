#!/usr/bin/env python3
"""od-bench gpu with an emulated GPU: every kernel is measured, and what must hold between figures; never how fast. That results are
right, and planes give the bits of plain weights, is checked by the program itself."""
import json
import os

from cluster_util import BIN, TMP, pack, run_tests, test, tool

os.environ["OD_CUDA_PLUGIN"] = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_gpu_host.so"))
os.environ.pop("OD_DEVICE", None)
PROMPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "prompts.jsonl")
PRODUCTS = ["merge", "merge_shards", "merge_planes", "merge_planes_shards", "linear_bf16", "linear_planes", "linear_int8", "linear_nf4",
            "linear_down_bf16", "linear_down_planes", "rows_1", "rows_16", "rows_64", "rows_512", "experts_wide_bf16", "experts_wide_planes", "experts_fine_bf16",
            "experts_fine_planes"]
LOADS = ["load_raw", "load_planes"]


def gpu(*args):
    return json.loads(tool("od-bench", "gpu", "--tiny", "--ms", 0, "--json", *args).stdout)


@test
def every_kernel_is_measured():
    r = gpu("--runs", 6)
    assert r["device"].startswith("cuda:0 emulated") and r["tiny"] == "yes" and r["runs"] == 6, r
    assert [w["work"] for w in r["works"]] == PRODUCTS + ["attention"] + LOADS
    for w in r["works"]:
        assert w["gbps"] > 0 and w["copy_gbps"] > 0 and w["repeats"] >= 1, w
        if w["work"] in LOADS:
            assert w["of_copy"] is None, w
        else:
            assert 0 < w["of_copy_ci95_low"] <= w["of_copy"] <= w["of_copy_ci95_high"], w
        if w["of_first"] is not None:
            assert 0 < w["of_first_ci95_low"] <= w["of_first"] <= w["of_first_ci95_high"], w
    assert [b["bytes"] for b in r["buffers"]] == [65536] and r["buffers"][0]["new_us"] > 0
    assert [(x["launches"], 0 < x["us_ci95_low"] <= x["us"] <= x["us_ci95_high"]) for x in r["launches"]] == [
        ("new", True), ("as before", True)], r["launches"]


@test
def bytes_are_counted():
    works = {w["work"]: w for w in gpu("--runs", 1)["works"]}
    weights = {name: w["bf16_gbps"] / w["gbps"] for name, w in works.items() if w["bf16_gbps"] is not None}
    assert set(weights) == set(PRODUCTS + LOADS)
    for name, per_byte in weights.items():
        if name.startswith("merge"):  # 2 bytes of a weight are written, 2 or about 1.34 are read
            assert 0.49 < per_byte < 0.61 and (per_byte < 0.501) == ("planes" not in name), (name, per_byte)
        elif name.startswith("rows_"):  # weights are read once, and count for each row
            rows, n_in, n_out = int(name[5:]), 256, 96
            assert abs(per_byte - 2 * n_in * n_out * rows / (2 * n_in * n_out + 4 * rows * (n_in + n_out))) < 1e-6, (name, per_byte)
        elif name.endswith(("bf16", "raw")):
            assert abs(per_byte - 1) < 1e-6, (name, per_byte)
        elif name.endswith("planes"):
            assert 1.3 < per_byte < 1.55, (name, per_byte)
    assert 1.9 < weights["linear_int8"] < 2 and 3.4 < weights["linear_nf4"] < 4, weights


@test
def a_device_that_maps_its_memory_has_no_loads():
    r = gpu("--runs", 1, "--device", "cpu", "--size", "2MiB", "--seed", 3)
    assert [w["work"] for w in r["works"]] == PRODUCTS + ["attention"]
    assert r["size_bytes"] == 2 << 20 and [b["bytes"] for b in r["buffers"]] == [65536, 1 << 20]


@test
def decoding_is_held_against_the_memory_of_the_gpu():
    """The cluster is on one card: main, shadow, and workers, as is resident mode."""
    r = json.loads(tool("od-bench", "decode", "--pack", pack(), "--local", 2, "--device", "cuda", "--tokens", 4, "--runs", 1,
                        "--json").stdout)
    assert r["kernels"] == "cuda" and r["memory_reads"] == "copies of the GPU" and r["workers"] == 2 and r["runs_with_other_tokens"] == 0, r
    figure = {f["figure"]: f["median"] for f in r["figures"]}
    assert all(figure[name] > 0 for name in ("cluster", "resident", "memory, read meanwhile", "  weights / memory")), figure


@test
def recall_without_a_cluster_computes_on_the_device_that_it_is_told():
    """The shadow of BF16 has the bits of main's model: so nothing in a dump depends on the device."""
    def rows(*args):
        dump = os.path.join(TMP, "dump.jsonl")
        tool("od-bench", "recall", "--pack", pack(), "--prompts", PROMPTS, "--limit", 1, "--tokens", 3, "--precision", "bf16", "--threads", 1,
             "--dump", dump, *args)
        with open(dump) as f:
            return f.read()

    os.environ["OD_GPU_KERNELS"] = launched = os.path.join(TMP, "recall-kernels")
    want = rows()
    assert want and not os.path.exists(launched)
    assert rows("--device", "cuda") == want and os.path.exists(launched)
    for device, status, said in ("cuda:9", 1, "cuda:9: there are 3 emulated GPUs"), ("cuda:0,1", 2, "without a cluster it is one card"):
        p = tool("od-bench", "recall", "--pack", pack(), "--prompts", PROMPTS, "--limit", 1, "--tokens", 3, "--device", device, ok=False)
        assert p.returncode == status and said in p.stderr, p


@test
def what_cannot_be_is_told():
    p = tool("od-bench", "gpu", "--tiny", "--size", "1KiB", ok=False)
    assert p.returncode == 2 and "--size: expected at least 64KiB" in p.stderr, p
    p = tool("od-bench", "gpu", "--size", "100TiB", ok=False)
    assert p.returncode == 1 and "no memory for a benchmark's operands (choose a smaller --size)" in p.stderr, p
    p = tool("od-bench", "gpu", "--device", "cuda:9", ok=False)
    assert p.returncode == 1 and "cuda:9: there are 3 emulated GPUs" in p.stderr, p


run_tests()
