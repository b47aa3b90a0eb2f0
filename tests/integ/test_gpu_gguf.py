#!/usr/bin/env python3
"""GGUF files on the GPU device, as test_gpu.py has packs: formats of blocks, and what llama.cpp's converter stores in another order than
checkpoints have it. Standard library only."""
import os

import gguf_checkpoint as gg
from cluster_util import TMP, run_tests, test
from float64_model import conform
from gguf_mixed import FORMATS, model
from gpu_util import EMULATED

os.environ["CACHE_DIRECTORY"] = os.path.join(TMP, "cache")
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")


@test
def families_conform():
    """Tiled heads of a delta rule, latents in two matrices, stacked experts, MXFP4."""
    for i, name in enumerate(("qwen3_5_moe_stacked", "qwen3_next_plain", "deepseek_v2_lite", "glm4_moe_norms", "gemma4_shared_kv",
                              "gpt_oss_mxfp4")):
        file, folder = os.path.join(TMP, name + ".gguf"), os.path.join(FAMILIES, name)
        gg.write_file(file, *gg.convert(folder))
        conform(folder, file, "--resident", "--device", "cuda", "--threads", 1, "--prefill-rows", (256, 1, 7)[i % 3])


@test
def formats_of_blocks_give_the_twins_logits():
    """Each is at some place in one of these models; an emulated GPU, which is slow, has one of them."""
    for first in range(0, len(FORMATS), 5)[:1 if EMULATED else None]:
        file, pack, folder = model(first)
        want = conform(folder, pack, "--resident", "--device", "cuda", "--threads", 1)
        assert all(0 < p["max_logit_error"] < 2e-4 for p in want), want
        for rows in 1, 256:
            found = conform(folder, file, "--resident", "--device", "cuda", "--threads", 1, "--prefill-rows", rows)
            assert found == want == conform(folder, file, "--resident", "--cpu", "scalar"), (first, rows, found, want)


@test
def workers_compute_them():
    file, pack, folder = model(0)
    assert conform(folder, file, "--local", 2, "--device", "cuda", "--threads", 1) == conform(folder, pack, "--resident")


run_tests()
