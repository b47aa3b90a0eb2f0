#!/usr/bin/env python3
"""The prefix cache of od-main serve: a follow-up turn computes only what is new, after a restart too; whatever is there, or is
wrong with it, the answer is that of a server that keeps nothing, log probabilities included."""
import atexit
import concurrent.futures
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import tempfile

from cluster_util import BIN, HANG_S, TMP, Skip, pack, run_tests, test, tool
from serve_util import Server, stop_servers

atexit.register(stop_servers)
PAGE = 64
STORY = ("Once upon a time there was a king who had three sons, of whom two were clever and wise, but the third did not "
         "speak much, and was simple, and was called the Simpleton. When the king had become old and weak, and was thinking of his end, "
         "he did not know which of his sons should inherit the kingdom after him. Then he said to them: Go forth, and he who "
         "brings me the most beautiful carpet shall be king after my death. ")
TURNS = [" The eldest said: ", " But the Simpleton was sad, and sat down. ", " After a while the king said to them all: "]
_cold = {}


def cold(profile="f32"):
    """A server that keeps nothing."""
    if profile not in _cold:
        _cold[profile] = Server("--prefix-cache-mib", 0, "--profile", profile, "--parallel", 16)
    return _cold[profile]


def ids_of(server, text):
    return server.ask("/tokenize", {"content": text})[2]["tokens"]


def ask(server, prompt, tokens=70, **fields):
    """(text and log probabilities, cached tokens, prompt tokens)"""
    o = server.complete(prompt, tokens, ignore_eos=True, logprobs=2, **{"temperature": 0, **fields})
    u = o["usage"]
    c = o["choices"][0]
    return (c["text"], c["logprobs"]), u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"]


def same_begin(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def talk(server, reference, turns=TURNS, begin=STORY, **fields):
    """A conversation; all answers are the reference's. Per turn: cached tokens; tokens of prompts and answers until then that
    this prompt begins with; tokens of the prompt."""
    text, known, seen = begin, [], []
    for turn in turns:
        text += turn
        ids = ids_of(server, text)
        answer, cached, n = ask(server, text, **fields)
        assert answer == ask(reference, text, **fields)[0], (turn, cached)
        bos = n - len(ids)
        assert bos in (0, 1)
        seen.append((cached, bos + max([same_begin(ids, k) for k in known] + [-1]), n))
        text += answer[0]
        known += [ids, ids_of(server, text)]
    return seen


def folder(name):
    return tempfile.mkdtemp(dir=TMP, prefix=name)


def files(path):
    return sorted(glob.glob(os.path.join(path, "kv-*", "*.kv")))


# ---- Memory ----


@test
def a_follow_up_turn_computes_only_what_is_new():
    for mode, profile in (["--resident"], "f32"), (["--resident"], "bf16"), (["--local", "2"], "f32"):
        server = Server("--profile", profile, mode=mode)
        seen = talk(server, cold(profile))
        print("#", *mode, profile, "cached, same begin, prompt:", seen, flush=True)
        assert seen[0][0] == 0
        for cached, same, n in seen[1:]:
            # The last token of an answer was never passed through the model, and tokens may join at the seam of two turns.
            assert same // PAGE * PAGE >= cached >= (same - 10) // PAGE * PAGE > 0 and n - cached < 3 * PAGE, seen
        assert server.metric("od_main_shared_prompt_tokens_total") == sum(s[0] for s in seen)
        assert server.stop() == 0, server.log


@test
def sampled_texts_too():
    server = Server(mode=("--local", "2"))
    for seed in 1, 2:
        seen = talk(server, cold(), temperature=1.2, seed=seed, repetition_penalty=1.2, frequency_penalty=0.3)
        assert seen[-1][0] >= 2 * PAGE, seen
    assert server.stop() == 0, server.log


@test
def log_probabilities_of_a_prompt_are_computed():
    server = Server()
    fields = {"echo": True, "logprobs": 1, "temperature": 0}
    want = cold().complete(STORY, 3, **fields)["choices"]
    for _ in range(2):
        o = server.complete(STORY, 3, **fields)
        assert o["choices"] == want and o["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(server, STORY + "Then")[1] >= PAGE
    server.stop()


@test
def the_budget_is_kept():
    page_kib = 12 * 2 * 128 * 4 * PAGE // 1024
    server = Server("--prefix-cache-mib", 3)  # four pages
    texts = [f"{w} {STORY} {STORY[:200]}" for w in ("Long ago,", "Here", "There", "It is said:")]
    assert page_kib == 768 and all(2 * PAGE < len(ids_of(server, t)) < 3 * PAGE - 20 for t in texts)
    for t in texts:
        assert ask(server, t, 10)[1] == 0
    for t in texts[:2]:
        assert ask(server, t, 10)[1] == 0, "it was used longest ago"
    assert ask(server, texts[1], 10)[1] == ask(server, texts[0], 10)[1] == 2 * PAGE
    server.stop()
    p = subprocess.run([os.path.join(BIN, "od-main"), "serve", "--pack", pack(), "--resident", "--prefix-cache", folder("none"),
                        "--prefix-cache-mib", "0"], capture_output=True, text=True)
    assert p.returncode == 2 and "--prefix-cache needs --prefix-cache-mib" in p.stderr, p.stderr


@test
def sixteen_at_once_get_what_each_gets_alone():
    rng = random.Random(5)
    words = "king queen bird wood house child wolf golden water night".split()
    for args, mode in (("--prefix-cache-mib", 2), ("--resident",)), (("--prefix-cache-mib", 64), ("--local", "2")):
        server = Server("--parallel", 16, *args, mode=mode)
        prompts = []
        for i in range(48):
            prompts.append(STORY[:100 + 120 * rng.randrange(4)] + " ".join(rng.choices(words, k=rng.randrange(90))))
            if i % 3 == 0:
                prompts[-1] = rng.choice(prompts)
        reference = cold()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            want = list(pool.map(lambda p: ask(reference, p, 12)[0], prompts))
            got = list(pool.map(lambda p: ask(server, p, 12), prompts))
        assert [g[0] for g in got] == want
        print("#", *mode, "shared", sum(g[1] for g in got), "of", sum(g[2] for g in got), flush=True)
        assert sum(g[1] for g in got) > 0
        assert server.stop() == 0, server.log


@test
def recurrent_state_is_computed_again_without_snapshots():
    server = Server("--snapshot-mib", 0, program="../tests/od-main-sum")
    server.wait_for("prefix cache: off, because the model has recurrent state, and --snapshot-mib is 0")
    want = ask(server, STORY, 8)
    assert want[1] == 0 and ask(server, STORY, 8) == want
    server.stop()


@test
def recurrent_state_of_answers_is_shared():
    server, want = Server(program="../tests/od-main-sum"), Server("--prefix-cache-mib", 0, program="../tests/od-main-sum")
    ids = ids_of(server, "a bird bird")[-2:]
    assert ids[0] == ids[1]
    # The model's own answers are noise, which is tokenised anew in another way.
    seen = talk(server, want, turns=[t.rstrip() for t in TURNS], logit_bias={str(ids[0]): 100})
    print("# cached, same begin, prompt:", seen, flush=True)
    assert seen[0][0] == 0 and all(same // PAGE * PAGE >= cached >= (same - 10) // PAGE * PAGE > 0 for cached, same, _ in seen[1:])
    assert server.stop() == 0, server.log
    want.stop()


def qwen3_next():
    """A pack of random weights that takes texts of 1024 tokens."""
    out = os.path.join(TMP, "qwen3_next.pack")
    if not os.path.exists(out):
        checkpoint = shutil.copytree("tests/golden/families/qwen3_next_plain", os.path.join(TMP, "qwen3_next"))
        with open(os.path.join(checkpoint, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(checkpoint, "config.json"), "w") as f:
            json.dump(dict(config, max_position_embeddings=1024), f)
        tool("od-pack", checkpoint, out)
    return out


@test
def recurrent_state_is_shared_where_texts_part():
    want = Server("--prefix-cache-mib", 0, pack_dir=qwen3_next())
    where = folder("recurrent")
    for mode in ("--resident",), ("--local", "2"):
        begin = mode[0] + STORY
        server = Server("--prefix-cache", where, pack_dir=qwen3_next(), mode=mode)
        seen = talk(server, want, begin=begin)
        print("#", *mode, "cached, same begin, prompt:", seen, flush=True)
        # Such answers are noise, and are tokenised anew in another way.
        assert seen[0][0] == 0 and all(cached >= (n - 1) // PAGE * PAGE > 0 for (_, _, n), (cached, _, _) in zip(seen, seen[1:]))
        assert talk(server, want, begin=begin)[0][0] >= 2 * PAGE
        assert server.stop() == 0, server.log
        for flipped in False, True:
            states = sorted(glob.glob(os.path.join(where, "kv-*", "*.fs")))
            assert states, os.listdir(where)
            for f in states if flipped else []:
                with open(f, "r+b") as b:
                    b.seek(-100, 2)
                    byte = b.read(1)
                    b.seek(-1, 1)
                    b.write(bytes([byte[0] ^ 4]))
            server = Server("--prefix-cache", where, pack_dir=qwen3_next(), mode=mode)
            seen = talk(server, want, begin=begin)
            print("#", *mode, "after a restart, flipped" if flipped else "after a restart:", seen, flush=True)
            assert (seen[0][0] == 0) == flipped, seen
            assert server.stop() == 0, server.log
            assert not flipped or re.search("deleted .*fs: .*checksum is wrong", server.log), server.log
    want.stop()


# ---- Files ----


@test
def a_restart_forgets_nothing():
    where = os.path.join(folder("restart"), "made", "here")
    for mode in ("--resident",), ("--local", "2"):
        server = Server("--prefix-cache", where, mode=mode)
        talk(server, cold(), begin=mode[0] + STORY)
        assert server.stop() == 0, server.log
        assert stat.S_IMODE(os.stat(where).st_mode) == 0o700
        assert files(where) and all(stat.S_IMODE(os.stat(f).st_mode) == 0o600 for f in files(where))
        server = Server("--prefix-cache", where, mode=mode)
        seen = talk(server, cold(), begin=mode[0] + STORY)
        print("#", *mode, "after a restart:", seen, flush=True)
        assert all(n - cached < 2 * PAGE for cached, _, n in seen), seen
        assert seen[0][0] > 0 and server.metric("od_main_restored_prompt_tokens_total") >= 2 * PAGE, seen
        assert server.stop() == 0, server.log


@test
def sixteen_at_once_after_a_restart():
    where = folder("many")
    prompts = [STORY + f"There were {i} of them. " + STORY for i in range(16)]
    reference = cold()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        want = list(pool.map(lambda p: ask(reference, p, 12)[0], prompts))
        for restart in range(3):
            server = Server("--parallel", 8, "--prefix-cache", where, "--prefix-cache-mib", 48)
            got = list(pool.map(lambda p: ask(server, p, 12), prompts))
            assert [g[0] for g in got] == want
            restored = server.metric("od_main_restored_prompt_tokens_total")
            print("# restored", restored, "shared", sum(g[1] for g in got), "of", sum(g[2] for g in got), flush=True)
            assert (restored == 0) == (restart == 0)
            assert server.stop() == 0, server.log


def filled(name):
    """A folder with one conversation."""
    where = folder(name)
    server = Server("--prefix-cache", where)
    talk(server, cold())
    server.stop()
    return where


@test
def a_flipped_bit_gives_the_cold_answer():
    where = filled("bit")
    rng = random.Random(1)
    n = len(files(where))
    assert n >= 4
    for place in [5, 20, 130, 200] + [rng.randrange(700000) for _ in range(4)] + [-1]:
        for f in files(where):
            with open(f, "r+b") as b:
                b.seek(place if place >= 0 else os.path.getsize(f) + place)
                byte = b.read(1)
                b.seek(-1, 1)
                b.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
        server = Server("--prefix-cache", where)
        seen = talk(server, cold())
        assert seen[0][0] == 0 and server.metric("od_main_restored_prompt_tokens_total") == 0, (place, seen)
        server.stop()
        assert len(files(where)) == n, "written again"
        if not 0 <= place < 108:  # what says whose file it is, for which it is deleted or left at the start
            assert re.search("deleted .*(checksum is wrong|header is not|another text)", server.log), server.log


@test
def files_that_are_cut_or_gone_are_no_trouble():
    where = filled("cut")
    for change in (lambda f: os.truncate(f, 0)), (lambda f: os.truncate(f, 1000)), os.unlink, \
                  (lambda f: shutil.copy(files(where)[0], f) if f != files(where)[0] else None):
        for f in files(where):
            change(f)
        server = Server("--prefix-cache", where)
        talk(server, cold())
        server.stop()
    server = Server("--prefix-cache", where)
    ask(server, STORY, 5)
    for f in files(where):  # while it runs
        os.unlink(f)
    talk(server, cold())
    server.stop()


@test
def models_and_profiles_have_a_folder_each():
    where = filled("model")
    other = os.path.join(TMP, "fine.pack")
    tool("od-pack", "deploy/models/talebook-fine", other)
    with open(os.path.join(where, "letter.txt"), "w") as f:
        f.write("mine")
    before = files(where)
    want = Server("--prefix-cache-mib", 0, pack_dir=other)
    one = Server("--prefix-cache", where)
    two = Server("--prefix-cache", where, pack_dir=other)  # at once
    assert talk(two, want)[0][0] == 0
    assert two.metric("od_main_restored_prompt_tokens_total") == 0
    assert talk(one, cold())[0][0] > 0
    assert one.metric("od_main_restored_prompt_tokens_total") > 0
    for server in one, two, want:
        server.stop()
    assert set(before) <= set(files(where))
    for profile, there in ("bf16", False), ("f32", True), ("bf16", True):  # nor are numbers of one profile those of the other
        server = Server("--prefix-cache", where, "--profile", profile)
        assert (talk(server, cold(profile))[0][0] > 0) == there, profile
        server.stop()
    assert os.listdir(where).count("letter.txt") == 1


@test
def a_second_server_of_the_model_is_refused_and_a_killed_one_leaves_no_lock():
    where = filled("locked")
    one = Server("--prefix-cache", where)
    second = [os.path.join(BIN, "od-main"), "serve", "--pack", pack(), "--resident", "--listen", "127.0.0.1:0", "--prefix-cache", where]
    p = subprocess.run(second, capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1, p.stderr
    assert f"another od-main of this model (process {one.p.pid}) uses {os.path.realpath(where)}/kv-" in p.stderr, p.stderr
    assert "give this one another folder" in p.stderr, p.stderr
    assert talk(one, cold())[0][0] > 0
    one.stop(signal.SIGKILL)
    two = Server("--prefix-cache", where)
    assert talk(two, cold())[0][0] > 0
    two.stop()


@test
def a_full_disk_costs_only_the_files():
    where = folder("full")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "none", where], capture_output=True).returncode != 0:
        raise Skip("no file system may be mounted here")
    try:
        server = Server("--prefix-cache", where)
        with open(os.path.join(where, "fill"), "wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(bytes(1 << 16))
        seen = talk(server, cold())
        assert seen[1][0] > 0, "in memory it is kept"
        server.wait_for("No space left on device; pages are kept in memory only")
        server.stop()
        assert server.log.count("pages are kept in memory only") == 1 and files(where) == [], server.log
        server = Server("--prefix-cache", where)
        assert talk(server, cold())[0][0] == 0
        os.unlink(os.path.join(where, "fill"))
        server.stop()
    finally:
        subprocess.run(["umount", "-l", where], check=True)


@test
def a_folder_that_others_can_read_is_refused():
    where = folder("open")
    os.chmod(where, 0o755)
    p = subprocess.run([os.path.join(BIN, "od-main"), "serve", "--pack", pack(), "--resident", "--listen", "127.0.0.1:0",
                        "--prefix-cache", where], capture_output=True, text=True)
    assert p.returncode == 1 and "has mode 755, expected 700" in p.stderr, p.stderr


run_tests()
