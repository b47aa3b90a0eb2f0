#!/usr/bin/env python3
"""Predicts the speed of many texts that share a memory budget with the experts (FluxMoE, arXiv 2604.02715, section 4.3), from measured
rates. Standard library.

  od-bench texts --pack PACK --budgets 1000 --splits bf16,planes --texts 1,4,16,64,256 ... --json > resident.json
  tests/bench/report/texts_model.py resident.json [MORE.json]... [--disk GBPS] [--budgets LIST] [--texts LIST] [--contexts LIST]

The files have steps of texts whose experts are all in memory: for each number of texts the time of a step, in each form. A context that was
not measured is interpolated, or extrapolated, by the time that a position takes. A step of B texts

- computes for t(B, context),
- reads U(B) * max(0, E - (M - B * K / 2)) bytes: of all E bytes of experts, those that the budget M does not hold beside B texts, of which each has
  half of its context on average (K bytes at the end), as far as rows choose them: U(B) = 1 - (1 - k/n)^B,
- takes the longer of both, because loads go on while others are computed.

bf16, planes: all experts stay, texts wait until there is room for a whole context. fixed: the best share of the budget for experts. moving: as
many texts as are best, and experts in all memory that these have not taken yet."""
import argparse
import json
import math


def numbers(text):
    return [int(x) for x in text.split(",")]


class Rates:
    """Times of steps by form, number of texts and context."""

    def __init__(self, paths):
        self.at = {}  # (form, context) -> {texts: seconds}
        for path in paths:
            with open(path) as f:
                r = json.load(f)
            self.plain, self.planes, self.disk = r["plain_bytes"], r["planes_bytes"], r["disk_gbps"] * 1e9
            context = r["tokens"] + r["prompt_tokens"]
            self.kv = r["text_bytes"] / -(-context // 64) / 64  # bytes of a position
            for row in r["by_split"]:
                mean = r["prompt_tokens"] + r["tokens"] / 2
                self.at.setdefault((row["split"], mean), {})[row["running"]] = row["running"] / row["tok_per_s"]

    def of_measured(self, form, mean, b):
        t = sorted(self.at[form, mean].items())
        if b <= t[0][0]:
            return t[0][1] * max(b / t[0][0], 1e-9) if b < 1 else t[0][1]
        for (b0, t0), (b1, t1) in zip(t, t[1:]):
            if b <= b1:
                break
        x = (b - b0) / (b1 - b0)
        return t0 + (t1 - t0) * x

    def step(self, form, b, mean):
        known = sorted(m for f, m in self.at if f == form)
        if len(known) > 1:
            m0, m1 = known[0], known[-1]
            t0, t1 = self.of_measured(form, m0, b), self.of_measured(form, m1, b)
            return max(t0 * 0.5, t0 + (t1 - t0) * (mean - m0) / (m1 - m0))
        other = "planes" if form == "bf16" else "bf16"  # a position takes as long in either
        far = sorted(m for f, m in self.at if f == other)
        d = self.step(other, b, mean) - self.step(other, b, known[0]) if len(far) > 1 else 0
        return self.of_measured(form, known[0], b) + d


def predict(r, a, budget, n, context):
    memory, text = r.plain * budget / 100, r.kv * context
    # A text in progress has half of its tokens on average.
    mean = a.prompt + (context - a.prompt) / 2

    def union(b):
        return 1 - (1 - a.top_k / a.experts) ** b

    def rate(form, b, experts):
        need = r.plain if form == "bf16" else r.planes
        # What is stored is as large as planes.
        read = union(b) * max(0.0, 1 - experts / need) * r.planes
        return b / max(r.step(form, b, mean), read / r.disk)

    def resident(form):
        b = min(n, int((memory - (r.plain if form == "bf16" else r.planes)) // text))
        return (b, rate(form, b, float("inf"))) if b >= 1 else (0, 0.0)

    least = a.top_k * r.planes / a.moe / a.experts

    def fixed():
        best = (0, 0.0, 0)
        for percent in range(1, 100):
            b = min(n, int(memory * (1 - percent / 100) // text))
            if b >= 1 and memory * percent / 100 >= least:
                best = max(best, (b, rate("planes", b, memory * percent / 100), percent), key=lambda x: x[1])
        return best

    def moving():
        most = min(n, int((memory - least) // text))
        return max(((b, max(rate("planes", b, memory - b * text / 2),
                            rate("bf16", b, memory - b * text / 2) if memory - b * text >= r.plain else 0))
                    for b in range(1, most + 1)), key=lambda x: x[1], default=(0, 0.0))

    return resident("bf16"), resident("planes"), fixed(), moving()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+")
    p.add_argument("--disk", type=float, help="GB/s; default: as measured in the last file")
    p.add_argument("--budgets", type=numbers, default=[30, 50, 70, 90, 110])
    p.add_argument("--texts", type=numbers, default=[1, 4, 16, 64, 256])
    p.add_argument("--contexts", type=numbers, default=[1024, 4096])
    p.add_argument("--prompt", type=int, default=16)
    p.add_argument("--moe", type=int, default=8, help="MoE layers")
    p.add_argument("--experts", type=int, default=16)
    p.add_argument("--top-k", type=int, default=2)
    a = p.parse_args()
    r = Rates(a.files)
    if a.disk:
        r.disk = a.disk * 1e9
    print(f"experts {r.plain / 2**20:.0f} MiB as BF16, {r.planes / 2**20:.0f} MiB as planes; a position {r.kv / 1024:.1f} KiB; disk {r.disk / 1e9:.2f} GB/s\n")
    head = "".join(f" {c} tokens: bf16 | planes | fixed | moving | / bf16 | / planes | / fixed |" for c in a.contexts)
    print(f"| budget | texts |{head}\n|---|---|{'---|' * 7 * len(a.contexts)}")

    def over(x, y):
        return f"{x[1] / y[1]:.2f}" if y[1] > 0 else "-"

    def cell(x):
        return f"{x[1]:.0f} ({x[0]})" if x[0] else "-"

    for budget in a.budgets:
        for n in a.texts:
            row = ""
            for context in a.contexts:
                plain, planes, fixed, moving = predict(r, a, budget, n, context)
                row += " " + " | ".join([*(cell(x) for x in (plain, planes, fixed, moving)),
                                         *(over(moving, x) for x in (plain, planes, fixed))]) + " |"
            print(f"| {budget} % | {n} |{row}")


if __name__ == "__main__":
    main()
