#!/usr/bin/env python3
"""generation_config.json beyond sampling: tokens that it suppresses are never drawn, greedy or sampled, in one process or on a cluster with
drafts; what changes texts and is not done is said by od-pack and at the start."""
import json
import os
import shutil
import subprocess

from cluster_util import BIN, CHECKPOINT, HANG_S, TMP, pack, run_tests, test, tool

PROMPT = "Once upon a time there was a king"
SAMPLED = ["--temperature", "0.9", "--seed", "7"]


def pack_of(name, config, ok=True):
    path = os.path.join(TMP, name)
    shutil.copytree(CHECKPOINT, path)
    file = os.path.join(path, "generation_config.json")
    old = json.load(open(file)) if os.path.exists(file) else {}
    json.dump({**old, **config}, open(file, "w"))
    p = tool("od-pack", path, path + ".pack", ok=ok)
    return path + ".pack", p.stderr


def write(pack_dir, *args, mode=("--resident",), **fields):
    """The tokens, and what od-main said."""
    path = os.path.join(TMP, "prompts.jsonl")
    with open(path, "w") as f:
        f.write(json.dumps({"prompt": PROMPT, "max_tokens": 40, **fields}) + "\n")
    p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack_dir, "--json", "--prompts", path, "--ignore-eos", *mode, *args],
                       capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["token_ids"], p.stderr


@test
def suppressed_tokens_are_never_drawn():
    for name, args in ("greedy", []), ("sampled", SAMPLED):
        plain = write(pack(), *args)[0]
        banned = sorted(set(plain))[:12]
        expected = write(pack(), *args, logit_bias={str(t): -100 for t in banned})[0]  # as good as never
        assert not set(expected) & set(banned) and expected != plain
        for field, value in ("suppress_tokens", banned), ("bad_words_ids", [[t] for t in banned]):
            pack_dir, _ = pack_of(f"{name}-{field}", {field: value})
            for mode in ("--resident",), ("--local", "2"), ("--local", "2", "--draft", "lookup"), ("--local", "2", "--draft", "4"):
                assert write(pack_dir, *args, mode=mode)[0] == expected, (name, field, mode)
            favoured = write(pack_dir, *args, logit_bias={str(banned[0]): 100})[0]
            assert banned[0] not in favoured, favoured


@test
def what_is_not_done_is_said():
    fields = {"no_repeat_ngram_size": 3, "typical_p": 0.9, "begin_suppress_tokens": [5], "stop_strings": ["x"], "min_new_tokens": 4,
              "bad_words_ids": [[3], [4, 5]], "num_beams": 4, "forced_eos_token_id": 0, "guidance_scale": 1.5, "epsilon_cutoff": 0.1}
    pack_dir, said = pack_of("not-done", {"do_sample": True, **fields})
    for text in said, write(pack_dir)[1]:
        for name in fields:
            assert f'generation_config.json: field "{name}" is not done here' in text, (name, text)
    neutral = {"no_repeat_ngram_size": 0, "typical_p": 1.0, "begin_suppress_tokens": None, "stop_strings": [], "min_new_tokens": None,
               "bad_words_ids": [[3]], "num_beams": 1, "forced_eos_token_id": None, "guidance_scale": 1.0, "encoder_repetition_penalty": 1.0,
               "suppress_tokens": [7, 10**9, -1], "length_penalty": 0.5, "use_cache": True, "max_length": 20, "top_k": -1, "do_sample": True}
    pack_dir, said = pack_of("neutral", neutral)
    assert "is not done here" not in said + write(pack_dir)[1], said
    assert "is not done here" not in pack_of("greedy-only", {"do_sample": False, "typical_p": 0.5})[1]


@test
def nonsense_is_refused():
    for i, (field, value) in enumerate([("suppress_tokens", 5), ("suppress_tokens", ["a"]), ("bad_words_ids", [5]), ("bad_words_ids", [["a"]])]):
        _, said = pack_of(f"nonsense-{i}", {field: value}, ok=False)
        assert f'field "{field}": expected a list' in said, said


if __name__ == "__main__":
    run_tests()
