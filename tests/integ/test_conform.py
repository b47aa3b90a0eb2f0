#!/usr/bin/env python3
"""od-bench conform: the engine against an independent implementation, and what it says of goldens that are wrong.
Expected values are the golden files' own; each damage is made here and must be found where it was made."""
import copy
import glob
import json
import os
import platform
import shutil
import struct

import tiny_checkpoint
from cluster_util import BIN, SLOW, TMP, Skip, generate, pack, run_tests, test, tool

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
TALEBOOK = os.path.join(GOLDEN, "talebook")
FAMILIES = os.path.join(GOLDEN, "families")
SUPPORTED = sorted(n for n in os.listdir(FAMILIES) if os.path.isdir(os.path.join(FAMILIES, n)))
MACHINE = os.environ.get("MACHINE", platform.machine())  # what the programs run on, emulated or not


def load(folder):
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def cut(entry, tokens):
    """The first tokens of an entry, as if the reference had been asked for fewer."""
    e = copy.deepcopy(entry)
    e["greedy_ids"] = e["greedy_ids"][:tokens]
    e["margins"] = e["margins"][:tokens]
    for field in ("routes_decode", "route_margin_decode"):
        e[field] = e[field][:tokens - 1]
    if tokens < len(entry["greedy_ids"]):
        e.pop("greedy_text", None)
    return e


def write(name, entries, source=TALEBOOK):
    """A golden folder of these entries; logits files are copied, so that they can be damaged."""
    path = os.path.join(TMP, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for e in entries:
        for field in ("logits_file", "decode_logits_file", "hidden_file"):
            if e.get(field):
                shutil.copyfile(os.path.join(source, e[field]), os.path.join(path, e[field]))
    with open(os.path.join(path, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(entries, f)
    return path


def conform(golden, *args, model=None, status=0):
    p = tool("od-bench", "conform", "--golden", golden, "--pack", model or pack(), "--json", *args, ok=None)
    assert p.returncode == status, f"{args}: status {p.returncode}\n{p.stdout}\n{p.stderr}"
    return json.loads(p.stdout) if p.stdout else p.stderr


def needs(cpu):
    """The flags of /proc/cpuinfo, not our own detection."""
    flags = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"}}.get(cpu, set())
    with open("/proc/cpuinfo") as f:
        have = set(next((line for line in f if line.startswith("flags")), "").split())
    if not flags <= have:
        raise Skip(f"this CPU has no {cpu}")


def entry(name):
    return next(e for e in talebook if e["name"] == name)


def short(*names, tokens=12):
    return [cut(entry(n), tokens) for n in names]


def difference(report, name, kind="failure"):
    return next(d["where"] for d in report["differences"] if d["name"] == name and d["kind"] == kind)


def synthetic(name, *more):
    """The pack of a folder's synthetic model; more options make it another model."""
    with open(os.path.join(GOLDEN, name, "synth.txt")) as f:
        options = f.read().split()
    path = os.path.join(TMP, "-".join([name, *more]))
    if not os.path.isdir(path + ".pack"):
        tool("od-bench", "synth", path, *options, *more)
        tool("od-pack", path, path + ".pack")
    return path + ".pack"


@test
def talebook_conforms_in_full():
    entries = talebook if not SLOW else short("once16", "held128b", "one")
    r = conform(write("full", entries), "--resident")
    assert r["n_prompts"] == r["n_conform"] == len(entries) and r["n_fail"] == r["n_tie"] == 0
    assert "differences" not in r
    assert r["summary"] == f"{len(entries)} of {len(entries)} prompts conform, 0 of them up to a tie"
    for e, row in zip(entries, r["prompts"]):
        assert row["name"] == e["name"] and row["prompt_tokens"] == len(e["prompt_ids"])
        assert row["tokens_compared"] == row["greedy_tokens"] == len(e["greedy_ids"])
        has_logits = e.get("logits_file") is not None
        assert (row["max_logit_error"] is not None) == has_logits
        # Sums in another order differ by a little, but they do differ.
        assert not has_logits or 0 < row["max_logit_error"] < 1e-4, row
    assert r["max_logit_error"] == max(row["max_logit_error"] or 0 for row in r["prompts"])


def same_bits_on(cpu, rounds, **kw):
    """Profile f32 promises the same bits everywhere, so the errors too must be equal to the last digit."""
    needs(cpu)
    golden = write(f"bits-{cpu}", short("once16", "utf8", **kw))
    expected = conform(golden, "--resident", "--resident-form", "bf16", "--threads", 1)["prompts"]
    for threads, rows in rounds:
        for form in ("bf16", "planes"):
            found = conform(golden, "--resident", "--resident-form", form, "--cpu", cpu, "--threads", threads,
                            "--prefill-rows", rows)
            assert found["prompts"] == expected and found["n_conform"] == 2, (cpu, form, threads, rows)


@test
def scalar():
    same_bits_on("scalar", [(2, 7)], tokens=4)


if MACHINE == "aarch64":
    @test
    def neon():
        same_bits_on("neon", [(1, 256), (2, 7), (1, 1)])
else:
    @test
    def avx2():
        same_bits_on("avx2", [(1, 256), (2, 7), (1, 1), (2, 256)])

    @test
    def avx512():
        same_bits_on("avx512", [(1, 7), (2, 1), (2, 256)])


@test
def synthetic_models_conform():
    for name in ("synth_f16", "synth_f32"):
        golden = os.path.join(GOLDEN, name)
        for args in (["--threads", 1, "--prefill-rows", 7], ["--threads", 2], ["--cpu", "scalar", "--prefill-rows", 1]):
            r = conform(golden, "--resident", *args, model=synthetic(name))
            assert r["n_conform"] == len(load(golden)) and 0 < r["max_logit_error"] < 1e-4, (name, args, r)
        ends = next(e for e in load(golden) if e["name"] == "ends")
        assert ends["greedy_ids"][-1] == 2 and len(ends["greedy_ids"]) < 40  # one that stops by itself


def family(name):
    """The pack of a tiny checkpoint."""
    path = os.path.join(TMP, name + ".pack")
    if not os.path.isdir(path):
        tool("od-pack", os.path.join(FAMILIES, name), path)
    return path


@test
def families_conform():
    for name in SUPPORTED:
        golden = os.path.join(FAMILIES, name)
        for args in (["--resident", "--threads", 1], ["--resident", "--prefill-rows", 7], ["--resident", "--cpu", "scalar"],
                     ["--local", 2, "--threads", 1],
                     ["--local", 3, "--threads", 1, "--draft", 4, "--prefill-rows", 3]):
            if "--local" in args and not os.path.exists(os.path.join(BIN, "od-worker")):
                continue
            r = conform(golden, *args, model=family(name))
            entries = load(golden)
            assert r["n_conform"] == len(entries) and r["n_tie"] == r["n_rank_ties"] == 0, (name, args, r)
            for e, row in zip(entries, r["prompts"]):
                assert row["tokens_compared"] == len(e["greedy_ids"])
                assert 0 < row["max_logit_error"] < 1e-4 and 0 < row["max_weight_error"] < 3e-5, (name, args, row)


@test
def a_text_part_conforms():
    """Of a model that takes pictures too."""
    name = os.path.join(FAMILIES, "qwen3_5_moe_stacked")
    with open(os.path.join(name, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    tens = {}
    for file in glob.glob(os.path.join(name, "*.safetensors")):
        tens |= tiny_checkpoint.read_safetensors(file)
    path = os.path.join(TMP, "pictures")
    outer, tens = tiny_checkpoint.multimodal(cfg, tens, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
    tiny_checkpoint.write_checkpoint(path, outer, dict(tens, **{"model.visual.norm.weight": ("BF16", [2], b"\1\2\3\4")}))
    shutil.copy(os.path.join(name, "tokenizer.json"), path)
    tool("od-pack", path, path + ".pack")
    for args in (["--resident"], ["--local", 2, "--threads", 1]):
        if "--local" in args and not os.path.exists(os.path.join(BIN, "od-worker")):
            continue
        r = conform(name, *args, model=path + ".pack")
        assert r["n_conform"] == len(load(name)) and 0 < r["max_logit_error"] < 1e-4, r


@test
def talebook_fine_conforms():
    golden = os.path.join(GOLDEN, "talebook-fine")
    pack = os.path.join(TMP, "talebook-fine.pack")
    tool("od-pack", os.path.join(HERE, "..", "..", "deploy", "models", "talebook-fine"), pack)
    names = [e["name"] for e in load(golden) if len(e["prompt_ids"]) < (20 if SLOW else 1024)]
    entries = [e for e in load(golden) if e["name"] in names]
    for args in (["--resident"], ["--local", 3, "--threads", 1]):
        if "--local" in args and not os.path.exists(os.path.join(BIN, "od-worker")):
            continue
        r = conform(write("fine", entries, golden), *args, model=pack)
        assert r["n_conform"] == len(entries) >= 2 and r["n_tie"] == r["n_rank_ties"] == 0, (args, r)
        assert all(0 < row["max_logit_error"] < 1e-4 for row in r["prompts"]), (args, r)


@test
def od_main_writes_what_the_reference_wrote():
    e = entry("wolf")
    n = 24 if SLOW else len(e["greedy_ids"])
    r = generate("--resident", prompt=e["prompt_text"], tokens=n)
    assert r["prompt_ids"] == e["prompt_ids"] and r["token_ids"] == e["greedy_ids"][:n]
    assert e["greedy_text"].startswith(r["text"].rstrip("\ufffd")) and len(r["text"]) > 2 * n


@test
def another_model_does_not():
    golden = os.path.join(GOLDEN, "synth_f16")
    r = conform(golden, "--resident", model=synthetic("synth_f16", "--seed", "9"), status=1)
    assert r["n_fail"] == 3 and all(" position 0" in d["where"] for d in r["differences"]), r
    # A window of 23 instead of 24 shows at the first position that can tell, the 24th, whatever the chunks are.
    for rows in (1, 256):
        r = conform(golden, "--resident", "--prefill-rows", rows, status=1,
                    model=synthetic("synth_f16", "--sliding-window", "23"))
        assert " position 23" in difference(r, "window"), r


@test
def a_cluster_conforms():
    for name in ("od-worker", "od-shadow"):
        if not os.path.exists(os.path.join(BIN, name)):
            raise Skip(f"{name} is not built")
    golden = write("cluster", short("wolf", "one"))
    expected = conform(golden, "--resident")["prompts"]
    assert conform(golden, "--local", 2, "--threads", 1)["prompts"] == expected


@test
def any_of_several_ends_ends_a_text():
    """Tokens that end a text are a number or a list, in config.json and in generation_config.json; all of them count."""
    source = os.path.join(FAMILIES, "mixtral_top3")
    e = load(source)[1]
    ids = e["greedy_ids"]
    cut = next(i for i in range(4, 11) if ids[i] not in ids[:i])
    for name, in_config, in_generation in (("list", [287, 288, ids[cut]], None), ("more", 287, [288, ids[cut]]),
                                           ("one", [287, 288], ids[cut]), ("earlier", [287, ids[cut]], [ids[cut + 1], 288]),
                                           ("none", [287, 288], [287])):
        path = os.path.join(TMP, "ends-" + name)
        shutil.copytree(source, path)
        with open(os.path.join(path, "config.json"), "r+", encoding="utf-8") as f:
            config = json.load(f) | {"eos_token_id": in_config}
            f.seek(0)
            f.truncate()
            json.dump(config, f)
        with open(os.path.join(path, "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump({"do_sample": False} | ({} if in_generation is None else {"eos_token_id": in_generation}), f)
        tool("od-pack", path, path + ".pack")
        options = ["--resident", "--pack", path + ".pack"]
        r = generate(*options, prompt=e["prompt_text"], tokens=len(ids))
        if name == "none":
            assert r["finish"] == "length" and r["token_ids"] == ids, (name, r)
            continue
        assert r["finish"] == "eos" and r["token_ids"] == ids[:cut + 1], (name, r)
        r = generate(*options, "--ignore-eos", prompt=e["prompt_text"], tokens=len(ids))
        assert r["finish"] == "length" and r["token_ids"] == ids, (name, r)


def damage(name, change, status=1, *args, entries=("wolf", "held16a")):
    """Runs two prompts after a change to the first; the second conforms in any case."""
    es = short(*entries)
    change(es[0])
    r = conform(write(name, es), "--resident", *args, status=status)
    assert r["prompts"][1]["result"] == "conforms"
    return r


@test
def a_changed_token_is_found():
    def change(e):
        e["greedy_ids"][5] += 1
        e["margins"][5] = margin

    margin = 0.001
    r = damage("token", change)
    wanted, real = entry("wolf")["greedy_ids"][5] + 1, entry("wolf")["greedy_ids"][5]
    assert f"token 5: expected id {wanted}, found {real}; the reference's margin is 0.001" in difference(r, "wolf")
    assert r["prompts"][0]["result"] == "FAILS" and r["prompts"][0]["tokens_compared"] == 5 and r["n_fail"] == 1
    margin = 0.0009
    r = damage("token", change, 0)
    assert f"token 5: expected id {wanted}" in difference(r, "wolf", "tie")
    assert r["prompts"][0]["result"] == "tie" and r["prompts"][0]["ties"] == 1 and r["n_tie"] == 1 and r["n_fail"] == 0


@test
def a_changed_route_is_found():
    def prefill(e):
        e["routes_prefill"][3][7][1] = other
        e["route_margin_prefill"][3][7] = margin

    def decode(e):
        e["routes_decode"][4][10][0] = next(x for x in range(8) if x not in e["routes_decode"][4][10])
        e["route_margin_decode"][4][10] = margin

    real = entry("wolf")["routes_prefill"][3][7]
    other = next(x for x in range(8) if x not in real)
    margin = 1e-5
    where = f"prefill position 7, layer 3: expected experts {real[0]},{other}, found {real[0]},{real[1]}"
    r = damage("route", prefill)
    assert where in difference(r, "wolf") and r["prompts"][0]["tokens_compared"] == 0
    r = damage("route", decode)
    assert "decode step 4 (position 15), layer 10: expected experts" in difference(r, "wolf")
    assert r["prompts"][0]["tokens_compared"] == 5
    margin = 9e-6
    r = damage("route", prefill, 0)
    assert where in difference(r, "wolf", "tie") and r["prompts"][0]["result"] == "tie"
    r = damage("route", decode, 0)
    assert "decode step 4" in difference(r, "wolf", "tie")


@test
def a_changed_order_is_found():
    def change(e):
        e["routes_prefill"][2][4].reverse()
        e["route_margin_prefill"][2][4] = 0  # says nothing about the order

    r = damage("order", change)
    assert "prefill position 4, layer 2" in difference(r, "wolf") and "another order" in difference(r, "wolf")


@test
def a_changed_logit_is_found():
    es = short("wolf", "held16a")
    golden = write("logit", es)
    at = (6 * 4096 + 1234) * 4
    with open(os.path.join(golden, es[0]["logits_file"]), "r+b") as f:
        f.seek(at)
        (value,) = struct.unpack("<f", f.read(4))
        for change, status in ((1e-4, 0), (3e-4, 1), (float("nan"), 1)):
            f.seek(at)
            f.write(struct.pack("<f", value + change))
            f.flush()
            r = conform(golden, "--resident", status=status)
            if change == 1e-4:
                assert 0.8e-4 < r["prompts"][0]["max_logit_error"] < 1.2e-4
                conform(golden, "--resident", "--tolerance", "5e-5", status=1)
                continue
            assert "logits of prompt position 6: vocabulary index 1234: expected " in difference(r, "wolf")
            assert r["prompts"][0]["tokens_compared"] == 0 and r["prompts"][1]["result"] == "conforms"


def damage_family(name, change, where, *args):
    """The prompt `ten` of a tiny checkpoint after a change, to its entry or its files; the one before it conforms."""
    source = os.path.join(FAMILIES, "mixtral_top3")
    one, ten, _ = load(source)
    golden = write(name, [one, ten], source)
    change(ten, golden)
    with open(os.path.join(golden, "golden.json"), "w", encoding="utf-8") as f:
        json.dump([one, ten], f)
    r = conform(golden, "--resident", *args, model=family("mixtral_top3"), status=1 if where else 0)
    assert r["prompts"][0]["result"] == "conforms"
    if where:
        assert where in difference(r, "ten"), difference(r, "ten")
    return r


def add_to_logit(file, row, by):
    """Adds a part of the row's largest magnitude to its tenth logit."""
    def change(_, golden):
        with open(os.path.join(golden, file), "r+b") as f:
            f.seek(row * 296 * 4)
            values = list(struct.unpack("<296f", f.read(296 * 4)))
            values[10] += by * max(map(abs, values))
            f.seek(row * 296 * 4)
            f.write(struct.pack("<296f", *values))

    return change


@test
def damage_to_the_longer_form_is_found():
    def token(e, _):
        e["greedy_ids"][3] += 1

    def expert(e, _):
        e["routes_decode"][4][1][2] = next(x for x in range(6) if x not in e["routes_decode"][4][1])

    def order(e, _):
        e["routes_prefill"][1][5][1:] = e["routes_prefill"][1][5][:0:-1]

    def weight(by):
        def change(e, _):
            e["route_weight_prefill"][1][6][0] *= 1 + by
        return change

    def decode_weight(e, _):
        e["route_weight_decode"][2][0].reverse()

    damage_family("nothing", lambda e, _: None, None)
    damage_family("token", token, "token 3: expected id ")
    damage_family("expert", expert, "decode step 4 (position 14), layer 1: expected experts ")
    damage_family("order", order, "prefill position 5, layer 1: expected experts ")
    damage_family("weight", weight(5e-5), None)
    damage_family("weight", weight(2e-4), "prefill position 6, layer 1: router weight of expert ")
    damage_family("weight", weight(2e-4), None, "--relative-tolerance", "1e-3")
    damage_family("weights", decode_weight, "decode step 2 (position 12), layer 0: router weight of expert ")
    for file, row, where in (("logits_ten.f32", 7, "logits of prompt position 7: vocabulary index 10: expected "),
                             ("decode_logits_ten.f32", 0, "logits of token 0: vocabulary index 10: expected "),
                             ("decode_logits_ten.f32", 11, "logits of token 11: vocabulary index 10: expected ")):
        damage_family("logit", add_to_logit(file, row, 5e-5), None)
        damage_family("logit", add_to_logit(file, row, -2e-4), where)
        damage_family("logit", add_to_logit(file, row, 5e-5), where, "--relative-tolerance", "2e-5")
        damage_family("logit", add_to_logit(file, row, 5e-5), where, "--tolerance", "1e-4")


@test
def a_dense_layer_where_the_model_has_experts_is_refused():
    source = os.path.join(FAMILIES, "mixtral_top3")
    entries = load(source)
    entries[0]["routes_prefill"][1] = [[] for _ in entries[0]["prompt_ids"]]
    message = conform(write("dense", entries, source), "--resident", model=family("mixtral_top3"), status=1)
    assert "field \"routes_prefill[1][0]\": expected a list of 3 experts, the model's top-k, found a list of 0" in message


@test
def changed_texts_are_found():
    def prompt(e):
        e["prompt_text"] = e["prompt_text"][:-1]

    r = damage("prompt", prompt)
    assert "prompt_text, encoded:" in difference(r, "wolf")
    e = copy.deepcopy(entry("one"))
    e["greedy_text"] = "X" + e["greedy_text"][1:]
    r = conform(write("text", [e]), "--resident", status=1)
    assert "greedy_text: expected" in difference(r, "one") and "at byte 0" in difference(r, "one")
    assert r["prompts"][0]["tokens_compared"] == len(e["greedy_ids"])


@test
def going_past_the_end_is_followed():
    """A reference that does not stop at EOS: its tokens after it are compared too."""
    e = next(e for e in load(os.path.join(GOLDEN, "synth_f32")) if e["name"] == "ends")
    e["greedy_ids"].append(5)
    e["margins"].append(0.5)
    e["routes_decode"].append([[0], [0]])
    e["route_margin_decode"].append([0.5, 0.5])
    golden = write("past", [e], os.path.join(GOLDEN, "synth_f32"))
    r = conform(golden, "--resident", model=synthetic("synth_f32"), status=1)
    n = len(e["greedy_ids"]) - 1
    where = difference(r, "ends")
    assert f"decode step {n - 1} (position {n + 3})" in where or f"token {n}: expected id 5, found" in where, where
    assert r["prompts"][0]["tokens_compared"] == n


@test
def a_prompt_beyond_the_context_fails_alone():
    golden = write("ctx", short("held128b", "one"))
    r = conform(golden, "--resident", "--ctx-size", 138, status=1)
    words = "its 128 tokens of prompt and 12 generated ones need a context of 139, there are 138"
    assert words in difference(r, "held128b") and r["prompts"][1]["result"] == "conforms"
    assert conform(golden, "--resident", "--ctx-size", 139)["n_conform"] == 2
    long = cut(entry("one"), 1)
    n = 1030  # talebook was made for 1024
    long["prompt_ids"] = [1] * n
    long.pop("prompt_text", None)
    long["routes_prefill"] = [[[0, 1]] * n] * 12
    long["route_margin_prefill"] = [[0.5] * n] * 12
    r = conform(write("long", [long, *short("one")]), "--resident", status=1)
    assert "need a context of 1030, there are 1024" in difference(r, "one") and r["prompts"][1]["result"] == "conforms"


@test
def folders_that_do_not_fit_are_refused():
    def refused(entries, words, **kw):
        message = conform(write("bad", entries), "--resident", status=1, **kw)
        assert words in message, message

    refused([], "expected a list of at least one prompt, found an empty list")
    refused(short("one"), "entry 0 (\"one\"): field \"greedy_ids[0]\": expected a token id, 0 to 269, found ",
            model=synthetic("synth_f32"))
    e, = short("wolf")
    refused([{**e, "routes_prefill": e["routes_prefill"][1:]}],
            "(\"wolf\"): field \"routes_prefill\": expected a list of 12 layers, as the model has, found a list of 11")
    refused([{**e, "prompt_ids": [1, 4096]}], "field \"prompt_ids[1]\": expected a token id, 0 to 4095, found 4096")
    refused([{**e, "logits_shape": [11, 4095]}], "field \"logits_shape[1]\": expected 4096, the model's vocabulary")
    refused([{**e, "routes_decode": e["routes_decode"][1:]}], "field \"routes_decode\": expected a list of 11 steps")
    golden = write("bad", [e])
    os.truncate(os.path.join(golden, e["logits_file"]), 1000)
    assert "expected 180224 bytes (11 positions of 4096 float32), found 1000" in conform(golden, "--resident", status=1)
    os.unlink(os.path.join(golden, e["logits_file"]))
    assert f"cannot open {golden}/{e['logits_file']}" in conform(golden, "--resident", status=1)
    assert "golden.json" in conform(os.path.join(TMP, "nowhere"), "--resident", status=1)


@test
def usage():
    for args, words in (([], "--golden is missing"),
                        (["--golden", TALEBOOK, "--resident", "--tolerance", "x"], "--tolerance"),
                        (["--golden", TALEBOOK, "--resident", "--nonsense"], "--nonsense"),
                        (["--golden", TALEBOOK, "--resident", "stray"], "stray")):
        p = tool("od-bench", "conform", *args, ok=None)
        assert p.returncode == 2 and words in p.stderr and p.stdout == "", (args, p.stderr)
    p = tool("od-bench", "conform", "--help")
    assert "--golden DIR" in p.stdout and "--resident" in p.stdout and "--relative-tolerance" in p.stdout
    p = tool("od-bench", "conform", "--golden", write("text", short("one")), "--pack", pack(), "--resident")
    assert "conforms" in p.stdout and p.stderr == "" and not p.stdout.startswith("{")


if __name__ == "__main__":
    talebook = load(TALEBOOK)
    run_tests()
