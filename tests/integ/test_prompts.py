#!/usr/bin/env python3
"""od-main --prompts: many texts from a file, several at once. Every answer is the one that its prompt gets alone, whoever is
killed meanwhile; and a file that is not as it should be is refused before anything is written."""
import json
import os
import random
import subprocess

from cluster_util import (BIN, HANG_S, SLOW, TMP, Daemon, generate, hosts_file, pack, run_tests, test)

WORDS = ("once upon a time there was king who had three sons and the eldest went into dark forest to find golden bird that sang "
         "only at night").split()
N = 6 if SLOW else 16


def prompt_of(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words)).capitalize()


def some_prompts(seed):
    """Objects of 1 to some 900 tokens, greedy and sampled, with stops."""
    rng = random.Random(seed)
    lengths = [1, 880] + [rng.choice([1, 2, 5, 20, 60, 150, 400]) for _ in range(N - 2)]
    out = []
    for words in lengths:
        o = {"prompt": prompt_of(rng, words), "max_tokens": rng.choice([1, 4, 16, 30])}
        if rng.random() < 0.6:
            o |= {"temperature": rng.choice([0.7, 1.2]), "seed": rng.randrange(1000), "top_p": rng.choice([1, 0.9]),
                  "top_k": rng.choice([0, 50]), "min_p": rng.choice([0, 0.02])}
        if rng.random() < 0.3:
            o["stop"] = rng.choice([" the ", [" the ", " and"]])
        if rng.random() < 0.4:
            o |= rng.choice([{"dry_multiplier": 1.5, "dry_allowed_length": 1, "dry_base": 2}, {"xtc_probability": 0.5, "xtc_threshold": 0.05},
                             {"typical_p": 0.6, "top_n_sigma": 2}, {"dynatemp_range": 0.6, "dynatemp_exponent": 0.7},
                             {"dry_multiplier": 1, "dry_penalty_last_n": 500, "dry_sequence_breakers": ["e"]}])
        if rng.random() < 0.3:
            o |= {"frequency_penalty": rng.choice([-0.3, 0.9]), "presence_penalty": rng.choice([0, 0.5])}
        out.append(o)
    return out


def write(name, lines):
    path = os.path.join(TMP, name)
    with open(path, "w") as f:
        f.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def main(*args, stdin=None, pack_dir=None):
    return subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack_dir or pack(), *map(str, args)], capture_output=True,
                          text=True, timeout=HANG_S, input=stdin)


def answers(*args):
    p = main("--json", *args)
    assert p.returncode == 0, p.stderr
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert len({o["index"] for o in out}) == len(out)
    return {o["index"]: o for o in out}


_alone = {}


def alone(prompts):
    """What each prompt gets by od-main --prompt."""
    for o in prompts:
        key = json.dumps(o, sort_keys=True)
        if key in _alone:
            continue
        args = ["--resident"]
        for option in o:
            if option not in ("prompt", "max_tokens", "stop", "dry_sequence_breakers"):
                args += [f"--{option.replace('_', '-')}={o[option]}"]
        for stop in [o["stop"]] if isinstance(o.get("stop"), str) else o.get("stop", []):
            args += ["--stop", stop]
        for text in o.get("dry_sequence_breakers", []):
            args += ["--dry-sequence-breaker", text]
        _alone[key] = generate(*args, prompt=o["prompt"], tokens=o["max_tokens"])
    return [_alone[json.dumps(o, sort_keys=True)] for o in prompts]


def assert_alone(prompts, found):
    assert sorted(found) == list(range(1, len(prompts) + 1)), sorted(found)
    for i, (o, a) in enumerate(zip(prompts, alone(prompts)), 1):
        b = found[i]
        assert b["prompt"] == o["prompt"] and "error" not in b, b
        assert (b["token_ids"], b["text"], b["finish"]) == (a["token_ids"], a["text"], a["finish"]), (i, a, b)


@test
def resident_texts_are_those_of_each_prompt_alone():
    prompts = some_prompts(1)
    path = write("p1.jsonl", prompts)
    for n in 1, 5, N:
        assert_alone(prompts, answers("--resident", "--prompts", path, "--parallel", n))
    assert_alone(prompts, answers("--resident", "--prompts", path, "--parallel", N, "--prefill-rows", 7, "--cpu", "avx2"))


@test
def texts_on_a_local_cluster_are_too():
    prompts = some_prompts(2)
    path = write("p2.jsonl", prompts)
    assert_alone(prompts, answers("--local", 4, "--prompts", path, "--parallel", N))
    assert_alone(prompts, answers("--local", 3, "--prompts", path, "--parallel", 4, "--worker-arg", "--slots=1", "--state-memory",
                                  "24MiB"))


@test
def and_while_workers_and_the_shadow_are_killed():
    rng = random.Random(3)
    prompts = some_prompts(3)
    daemons = [Daemon("worker") for _ in range(4)] + [Daemon("shadow")]
    p = subprocess.Popen([os.path.join(BIN, "od-main"), "--pack", pack(), "--json", "--workers", hosts_file(daemons), "--prompts",
                          write("p3.jsonl", prompts), "--parallel", str(N)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = {}
    for line in p.stdout:  # whenever a text ends, somebody else does
        o = json.loads(line)
        found[o["index"]] = o
        d = rng.choice(daemons[1:])  # one worker stays
        d.restart()
    assert p.wait(timeout=HANG_S) == 0, p.stderr.read()
    assert_alone(prompts, found)
    for d in daemons:
        assert d.alive()
        d.kill()


@test
def a_terminal_gets_them_in_order():
    prompts = [{"prompt": "Once upon", "max_tokens": 20}, {"prompt": "The king", "max_tokens": 2}, {"prompt": "A bird", "max_tokens": 9}]
    p = main("--resident", "--prompts", write("p4.jsonl", ["", prompts[0], "  ", prompts[1], prompts[2]]), "--parallel", 3)
    assert p.returncode == 0, p.stderr
    texts = [a["text"] for a in alone(prompts)]
    assert p.stdout == "".join(f"==> line {n} <==\n{t}\n" for n, t in zip([2, 4, 5], texts)), p.stdout
    assert "3 texts" in p.stderr and "31 generated" in p.stderr, p.stderr
    assert "\npeak memory" not in p.stderr
    p = main("--resident", "--prompts", write("p4.jsonl", prompts), "--verbose")
    assert [line for line in p.stderr.splitlines() if line.startswith("tokens ")] == [
        f"tokens      {a['prompt_tokens']} prompt, {a['tokens']} generated" for a in alone(prompts)], p.stderr


@test
def options_say_what_lines_leave_open():
    lines = [{"prompt": "Once upon"}, {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "stop": []}]
    found = answers("--resident", "--prompts", write("p5.jsonl", lines), "--max-tokens", 12, "--temperature", 0.9, "--seed", 5)
    expected = generate("--resident", "--temperature", 0.9, "--seed", 5, prompt="Once upon", tokens=12)
    assert found[1]["token_ids"] == expected["token_ids"]
    assert found[2]["token_ids"] == generate("--resident", prompt="Once upon", tokens=3)["token_ids"]


@test
def prompts_come_by_standard_input_too():
    p = main("--resident", "--json", "--prompts", "-", stdin='{"prompt": "Once upon", "max_tokens": 2}\n')
    assert p.returncode == 0 and len(json.loads(p.stdout)["token_ids"]) == 2, (p.stdout, p.stderr)


GOOD = '{"prompt": "Once"}'
BAD = {
    "no JSON": ([GOOD, "", "{prompt: 1}"], ["line 3", "JSON"]),
    "no object": ([GOOD, "[1]"], ["line 2", "object"]),
    "cut off": ([GOOD, '{"prompt": "On'], ["line 2"]),
    "no prompt": ([GOOD, "{}"], ["line 2", "prompt"]),
    "a prompt that is no text": (['{"prompt": 3}'], ["line 1", "prompt", "string"]),
    "an unknown field": (['{"prompt": "a", "max_token": 3}'], ["line 1", "max_token", "max_tokens"]),
    "a field of another type": (['{"prompt": "a", "max_tokens": "3"}'], ["line 1", "max_tokens", "integer"]),
    "out of range": (['{"prompt": "a", "top_p": 1.5}'], ["line 1", "top_p"]),
    "a sampler out of range": (['{"prompt": "a", "typical_p": 1.5}'], ["line 1", "typical_p", "0 to 1"]),
    "a base below 1": (['{"prompt": "a", "dry_base": 0.5}'], ["line 1", "dry_base"]),
    "a breaker that is no text": (['{"prompt": "a", "dry_sequence_breakers": [3]}'], ["line 1", "dry_sequence_breakers"]),
    "a stop token that is none": (['{"prompt": "a", "stop_token_ids": [-1]}'], ["line 1", "stop_token_ids"]),
    "stop tokens that are no list": (['{"prompt": "a", "stop_token_ids": 7}'], ["line 1", "stop_token_ids", "array"]),
    "negative": (['{"prompt": "a", "max_tokens": -1}'], ["line 1", "max_tokens"]),
    "a seed that is none": (['{"prompt": "a", "seed": 1.5}'], ["line 1", "seed"]),
    "an empty stop": (['{"prompt": "a", "stop": ""}'], ["line 1", "stop"]),
    "stops that are no texts": (['{"prompt": "a", "stop": ["x", 1]}'], ["line 1", "stop"]),
    "a field twice": (['{"prompt": "a", "prompt": "b"}'], ["line 1"]),
    "an empty file": ([], ["no prompt"]),
    "blank lines": (["", "  ", ""], ["no prompt"]),
    "too long a prompt": ([GOOD, json.dumps({"prompt": "king " * 3000})], ["line 2", "context of 1024", "--ctx-size"]),
}


@test
def bad_files_are_refused_whole():
    for name, (lines, said) in BAD.items():
        p = main("--resident", "--json", "--prompts", write("bad.jsonl", lines))
        assert p.returncode == 1 and p.stdout == "", (name, p.stdout, p.stderr)
        assert all(s in p.stderr for s in said) and p.stderr.count("error:") == 1, (name, p.stderr)
    p = main("--resident", "--prompts", os.path.join(TMP, "nothing.jsonl"))
    assert p.returncode == 1 and "nothing.jsonl" in p.stderr, p.stderr
    p = main("--resident", "--prompts", TMP)
    assert p.returncode == 1 and "directory" in p.stderr, p.stderr
    p = main("--resident", "--prompts", write("good.jsonl", [{"prompt": "x"}]), pack_dir=os.path.join(TMP, "no-pack"))
    assert p.returncode == 1 and "no pack at" in p.stderr, p.stderr  # with SANITIZE=address also that nothing leaks


@test
def options_that_make_no_sense_are_refused():
    path = write("one.jsonl", [GOOD])
    for args, said in (["--prompts", path, "--prompt", "a"], "exclude"), (["--parallel", "2", "--prompt", "a"], "--prompts"), \
                      (["--prompts", path, "--parallel", "100000"], "1024"), (["--prompts", path, "--parallel", "0"], "--parallel"), \
                      (["--prompts", path, "--state-memory", "many"], "--state-memory"):
        p = main("--resident", *args)
        assert p.returncode == 2 and said in p.stderr, (args, p.stderr)
    p = main("--resident", "--prompts", path, "--state-memory", "1000")
    assert p.returncode == 1 and "--state-memory" in p.stderr and "64 tokens take" in p.stderr, p.stderr


@test
def a_text_that_never_fits_fails_and_the_others_go_on():
    lines = [{"prompt": "Once upon", "max_tokens": 5}, {"prompt": "king " * 300, "max_tokens": 5}, {"prompt": "The king", "max_tokens": 5}]
    p = main("--resident", "--json", "--prompts", write("p6.jsonl", lines), "--parallel", 2, "--state-memory", "2MiB")
    found = {o["index"]: o for o in map(json.loads, p.stdout.splitlines())}
    assert p.returncode == 1 and sorted(found) == [1, 2, 3], (p.stdout, p.stderr)
    assert "more than there is (1.5 MiB)" in found[2]["error"] and "error" not in found[1] and len(found[3]["token_ids"]) == 5, found


if __name__ == "__main__":
    run_tests()
