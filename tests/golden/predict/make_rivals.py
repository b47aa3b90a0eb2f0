#!/usr/bin/python3
"""Writes rivals.json beside this file: how many expert uses each of main's own predictors must foresee on talebook
(Debian: apt install python3-torch). tests/integ/test_rivals.py compares a live cluster with it.

The model runs here in float32 PyTorch; the predictors are written down from their definitions, every match searched
afresh over plain lists in float64. Nothing shares code with the product.
"""
import json
import math
import os
import struct

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKPOINT = os.path.join(HERE, "../../../deploy/models/talebook")
PROMPTS = ["once16", "wolf", "held16a", "utf8"]  # of ../talebook/golden.json, in this order in one process
TOKENS = 60  # generated for each; the last is not passed through the model
GATE_AHEAD, WAY_AHEAD, WAY_STORE = 4, 3, 1024


def read_checkpoint():
    with open(os.path.join(CHECKPOINT, "config.json")) as f:
        cfg = json.load(f)
    with open(os.path.join(CHECKPOINT, "model.safetensors"), "rb") as f:
        data = f.read()
    (size,) = struct.unpack_from("<Q", data)
    w = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            raw = bytearray(data[8 + size + begin:8 + size + end])
            w[name] = torch.frombuffer(raw, dtype=torch.bfloat16).reshape(t["shape"]).float()
    return cfg, w


class Model:
    """A Mixtral forward pass that tells what its routers saw and said."""

    def __init__(self):
        self.cfg, self.w = read_checkpoint()
        self.n_layers, self.k = self.cfg["num_hidden_layers"], self.cfg["num_experts_per_tok"]
        self.n_experts = self.cfg["num_local_experts"]

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.cfg["rms_norm_eps"]) * self.w[name]

    def router(self, layer, x):
        """Probabilities of the layer's router for rows as they are before its norm."""
        p = f"model.layers.{layer}."
        h = self.norm(x, p + "post_attention_layernorm.weight")
        return (h @ self.w[p + "block_sparse_moe.gate.weight"].T).softmax(-1)

    def turn(self, x, position):
        half = x.shape[-1] // 2
        inv = self.cfg["rope_theta"] ** (-torch.arange(half).float() / half)
        angle = position[:, None, None].float() * inv
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def attend(self, layer, x, position):
        p, d, heads = f"model.layers.{layer}.", self.cfg["head_dim"], self.cfg["num_attention_heads"]
        h = self.norm(x, p + "input_layernorm.weight")
        q, k, v = ((h @ self.w[f"{p}self_attn.{n}_proj.weight"].T).view(len(h), -1, d) for n in "qkv")
        self.past[layer][0].append(self.turn(k, position))
        self.past[layer][1].append(v)
        keys, values = (torch.cat(t).repeat_interleave(heads // k.shape[1], 1) for t in self.past[layer])
        score = torch.einsum("nhd,mhd->hnm", self.turn(q, position), keys) / math.sqrt(d)
        score = score.masked_fill(torch.arange(len(keys)) > position[:, None], -math.inf)
        out = torch.einsum("hnm,mhd->nhd", score.softmax(-1), values).reshape(len(h), -1)
        return out @ self.w[p + "self_attn.o_proj.weight"].T

    def experts(self, layer, x, probability):
        p = f"model.layers.{layer}."
        h, out = self.norm(x, p + "post_attention_layernorm.weight"), torch.zeros_like(x)
        weight, chosen = probability.topk(self.k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        for row in range(len(x)):
            for rank in range(self.k):
                q = f"{p}block_sparse_moe.experts.{chosen[row, rank]}."
                g = torch.nn.functional.silu(h[row] @ self.w[q + "w1.weight"].T) * (h[row] @ self.w[q + "w3.weight"].T)
                out[row] += weight[row, rank] * (g @ self.w[q + "w2.weight"].T)
        return out, chosen

    def forget(self):
        self.past = [([], []) for _ in range(self.n_layers)]
        self.length = 0

    def step(self, tokens):
        """Logits of the last row, and per row its token and per layer (row before the norm, probabilities, experts)."""
        position = torch.arange(len(tokens)) + self.length
        x, seen = self.w["model.embed_tokens.weight"][torch.tensor(tokens)], [(t, []) for t in tokens]
        for layer in range(self.n_layers):
            x = x + self.attend(layer, x, position)
            probability = self.router(layer, x)
            out, chosen = self.experts(layer, x, probability)
            for r in range(len(tokens)):
                seen[r][1].append((x[r], probability[r].double().numpy(), set(chosen[r].tolist())))
            x = x + out
        self.length += len(tokens)
        return self.norm(x[-1], "model.norm.weight") @ self.w["lm_head.weight"].T, seen


def best(model, score):
    """The k greatest scores, of equal ones the lower expert; nothing when nothing is known."""
    return set(np.argsort(-score, kind="stable")[:model.k].tolist()) if score.sum() > 0 else None


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b))) if a.any() and b.any() else 0.0


def newest_best(likeness):
    """Index of the greatest, of equal ones the last."""
    return max(range(len(likeness)), key=lambda i: (likeness[i], i))


class NextGate:
    def __init__(self, model):
        self.model = model

    def learn(self, token, ways):
        pass

    def end(self):
        pass

    def predict(self, token, ways, m):
        """What stands for layer m when its router is about to speak; ways: the layers so far."""
        return best(self.model, self.model.router(m, ways[-1][0]).double().numpy()) if m > 0 else None


class MultiGate(NextGate):
    """From up to GATE_AHEAD layers before; whoever is nearest has the last word."""

    def predict(self, token, ways, m):
        said = None
        for at in range(max(0, m - GATE_AHEAD), m):
            said = best(self.model, self.model.router(m, ways[at][0]).double().numpy())
        return said


class Popularity:
    def __init__(self, model):
        self.model, self.all = model, np.zeros((model.n_layers, model.n_experts))

    def learn(self, token, ways):
        for m, (_, _, used) in enumerate(ways):
            self.all[m, list(used)] += 1

    def end(self):
        pass

    def predict(self, token, ways, m):
        return best(self.model, self.all[m])


class History(Popularity):
    """The sequence's own shares of a layer and those of the sequence that is over and most like it."""

    def __init__(self, model):
        super().__init__(model)
        self.over = []

    def end(self):
        self.over.append(self.all)
        self.all = np.zeros_like(self.all)

    def predict(self, token, ways, m):
        now = self.all.copy()
        for layer, (_, _, used) in enumerate(ways):
            now[layer, list(used)] += 1
        score = now[m] / max(now[m].sum(), 1)
        if self.over:
            like = [np.mean([cosine(a, b) for a, b in zip(now, o)]) for o in self.over]
            match = self.over[int(np.argmax(like))]
            score = score + match[m] / match[m].sum()
        return best(self.model, score)


class Trajectory:
    def __init__(self, model):
        self.model, self.stored = model, []
        self.embed = model.w["model.embed_tokens.weight"].double().numpy()

    def learn(self, token, ways):
        self.stored = (self.stored + [(token, np.array([w[1] for w in ways]))])[-WAY_STORE:]

    def end(self):
        pass

    def predict(self, token, ways, m):
        if not self.stored:
            return None
        if m == 0:
            like = [2.0 if t == token else cosine(self.embed[token], self.embed[t]) for t, _ in self.stored]
        else:
            way = np.array([w[1] for w in ways])
            like = [cosine(way.ravel(), s[:m].ravel()) for _, s in self.stored]
        return best(self.model, self.stored[newest_best(like)][1][m])


def main():
    model = Model()
    with open(os.path.join(HERE, "../talebook/golden.json")) as f:
        prompts = {p["name"]: p for p in json.load(f)}
    rivals = {"next-gate": NextGate(model), "multi-gate": MultiGate(model), "popularity": Popularity(model),
              "history": History(model), "trajectory": Trajectory(model)}
    out = {"prompts": PROMPTS, "tokens": TOKENS, "rivals": {name: [] for name in rivals}}
    for name in PROMPTS:
        count = {r: {"predicted": 0, "recalled": 0} for r in rivals}
        model.forget()
        logits, seen = model.step(prompts[name]["prompt_ids"])
        for token, ways in seen:
            for r in rivals.values():
                r.learn(token, ways)
        for i in range(TOKENS - 1):
            token = int(logits.argmax())
            assert token == prompts[name]["greedy_ids"][i]
            logits, [(_, ways)] = model.step([token])
            for r in rivals:
                for m in range(model.n_layers):
                    said = rivals[r].predict(token, ways[:m], m)
                    if said is not None:
                        count[r]["predicted"] += model.k
                        count[r]["recalled"] += len(said & ways[m][2])
                rivals[r].learn(token, ways)
        for r in rivals:
            rivals[r].end()
            out["rivals"][r].append(count[r])
    with open(os.path.join(HERE, "rivals.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
