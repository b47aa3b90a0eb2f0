"""Models as they are published with scales, and beside each its twin: the same weights as F32, published plain. Names,
types and shapes are those of compressed-tensors and of Hugging Face's fp8. Standard library only."""
import bisect
import math
import os
import struct
import typing

import pack_reader as pr
import tiny_checkpoint as tc

# The largest magnitude of a code, to which the largest weight of a block goes.
TOP = {"I8": 127, "U8B128": 127.5, "U4B8": 7.5, "F4_E2M1": 6, "F8_E4M3": 448, "F8_E5M2": 57344}
ROUTERS = "re:.*block_sparse_moe.gate$"


class Kind(typing.NamedTuple):
    """How somebody publishes. rows and cols: what a scale is for, 0 is all; form: the scales' shape."""
    dtype: str
    scale_dtype: str
    rows: int
    cols: int
    config: dict
    form: str = "matrix"  # or row [out], one [1], pair [1, 1], scalar []
    suffix: str = "weight_scale"
    written: str = ""  # the scales' type in the files, where it is called otherwise
    beside: tuple = ()  # tensors of activations and KV cache, for others to use


def compressed(form, kind, bits, strategy, group=None, block=None):
    """quantization_config as compressed-tensors writes it."""
    weights = {"actorder": None, "block_structure": block, "dynamic": False, "group_size": group, "num_bits": bits,
               "observer": "minmax", "observer_kwargs": {}, "strategy": strategy, "symmetric": True, "type": kind}
    group = {"format": form, "input_activations": None, "output_activations": None, "targets": ["Linear"],
             "weights": weights}
    return {"config_groups": {"group_0": group}, "format": form, "global_compression_ratio": None, "ignore": [ROUTERS],
            "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def packed(scale_dtype, bits, group, form="matrix"):
    config = compressed("pack-quantized", "int", bits, "group" if group else "channel", group or None)
    return Kind("U4B8" if bits == 4 else "U8B128", scale_dtype, 1, group, config, form)


TENSOR = {"activation_scheme": "static", "ignored_layers": [], "quant_method": "fp8"}
BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
KINDS = {
    "fp8-tensor": Kind("F8_E4M3", "F32", 0, 0, TENSOR, "scalar", beside=("input_scale",)),
    "fp8-tensor-bf16": Kind("F8_E4M3", "BF16", 0, 0, compressed("naive-quantized", "float", 8, "tensor"), "one",
                            beside=("input_scale", "output_scale", "kv")),
    "fp8-rows": Kind("F8_E4M3", "BF16", 1, 0, compressed("float-quantized", "float", 8, "channel")),
    "fp8-rows-f32": Kind("F8_E4M3", "F32", 1, 0, compressed("float-quantized", "float", 8, "channel"), "row"),
    "fp8-blocks": Kind("F8_E4M3", "F32", 128, 128, BLOCKS, suffix="weight_scale_inv"),
    "fp8-blocks-e8m0": Kind("F8_E4M3", "F8_E8M0", 128, 128, dict(BLOCKS, scale_fmt="ue8m0"), suffix="weight_scale_inv"),
    "e5m2-rows": Kind("F8_E5M2", "F16", 1, 0, compressed("float-quantized", "float", 8, "channel")),
    "mxfp8": Kind("F8_E4M3", "F8_E8M0", 1, 32, compressed("mxfp8-quantized", "float", 8, "group", 32), written="U8"),
    "int8-rows": Kind("I8", "BF16", 1, 0, compressed("int-quantized", "int", 8, "channel")),
    "int8-tensor": Kind("I8", "F32", 0, 0, compressed("int-quantized", "int", 8, "tensor"), "pair"),
    "w8": packed("BF16", 8, 64),
    "w4-16": packed("F16", 4, 16),
    "w4-32": packed("BF16", 4, 32),
    "w4-128": packed("BF16", 4, 128),
    "w4-rows": packed("F16", 4, 0),
    "nvfp4": Kind("F4_E2M1", "F8_E4M3", 1, 16, compressed("nvfp4-pack-quantized", "float", 4, "tensor_group", 16),
                  beside=("input_global_scale",)),
    "mxfp4": Kind("F4_E2M1", "F8_E8M0", 1, 32, compressed("mxfp4-pack-quantized", "float", 4, "group", 32),
                  written="U8"),
}


def is_expert(name):
    return ".experts." in name


def linear(kind):
    """What publishers scale: router, embedding and norms stay as they are."""
    return lambda name: kind if is_expert(name) or "_proj" in name or name == "lm_head.weight" else None


def experts(kind):
    return lambda name: kind if is_expert(name) else None


def not_down(kind):
    return lambda name: kind if is_expert(name) and ".w2." not in name else None


def every_kind(name):
    """Kinds side by side, as in publications of mixed precision."""
    kinds = list(KINDS.values())
    return linear(kinds[sum(name.encode()) % len(kinds)])(name)


def nearest(points, codes, values):
    """The code of the point that is nearest to each value."""
    middles = [(a + b) / 2 for a, b in zip(points, points[1:])]
    return bytes(codes[bisect.bisect(middles, v)] for v in values)


def to_scale(dtype, values):
    if dtype == "F32":
        return struct.pack("<%df" % len(values), *values)
    if dtype == "F16":
        return struct.pack("<%de" % len(values), *values)
    if dtype == "F8_E4M3":
        return tc.nearest_f8(dtype, values)
    if dtype == "F8_E8M0":  # rounded up, so that nothing is cut off
        return bytes(min(254, max(0, 127 + math.ceil(math.log2(v)))) if v else 0 for v in values)
    raw = struct.pack("<%df" % len(values), *values)
    return b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def code_table(dtype):
    """Finite values in order, and their codes."""
    if dtype in pr.FOUR_BITS:
        values = pr.E2M1 if dtype == "F4_E2M1" else [k - 8.0 for k in range(16)]
    else:
        values = pr.code_values(dtype, bytes(range(256)))
    table = sorted((v, c) for c, v in enumerate(values) if math.isfinite(v))
    return [v for v, _ in table], [c for _, c in table]


def to_codes(m, values):
    """Codes for a Scaled that has its scales: the nearest ones."""
    (n_out, n_in), (_, across) = m.shape, m.counts()
    points, codes = code_table(m.dtype)
    rows, cols = m.block[0] or n_out, m.block[1] or n_in
    scale, out = m.scale_values(), []
    for o in range(n_out):
        for c in range(across):
            s = scale[o // rows * across + c]
            group = values[o * n_in + c * cols:min(o * n_in + (c + 1) * cols, (o + 1) * n_in)]
            out.append(nearest(points, codes, [v / s if s else 0.0 for v in group]))
    raw = b"".join(out)
    return bytes(a | b << 4 for a, b in zip(raw[0::2], raw[1::2])) if m.dtype in pr.FOUR_BITS else raw


def random_codes(rng, dtype, n, codes):
    size = pr.code_bytes(dtype, n)
    if codes == "few":
        return bytes(rng.choices(b"\x28\xa3", k=size))
    raw = rng.randbytes(size)
    if codes == "any" and size > 256:
        raw = bytes(range(256)) + raw[256:]
    if codes == "finite" and dtype in pr.F8:
        raw = raw.translate(bytes(b if math.isfinite(pr.F8[dtype][b]) else b & 0x83 for b in range(256)))
    return raw


def scale(kind, values, shape, rng, codes):
    """A plain matrix as a Scaled. codes: near the values; finite, at random for the same scales; few, the same of two
    bytes, which every codec makes smaller; any, at random whatever they stand for, and scales too."""
    n_out, n_in = shape
    rows, cols = kind.rows or n_out, kind.cols or n_in
    down, across = -(-n_out // rows), -(-n_in // cols)
    block = (pr.block_size(n_out, down, 1), pr.block_size(n_in, across, 16))
    divisor = b""
    if codes == "any":
        scales = rng.randbytes(down * across * pr.WIDTH[kind.scale_dtype])
        divisor = rng.randbytes(4 * (kind.scale_dtype == "F8_E4M3"))
    else:
        most = [0.0] * (down * across)
        for o in range(n_out):
            for c in range(across):
                at = o // rows * across + c
                group = values[o * n_in + c * cols:min(o * n_in + (c + 1) * cols, (o + 1) * n_in)]
                most[at] = max(most[at], max(map(abs, group)))
        wanted = [v / TOP[kind.dtype] for v in most]
        if kind.scale_dtype == "F8_E4M3":
            by = pr.f32(448 / max(wanted))
            divisor, wanted = struct.pack("<f", by), [v * by for v in wanted]
        scales = to_scale(kind.scale_dtype, wanted)
    m = pr.Scaled(kind.dtype, list(shape), b"", kind.scale_dtype, block, scales, divisor)
    m = m._replace(codes=to_codes(m, values) if codes == "near" else
                   random_codes(rng, kind.dtype, n_out * n_in, codes))
    m.check()
    return m


def scale_shape(kind, m):
    return {"scalar": [], "one": [1], "pair": [1, 1], "row": m.shape[:1], "matrix": m.counts()}[kind.form]


def as_published(kind, name, m):
    """The tensors of a matrix in a checkpoint."""
    module, (n_out, n_in) = name[:-len("weight")], m.shape
    out = {}
    if m.dtype in pr.PACKED:
        form, each = {"U4B8": ("I32", 8), "U8B128": ("I32", 4), "F4_E2M1": ("U8", 2)}[m.dtype]
        out[module + "weight_packed"] = (form, [n_out, n_in // each], m.codes)
    else:
        out[name] = (m.dtype, m.shape, m.codes)
    out[module + kind.suffix] = (kind.written or m.scale_dtype, scale_shape(kind, m), m.scales)
    if m.divisor:
        out[module + "weight_global_scale"] = ("F32", [1], m.divisor)
    if m.dtype in ("U4B8", "U8B128"):
        out[module + "weight_shape"] = ("I64", [2], struct.pack("<2q", n_out, n_in))
    for suffix in kind.beside:
        if suffix != "kv":
            out[module + suffix] = ("F32", [1] if "global" in suffix else [], struct.pack("<f", 0.75))
        elif name.endswith("k_proj.weight"):
            for cache in "kvq":
                out[module[:-len("k_proj.")] + cache + "_scale"] = ("BF16", [1], b"\x80\x3f")
    return out


class Publication(typing.NamedTuple):
    """tensors: of the files. plain, scaled: as pack_reader.Pack has them. twin: all of them plain."""
    config: dict
    tensors: dict
    plain: dict
    scaled: dict

    def twin(self):
        return {**self.plain, **{name: ("F32", m.shape, m.values().tobytes()) for name, m in self.scaled.items()}}


def publish(cfg, tens, of, rng, codes="near"):
    """of(name) says what a matrix of the plain checkpoint tens becomes: a Kind, or None where it stays."""
    out, plain, scaled, config = {}, {}, {}, None
    for name, (dtype, shape, raw) in tens.items():
        kind = of(name)
        if kind:
            values = pr.decode(dtype, raw) if codes != "any" else None
            scaled[name] = scale(kind, values, shape, rng, codes)
            out.update(as_published(kind, name, scaled[name]))
            config = config or kind.config
        else:
            plain[name] = out[name] = (dtype, shape, raw)
    return Publication(dict(cfg, quantization_config=config), out, plain, scaled)


def write(path, pub, shards=1, small=None):
    """small: a folder whose small files are taken, but for config.json."""
    tc.write_checkpoint(path, pub.config, pub.tensors, shards=shards)
    take_small(path, small)


def write_twin(path, pub, small=None):
    cfg = {k: v for k, v in pub.config.items() if k != "quantization_config"}
    tc.write_checkpoint(path, cfg, pub.twin())
    take_small(path, small)


def take_small(path, small):
    for name in pr.SMALL if small else []:
        if name not in ("config.json", "model.json") and os.path.exists(os.path.join(small, name)):
            with open(os.path.join(small, name), "rb") as f, open(os.path.join(path, name), "wb") as to:
                to.write(f.read())
