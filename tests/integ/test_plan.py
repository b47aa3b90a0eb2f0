#!/usr/bin/env python3
"""od-plan MODEL [HOSTS]: what it says of models in all forms, of hosts that lack something, and of plans that do not fit; and that daemons that
are started as it says take the memory that it says. Standard library only."""
import json
import os
import re
import shutil
import subprocess

import tiny_checkpoint as tc
from cluster_util import BIN, CHECKPOINT, SLOW, TMP, Daemon, Skip, hosts_file, pack, run_tests, test, tool, wait_for

HOSTS = """main m memory=1G speed=1 link=1G
worker a memory=80M read=1G speed=1 link=1G
worker b memory=80M read=1G speed=1 link=1G
shadow s memory=1G speed=4 link=1G
"""
SMALL = ("--ctx-size", 256)


def write(name, text):
    path = os.path.join(TMP, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def plan(model, hosts=None, status=0, ctx=256):
    p = tool("od-plan", model, *([write("hosts.txt", hosts)] if hosts else []), "--ctx-size", ctx, "--json", ok=None)
    assert p.returncode == status, (p.returncode, p.stderr)
    return json.loads(p.stdout)


def refused(status, *args):
    p = tool("od-plan", *args, ok=None)
    assert p.returncode == status and p.stdout == "", (p.returncode, p.stdout, p.stderr)
    assert p.stderr.startswith("od-plan: ") and p.stderr.count("\n") == 1, p.stderr
    return p.stderr


@test
def one_model_in_all_forms():
    """A pack, its checkpoint and its config.json give one plan; stored bytes of experts differ by a percent."""
    forms = [plan(m, HOSTS) for m in (pack(), CHECKPOINT, os.path.join(CHECKPOINT, "config.json"))]
    assert [f["model"]["source"] for f in forms] == ["pack", "checkpoint", "config"]
    for f in forms:
        assert f["fits"] and f["problems"] == [] and len(f["figures"]) == 7
        for key in ("weights", "active_weights", "pack_bytes", "dense_bytes", "kv_bytes_token"):
            assert f["model"][key] == forms[0]["model"][key], key
        assert abs(f["model"]["expert_stored_bytes"] / forms[0]["model"]["expert_stored_bytes"] - 1) < 0.015
        for host, as_pack in zip(f["hosts"], forms[0]["hosts"]):
            assert host["host"] == as_pack["host"] and host["memory"]["fits"]
            assert abs(host["memory"]["need_bytes"] / as_pack["memory"]["need_bytes"] - 1) < 0.02, (host, as_pack)
    size = sum(os.path.getsize(os.path.join(pack(), n)) for n in ("dense.bin", "experts.bin"))
    assert forms[0]["model"]["pack_bytes"] == size


# Billions of parameters, as the models' cards and papers have them.
PUBLISHED = {"DeepSeek-V2-Lite": 15.7, "DeepSeek-V3": 671, "GLM-4.5-Air": 106, "gpt-oss-120b": 116.8, "gpt-oss-20b": 20.9, "Mixtral-8x7B": 46.7,
             "OLMoE-1B-7B": 6.9, "Qwen3-235B-A22B": 235, "Qwen3-30B-A3B": 30.5, "Qwen3-Next-80B-A3B": 80}
MODELS = "tests/bench/plans/models"


@test
def published_sizes():
    """Weights are counted as their publishers count them, whatever the family; the plan itself need not fit for that."""
    assert sorted(os.listdir(MODELS)) == sorted(name + ".json" for name in PUBLISHED)
    for name, billions in PUBLISHED.items():
        p = plan(os.path.join(MODELS, name + ".json"), "main m memory=64M speed=1 read=1G\n", status=1)
        assert abs(p["model"]["weights"] / 1e9 / billions - 1) < 0.01, (name, p["model"]["weights"])


@test
def text_fits_a_screen():
    p = tool("od-plan", CHECKPOINT, write("hosts.txt", HOSTS), *SMALL)
    lines = p.stdout.splitlines()
    assert len(lines) <= 40, len(lines)
    for role, host in (("main", "m"), ("shadow", "s"), ("worker", "a"), ("worker", "b")):
        assert sum(line.split()[:2] == [role, host] for line in lines) == 1, (role, host)
    assert any(line.startswith("1 text, plain") and "tok/s" in line for line in lines)
    assert any(line.startswith("first token after 128") for line in lines)
    assert "od-worker --pack PACK --memory-limit 80M --slots " in p.stdout and "od-shadow --pack PACK --precision int8     # on s" in p.stdout
    assert re.search(r"^  od-main serve --workers HOSTS --pack PACK --group-size 2 --ctx-size 256 --parallel 16$", p.stdout, re.M), p.stdout


@test
def this_machine_alone():
    p = plan(pack())
    assert p["fits"] and [h["role"] for h in p["hosts"]] == ["main"] and p["kept_experts"] == p["all_experts"]
    assert not p["reads_assumed"] and plan(CHECKPOINT)["reads_assumed"]


@test
def ports_of_its_own():
    """Hosts that listen elsewhere have that in their line, and share it with no other."""
    text = HOSTS.replace("worker b ", "worker b:5711 ").replace("shadow s ", "shadow s:5712 ")
    p = tool("od-plan", CHECKPOINT, write("ports.txt", text), *SMALL)
    assert re.findall(r"od-(worker|shadow) .*?(?:--port (\d+) .*)?# on (\S+)$", p.stdout, re.M) == [
        ("worker", "", "a"), ("worker", "5711", "b:5711"), ("shadow", "5712", "s:5712")], p.stdout


@test
def parts_of_a_shadow():
    """Layers by memory, all of them, each once."""
    p = tool("od-plan", CHECKPOINT, write("parts.txt", HOSTS + "shadow t memory=2G speed=4 link=1G\n"), *SMALL)
    parts = re.findall(r"od-shadow --pack PACK --precision int8 --layers (\d+)-(\d+)     # on (\S+)", p.stdout)
    assert parts == [("0", "3", "s"), ("4", "11", "t")], p.stdout


@test
def main_alone_without_room_for_dense_weights():
    """A step reads them from the disk that its experts are on: what both take together is the disk's rate."""
    p = plan(os.path.join(MODELS, "Mixtral-8x7B.json"), "main m memory=2G speed=37 read=1G\n", ctx=1024)
    experts = 32 * 2 * p["model"]["expert_stored_bytes"]
    rate = next(f["value"] for f in p["figures"] if f["figure"] == "tokens_per_second" and f["texts"] == 1)
    assert p["kept_experts"] == 0 and p["dense_step_bytes"] > 2e9, p
    assert 0.97 < rate * (experts + p["dense_step_bytes"]) / 2 ** 30 < 1.01, (rate, experts, p["dense_step_bytes"])


@test
def a_path_that_is_no_text():
    """JSON has none but UTF-8."""
    folder = os.fsencode(TMP) + b"/bad\xff"
    os.makedirs(folder, exist_ok=True)
    shutil.copy(os.path.join(CHECKPOINT, "config.json"), os.fsdecode(folder))
    p = subprocess.run([os.path.join(BIN, "od-plan"), folder + b"/config.json", write("hosts.txt", HOSTS), "--json", *map(str, SMALL)], capture_output=True)
    assert p.returncode == 0 and "\ufffd" in json.loads(p.stdout)["model"]["name"], p.stderr


@test
def a_trace():
    path = os.path.join(TMP, "plan.trace")
    tool("od-plan", CHECKPOINT, write("hosts.txt", HOSTS), *SMALL, "--trace", path)
    with open(path) as f:
        text = f.read()
    events = json.loads(text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]")
    assert len(events) > 100


@test
def what_does_not_fit():
    p = plan(CHECKPOINT, HOSTS.replace("memory=80M", "memory=20M", 1), status=1)
    assert not p["fits"] and p["figures"] == [] and len(p["problems"]) == 1
    assert "worker a" in p["problems"][0]["what"] and "are missing" in p["problems"][0]["what"], p["problems"]
    assert p["problems"][0]["remedy"].startswith("memory="), p["problems"]
    text = tool("od-plan", CHECKPOINT, os.path.join(TMP, "hosts.txt"), *SMALL, ok=False).stdout
    assert "It does not fit:\n- worker a: " in text, text


@test
def bad_input():
    hosts = write("bad.txt", HOSTS)
    said = refused(2, CHECKPOINT, write("words.txt", "main m memory=1G speed=1 link=1G\nworker a memory=1G link=1G\n"))
    assert "words.txt line 2: worker a lacks read=, speed=: od-plan --check" in said, said
    said = refused(2, CHECKPOINT, write("mains.txt", HOSTS + "main n memory=1G\n"))
    assert "line 5: expected one main, found a second: the first is on line 1" in said, said
    assert "a shadow, and no worker" in refused(2, CHECKPOINT, write("alone.txt", "".join(
        line + "\n" for line in HOSTS.splitlines() if "worker" not in line)))
    assert "memory=: expected 1M to 512T" in refused(2, CHECKPOINT, write("unit.txt", HOSTS.replace("80M", "80")))
    assert "expected at most 1024" in refused(2, CHECKPOINT, hosts, "--ctx-size", 5000)
    assert "expected MODEL" in refused(2)
    assert "belong to --check" in refused(2, CHECKPOINT, "--write")
    assert "--check needs the pack" in refused(2, "--check", hosts, os.path.join(CHECKPOINT, "config.json"))
    assert "no pack at /nowhere" in refused(1, "/nowhere")
    assert "/nowhere" in refused(1, CHECKPOINT, "/nowhere")
    dense = write("dense.json", json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    assert "LlamaForCausalLM" in refused(1, dense, hosts)
    with open(os.path.join(CHECKPOINT, "config.json")) as f:
        config = json.load(f)
    assert "hidden_size" in refused(1, write("damaged.json", json.dumps({**config, "hidden_size": -5})), hosts)
    assert "not valid JSON" in refused(1, write("cut.json", json.dumps(config)[:100]), hosts)


@test
def a_download_that_has_only_begun():
    """A folder with config.json alone is planned; one with some of its shards is not taken for a whole one."""
    folder = os.path.join(TMP, "begun")
    tc.write_checkpoint(folder, tc.CONFIG, tc.tensors(tc.CONFIG, seed=3), shards=3)
    shards = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    assert plan(folder, HOSTS, ctx=32)["model"]["source"] == "checkpoint"
    os.remove(os.path.join(folder, shards[1]))
    assert shards[1] in refused(1, folder)
    alone = os.path.join(TMP, "config-alone")
    os.mkdir(alone)
    shutil.copy(os.path.join(folder, "config.json"), alone)
    assert plan(alone, HOSTS, ctx=32)["model"]["source"] == "config"


def resident_bytes(d):
    with open(f"/proc/{d.process.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:"))


@test
def a_worker_as_planned():
    """A worker that is started as planned has the slots and the cache that were planned, and stays within the memory that was."""
    host = next(h for h in plan(pack(), HOSTS)["hosts"] if h["role"] == "worker")
    d = Daemon("worker", "--memory-limit", "80M", "--slots", host["slots"], "--cache-mib", host["cache_mib"])
    try:
        wait_for(lambda: f"{host['slots']} slots of " in d.text(), d.text)
        assert resident_bytes(d) < host["memory"]["need_bytes"]
    finally:
        d.kill()


@test
def main_and_a_shadow_as_planned():
    """Texts that fill their contexts take the memory that was planned."""
    if SLOW:
        raise Skip("sanitizers take memory of their own")
    p = plan(pack(), HOSTS)
    planned = {h["role"]: h["memory"]["need_bytes"] for h in p["hosts"]}
    w, s = [Daemon("worker") for _ in range(2)], Daemon("shadow", "--precision", p["shadow"]["precision"])
    prompts = write("prompts.jsonl", "".join(json.dumps({"prompt": f"Once upon {i} time"}) + "\n" for i in range(p["texts"])))
    m = subprocess.Popen([os.path.join(BIN, "od-main"), "--workers", hosts_file([s, *w], "planned.txt"), "--pack", pack(), *map(str, SMALL), "--threads", "1",
                          "--prompts", prompts, "--parallel", str(p["texts"]), "--max-tokens", "240", "--ignore-eos"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(m.pid, 0)
    m.returncode = os.waitstatus_to_exitcode(status)
    assert m.returncode == 0
    found = {"main": used.ru_maxrss * 1024, "shadow": resident_bytes(s)}
    for role, bytes_ in found.items():
        assert 0.9 < bytes_ / planned[role] < 1.05, (role, bytes_, planned)
    for d in (*w, s):
        d.kill()


if __name__ == "__main__":
    run_tests()
