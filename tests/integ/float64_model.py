"""An independent forward pass, in float64: golden folders for od-bench conform made from a checkpoint, and what tests
that use them share. Standard library only."""
import json
import math
import os
import platform
import struct

import pack_reader as pr
import tiny_checkpoint as tc
from cluster_util import tool

MACHINE = os.environ.get("MACHINE", platform.machine())  # what the programs run on, emulated or not


def read_weights(path):
    return tc.read_safetensors(os.path.join(path, "model.safetensors"))


class Model:
    """A Mixtral in float64, one position after the other. prior: (lambda, kept experts, recent experts) of od-main's --routing cache-prior
    ("Mixture of Cache-Conditional Experts", arXiv 2412.00099, section 3.3)."""

    def __init__(self, path, prior=None):
        self.prior = prior
        with open(os.path.join(path, "config.json")) as f:
            self.c = json.load(f)
        self.w = {}
        for name, (dtype, shape, raw) in read_weights(path).items():
            v, n = pr.decode(dtype, raw), shape[-1]
            self.w[name] = v if len(shape) == 1 else [v[i:i + n] for i in range(0, len(v), n)]
        self.forget()

    def forget(self):
        self.keys, self.values, self.ranges, self.used = [[[] for _ in range(self.c["num_hidden_layers"])] for _ in range(4)]

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

    def ranked(self, layer, logits):
        """All experts, the best first, and the probabilities by which they are."""
        order = sorted(range(len(logits)), key=lambda e: -logits[e])
        if self.prior is None:
            return order, softmax(logits)
        by, keep, recent = self.prior
        kept, ranges = order[:keep], self.ranges[layer]
        ranges.append(max(logits) - min(logits))
        cached = set(kept + self.used[layer][:recent])
        raised = [z + (by * sum(ranges) / len(ranges) if e in cached else 0) for e, z in enumerate(logits)]
        return kept + sorted(set(order) - set(kept), key=lambda e: -raised[e]), softmax(raised)

    def experts(self, layer, p, x):
        logits, k = self.times(p + "gate", x), self.c["num_experts_per_tok"]
        prob, (order, decides) = softmax(logits), self.ranked(layer, logits)
        out = [0.0] * len(x)
        # The newest first; of one position's that of the least weight, so that of the most is evicted before the others.
        self.used[layer] = sorted(order[:k], key=lambda e: prob[e]) + [e for e in self.used[layer] if e not in order[:k]]
        for e in order[:k]:
            q = p + "experts.%d." % e
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(self.times(q + "w1", x), self.times(q + "w3", x))]
            weight = prob[e] / sum(prob[i] for i in order[:k])
            out = [o + weight * v for o, v in zip(out, self.times(q + "w2", inner))]
        return out, order[:k], decides[order[k - 1]] - decides[order[k]]

    def step(self, token):
        """Logits, the experts of each layer, and by how much they were chosen."""
        x, routes, margins = self.w["model.embed_tokens.weight"][token], [], []
        for layer in range(self.c["num_hidden_layers"]):
            p = "model.layers.%d." % layer
            y = self.attention(layer, p + "self_attn.", self.norm(p + "input_layernorm", x))
            x = list(map(float.__add__, x, y))
            y, chosen, margin = self.experts(layer, p + "block_sparse_moe.", self.norm(p + "post_attention_layernorm", x))
            x = list(map(float.__add__, x, y))
            routes.append(chosen)
            margins.append(margin)
        return self.times("lm_head", self.norm("model.norm", x)), routes, margins


def softmax(x):
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def golden(path, checkpoint, prompts, max_tokens, prior=None):
    """A folder for od-bench conform, made from a checkpoint in one file that has no scales."""
    entries, m = [], Model(checkpoint, prior)
    os.makedirs(path)
    for i, prompt in enumerate(prompts):
        tokens, steps, margins = [], [], []
        m.forget()
        while len(tokens) < max_tokens and tokens[-1:] != [2]:
            steps += [m.step(t) for t in (tokens[-1:] if steps else prompt)]
            best = sorted(range(m.c["vocab_size"]), key=lambda t: -steps[-1][0][t])[:2]
            tokens.append(best[0])
            margins.append(steps[-1][0][best[0]] - steps[-1][0][best[1]])
        n, layers, vocab = len(prompt), range(m.c["num_hidden_layers"]), m.c["vocab_size"]
        entries.append({
            "name": "p%d" % i, "prompt_ids": prompt, "greedy_ids": tokens, "margins": margins,
            "routes_prefill": [[s[1][l] for s in steps[:n]] for l in layers],
            "routes_decode": [s[1] for s in steps[n:]],
            "route_margin_prefill": [[s[2][l] for s in steps[:n]] for l in layers],
            "route_margin_decode": [s[2] for s in steps[n:]], "logits_file": "p%d.f32" % i, "logits_shape": [n, vocab]})
        with open(os.path.join(path, "p%d.f32" % i), "wb") as f:
            f.write(struct.pack("<%df" % (vocab * n), *(v for s in steps[:n] for v in s[0])))
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
    """Per prompt what od-bench conform says, when all of them conform to the last token."""
    r = json.loads(tool("od-bench", "conform", "--golden", folder, "--pack", pack, "--json", *args).stdout)
    assert r["n_fail"] == 0 and r["n_conform"] == r["n_prompts"] > 0, r
    return r["prompts"]
