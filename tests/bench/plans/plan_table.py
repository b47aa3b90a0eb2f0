#!/usr/bin/env python3
"""The README's table of planned speeds: od-plan with the published shapes in models/ on the clusters described here. Nothing in it is measured.

    tests/bench/plans/plan_table.py [OD_PLAN]     OD_PLAN: build/bin/od-plan
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTERS = [("four Orin NX, 16 GB", "orins.txt"), ("RTX 3090 and two mini PCs", "rtx_and_minis.txt"), ("OD-MoE's ten machines", "od_moe_ten.txt")]
SHORT = {"main's compute": "main", "main's reads": "main's reads", "workers' compute": "workers", "reads of experts": "reads", "the network": "network",
         "round trips": "round trips", "the shadow's compute": "shadow", "nothing alone": "several"}


def rate(value):
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def seconds(value):
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def figure(plan, **wanted):
    return next((f for f in plan["figures"] if all(f.get(k) == v for k, v in wanted.items())), None)


def cell(plan):
    if not plan["fits"]:
        host = next(h for h in plan["hosts"] if not h["memory"]["fits"])
        missing = (host["memory"]["need_bytes"] - host["memory"]["limit_bytes"]) / 2**30
        return f"no: {host['role']} lacks {missing:.1f} GiB"
    plain = figure(plan, figure="tokens_per_second", texts=1, drafts=False)
    drafts = figure(plan, figure="tokens_per_second", texts=1, drafts=True)
    first = figure(plan, figure="seconds_to_first_token", prompt_tokens=128)
    text = rate(plain["value"]) + (f", {rate(drafts['value'])} with drafts" if drafts else "")
    return f"{text}; {seconds(first['value'])}; {SHORT[plain['limit']]}"


def plan(od_plan, model, hosts):
    p = subprocess.run([od_plan, model, hosts, "--profile", "bf16", "--json"], capture_output=True, text=True)
    if p.returncode > 1 or not p.stdout:
        sys.exit(f"{model}, {hosts}: {p.stderr}")
    return json.loads(p.stdout)


def without_shadow(hosts, folder):
    path = os.path.join(folder, "hosts.txt")
    with open(hosts) as f, open(path, "w") as out:
        out.writelines(line for line in f if not line.startswith("shadow"))
    return path


def planned(od_plan, model, hosts, folder):
    """A shadow that cannot hold a copy is left out."""
    p = plan(od_plan, model, hosts)
    lacking = {h["role"] for h in p["hosts"] if not h["memory"]["fits"]}
    return cell(p) if lacking != {"shadow"} else cell(plan(od_plan, model, without_shadow(hosts, folder))) + "; no shadow"


def main():
    od_plan = sys.argv[1] if len(sys.argv) > 1 else "build/bin/od-plan"
    names = sorted(os.listdir(os.path.join(HERE, "models")), key=str.lower)
    print("| model | " + " | ".join(title for title, _ in CLUSTERS) + " |\n|---|" + "---|" * len(CLUSTERS))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            row = [planned(od_plan, os.path.join(HERE, "models", name), os.path.join(HERE, hosts), folder) for _, hosts in CLUSTERS]
            print(f"| {name.removesuffix('.json')} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
