"""A reader of packs written from docs/PACK-FORMAT.md alone, to hold od-pack to it. Standard library, with libzstd,
liblz4 and libxxhash by ctypes. Everything that the format says must be so is checked; anything else raises Bad."""
import ctypes
import hashlib
import json
import math
import os
import struct
import typing
from array import array

from model_config import BIASES, MATS, Model

_xxh = ctypes.CDLL("libxxhash.so.0")
_xxh.XXH3_64bits.restype = ctypes.c_uint64
_xxh.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
_zstd = ctypes.CDLL("libzstd.so.1")
_zstd.ZSTD_decompress.restype = ctypes.c_size_t
_zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
_zstd.ZSTD_isError.argtypes = [ctypes.c_size_t]

_lz4 = ctypes.CDLL("liblz4.so.1")
_lz4.LZ4_decompress_safe.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

CODECS = ["raw", "zstd", "lz4", "planes"]
DTYPES = {1: "BF16", 2: "F16", 3: "F32", 4: "I8", 6: "F8_E4M3", 7: "F8_E5M2", 8: "U4B8", 9: "U8B128", 10: "F4_E2M1"}
DENSE_DTYPES = ["BF16", "F16", "F32"]
WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
SCALED = ["I8", "U4B8", "U8B128", "F4_E2M1"]  # types of matrices that are nothing without scales
FOUR_BITS = ["U4B8", "F4_E2M1"]
PACKED = ["U4B8", "U8B128", "F4_E2M1"]  # published as .weight_packed
SCALES = {1: "BF16", 2: "F16", 3: "F32", 6: "F8_E4M3", 11: "F8_E8M0"}
SMALL = ["chat_template.jinja", "chat_template.json", "chat_template_tool_use.jinja", "config.json", "generation_config.json",
         "model.json", "special_tokens_map.json", "tiktoken.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]
PRECISIONS = {"int8": 2, "fp16": 3, "nf4": 5}
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
PAGE = 4096
SHARD_WEIGHTS = 524288


class Bad(Exception):
    pass


def need(ok, what):
    if not ok:
        raise Bad(what)


def xxh3(data):
    return _xxh.XXH3_64bits(bytes(data), len(data))


def unzstd(data, raw_bytes):
    out = ctypes.create_string_buffer(raw_bytes + 1)
    n = _zstd.ZSTD_decompress(out, raw_bytes, bytes(data), len(data))
    need(not _zstd.ZSTD_isError(n) and n == raw_bytes, "zstd frame")
    return out.raw[:raw_bytes]


def unlz4(data, raw_bytes):
    out = ctypes.create_string_buffer(raw_bytes + 1)
    need(_lz4.LZ4_decompress_safe(bytes(data), out, len(data), raw_bytes) == raw_bytes, "lz4 block")
    return out.raw[:raw_bytes]


def f8_value(dtype, b):
    """What a byte of an FP8 type stands for."""
    bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    exponent, mantissa = (b & 127) >> bits, b & (1 << bits) - 1
    if dtype == "F8_E4M3" and b & 127 == 127 or dtype == "F8_E5M2" and exponent == 31 and mantissa:
        return math.nan
    if dtype == "F8_E5M2" and exponent == 31:
        size = math.inf
    elif exponent:
        size = (1 + mantissa / (1 << bits)) * 2.0 ** (exponent - bias)
    else:
        size = mantissa / (1 << bits) * 2.0 ** (1 - bias)
    return -size if b & 128 else size


F8 = {dtype: [f8_value(dtype, b) for b in range(256)] for dtype in ("F8_E4M3", "F8_E5M2")}
E8M0 = [2.0 ** (b - 127) for b in range(255)] + [math.nan]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
BITS = [bytes(b >> i & 1 for i in range(8)) for b in range(256)]  # of a byte, a bit a byte


def level_codes(data, at, k):
    """One level of a block of planes: a byte for each of its k codes, and where the level ends."""
    planes = [[], []]
    for group in range(0, k, 64):
        size = -(-min(64, k - group) // 8)
        for p in planes:
            p.append(data[at:at + size])
            at += size
    need(at <= len(data), "length of a level")
    low, high = [int.from_bytes(b"".join(BITS[b] for part in p for b in part), "little") for p in planes]
    codes = (low + 2 * high).to_bytes(8 * -(-k // 8), "little")
    need(not any(codes[k:]), "bits behind a level's last code")
    return codes[:k], at


def fill(codes, symbols, below):
    """Exponents of a level from its codes and what is below it."""
    need(codes.count(3) == len(below), "escapes of a level")
    out = bytearray(codes.translate(bytes(symbols) + bytes(253)))
    for at, e in zip([i for i, c in enumerate(codes) if c == 3], below):
        out[at] = e
    return bytes(out)


def planes_block(data, at, weights, symbols):
    """A block's exponents, and where it ends."""
    n2, n3, n4, raw = struct.unpack_from("<4H", data, at)
    at += 8
    if raw == 1:
        need((n2, n3, n4) == (0, 0, 0), "counts of a raw block")
        return data[at:at + weights], at + weights
    need(raw == 0, "kind of block")
    below = data[at:at + n4]
    at += n4
    for number, k in ((3, n3), (2, n2), (1, weights)):
        codes, at = level_codes(data, at, k)
        below = fill(codes, symbols[3 * number - 3:3 * number], below)
    return below, at


def unplanes(data, n, row):
    data = bytes(data)
    if row <= 16384:
        each = 16384 // row * row
        weights = [min(each, n - i) for i in range(0, n, each)]
    else:
        weights = [min(16384, row - i) for i in range(0, row, 16384)] * (n // row)
    need(data[9:12] == bytes(3) and struct.unpack_from("<I", data, 12)[0] == len(weights), "header of planes")
    out, at = [], 16 + 4 * len(weights)
    for b, w in enumerate(weights):
        need(struct.unpack_from("<I", data, 16 + 4 * b)[0] == at, "where a block begins")
        e, at = planes_block(data, at, w, data[:9])
        out.append(e)
    need(at == len(data) and sum(map(len, out)) == n, "length of planes")
    return b"".join(out)


def exponents(codec, data, n, row):
    """The E plane of a chunk of any codec."""
    if codec == 0:
        need(len(data) == n, "length of raw E")
        return data
    need(codec < len(CODECS) and len(data) < n, "E codec")
    return unplanes(data, n, row) if codec == 3 else [None, unzstd, unlz4][codec](data, n)


def round_up(n, step):
    return (n + step - 1) // step * step


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def quotient(a, b):
    """In f32, as IEEE 754 has it. (In double first, which changes nothing.)"""
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return array("f", [a / b])[0]


def code_values(dtype, raw):
    """What codes stand for, as floats; of two in a byte the lower half comes first."""
    if dtype in F8:
        return [F8[dtype][b] for b in raw]
    if dtype == "I8":
        return [float(b - 256 if b > 127 else b) for b in raw]
    if dtype == "U8B128":
        return [b - 128.0 for b in raw]
    value, out = E2M1 if dtype == "F4_E2M1" else [k - 8.0 for k in range(16)], [0.0] * (2 * len(raw))
    out[0::2], out[1::2] = [value[b & 15] for b in raw], [value[b >> 4] for b in raw]
    return out


def code_bytes(dtype, n):
    return n // 2 if dtype in FOUR_BITS else n


def block_size(extent, count, least):
    """How many rows or columns a scale is for, when count of them cover extent: 0 for all; None when no power of two of
    at least this does."""
    if count == 1:
        return 0
    sizes = [1 << k for k in range(63) if 1 << k >= least and -(-extent // (1 << k)) == count]
    return sizes[0] if sizes else None


class Scaled(typing.NamedTuple):
    """A matrix published with scales; bytes as published, block as (block_rows, block_cols)."""
    dtype: str
    shape: list
    codes: bytes
    scale_dtype: str
    block: tuple
    scales: bytes
    divisor: bytes = b""  # an f32, or there is none

    def counts(self):
        return [-(-extent // b) if b else 1 for extent, b in zip(self.shape, self.block)]

    def sha256(self):
        parts = [self.codes, self.scales] + [self.divisor] * bool(self.divisor)
        return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts))

    def dtype_line(self):
        """As in the fingerprint's text."""
        return "%s*%s[%d,%d]" % (self.dtype, self.scale_dtype, *self.block)

    def check(self):
        """What must be so for any of them."""
        n_out, n_in = self.shape
        need(self.dtype in SCALED or self.dtype in F8, "type of a matrix with scales")
        need(self.scale_dtype in SCALES.values(), "type of scales")
        need(n_in % 2 == 0 or self.dtype not in FOUR_BITS, "two codes a byte")
        need(len(self.divisor) == 4 * (self.scale_dtype == "F8_E4M3"), "divisor")
        for b, extent, count, least in zip(self.block, self.shape, self.counts(), (1, 16)):
            need(b == block_size(extent, count, least), "rows or columns of a block")
        need(len(self.codes) == code_bytes(self.dtype, n_out * n_in), "length of codes")
        need(len(self.scales) == math.prod(self.counts()) * WIDTH[self.scale_dtype], "length of scales")

    def scale_values(self):
        out = decode(self.scale_dtype, self.scales)
        if self.divisor:
            (by,) = struct.unpack("<f", self.divisor)
            out = [quotient(s, by) for s in out]
        return out

    def values(self):
        """The weights, an array of f32. The product of two f32 is exact in double, and rounded once."""
        (n_out, n_in), (_, across) = self.shape, self.counts()
        rows, cols = self.block[0] or n_out, self.block[1] or n_in
        code, scale, out = code_values(self.dtype, self.codes), self.scale_values(), array("f")
        for o in range(n_out):
            first = o // rows * across
            for c in range(across):
                s = scale[first + c]
                out.extend([v * s for v in code[o * n_in + c * cols:min(o * n_in + (c + 1) * cols, (o + 1) * n_in)]])
        return out


def sha256_of(matrix):
    return matrix.sha256() if isinstance(matrix, Scaled) else hashlib.sha256(matrix)


def published_as(name, dtype):
    return name[:-len("weight")] + "weight_packed" if dtype in PACKED else name


def merge(dtype, sm, e):
    """Planes to weights. Big integers, a byte a lane, so that a million weights take no time."""
    n = len(e)
    if WIDTH[dtype] == 1:  # E is the whole byte, as it stands
        return bytes(e)
    ones = int.from_bytes(b"\1" * n, "little")
    big = lambda b: int.from_bytes(b, "little")
    planes = [big(sm[i * n:(i + 1) * n]) for i in range(WIDTH[dtype] - 1)] + [big(e)]
    out = bytearray(n * WIDTH[dtype])
    for i, plane in enumerate(planes):  # rotate right by one: bit 0 of the next plane comes in on top
        above = planes[(i + 1) % len(planes)]
        lane = (plane >> 1) & (ones * 0x7F) | (above & ones) << 7
        out[i::WIDTH[dtype]] = lane.to_bytes(n, "little")
    return bytes(out)


def check_sums(path):
    with open(os.path.join(path, "SHA256SUMS"), "rb") as f:
        found = f.read().decode("ascii")
    want = ""
    for name in SMALL:
        p = os.path.join(path, name)
        if os.path.exists(p):
            with open(p, "rb") as f:
                want += hashlib.sha256(f.read()).hexdigest() + "  " + name + "\n"
    need(found == want, "SHA256SUMS")


class Expert:
    """One expert of experts.bin, every byte of it accounted for."""

    def __init__(self, data, m, expert, parts):
        self.parts = {name: [*shape, 1][:2] for name, shape in parts.items()}  # a bias: rows of one
        n_biases = len(parts) - len(MATS)
        shard_rows = [max(1, SHARD_WEIGHTS // s[1]) for s in self.parts.values()]
        n_shards = sum(-(-s[0] // r) for s, r in zip(self.parts.values(), shard_rows))
        table = 192 + 128 * (n_biases > 0)
        header_bytes = round_up(table + 64 * n_shards, PAGE)
        head = data[:header_bytes]
        (magic, xx, schema, m_, e_, n, hb, total, sm_off, e_off) = struct.unpack_from("<8sQIIIIQQQQ", head)
        need(magic == b"ODEXPERT" and xx == xxh3(head[16:]), "expert header checksum")
        need(schema == 3, "schema of an expert header")
        need((m_, e_, n, hb, sm_off) == (m, expert, n_shards, header_bytes, header_bytes), "expert header")
        need(total == len(data) and (head[70], head[71]) == (3, n_biases), "length, matrices or biases of an expert")
        need(all(b in DTYPES for b in head[64:67]), "types of an expert")
        need(all(b in SCALES or b == 0 for b in head[67:70]), "types of an expert's scales")
        self.header = head
        self.dtype = [DTYPES[b] for b in head[64:67]]
        self.scale_dtype = [SCALES.get(b) for b in head[67:70]] + [None] * n_biases
        self.block = [struct.unpack_from("<II", head, 168 + 8 * mat) for mat in range(3)] + [(0, 0)] * n_biases
        sums = [head[at:at + 32] for at in range(72, 168, 32)]
        if n_biases:
            need(all(DTYPES.get(b) in DENSE_DTYPES for b in head[192:195]), "types of an expert's biases")
            need(not any(head[195:224]), "zeros behind the types of biases")
            self.dtype += [DTYPES[b] for b in head[192:195]]
            sums += [head[at:at + 32] for at in range(224, 320, 32)]
        self.stored = 0
        self.codecs = []  # (dtype, name) of each chunk
        mats, at, sm_at, e_at = [], table, sm_off, e_off
        for mat, (name, shape) in enumerate(self.parts.items()):
            parts = []
            for row in range(0, shape[0], shard_rows[mat]):
                rows = min(shard_rows[mat], shape[0] - row)
                s = struct.unpack_from("<IIBBBBIQQIIIIQQ", head, at)
                (row_, rows_, mat_, sm_codec, e_codec, z, sm_st, sm_o, e_o, e_st, sm_raw, e_raw, z2, sm_x, e_x) = s
                weights, small = rows * shape[1], name in BIASES or WIDTH.get(self.dtype[mat], 1) == 1
                sm_len = 0 if small else weights * (WIDTH[self.dtype[mat]] - 1)
                e_len = rows * WIDTH[self.dtype[mat]] if name in BIASES else self._e_bytes(mat, shape, row, rows)
                need((row_, rows_, mat_, sm_codec, z, z2) == (row, rows, mat, 0, 0, 0), "shard")
                need((sm_st, sm_raw, e_raw, sm_o, e_o) == (sm_len, sm_len, e_len, sm_at, e_at), "shard lengths")
                sm, e = data[sm_o:sm_o + sm_st], data[e_o:e_o + e_st]
                need(xxh3(sm) == sm_x and xxh3(e) == e_x, "chunk checksum")
                need(e_codec < (1 if name in BIASES else 3 if self.scale_dtype[mat] else 4), "E codec")
                e = exponents(e_codec, e, e_len, shape[1])
                parts.append((row, rows, e if small else merge(self.dtype[mat], sm, e)))
                if name in MATS:
                    self.codecs.append((self.dtype[mat], CODECS[e_codec]))
                at, sm_at, e_at = at + 64, sm_at + sm_st, e_at + e_st
                self.stored += sm_st + e_st
            mats.append(self._scaled(mat, shape, parts) if self.scale_dtype[mat] else b"".join(p[2] for p in parts))
        need(not any(head[at:]), "header padding")
        need(e_off == round_up(sm_at + 64, PAGE) and not any(data[sm_at:e_off]), "SM padding")
        need(total == round_up(e_at + 64, PAGE) and not any(data[e_at:]), "E padding")
        self.mats = mats  # bytes, or Scaled
        need([sha256_of(x).digest() for x in mats] == sums, "SHA-256 of a matrix or bias")

    def _scale_rows(self, mat, shape, row, rows):
        """How many bytes the divisor and a row of scales have, and the rows of scales that a shard has."""
        step, cols = self.block[mat]
        across = -(-shape[1] // cols) if cols else 1
        first, last = (row // step, (row + rows - 1) // step) if step else (0, 0)
        return 4 * (self.scale_dtype[mat] == "F8_E4M3"), across * WIDTH[self.scale_dtype[mat]], range(first, last + 1)

    def _e_bytes(self, mat, shape, row, rows):
        if not self.scale_dtype[mat]:
            need(self.dtype[mat] not in SCALED and self.block[mat] == (0, 0), "a type without its scales")
            return rows * shape[1]
        divisor, width, scales = self._scale_rows(mat, shape, row, rows)
        return code_bytes(self.dtype[mat], rows * shape[1]) + divisor + len(scales) * width

    def _scaled(self, mat, shape, parts):
        """A matrix from its shards' bytes. A row of scales that two of them need is in both, the divisor in all."""
        codes, scales, divisors = [], {}, set()
        for row, rows, e in parts:
            divisor, width, numbers = self._scale_rows(mat, shape, row, rows)
            at = code_bytes(self.dtype[mat], rows * shape[1])
            codes.append(e[:at])
            divisors.add(e[at:at + divisor])
            for i, n in enumerate(numbers):
                here = e[at + divisor + i * width:at + divisor + (i + 1) * width]
                need(scales.setdefault(n, here) == here, "the same scales in two shards")
        need(len(divisors) == 1, "the same divisor in all shards")
        out = Scaled(self.dtype[mat], shape, b"".join(codes), self.scale_dtype[mat], self.block[mat],
                     b"".join(scales[n] for n in sorted(scales)), divisors.pop())
        out.check()
        return out


class Pack:
    """The whole pack: .tensors maps names to (dtype, shape, bytes), .scaled maps those of matrices with scales, which all
    end with .weight, to Scaled."""

    def __init__(self, path):
        check_sums(path)
        read = lambda name: open(os.path.join(path, name), "rb").read()
        self.model, self.config = json.loads(read("model.json")), json.loads(read("config.json"))
        need(self.model["schema_version"] == 3, "schema")
        need(self.model["codec"] in CODECS, "codec")
        self.spec = Model(self.config)
        need(self.model["family"] == self.spec.family and self.spec.n_moe > 0, "family")
        self.tensors, self.scaled, self.experts = {}, {}, {}
        self._read_dense(read("dense.bin"))
        self._read_experts(read("experts.bin"))
        self._path = path

    def _read_dense(self, data):
        table, at = self.model["dense"]["tensors"], 0
        need(len(table) == len(self.spec.dense) and self.model["dense"]["file"] == "dense.bin", "dense table")
        for t, (role, layer, shape) in zip(table, self.spec.dense):
            name, scaled = self.spec.dense_name(role, layer), t.get("scales")
            linear = len(shape) == 2 and role != "embed"
            need(t["dtype"] in DENSE_DTYPES or linear and (scaled or t["dtype"] in F8), "type of a dense tensor")
            size = math.prod(shape) * WIDTH[t["dtype"]] if not scaled else self._scaled_bytes(t)
            flat = [math.prod(shape)] if role == "delta_conv" else shape
            need((t["role"], t.get("layer"), t["shape"]) == (role, layer, flat), role)
            need((t["offset"], t["bytes"]) == (at, size), "place of " + name)
            self._check_source(t["source"], published_as(name, t["dtype"]), None)
            raw, end = data[at:at + size], round_up(at + size + 64, PAGE)
            need("%016x" % xxh3(raw) == t["xxh3"], "checksum of " + name)
            need(not any(data[at + size:end]), "padding after " + name)
            self._add(name, t["dtype"], flat, self._dense_scaled(t, raw) if scaled else raw, t["sha256"])
            at = end
        need(len(data) == at == self.model["dense"]["bytes"], "length of dense.bin")

    def _check_source(self, source, name, stacked):
        """A whole tensor, or a part of a stacked one."""
        places = [{"tensor": name, "first_element": 0, "transposed": False}] + [stacked] * bool(stacked)
        need(source in [dict(p, tensor=p["tensor"].replace("model.", self.spec.prefix, 1)) for p in places], "source of " + name)

    def _add(self, name, dtype, shape, matrix, sha256):
        need(sha256_of(matrix).hexdigest() == sha256, "SHA-256 of " + name)
        if isinstance(matrix, Scaled):
            self.scaled[name] = matrix
        else:
            self.tensors[name] = (dtype, shape, matrix)

    def _scaled_parts(self, t):
        """Lengths of codes, divisor and scales."""
        s, (n_out, n_in) = t["scales"], t["shape"]
        need(set(s) == {"dtype", "block_rows", "block_cols"} and s["dtype"] in SCALES.values(), "scales in model.json")
        down, across = [-(-n // b) if b else 1 for n, b in ((n_out, s["block_rows"]), (n_in, s["block_cols"]))]
        return code_bytes(t["dtype"], n_out * n_in), 4 * (s["dtype"] == "F8_E4M3"), down * across * WIDTH[s["dtype"]]

    def _scaled_bytes(self, t):
        return sum(self._scaled_parts(t))

    def _dense_scaled(self, t, raw):
        (codes, divisor, _), s = self._scaled_parts(t), t["scales"]
        out = Scaled(t["dtype"], t["shape"], raw[:codes], s["dtype"], (s["block_rows"], s["block_cols"]),
                     raw[codes + divisor:], raw[codes:codes + divisor])
        out.check()
        return out

    def _read_experts(self, data):
        table, at, n = self.model["experts"]["table"], 0, self.spec.n_experts
        need(len(table) == self.spec.n_moe * n, "expert table")
        for i, t in enumerate(table):
            need((t["m"], t["expert"], t["offset"]) == (i // n, i % n, at), "expert table")
            e = Expert(data[at:at + t["bytes"]], i // n, i % n, self.spec.parts)
            need("%016x" % xxh3(e.header) == t["header_xxh3"], "header_xxh3")
            need(set(t["source"]) == set(self.spec.parts), "sources of an expert")
            for mat, (name, shape) in enumerate(self.spec.parts.items()):
                tensor = self.spec.expert_name(i // n, i % n, name)
                stacked = self.spec.stacks and self.spec.stacked_source(i // n, i % n, name, bool(e.scale_dtype[mat]))
                self._check_source(t["source"][name], published_as(tensor, e.dtype[mat]), stacked)
                self._add(tensor, e.dtype[mat], shape, e.mats[mat], sha256_of(e.mats[mat]).hexdigest())
            self.experts[i // n, i % n] = e
            at += t["bytes"]
        need(len(data) == at == self.model["experts"]["bytes"], "length of experts.bin")

    def shape(self, name):
        return self.scaled[name].shape if name in self.scaled else self.tensors[name][1]

    def weights(self, name):
        """As they are computed with: floats that are f32."""
        if name in self.scaled:
            return self.scaled[name].values()
        dtype, _, raw = self.tensors[name]
        return decode(dtype, raw)

    def shadow_names(self):
        return self.spec.shadow_names()

    def shadow(self, precision):
        """name -> Record, with header, offsets, sums and paddings checked."""
        with open(os.path.join(self._path, "shadow-%s.bin" % precision), "rb") as f:
            data = f.read()
        names, out = self.shadow_names(), {}
        at = header_bytes = round_up(128 + 40 * len(names), PAGE)
        magic, xx, schema, number, n, zero, hb, total = struct.unpack_from("<8sQIIIIQQ", data)
        need(magic == b"ODSHADOW" and xx == xxh3(data[16:header_bytes]), "shadow header checksum")
        need((schema, number, n, zero) == (1, PRECISIONS[precision], len(names), 0), "shadow header")
        need((hb, total) == (header_bytes, len(data)), "shadow lengths")
        need(data[48:80].hex() == self.model["fingerprint"] and not any(data[80:128]), "shadow fingerprint")
        need(not any(data[128 + 40 * n:header_bytes]), "shadow header padding")
        for i, name in enumerate(names):
            n_out, n_in, offset, size, xx = struct.unpack_from("<5Q", data, 128 + 40 * i)
            need([n_out, n_in] == self.shape(name) and offset == at, "shadow tensor")
            need(xxh3(data[at:at + size]) == xx, "record checksum")
            out[name] = Record(precision, n_out, n_in, data[at:at + size])
            at += size
        need(len(data) == at, "length of the shadow")
        return out

    def fingerprint(self):
        text = ""
        for name in sorted([*self.tensors, *self.scaled], key=lambda s: s.encode()):
            if name in self.scaled:
                dtype, sha256 = self.scaled[name].dtype_line(), self.scaled[name].sha256()
            else:
                dtype, sha256 = self.tensors[name][0], hashlib.sha256(self.tensors[name][2])
            text += f"tensor {name} {dtype} {'x'.join(map(str, self.shape(name)))} {sha256.hexdigest()}\n"
        text += "config " + self.spec.text() + "\n"
        tok = next((f for f in (os.path.join(self._path, n) for n in ("tokenizer.json", "tiktoken.model", "tokenizer.model"))
                    if os.path.exists(f)), "")
        text += "tokenizer " + (hashlib.sha256(open(tok, "rb").read()).hexdigest() if os.path.exists(tok) else "none") + "\n"
        return hashlib.sha256(text.encode()).hexdigest()


class Record:
    """A quantised tensor: .rows, bytes of each; .scales, f32 of each row's groups."""

    def __init__(self, precision, n_out, n_in, data):
        self.precision, self.n_in = precision, n_in
        row = {"fp16": 2 * n_in, "int8": n_in}.get(precision, -(-n_in // 128) * 64)
        groups = {"fp16": 0, "int8": 1}.get(precision, -(-n_in // 64))
        end = n_out * row
        self.rows = [data[i * row:(i + 1) * row] for i in range(n_out)]

        flat = []
        if groups:
            start = round_up(end + 64, 64)
            need(not any(data[end:start]), "padding before scales")
            end = start + 4 * n_out * groups
            flat = list(struct.unpack_from("<%df" % (n_out * groups), data, start))
        need(len(data) == round_up(end + 64, PAGE) and not any(data[end:]), "padding of a record")
        self.scales = [flat[i * groups:(i + 1) * groups] for i in range(n_out)]

    def codes(self, r):
        """Of a row, without what fills up its last piece."""
        raw = self.rows[r]
        if not self.precision == "nf4":
            return list(struct.unpack("<%d%s" % (self.n_in, "e" if self.precision == "fp16" else "b"), raw))
        out = []
        for at in range(0, len(raw), 64):
            piece = raw[at:at + 64]
            for high in (0, 4):
                out += [piece[4 * i + b] >> high & 15 for b in range(4) for i in range(16)]
        need(all(c == 7 for c in out[self.n_in:]), "codes behind the row")
        return out[:self.n_in]

    def weights(self, r):
        if self.precision == "fp16":
            return self.codes(r)
        group = self.n_in if self.precision == "int8" else 64
        value = NF4.__getitem__ if self.precision == "nf4" else float
        return [value(c) * self.scales[r][i // group] for i, c in enumerate(self.codes(r))]


def decode(dtype, raw):
    """Bytes to floats."""
    if dtype == "F32":
        return list(struct.unpack("<%df" % (len(raw) // 4), raw))
    if dtype == "F16":
        return list(struct.unpack("<%de" % (len(raw) // 2), raw))
    if dtype in F8:
        return [F8[dtype][b] for b in raw]
    if dtype == "F8_E8M0":
        return [E8M0[b] for b in raw]
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
    return list(struct.unpack("<%df" % (len(raw) // 2), bytes(wide)))


# Quantisation as the format says. A division in double that is rounded to f32 is the f32 division.

def to_int8(values, scale):
    return [round(max(-127.0, min(127.0, f32(v / scale)))) if scale else 0 for v in values]


def quantise(precision, row):
    """One row: codes (fp16: the bytes) and f32 scales."""
    if precision == "fp16":
        return struct.pack("<%de" % len(row), *row), []
    codes, scales = [], []
    size = len(row) if precision == "int8" else 64
    for at in range(0, len(row), size):
        group = row[at:at + size]
        absmax = max(abs(w) for w in group)
        if precision.startswith("int8"):
            scales.append(f32(absmax / 127))
            codes += to_int8(group, scales[-1])
        else:  # min takes the first, that is the lower one, of two that are equally near
            scales.append(absmax)
            near = [f32(w / absmax) if absmax else 0.0 for w in group]
            codes += [min(range(16), key=lambda k: abs(v - NF4[k])) for v in near]
    return codes, scales
