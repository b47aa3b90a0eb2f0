#!/usr/bin/env python3
"""A shadow over several hosts: its parts together predict what one shadow predicts, for every kind of layer state and alignment; a
shadow that fits no machine runs on two; parts may die and return; and what users are told when parts do not fit together.

A shadow of precision bf16 in profile f32 computes what main computes. So each of its predictions is right, whatever it is cut into,
and the whole model is the reference: recall is 1, and drafts are main's own tokens."""
import atexit
import itertools
import json
import os
import re
import signal
import subprocess
import time

from cluster_util import (BIN, CHECKPOINT, HANG_S, PROMPT, SLOW, TMP, Daemon, Lines, generate, hosts_file, main_args, pack, reference,
                          run_tests, test, tool)
from serve_util import Server, stop_servers

FAMILIES = "tests/golden/families"
atexit.register(stop_servers)
os.environ["OD_KEYS"] = os.path.join(TMP, "no-keys")  # nothing of this machine's


LAYERS = 12  # of the demo model


def family_pack(name):
    path = os.path.join(TMP, name + ".pack")
    if not os.path.exists(path):
        tool("od-pack", os.path.join(FAMILIES, name), path)
    return path


class Cluster:
    """Workers, and a shadow cut before each of `cuts`. precision: one for all parts, or one for each."""

    def __init__(self, pack_dir, n_layers, cuts, *args, workers=2, precision="bf16", load_ms=0):
        edges = [0, *cuts, n_layers]
        slow = ["--load-time", load_ms] if load_ms else []
        self.workers = [Daemon("worker", *slow, pack_dir=pack_dir) for _ in range(workers)]
        self.parts = [Daemon("shadow", "--precision", p, "--layers", f"{a}-{b - 1}", *args, pack_dir=pack_dir)
                      for a, b, p in zip(edges, edges[1:], itertools.cycle(precision.split()))]
        # The order of lines says nothing: each shadow says which layers it holds.
        self.hosts = hosts_file([*self.parts[::-1], *self.workers], f"parts{time.monotonic_ns()}.txt")

    def kill(self):
        for d in self.workers + self.parts:
            d.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def run(pack_dir, *args, prompt=PROMPT, tokens=48):
    argv = [os.path.join(BIN, "od-main"), "--pack", pack_dir, "--json", "--max-tokens", str(tokens), "--prompt", prompt,
            *map(str, args)]
    p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, (argv, p.stderr)
    return json.loads(p.stdout)


def predicted(pack_dir, hosts, *args, **kw):
    """Main does not wait for a shadow: on a busy machine it may be through before one had its turn."""
    for _ in range(60):
        r = run(pack_dir, "--workers", hosts, *args, **kw)
        if r["predicted_uses"] > 0:
            break
    return r


@test
def parts_predict_what_one_shadow_predicts():
    want = {p: run(pack(), "--resident", "--profile", p)["token_ids"] for p in ("f32", "bf16")}
    all_periods = (1, 1), (1, 4), (1, 0), (4, 1), (0, 1), (0, 0)
    for cuts, departure, some in ((1,), "early", all_periods[::3]), ((7,), "late", all_periods), ((2, 3, 10), "early", all_periods[::5]):
        with Cluster(pack(), LAYERS, cuts, "--departure", departure, load_ms=2) as c:
            for profile, periods in zip(itertools.cycle(("f32", "bf16")), some):
                r = predicted(pack(), c.hosts, "--profile", profile, "--align-token", periods[0], "--align-kv", periods[1])
                what = cuts, departure, profile, periods, r
                assert r["token_ids"] == want[profile], what
                assert r["predicted_uses"] > 0 and r["recall"] == 1, what


@test
def every_kind_of_state_is_cut():
    # MLA; windows and sinks; fixed state beside streams; two sizes of heads; a dense first layer; keys of other layers.
    for i, name in enumerate(("qwen3_next_plain", "deepseek_v2_lite", "gpt_oss_bf16", "gemma4_own_v", "qwen3_5_moe_stacked",
                              "gemma4_layer_inputs", "phimoe_crossing", "glm4_moe_air", "minimax_m2_plain")):
        pack_dir = family_pack(name)
        n = layers_of_family(name)
        want = run(pack_dir, "--resident", prompt="a b c d e f g h", tokens=40)["token_ids"]
        for cut in sorted({n // 2, (1, n - 1)[i % 2]}) if i % 3 == 0 else (n // 2,):
            with Cluster(pack_dir, n, (cut,), load_ms=2) as c:
                for more in (("--draft", 4), ("--align-kv", 0)) if i % 3 == 0 else ((), ("--draft", 4)):
                    r = predicted(pack_dir, c.hosts, *more, prompt="a b c d e f g h", tokens=40)
                    assert r["token_ids"] == want, (name, cut, more, r)
                    assert r["predicted_uses"] > 0 and r["recall"] == 1, (name, cut, more, r)


def layers_of_family(name):
    config = json.load(open(os.path.join(FAMILIES, name, "config.json")))
    return config.get("text_config", config)["num_hidden_layers"]


@test
def drafts_come_through_the_parts():
    want = reference()
    with Cluster(pack(), LAYERS, (6,), load_ms=4) as c:
        for draft in 2, 8:
            for _ in range(60):
                r = generate("--workers", c.hosts, "--draft", draft, tokens=60)
                assert r["token_ids"] == want["token_ids"][:60] and r["accepted_tokens"] == r["drafted_tokens"], r
                if r["accepted_tokens"] > 0:
                    break
            assert r["accepted_tokens"] > 0, r


@test
def many_texts_at_once():
    prompts = os.path.join(TMP, "many.jsonl")
    with open(prompts, "w") as f:
        for i in range(12):
            f.write(json.dumps({"prompt": " ".join((PROMPT, "and a queen", "who lived")[:i % 3 + 1]) + " " + "old " * i,
                                "max_tokens": 24, "seed": i, "temperature": (0, 0.8)[i % 2]}) + "\n")

    def texts(*args):
        return tool("od-main", "--pack", pack(), "--prompts", prompts, "--parallel", 4, *args).stdout

    want = texts("--resident")
    with Cluster(pack(), LAYERS, (5,), load_ms=2) as c:
        for draft in "off", 4:
            assert texts("--workers", c.hosts, "--draft", draft) == want


@test
def what_fits_no_machine_fits_two():
    whole = subprocess.run([os.path.join(BIN, "od-shadow"), "--pack", pack(), "--precision", "bf16", "--memory-limit", a_limit(),
                            "--port", "0"], capture_output=True, text=True, timeout=HANG_S)
    assert whole.returncode == 1
    said = re.search(r"the bf16 model of \S+ needs \d+ bytes .* --memory-limit is " + a_limit() + r" bytes .*\. Layers 0-(\d+) fit without "
                     "their context: --layers gives this shadow a part, and another shadow of the hosts file the rest", whole.stderr)
    assert said, whole.stderr
    assert LAYERS // 2 < int(said[1]) < LAYERS - 1, said[1]
    with Cluster(pack(), LAYERS, (6,), "--memory-limit", a_limit(), load_ms=2) as c:
        r = predicted(pack(), c.hosts, "--ctx-size", 256)
        assert r["predicted_uses"] > 0 and r["recall"] == 1, r
        for d in c.parts:
            with open(f"/proc/{d.process.pid}/status") as f:
                peak = int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) * 1024
            assert SLOW or peak <= int(a_limit()), (peak, a_limit())


def a_limit():
    """Bytes for more than half of the layers with a context, too few for all."""
    p = subprocess.run([os.path.join(BIN, "od-shadow"), "--pack", pack(), "--precision", "bf16", "--memory-limit", "1MiB", "--port", "0"],
                       capture_output=True, text=True, timeout=HANG_S)
    need = int(re.search(r"needs (\d+) bytes", p.stderr)[1])
    base = 64 << 20
    return str(base + (need - base) * 8 // 10)


@test
def a_part_that_dies_comes_back():
    want = reference()["token_ids"]
    with Cluster(pack(), LAYERS, (6,), load_ms=2) as c:
        m = Lines("--workers", c.hosts)
        for victim in (None, 1, None, 0, None):
            if victim is not None:
                c.parts[victim].kill()
            m.ask()
            r = m.answer()
            assert r["token_ids"] == want, (victim, r)
            if victim is not None:
                c.parts[victim].restart()
                continue
            for _ in range(60):  # until the part has joined again, and was heard
                if r["predicted_uses"] > 0:
                    break
                m.ask()
                r = m.answer()
                assert r["token_ids"] == want, r
            assert r["predicted_uses"] > 0 and r["recall"] == 1, r
        code, err = m.close()
        assert code == 0 and "precision" not in err, err


@test
def parts_of_two_precisions_are_told_once():
    model = os.path.join(TMP, "with-int8.pack")
    tool("od-pack", CHECKPOINT, model, "--shadow", "int8")
    with Cluster(model, LAYERS, (4, 8), precision="bf16 bf16 int8") as c:
        m = Lines("--workers", c.hosts)
        for _ in range(2):
            m.ask()
            assert m.answer()["token_ids"] == reference()["token_ids"]
            c.parts[2].restart()
            while "session with main" not in c.parts[2].text():
                time.sleep(0.02)
        code, err = m.close()
    assert code == 0, err
    said = (f"shadow 127.0.0.1:{c.parts[0].port} has precision bf16, but shadow 127.0.0.1:{c.parts[2].port} has int8: recall will be "
            "lower than with the better one; start both with the same precision")
    assert said in err and err.count("has precision") == 1, err


@test
def parts_must_make_up_the_model():
    def refused(*spans):
        with Cluster(pack(), LAYERS, ()) as c:
            c.parts[0].kill()
            parts = [Daemon("shadow", "--layers", s) if s else Daemon("shadow") for s in spans]
            hosts = hosts_file([*c.workers, *parts], "refused.txt")
            p = subprocess.run(main_args("--workers", hosts), capture_output=True, text=True, timeout=HANG_S)
            for d in parts:
                d.kill()
        assert p.returncode == 1, p
        return p.stderr

    assert "the shadow of the hosts file holds layers 0-3: expected all layers 0-11 (od-shadow --layers)" in refused("0-3")
    assert "the shadows of the hosts file hold layers 0-3, 5-11: expected parts that make up layers 0-11" in refused("0-3", "5-11")
    assert "the shadows of the hosts file hold layers 0-11, 0-11: expected parts that make up layers 0-11" in refused(None, None)
    assert "hold layers 0-3, 2-11: expected parts" in refused("0-3", "2-11")


@test
def a_reload_that_leaves_layers_without_a_shadow_is_told_once():
    gap = "do not make up the model: %s. Until they do, predictions come from main's own predictor (next-gate)"
    with Cluster(pack(), LAYERS, (4, 8)) as c:
        s = Server(mode=("--workers", c.hosts))
        text = s.complete(PROMPT, 24, temperature=0)["choices"][0]["text"]
        other = Daemon("shadow", "--precision", "bf16", "--layers", "2-11")
        said, reads = [], 0
        for parts, what in ((c.parts[:2], gap % "none holds layers 8-11"), (c.parts[1:2], gap % "none holds layers 0-3, 8-11"),
                            (c.parts, "make up the model again"), ((c.parts[0], other), gap % "their layers overlap (0-3, 2-11)")):
            hosts_file([*parts, *c.workers], os.path.basename(c.hosts))
            said.append(what)
            for _ in range(2):  # the second time nothing has changed
                s.p.send_signal(signal.SIGHUP)
                reads += 1
                s.wait_for("(?s)" + ".*".join(["read again"] * reads))
            s.wait_for(re.escape(what))
            assert s.complete(PROMPT, 24, temperature=0)["choices"][0]["text"] == text
            if parts == c.parts:  # one that is lost is expected back: that is told otherwise
                c.parts[2].kill()
                s.wait_for("shadow.* is lost: its connection has ended")
                time.sleep(0.2)
        assert re.findall('the shadows of the hosts file (.*)"', s.log) == said, s.log
        other.kill()
        assert s.stop() == 0


@test
def wrong_layers_are_refused():
    for text in "0", "-3", "3-", "a-b", "0-12", "5-4", "0-99999999999", "0-3-5", "4294967296-4294967297":
        p = tool("od-shadow", "--pack", pack(), "--port", 0, f"--layers={text}", ok=False)
        assert p.returncode == 1 and "layers" in p.stderr, (text, p.stderr)
    shared = family_pack("gemma4_shared_kv")
    n = layers_of_family("gemma4_shared_kv")
    p = tool("od-shadow", "--pack", shared, "--port", 0, f"--layers={n - 1}-{n - 1}", ok=False)
    assert re.search(r"layer \d+ attends to the keys of layer \d+, so both must be in one part", p.stderr), p.stderr


if __name__ == "__main__":
    run_tests()
