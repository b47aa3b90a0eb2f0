#!/usr/bin/env python3
"""Models with experts published in FP8: the same logits and tokens as the model that has the same values as BF16, by any
kernels, resident or in a cluster, and those of a forward pass that is written here. Standard library only."""
import json
import math
import os
import platform
import shutil
import struct

import pack_reader as pr
import tiny_checkpoint as tc
from cluster_util import HANG_S, TMP, Daemon, hosts_file, run_tests, test, tool

MACHINE = os.environ.get("MACHINE", platform.machine())
SHAPE = ["--layers", 3, "--hidden", 48, "--intermediate", 40, "--experts", 5, "--top-k", 2, "--heads", 4, "--kv-heads", 2,
         "--vocab", 300, "--ctx", 96]
TOKENS = 6 if HANG_S > 120 else 20  # fewer by a slow build
KINDS = ["F8_E4M3", "F8_E5M2"]
PROMPTS = [[1, 200, 202, 158, 187, 138], [1], [1, *range(40, 61)]]


def read_weights(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        raw = f.read()
    (n,) = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__")
    return {name: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in head.items()}


def as_bf16(dtype, raw):
    """The same values; every one of them is a BF16, so the lower half of its f32 is zero."""
    wide = [struct.pack("<f", v) for v in pr.F8[dtype]]
    assert all(w[:2] == b"\0\0" for w in wide)
    out = bytearray(2 * len(raw))
    out[0::2], out[1::2] = raw.translate(bytes(w[2] for w in wide)), raw.translate(bytes(w[3] for w in wide))
    return bytes(out)


_packs = {}


def packs(kind):
    """Published in FP8, and with the same values as BF16."""
    if kind not in _packs:
        small, wide = [os.path.join(TMP, kind + end) for end in ("-small", "-wide")]
        tool("od-bench", "synth", small, *SHAPE, "--dtype", kind.lower(), "--seed", 7)
        tens = read_weights(small)
        assert {t[0] for n, t in tens.items() if ".experts." in n} == {kind}
        shutil.copytree(small, wide)
        tc.write_safetensors(os.path.join(wide, "model.safetensors"), {
            n: ("BF16", s, as_bf16(d, raw) if d == kind else raw) for n, (d, s, raw) in tens.items()})
        for path in (small, wide):
            tool("od-pack", path, path + ".pack")
        _packs[kind] = small + ".pack", wide + ".pack"
    return _packs[kind]


class Model:
    """A Mixtral in float64, one position after the other."""

    def __init__(self, path):
        with open(os.path.join(path, "config.json")) as f:
            self.c = json.load(f)
        self.w = {}
        for name, (dtype, shape, raw) in read_weights(path).items():
            v, n = pr.decode(dtype, raw), shape[-1]
            self.w[name] = v if len(shape) == 1 else [v[i:i + n] for i in range(0, len(v), n)]
        self.keys, self.values = [[[] for _ in range(self.c["num_hidden_layers"])] for _ in range(2)]

    def times(self, name, x):
        return [sum(map(float.__mul__, row, x)) for row in self.w[name + ".weight"]]

    def norm(self, name, x):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + self.c["rms_norm_eps"])
        return [v * scale * w for v, w in zip(x, self.w[name + ".weight"])]

    def heads(self, x, turn):
        d, out = self.c["head_dim"], []
        for at in range(0, len(x), d):
            h = x[at:at + d]
            if turn is not None:
                angle = [turn / self.c["rope_theta"] ** (2 * i / d) for i in range(d // 2)]
                h = [h[i] * math.cos(a) - h[i + d // 2] * math.sin(a) for i, a in enumerate(angle)] + \
                    [h[i + d // 2] * math.cos(a) + h[i] * math.sin(a) for i, a in enumerate(angle)]
            out.append(h)
        return out

    def attention(self, layer, p, x):
        keys, values = self.keys[layer], self.values[layer]
        at, out = len(keys), []
        keys.append(self.heads(self.times(p + "k_proj", x), at))
        values.append(self.heads(self.times(p + "v_proj", x), None))
        for h, q in enumerate(self.heads(self.times(p + "q_proj", x), at)):
            group = h * len(keys[0]) // self.c["num_attention_heads"]
            score = softmax([sum(map(float.__mul__, q, k[group])) / math.sqrt(len(q)) for k in keys])
            out += [sum(s * v[group][i] for s, v in zip(score, values)) for i in range(len(q))]
        return self.times(p + "o_proj", out)

    def experts(self, p, x):
        prob, k = softmax(self.times(p + "gate", x)), self.c["num_experts_per_tok"]
        order = sorted(range(len(prob)), key=lambda e: -prob[e])
        out = [0.0] * len(x)
        for e in order[:k]:
            q = p + "experts.%d." % e
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(self.times(q + "w1", x), self.times(q + "w3", x))]
            weight = prob[e] / sum(prob[i] for i in order[:k])
            out = [o + weight * v for o, v in zip(out, self.times(q + "w2", inner))]
        return out, order[:k], prob[order[k - 1]] - prob[order[k]]

    def step(self, token):
        """Logits, the experts of each layer, and by how much they were chosen."""
        x, routes, margins = self.w["model.embed_tokens.weight"][token], [], []
        for layer in range(self.c["num_hidden_layers"]):
            p = "model.layers.%d." % layer
            y = self.attention(layer, p + "self_attn.", self.norm(p + "input_layernorm", x))
            x = list(map(float.__add__, x, y))
            y, chosen, margin = self.experts(p + "block_sparse_moe.", self.norm(p + "post_attention_layernorm", x))
            x = list(map(float.__add__, x, y))
            routes.append(chosen)
            margins.append(margin)
        return self.times("lm_head", self.norm("model.norm", x)), routes, margins


def softmax(x):
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def golden(kind):
    """A folder for od-bench conform, made from the checkpoint in FP8."""
    path, entries = os.path.join(TMP, kind + "-golden"), []
    os.makedirs(path)
    for i, prompt in enumerate(PROMPTS):
        m, tokens, steps, margins = Model(os.path.join(TMP, kind + "-small")), [], [], []
        while len(tokens) < TOKENS and tokens[-1:] != [2]:
            steps += [m.step(t) for t in (tokens[-1:] if steps else prompt)]
            best = sorted(range(300), key=lambda t: -steps[-1][0][t])[:2]
            tokens.append(best[0])
            margins.append(steps[-1][0][best[0]] - steps[-1][0][best[1]])
        n, layers = len(prompt), range(m.c["num_hidden_layers"])
        entries.append({
            "name": "p%d" % i, "prompt_ids": prompt, "greedy_ids": tokens, "margins": margins,
            "routes_prefill": [[s[1][l] for s in steps[:n]] for l in layers], "routes_decode": [s[1] for s in steps[n:]],
            "route_margin_prefill": [[s[2][l] for s in steps[:n]] for l in layers],
            "route_margin_decode": [s[2] for s in steps[n:]], "logits_file": "p%d.f32" % i, "logits_shape": [n, 300]})
        with open(os.path.join(path, "p%d.f32" % i), "wb") as f:
            f.write(struct.pack("<%df" % (300 * n), *(v for s in steps[:n] for v in s[0])))
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(entries, f)
    return path


def cpus():
    if MACHINE == "aarch64":
        return ["scalar", "neon"]
    with open("/proc/cpuinfo") as f:
        flags = set(next((line for line in f if line.startswith("flags")), "").split())
    return ["scalar"] + [c for c, need in (("avx2", {"avx2", "fma", "f16c"}),
                                           ("avx512", {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
                                           ("avx512bf16", {"avx512f", "avx512_bf16"})) if need <= flags]


def conform(folder, pack, *args):
    r = json.loads(tool("od-bench", "conform", "--golden", folder, "--pack", pack, "--json", *args).stdout)
    assert r["n_fail"] == 0 and r["n_conform"] == len(PROMPTS), r
    return r["prompts"]


def both(folder, small, wide, *args):
    """To the last digit of the errors, and every token."""
    a, b = conform(folder, small, *args), conform(folder, wide, *args)
    assert a == b, (args, a, b)
    return a


@test
def unpacked_are_the_published_bytes():
    for kind in KINDS:
        small, wide = packs(kind)
        for path in (small, wide):
            tool("od-pack", "verify", path, "--against", path[:-len(".pack")])
        assert pr.Pack(small).tensors == read_weights(small[:-len(".pack")])
        said = json.loads(tool("od-pack", "info", "--json", small).stdout)
        assert said["expert_dtype"] == kind and said["expert_raw_bytes"] == said["expert_weights"]
        assert 5 < said["bits_per_weight"] < 8, said


@test
def logits_and_tokens_are_those_of_the_same_values():
    for kind in KINDS:
        small, wide = packs(kind)
        folder = golden(kind)
        first = both(folder, small, wide, "--resident", "--cpu", "scalar")
        assert all(0 < p["max_logit_error"] < 1e-4 and p["tokens_compared"] >= min(TOKENS, 3) for p in first), first
        for cpu in cpus()[1:]:
            assert both(folder, small, wide, "--resident", "--cpu", cpu, "--threads", 2, "--prefill-rows", 7) == first, cpu
        assert both(folder, small, wide, "--local", 2, "--threads", 1) == first


def text(pack, *args):
    r = json.loads(tool("od-main", "--pack", pack, "--json", "--prompt", "A king", "--max-tokens", TOKENS, *args).stdout)
    return r["token_ids"]


@test
def profile_bf16_too():
    """Rows are rounded there, so tokens are those of the profile, and one kernel class's own."""
    for kind in KINDS:
        small, wide = packs(kind)
        of_class = {}
        for cpu in cpus():
            ids = text(small, "--resident", "--profile", "bf16", "--cpu", cpu)
            assert ids == text(wide, "--resident", "--profile", "bf16", "--cpu", cpu), cpu
            assert ids == of_class.setdefault(cpu == "avx512bf16", ids), cpu
        assert text(small, "--local", 2, "--profile", "bf16", "--threads", 1) == of_class[max(of_class)]


@test
def a_cache_keeps_what_has_no_sm_bytes():
    checkpoint = os.path.join(TMP, "larger")
    tool("od-bench", "synth", checkpoint, "--preset", "tiny", "--hidden", 256, "--intermediate", 512, "--dtype", "f8_e4m3")
    tool("od-pack", checkpoint, checkpoint + ".pack")
    worker = Daemon("worker", "--slots", 1, "--cache-mib", 2, pack_dir=checkpoint + ".pack")
    args = ["--workers", hosts_file([worker])]
    assert text(checkpoint + ".pack", *args) == text(checkpoint + ".pack", "--resident")
    assert worker.alive()


@test
def planes_are_refused_by_name():
    p = tool("od-main", "--pack", packs(KINDS[0])[0], "--resident", "--resident-form", "planes", "--prompt", "A", ok=False)
    assert "F8_E4M3 weights" in p.stderr and "--resident-form bf16" in p.stderr, p.stderr


run_tests()
