#!/usr/bin/env python3
"""GGUF files where they lie: the goldens of all families as llama.cpp's converter stores them, every format of blocks, split files, names
without an ending, and files that change. Standard library only."""
import json
import os
import shutil

import gguf_checkpoint as gg
from cluster_util import TMP, run_tests, test, tool, worker_args
from float64_model import conform, cpus
from gguf_mixed import FORMATS, SHAPE, mixed, model

os.environ["CACHE_DIRECTORY"] = os.path.join(TMP, "cache")
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")
# GGUF has no key for a setting of these, docs/GGUF.md says which; gguf_checkpoint.py would write files of another model.
NOT_EXPRESSIBLE = {
    "deepseek_v2_groups", "deepseek_v3_halves", "gemma4_own_v", "glm4_moe_lite_types", "gpt_oss_bf16", "mixtral_top3", "olmoe_clip",
    "phimoe_crossing", "phimoe_no_bias", "qwen2_moe_norm", "qwen3_moe_between", "qwen3_moe_step", "qwen3_moe_window", "qwen3_next_types"}
NAMES = sorted(n for n in os.listdir(FAMILIES) if os.path.isdir(os.path.join(FAMILIES, n)) and n not in NOT_EXPRESSIBLE)


def path(*names):
    return os.path.join(TMP, *names)


def report(folder, pack, *args, ok=True):
    r = tool("od-bench", "conform", "--golden", folder, "--pack", pack, "--json", *args, ok=ok)
    return json.loads(r.stdout)["prompts"]


def same(first, *args):
    file, pack, folder = model(first)
    want = conform(folder, pack, "--resident", "--cpu", "scalar")
    assert all(0 < p["max_logit_error"] < 2e-4 for p in want), want
    found = conform(folder, file, *args)
    assert found == want, (first, args, found, want)


# ---- Families ----

@test
def goldens_of_all_families_conform():
    for name in NAMES:
        file, folder = path(name + ".gguf"), os.path.join(FAMILIES, name)
        gg.write_file(file, *gg.convert(folder))
        conform(folder, file, "--resident")


@test
def on_workers_too():
    for name in NAMES[::3]:
        file, folder = path(name + ".gguf"), os.path.join(FAMILIES, name)
        gg.write_file(file, *gg.convert(folder))
        conform(folder, file, "--local", 2, "--threads", 1, "--predictor", "next-gate")


# ---- Formats of blocks ----

@test
def every_format_gives_the_twins_logits():
    """Each is at some place of experts, of attention or at the ends, in one of these models."""
    for i, first in enumerate(range(0, len(FORMATS), 5)):
        same(first, "--resident", "--cpu", cpus()[i % len(cpus())], "--prefill-rows", (256, 3, 1)[i % 3])


@test
def by_every_kernel():
    for cpu in cpus():
        for rows in 1, 2, 128:
            same(3, "--resident", "--cpu", cpu, "--prefill-rows", rows, "--threads", 2)


@test
def workers_compute_them():
    for first in 0, 10:
        same(first, "--local", 2, "--threads", 1)
        same(first, "--local", 3, "--threads", 1, *worker_args("--slots=2"))


@test
def profile_bf16_too():
    for first in 5, 10:
        file, pack, folder = model(first)
        args = ["--resident", "--profile", "bf16", "--tolerance", 1]
        found = report(folder, file, *args, ok=None)
        assert found == report(folder, pack, *args, ok=None), first
        assert all(p["max_logit_error"] > 1e-4 for p in found), found


# ---- Files ----

@test
def any_part_of_a_split_file():
    folder = os.path.join(FAMILIES, NAMES[0])
    for i, part in enumerate(gg.write_split(path("parts.gguf"), *gg.convert(folder), 3)):
        conform(folder, part, "--resident")


@test
def a_name_without_an_ending():
    folder, file = os.path.join(FAMILIES, NAMES[0]), path("sha256-0123abcd")
    gg.write_file(file, *gg.convert(folder))
    conform(folder, file, "--resident")


def flip(file, at):
    """A byte changes as on a failing disk: the file's time stays."""
    times = os.stat(file)
    with open(file, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@test
def bytes_that_change_are_found():
    """Experts of 4 KiB and more: their first bytes are in the fingerprint, the others are not."""
    file, _, folder = model(3)
    shutil.copyfile(file, path("flipped.gguf"))
    conform(folder, path("flipped.gguf"), "--resident")
    tensors = gg.convert_tensors(SHAPE, mixed(3)[0])[1]
    size, before = os.path.getsize(file), 0
    for name, _, _, raw in reversed(tensors):
        before += len(raw) + -len(raw) % gg.ALIGNMENT
        if name == "blk.1.ffn_down_exps.weight":
            break
    flip(path("flipped.gguf"), size - before + len(raw) - 1)
    said = tool("od-bench", "conform", "--golden", folder, "--pack", path("flipped.gguf"), "--resident", ok=False).stderr
    assert "flipped.gguf" in said and "checksum" in said and "_exps.weight, expert 2" in said, said


@test
def the_small_files_are_made_once():
    file, _, folder = model(3)
    conform(folder, file, "--resident")
    made = os.listdir(path("cache", "gguf"))
    conform(folder, file, "--resident")
    assert made and os.listdir(path("cache", "gguf")) == made
    for name in made:
        with open(path("cache", "gguf", name, "config.json")) as f:
            assert json.load(f)["model_type"]


run_tests()
