"""A shadow's weights, quantised as docs/PACK-FORMAT.md says and by nothing of od-moe: a checkpoint of the weights that it would
compute with."""
import glob
import json
import os
import re
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from checkpoint import of_family
from families import FAMILIES

NF4 = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1], dtype=np.float32)
GROUP = 64
# The matrices of the table of roles with "yes", and the experts'; names of most families.
MATRICES = re.compile(r"\.(q_proj|k_proj|v_proj|o_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|gate_proj|up_proj|down_proj|w1|w2|w3)"
                      r"\.weight$")


def int8(w):
    """A scale for each row."""
    scale = np.abs(w).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(scale > 0, np.rint(np.clip(w / scale, -127, 127)), 0)
    return (q * scale).astype(np.float32)


def nf4(w):
    """A scale for each 64 weights of a row; of two values as near, the lower."""
    out = np.empty_like(w)
    for at in range(0, w.shape[-1], GROUP):
        part = w[..., at:at + GROUP]
        scale = np.abs(part).max(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            v = np.where(scale > 0, part / scale, 0).astype(np.float32)
        code = np.abs(v.astype(np.float64)[..., None] - NF4.astype(np.float64)).argmin(-1)
        out[..., at:at + GROUP] = NF4[code] * scale
    return out


HOW = {"int8": int8, "nf4": nf4}


def write(path, precision, out):
    """The checkpoint at path as a shadow of that precision has it, in float32. Returns how many matrices were quantised."""
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    family, tensors, n = FAMILIES[cfg["model_type"]], {}, 0
    matrices, turned = of_family(family, "MATRICES", MATRICES), of_family(family, "TURNED", re.compile("$^"))
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        tensors |= load_file(file)
    if cfg.pop("quantization_config", None):
        tensors = family.dequantised(tensors)
    for name, t in tensors.items():
        t = t.float()
        if matrices.search(name):
            w = t.mT if turned.search(name) else t
            w, n = torch.from_numpy(HOW[precision](w.contiguous().numpy())), n + 1
            t = w.mT if turned.search(name) else w
        tensors[name] = t.contiguous()
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(cfg | dict(torch_dtype="float32"), f)
    return n
