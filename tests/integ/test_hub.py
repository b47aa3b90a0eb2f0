#!/usr/bin/env python3
"""od-pack hf://... against a server that behaves like the hub (hub_server.py): both forms of models, resuming after kills, what goes wrong,
where the token goes; od-pack list and rm, and --pack NAME. The same server satisfies PyPI's huggingface_hub. Standard library only."""
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import ssl
import socket
import subprocess
import sys
import threading
import time

import gguf_checkpoint as gg
import tiny_checkpoint as tc
from api_clients import client_module
from cluster_util import BIN, CHECKPOINT, HANG_S, TMP, Daemon, Skip, pack, run_tests, test, tool, wait_for
from hub_server import Hub, Repo
from test_store import Store

CACHE = os.path.join(TMP, "cache")
MODELS = os.path.join(TMP, "models")
TINY = dict(tc.CONFIG, vocab_size=264, max_position_embeddings=64)
OD_PACK = os.path.join(BIN, "od-pack")


def read(*names):
    with open(os.path.join(*names), "rb") as f:
        return f.read()


def files_below(folder):
    return {os.path.relpath(os.path.join(d, n), folder): read(d, n) for d, _, names in os.walk(folder) for n in names}


def make(name, builder):
    """A folder of TMP, made once."""
    path = os.path.join(TMP, name)
    if not os.path.exists(path):
        builder(path)
    return path


def checkpoint():
    return make("checkpoint", lambda p: tc.write_checkpoint(p, TINY, tc.tensors(TINY, seed=3), shards=3))


def byte_tokens(n):
    """A token for each byte, as GPT-2 writes bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    tokens = [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)] + ["<%d>" % i for i in range(256, n)]
    return {"tokenizer.ggml.model": (gg.STRING, "gpt2"), "tokenizer.ggml.pre": (gg.STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (gg.ARRAY, (gg.STRING, tokens)),
            "tokenizer.ggml.token_type": (gg.ARRAY, (gg.I32, [1] * 256 + [3] * (n - 256))),
            "tokenizer.ggml.merges": (gg.ARRAY, (gg.STRING, [])), "tokenizer.ggml.eos_token_id": (gg.U32, n - 1)}


def ggufs():
    """Files of a GGUF repository: two quantisations, a split one in a folder, and a file of projections."""
    def build(folder):
        os.makedirs(os.path.join(folder, "BF16"))
        kv, tensors = gg.convert(checkpoint())
        kv.update(byte_tokens(264))
        gg.write_file(os.path.join(folder, "Tiny-Q8_0.gguf"), kv, tensors)
        kv["general.quantized_by"] = (gg.STRING, "a longer file" * 2000)
        gg.write_file(os.path.join(folder, "Tiny-F16.gguf"), kv, tensors)
        gg.write_split(os.path.join(folder, "BF16", "Tiny-BF16.gguf"), kv, tensors, 3)
        with open(os.path.join(folder, "mmproj-F16.gguf"), "wb") as f:
            f.write(b"GGUF" + bytes(100_000))
    return files_below(make("ggufs", build))


def dense_gguf():
    def build(folder):
        os.makedirs(folder)
        gg.write_file(os.path.join(folder, "Dense-Q4_K_M.gguf"), {"general.architecture": (gg.STRING, "llama"), "llama.block_count": (gg.U32, 2)}, [])
    return files_below(make("dense-gguf", build))


def unknown_gguf():
    def build(folder):
        os.makedirs(folder)
        kv = {"general.architecture": (gg.STRING, "later-moe"), "later-moe.expert_count": (gg.U32, 8)}
        gg.write_file(os.path.join(folder, "Later-Q4_K_M.gguf"), kv, [])
    return files_below(make("unknown-gguf", build))


class Place:
    """A hub, and an empty folder of models, for one test."""

    def __init__(self, repos, **kw):
        self.hub = Hub(repos, **kw)
        shutil.rmtree(MODELS, ignore_errors=True)
        home = os.path.join(TMP, "home")
        os.makedirs(home, exist_ok=True)
        for name in [n for n in os.environ if n.startswith("HF_") or n.lower().endswith("_proxy") or n in ("OD_PACK", "XDG_DATA_HOME")]:
            del os.environ[name]
        os.environ.update(OD_MODELS=MODELS, HOME=home, CACHE_DIRECTORY=CACHE, HF_ENDPOINT=self.hub.url)
        os.environ.pop("XDG_CACHE_HOME", None)

    def fetch(self, *args, **kw):
        return tool("od-pack", *args, **kw)

    def refused(self, *args, says=(), status=1):
        """Fails in good order, with these words; a model is never half there."""
        p = tool("od-pack", *args, ok=False)
        assert p.returncode == status, p
        for word in says:
            assert word in p.stderr, (args, "says", word, p.stderr)
        assert not [e for e in listed() if e["form"] != "unfinished"], listed()
        return p

    def begin(self, *args):
        return subprocess.Popen([OD_PACK, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hub.released.set()
        self.hub.close()


def listed():
    return json.loads(tool("od-pack", "list", "--json").stdout)


def names():
    return sorted(os.listdir(MODELS)) if os.path.isdir(MODELS) else []


def direct(options=()):
    """The pack that od-pack makes of the small checkpoint in its folder."""
    return files_below(make("direct.pack", lambda p: tool("od-pack", checkpoint(), p, *options)))


def said(program, *args):
    return tool(program, *args, "--prompt", "ab", "--max-tokens", 5, "--resident").stdout


# ---- both forms ----

@test
def test_a_checkpoint_is_packed_and_removed():
    with Place({"org/Tiny": Repo({**files_below(checkpoint()), "README.md": b"x", "pytorch_model.bin": b"y", "original/a.safetensors": b"z"})},
               page=2) as w:
        p = w.fetch("hf://org/Tiny")
        assert "--pack Tiny" in p.stdout and "removed when the pack is verified" in p.stderr, p
        assert names() == [".Tiny.source", "Tiny"], names()
        assert files_below(os.path.join(MODELS, "Tiny")) == direct()
        e, = listed()
        assert (e["name"], e["form"], e["family"], e["default"]) == ("Tiny", "pack", "mixtral", True), e
        assert e["bytes"] == sum(map(len, direct().values())) and e["source"].startswith("hf://org/Tiny "), e
        asked = [path for _, path, _ in w.hub.asked("hub", "/resolve/")]
        assert not any(n in path for path in asked for n in ("README", ".bin", "original")), asked
        text = said("od-main", "--pack", "Tiny")
        assert text == said("od-main") == said("od-main", "--pack", os.path.join(MODELS, "Tiny"))
        before = len(w.hub.asked("cdn"))
        assert "is there already" in w.fetch("hf://org/Tiny").stderr
        assert len(w.hub.asked("cdn")) == before


@test
def test_the_demo_model_tells_its_story():
    with Place({"org/talebook": Repo(files_below(CHECKPOINT))}) as w:
        w.fetch("hf://org/talebook@main", "--shadow", "none")
        args = "--prompt", "Once upon a time", "--max-tokens", 8, "--temperature", 0
        assert tool("od-main", *args).stdout == tool("od-main", "--pack", pack(), *args).stdout


@test
def test_a_gguf_file_by_its_quantisation():
    files = ggufs()
    with Place({"org/Tiny-GGUF": Repo(files)}) as w:
        w.fetch("hf://org/Tiny-GGUF:q8_0")
        assert names() == [".Tiny-Q8_0.source", "Tiny-Q8_0.gguf"], names()
        assert read(MODELS, "Tiny-Q8_0.gguf") == files["Tiny-Q8_0.gguf"]
        w.fetch("hf://org/Tiny-GGUF:BF16")
        split = {os.path.basename(p): d for p, d in files.items() if p.startswith("BF16/")}
        assert len(split) == 3 and files_below(os.path.join(MODELS, "Tiny-BF16")) == split
        p = tool("od-main", "--prompt", "ab", ok=False)
        assert "there are 2 models: Tiny-BF16, Tiny-Q8_0; say which: --pack NAME" in p.stderr, p
        want = said("od-main", "--pack", os.path.join(MODELS, "Tiny-Q8_0.gguf"))
        assert want == said("od-main", "--pack", "Tiny-Q8_0") == said("od-main", "--pack", "Tiny-Q8_0.gguf") == said("od-main", "--pack", "Tiny-BF16")
        p = tool("od-main", "--pack", "Tiny-Q4", "--prompt", "x", ok=False)
        assert "no pack at Tiny-Q4" in p.stderr and "models that are there: Tiny-BF16, Tiny-Q8_0" in p.stderr, p


@test
def test_the_largest_that_fits_is_said_with_sizes():
    files = ggufs()
    with Place({"org/Tiny-GGUF": Repo(files)}) as w:
        p = w.fetch("hf://org/Tiny-GGUF")
        assert "BF16" in p.stderr and "Q8_0" in p.stderr and "mmproj" not in p.stderr, p.stderr
        sizes = {"Tiny-BF16": sum(len(d) for n, d in files.items() if n.startswith("BF16/")), "Tiny-F16": len(files["Tiny-F16.gguf"])}
        largest = max(sizes, key=sizes.get)
        assert [e["name"] for e in listed()] == [largest], (listed(), sizes)
        assert f"{largest[5:]} is the largest that fits the" in p.stderr, p.stderr


@test
def test_an_address_of_a_gguf_file():
    data = ggufs()["Tiny-Q8_0.gguf"]
    with Place({}) as w:
        w.hub.plain["My%20Model.gguf".replace("%20", " ")] = data
        w.hub.plain["cut.gguf"] = data[:100]
        p = w.fetch(f"{w.hub.url}/files/My%20Model.gguf?key=secret")
        assert "only the length is checked" in p.stderr, p
        assert names() == [".My_Model.source", "My_Model.gguf"] and read(MODELS, "My_Model.gguf") == data
        assert "secret" not in read(MODELS, ".My_Model.source").decode() + p.stderr
        tool("od-pack", "rm", "My_Model")
        w.refused(f"{w.hub.url}/files/cut.gguf", says=["cannot be used", "od-pack rm cut removes it"])
        tool("od-pack", "rm", "cut")
        w.refused(f"{w.hub.url}/files/none.gguf", says=["status 404"])
        w.refused(f"{w.hub.url}/files/readme.txt", says=["expected the address of a GGUF file"])
        w.refused("http://192.0.2.1/model.gguf", says=["expected https://"])
        w.refused("http://127.hub.invalid/model.gguf", says=["expected https://"])
        assert names() == [], names()
        w.hub.repos["org/Tiny-GGUF"] = Repo(ggufs())
        file = f"{w.hub.url}/org/Tiny-GGUF/resolve/main/Tiny-Q8_0.gguf"
        w.hub.plain["blob"] = b"<html>"
        w.refused(f"{w.hub.url}/files/blob/Tiny-Q8_0.gguf", says=["/resolve/ in its place is the file"])
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "flip")
        w.refused(file, says=["expected the SHA-256 " + hashlib.sha256(data).hexdigest()])
        assert "only the length" not in w.fetch(file + "?download=true").stderr
        tool("od-pack", "rm", "Tiny-Q8_0")
        w.hub.plain["m.gguf"] = data
        p = w.fetch(w.hub.url.replace("//", "//user:pass@") + "/files/m.gguf")
        assert "pass" not in read(MODELS, ".m.source").decode() + p.stderr and "/files/m.gguf" in p.stderr


@test
def test_two_versions_of_an_address_are_not_mixed():
    old = ggufs()["Tiny-Q8_0.gguf"]
    new = old[:-1] + bytes([old[-1] ^ 1])
    with Place({}) as w:
        w.hub.plain["m.gguf"] = old
        get = f"{w.hub.url}/files/m.gguf"
        w.hub.fault("/files/", "")
        w.hub.fault("/files/", "hold", after=5000)
        p = w.begin(get)
        wait_for(lambda: part_bytes("m") == 5000)
        w.hub.plain["m.gguf"] = new
        w.hub.released.set()
        _, err = p.communicate(timeout=HANG_S)
        assert p.returncode == 1 and "m.gguf: another version of it has come to 127.0.0.1 meanwhile" in err, err
        w.fetch(get)
        assert read(MODELS, "m.gguf") == new


# ---- kills ----

def part_bytes(name):
    """Bytes of the files that are being fetched; one may be renamed meanwhile."""
    n = 0
    for folder, _, found in os.walk(os.path.join(MODELS, name + ".part")):
        for file in found:
            with contextlib.suppress(FileNotFoundError):
                n += os.path.getsize(os.path.join(folder, file)) if file.endswith(".part") else 0
    return n


def kill(p):
    """True if it was not at its end before."""
    p.send_signal(signal.SIGKILL)
    p.communicate()
    return p.returncode == -signal.SIGKILL


@test
def test_killed_at_any_byte_it_goes_on_from_there():
    rng = random.Random(11)
    data = ggufs()["Tiny-Q8_0.gguf"]
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        have = 0
        for _ in range(6):
            more = rng.randrange(1, (len(data) - have) // 2)
            w.hub.fault("Signature", "")  # each run first looks at the beginning
            w.hub.fault("Signature", "hold", after=more)
            p = w.begin("hf://org/Tiny-GGUF:Q8_0")
            wait_for(lambda: part_bytes("Tiny-Q8_0") == have + more)
            assert kill(p)
            have += more
            assert names() == ["Tiny-Q8_0.part"] and [e["form"] for e in listed()] == ["unfinished"], names()
        w.hub.released.set()
        w.hub.log.clear()
        w.fetch("hf://org/Tiny-GGUF:Q8_0")
        assert [h.get("Range") for _, _, h in w.hub.asked("cdn")][-1] == f"bytes={have}-"
        assert read(MODELS, "Tiny-Q8_0.gguf") == data and names() == [".Tiny-Q8_0.source", "Tiny-Q8_0.gguf"]


@test
def test_killed_while_it_fetches_packs_and_verifies():
    """Wherever a kill strikes, the name is there only with the whole model."""
    rng = random.Random(5)
    with Place({"org/talebook": Repo(files_below(CHECKPOINT))}) as w:
        w.hub.fault("Signature", "hold", after=rng.randrange(1, 40 << 20))
        for stage in ("fetch", "pack", "fetch", "pack", "pack", "pack"):
            p = w.begin("hf://org/talebook")
            if stage == "fetch":
                wait_for(lambda: part_bytes("talebook") > 0 or p.poll() is not None)
            else:
                wait_for(lambda: os.path.isdir(os.path.join(MODELS, "talebook.partial")) or p.poll() is not None)
            time.sleep(rng.random() * 0.1)  # anywhere from there on
            going_on = kill(p)
            w.hub.released.set()
            if os.path.isdir(os.path.join(MODELS, "talebook")):
                tool("od-pack", "verify", "talebook")
            if not going_on:
                break
        w.fetch("hf://org/talebook")
        assert names() == [".talebook.source", "talebook"], names()
        assert files_below(os.path.join(MODELS, "talebook")) == files_below(pack())


@test
def test_another_version_after_a_kill():
    """Files that an interrupted run left are compared with what the hub lists now."""
    old, new = files_below(checkpoint()), files_below(checkpoint())
    name = sorted(n for n in old if n.endswith(".safetensors"))[0]
    new[name] = new[name][:-1] + bytes([new[name][-1] ^ 1])
    with Place({"org/Tiny": Repo(old)}) as w:
        w.hub.fault("tokenizer.json", 404)
        w.refused("hf://org/Tiny")
        assert name in os.listdir(os.path.join(MODELS, "Tiny.part"))
        w.hub.repos["org/Tiny"] = Repo(new)
        p = w.fetch("hf://org/Tiny")
        assert "begins anew" in p.stderr, p.stderr
        sums = [hashlib.sha256(d).hexdigest() for n, d in sorted(new.items()) if n.endswith(".safetensors")]
        fetched = [path[1:65] for _, path, _ in w.hub.asked("cdn")]
        assert fetched.count(sums[0]) == 1 and fetched.count(sums[1]) == 1, fetched
        assert files_below(os.path.join(MODELS, "Tiny")) != direct()


@test
def test_files_of_another_version_are_not_used():
    """model.safetensors would be read before what its successor has in its place."""
    old = files_below(make("single", lambda p: tc.write_checkpoint(p, TINY, tc.tensors(TINY, seed=4), shards=1)))
    assert "model.safetensors" in old
    with Place({"org/Tiny": Repo(old)}) as w:
        w.hub.fault("tokenizer.json", 404)
        w.refused("hf://org/Tiny")
        assert "model.safetensors" in os.listdir(os.path.join(MODELS, "Tiny.part"))
        w.hub.repos["org/Tiny"] = Repo(files_below(checkpoint()))
        w.fetch("hf://org/Tiny")
        assert files_below(os.path.join(MODELS, "Tiny")) == direct()


@test
def test_nobody_reads_its_lines_any_more():
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "hold", after=2000)
        p = w.begin("hf://org/Tiny-GGUF:Q8_0")
        wait_for(lambda: part_bytes("Tiny-Q8_0") == 2000)
        p.stderr.close()
        w.hub.released.set()
        assert p.wait(HANG_S) == 0, p.returncode
        assert names() == [".Tiny-Q8_0.source", "Tiny-Q8_0.gguf"], names()


# ---- what goes wrong ----

@test
def test_what_may_be_better_later_is_tried_again():
    data = ggufs()["Tiny-Q8_0.gguf"]
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        w.hub.fault("/revision/", 500)
        w.hub.fault("/tree/", 429, header={"Retry-After": "1"})
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "die", after=5000)
        w.hub.fault("Signature", "die", after=1)
        w.hub.fault("Signature", "no length", after=999)
        p = w.fetch("hf://org/Tiny-GGUF:Q8_0")
        assert "status 500" in p.stderr and "status 429" in p.stderr and p.stderr.count("trying again in 1 s") == 4, p.stderr
        ranges = [h.get("Range") for _, _, h in w.hub.asked("cdn")]
        assert ranges[2:] == ["bytes=5000-", "bytes=5001-", "bytes=6000-"], ranges
        assert read(MODELS, "Tiny-Q8_0.gguf") == data


@test
def test_the_hub_says_when_it_answers_again():
    with Place({"org/empty": Repo({"README.md": b"x"})}) as w:
        w.hub.fault("/tree/", 429, header={"RateLimit": '"api";r=0;t=2', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'})
        p = w.refused("hf://org/empty", says=["status 429", "trying again in 2 s", "no files that od-moe can use"])
        assert "trying again in 1 s" not in p.stderr


@test
def test_a_line_that_breaks_before_the_certificate_comes():
    with Place({}) as w:
        listener = socket.create_server(("127.0.0.1", 0))

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()
        threading.Thread(target=hang_up, daemon=True).start()
        os.environ["HF_ENDPOINT"] = f"https://127.0.0.1:{listener.getsockname()[1]}"
        w.refused("hf://org/Tiny", says=["the connection broke off", "trying again in 1 s", "trying again in 2 s"])
        listener.close()


@test
def test_servers_that_send_other_bytes():
    data = ggufs()["Tiny-Q8_0.gguf"]
    get = "hf://org/Tiny-GGUF:Q8_0"
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        cases = (("flip", ["expected the SHA-256 " + hashlib.sha256(data).hexdigest(), "deleted"]),
                 ("longer", [f"expected {len(data)} bytes, as listed, but the server has {len(data) + 4}"]))
        for kind, says in cases:
            w.hub.fault("Signature", "")
            w.hub.fault("Signature", kind)
            w.refused(get, says=says)
            assert part_bytes("Tiny-Q8_0") == 0
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "die", after=4000)
        w.hub.fault("Signature", "wrong range")
        w.refused(get, says=["for the bytes from 4000 on, got others"])
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", 416)
        w.refused(get, says=[f"expected {len(data)} bytes, as listed, but localhost has none from byte 4000 on"])
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "no ranges")
        assert "does not send parts of files" in w.fetch(get).stderr
        assert read(MODELS, "Tiny-Q8_0.gguf") == data


@test
def test_small_files_have_a_checksum_too():
    with Place({"org/Tiny": Repo(files_below(checkpoint()))}) as w:
        w.hub.fault("/config.json", "flip")
        w.refused("hf://org/Tiny", says=["config.json.part: expected the git SHA-1"])


@test
def test_names_that_are_not_there():
    with Place({"org/Tiny": Repo(files_below(checkpoint())), "org/Tiny-GGUF": Repo(ggufs()), "org/secret": Repo({}, private=True),
                "org/empty": Repo({"README.md": b"x"}), "org/pickles": Repo({"config.json": b"{}", "pytorch_model.bin": b"x"})}) as w:
        w.refused("hf://org/Tony", says=["hf://org/Tony does not exist at", "HF_TOKEN"])
        w.refused("hf://org/secret", says=["hf://org/secret does not exist at", "or is private"])
        w.refused("hf://org/Tiny@v9", says=["hf://org/Tiny has no revision v9"])
        w.refused("hf://org/Tiny-GGUF:Q4_K_M", says=["no GGUF file of the quantisation Q4_K_M; there are: ", "Q8_0", "BF16"])
        w.refused("hf://org/Tiny:Q8_0", says=["has no GGUF files", "without :Q8_0 its checkpoint is packed"])
        w.refused("hf://org/empty", says=["no files that od-moe can use"])
        w.refused("hf://org/pickles", says=["pickles"])
        w.refused("hf://org", says=["expected hf://ORGANISATION/NAME"])
        w.refused("hf://org/Tiny", "PACK", says=["the model's address alone"], status=2)
        w.refused("hf://org/Tiny", "--force", says=["--force belongs to"], status=2)
        w.hub.repos["org/empty"].revisions.add("refs/pr/1")
        w.refused("hf://org/empty@refs/pr/1", says=["no files that od-moe can use"])
        assert w.hub.asked("hub", "/revision/refs%2Fpr%2F1")
        assert names() == [], names()


@test
def test_what_the_hosts_of_redirects_refuse():
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        for status in (403, 404):
            w.hub.fault("Signature", status)
            p = w.refused("hf://org/Tiny-GGUF:Q8_0", says=[f"status {status} of localhost"])
            assert "does not exist" not in p.stderr and "forbids" not in p.stderr, p.stderr


@test
def test_names_that_are_taken_here():
    with Place({"org/Tiny": Repo(files_below(checkpoint())), "org/Tiny.part": Repo(files_below(checkpoint()))}) as w:
        os.makedirs(os.path.join(MODELS, "Tiny"))
        w.refused("hf://org/Tiny", says=["Tiny is there already, and is no model"])
        assert w.hub.asked("cdn") == []
        w.fetch("hf://org/Tiny.part", "--shadow", "none")
        assert [e["name"] for e in listed()] == ["Tiny_part"], listed()
        tool("od-pack", "verify", "Tiny_part")


@test
def test_weights_that_the_index_does_not_name():
    good = files_below(checkpoint())
    extra = bytes(1000)
    with Place({"org/Tiny": Repo({**good, "model-fp8.safetensors": extra})}) as w:
        w.fetch("hf://org/Tiny")
        assert files_below(os.path.join(MODELS, "Tiny")) == direct()
        assert not w.hub.asked("cdn", hashlib.sha256(extra).hexdigest())
        first = min(n for n in good if n.endswith(".safetensors"))
        w.hub.repos["org/cut"] = Repo({n: d for n, d in good.items() if n != first})
        w.hub.repos["org/mute"] = Repo({n: d for n, d in good.items() if n != "tokenizer.json"})
        w.hub.log.clear()
        for get, says in (("hf://org/cut", f"names {first}, which is not there"), ("hf://org/mute", "has no tokeniser that od-moe reads")):
            p = tool("od-pack", get, ok=False)
            assert says in p.stderr, p.stderr
        assert w.hub.asked("cdn") == [] and names() == [".Tiny.source", "Tiny"], names()


@test
def test_models_without_experts_are_refused_before_they_are_fetched():
    dense = {"config.json": json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8}).encode(),
             "model.safetensors": bytes(1000)}
    with Place({"org/dense": Repo(dense), "org/dense-GGUF": Repo(dense_gguf())}) as w:
        w.refused("hf://org/dense", says=["hf://org/dense is a model without experts"])
        assert w.hub.asked("cdn") == []
        w.refused("hf://org/dense-GGUF", says=["hf://org/dense-GGUF is a model without experts (architecture llama)"])
        assert [h.get("Range") for _, _, h in w.hub.asked("cdn")] == ["bytes=0-1048575"]
        w.hub.repos["org/new-GGUF"] = Repo(unknown_gguf())
        w.refused("hf://org/new-GGUF", says=['hf://org/new-GGUF: general.architecture "later-moe" is not supported', "qwen3moe"])
        assert len(w.hub.asked("cdn")) == 2
        assert names() == [], names()


@test
def test_names_of_files_are_hostile():
    good = files_below(checkpoint())
    for bad in ("../evil.json", "/etc/evil", "a/../../evil", "a\nb", "", "a//b"):
        with Place({"org/Tiny": Repo({**good, bad: b"x"})}) as w:
            w.refused("hf://org/Tiny", says=["the path of a file is not safe to write"])
            assert names() == [], names()


@test
def test_a_certificate_that_nobody_trusts():
    key, cert = os.path.join(TMP, "key.pem"), os.path.join(TMP, "cert.pem")
    make_one = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"]
    if shutil.which("openssl") is None:
        raise Skip("there is no openssl to make a certificate with")
    subprocess.run(make_one, check=True, capture_output=True)
    with Place({"org/Tiny": Repo(files_below(checkpoint()))}) as w:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        w.hub.hub.socket = context.wrap_socket(w.hub.hub.socket, server_side=True, do_handshake_on_connect=False)
        os.environ["HF_ENDPOINT"] = f"https://localhost:{w.hub.hub.server_port}"
        w.refused("hf://org/Tiny", says=["its certificate is not trusted"])
        assert w.hub.asked("hub") == [] and names() == []


@test
def test_a_repository_that_has_another_name_now():
    with Place({"org/Tiny": Repo(files_below(checkpoint()))}) as w:
        w.hub.moved["org/Old"] = "org/Tiny"
        w.fetch("hf://org/Old")
        assert [e["name"] for e in listed()] == ["Old"]


@test
def test_a_pack_that_was_not_verified_yet():
    """od-pack was killed behind the pack's last byte: the next one verifies, and only then the checkpoint goes."""
    with Place({"org/Tiny": Repo(files_below(checkpoint()))}) as w:
        w.fetch("hf://org/Tiny")
        part = os.path.join(MODELS, "Tiny.part")
        shutil.copytree(checkpoint(), part)
        experts = os.path.join(MODELS, "Tiny", "experts.bin")
        whole = read(experts)
        at = len(whole) // 2
        with open(experts, "wb") as f:
            f.write(whole[:at] + bytes(b ^ 255 for b in whole[at:at + 4096]) + whole[at + 4096:])
        p = tool("od-pack", "hf://org/Tiny", ok=False)
        assert "checksum" in p.stderr and os.path.isdir(part), p
        with open(experts, "wb") as f:
            f.write(whole)
        w.fetch("hf://org/Tiny")
        assert names() == [".Tiny.source", "Tiny"], names()


# ---- the token ----

@test
def test_gated_models_and_where_the_token_goes():
    gated = {"org/gated": Repo(files_below(checkpoint()), gated=True)}
    with Place(gated) as w:
        w.refused("hf://org/gated", says=["hf://org/gated is gated: accept its licence at " + w.hub.url + "/org/gated", "HF_TOKEN"])
        assert names() == [], names()
        os.environ["HF_TOKEN"] = "hf_wrong"
        p = w.refused("hf://org/gated", says=["refuses this token"])
        assert "hf_wrong" not in p.stderr
        w.hub.fault("/resolve/", 403, header={"X-Error-Code": "GatedRepo"})
        os.environ["HF_TOKEN"] = "hf_good"
        w.refused("hf://org/gated", says=["the account of this token", "has no access"])
        w.fetch("hf://org/gated")
        sent = [h.get("Authorization") for _, _, h in w.hub.asked("hub")]
        assert "Bearer hf_good" in sent
        assert w.hub.asked("cdn") and not any("Authorization" in h for _, _, h in w.hub.asked("cdn"))
        tool("od-pack", "rm", "gated")
        other = Hub({"org/gated": w.hub.repos["org/gated"]})
        os.environ["http_proxy"] = other.url  # stands for a way that others can read
        w.fetch("hf://org/gated", "--shadow", "none")
        assert other.log == []
        tool("od-pack", "rm", "gated")
        for endpoint in ("http://hub.invalid", "http://127.hub.invalid"):
            os.environ["HF_ENDPOINT"] = endpoint
            other.log.clear()
            tool("od-pack", "hf://org/gated", ok=False)
            assert not any("Authorization" in h for _, _, h in other.asked("hub")) and other.asked("hub")
        other.close()


@test
def test_a_mirror_that_sends_us_on_to_the_hub():
    """Its links name the hub, but all pages come from the mirror; files come from where it redirects, without the token."""
    files = files_below(checkpoint())
    hub = Hub({"org/Tiny": Repo(files), "org/gated": Repo(files, gated=True)})
    with Place({"org/Tiny": Repo(files), "org/gated": Repo(files, gated=True)}, page=2) as w:
        w.hub.linked, w.hub.elsewhere = "https://hub.invalid", hub.url
        os.environ["HF_TOKEN"] = "hf_good"
        w.refused("hf://org/gated", says=["sends us on to 127.0.0.1, which does not get the token: name https://127.0.0.1 in HF_ENDPOINT"])
        w.fetch("hf://org/Tiny")
        assert files_below(os.path.join(MODELS, "Tiny")) == direct() and len(w.hub.asked("hub", "cursor=")) > 2
        assert hub.asked("hub", "/resolve/") and not any("Authorization" in h for _, _, h in hub.asked("hub") + hub.asked("cdn"))
        w.hub.linked = "https://hub.invalid/" + "x" * 5000
        w.hub.repos["org/Other"] = w.hub.repos["org/Tiny"]
        p = tool("od-pack", "hf://org/Other", ok=False)
        assert "the list of files goes on at an address that is not the hub's" in p.stderr, p
    hub.close()


@test
def test_the_usual_token_files():
    with Place({"org/gated": Repo(files_below(checkpoint()), gated=True)}) as w:
        home = os.environ["HOME"]
        for i, (variable, value, path) in enumerate((("HF_TOKEN_PATH", f"{home}/t1", "t1"), ("HF_HOME", f"{home}/hf", "hf/token"),
                                                     ("XDG_CACHE_HOME", f"{home}/xdg", "xdg/huggingface/token"),
                                                     (None, None, ".cache/huggingface/token"))):
            if variable:
                os.environ[variable] = value
            file = os.path.join(home, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w") as f:
                f.write(f"  hf_number_{i}\n")
            w.hub.tokens = {f"hf_number_{i}"}
            w.fetch("hf://org/gated", "--shadow", "none")
            tool("od-pack", "rm", "gated")
            os.remove(file)
            if variable:
                del os.environ[variable]


# ---- one machine ----

@test
def test_two_at_once_and_a_name_that_is_taken():
    with Place({"org/Tiny-GGUF": Repo(ggufs()), "other/Tiny-GGUF": Repo(ggufs())}) as w:
        w.hub.fault("Signature", "")
        w.hub.fault("Signature", "hold", after=100)
        p = w.begin("hf://org/Tiny-GGUF:Q8_0")
        wait_for(lambda: part_bytes("Tiny-Q8_0") == 100)
        w.refused("hf://org/Tiny-GGUF:Q8_0", says=["another od-pack is fetching Tiny-Q8_0"])
        assert "is in use" in tool("od-pack", "rm", "Tiny-Q8_0", ok=False).stderr
        w.hub.released.set()
        _, err = p.communicate(timeout=HANG_S)
        assert p.returncode == 0, err
        assert "is there already, from hf://org/Tiny-GGUF:Q8_0" in tool("od-pack", "hf://other/Tiny-GGUF:Q8_0", ok=False).stderr


@test
def test_a_full_disk():
    if os.getuid() != 0:
        raise Skip("only root can mount a small disk")
    disk = os.path.join(TMP, "disk")
    with Place({"org/Tiny": Repo(files_below(checkpoint())), "org/Tiny-GGUF": Repo(ggufs())}) as w:
        os.makedirs(disk, exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode != 0:
            raise Skip("no small disk can be mounted here")
        try:
            os.environ["OD_MODELS"] = disk
            for get, says in (("hf://org/Tiny", ["then the pack up to"]), ("hf://org/Tiny-GGUF:F16", [])):
                w.refused(get, says=["of free space", "found", "OD_MODELS=DIR", *says])
            # A pack that has hardly begun has its whole size already, as a hole.
            subprocess.run(["mount", "-o", "remount,size=200k", disk], check=True)
            os.makedirs(os.path.join(disk, "Tiny.partial"))
            with open(os.path.join(disk, "Tiny.partial", "experts.bin"), "wb") as f:
                f.truncate(1 << 20)
            w.refused("hf://org/Tiny", says=["of free space"])
            shutil.rmtree(os.path.join(disk, "Tiny.partial"))
            shutil.rmtree(os.path.join(disk, "Tiny.part"))
            subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
            # Filled by somebody else after the space was looked at: when the first bytes are there.
            w.hub.fault("Signature", "")
            w.hub.fault("Signature", "hold", after=2000)
            p = w.begin("hf://org/Tiny-GGUF:Q8_0")
            part = os.path.join(disk, "Tiny-Q8_0.part", "Tiny-Q8_0.gguf.part")
            wait_for(lambda: os.path.exists(part) and os.path.getsize(part) == 2000)
            subprocess.run(["dd", "if=/dev/zero", f"of={disk}/filler", "bs=4096"], capture_output=True)
            w.hub.released.set()
            _, err = p.communicate(timeout=HANG_S)
            assert p.returncode == 1 and "No space left on device" in err and "run the same command again to continue" in err, err
            os.remove(os.path.join(disk, "filler"))
            w.hub.log.clear()
            w.fetch("hf://org/Tiny-GGUF:Q8_0")
            assert read(disk, "Tiny-Q8_0.gguf") == ggufs()["Tiny-Q8_0.gguf"]
            assert w.hub.asked("cdn")[-1][2]["Range"].startswith("bytes=") and w.hub.asked("cdn")[-1][2]["Range"] != "bytes=0-"
        finally:
            subprocess.run(["umount", "-l", disk])


@test
def test_rm_removes_models_and_nothing_else():
    with Place({"org/Tiny": Repo(files_below(checkpoint())), "org/Tiny-GGUF": Repo(ggufs())}) as w:
        w.fetch("hf://org/Tiny")
        w.fetch("hf://org/Tiny-GGUF:BF16")
        worker = Daemon("worker", pack_dir="Tiny")
        assert "Tiny is in use" in tool("od-pack", "rm", "Tiny", ok=False).stderr
        worker.kill()
        outside = os.path.join(TMP, "outside")
        shutil.copytree(os.path.join(MODELS, "Tiny"), outside)
        os.symlink(outside, os.path.join(MODELS, "linked"))
        for name in ("../outside", "/etc", ".", "..", "", ".Tiny.source", "Tiny/.."):
            assert "expected the name of a model" in tool("od-pack", "rm", name, ok=False).stderr, name
        assert "there is no model Tony; models that are there: Tiny, Tiny-BF16, linked" in tool("od-pack", "rm", "Tony", ok=False).stderr
        for name in ("linked", "Tiny", "Tiny-BF16"):
            tool("od-pack", "rm", name)
        assert names() == [] and files_below(outside) == direct()
        assert "get one with: od-pack hf://" in tool("od-main", "--prompt", "x", ok=False).stderr


@test
def test_workers_pull_their_share_of_a_model_by_its_name():
    with Place({"org/Tiny-GGUF": Repo(ggufs())}) as w:
        w.fetch("hf://org/Tiny-GGUF:Q8_0")
        want = said("od-main", "--pack", "Tiny-Q8_0")
        store = Store(pack_dir="Tiny-Q8_0")
        worker = Daemon("worker", store=store.address, spool=os.path.join(TMP, "spool"))
        hosts = os.path.join(TMP, "hosts")
        with open(hosts, "w") as f:
            f.write(f"127.0.0.1:{worker.port}\n")
        p = tool("od-main", "--workers", hosts, "--insecure", "--prompt", "ab", "--max-tokens", 5)
        assert p.stdout == want, (p.stdout, want)


# ---- the official client ----

SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError
try:
    print(snapshot_download(sys.argv[1], local_dir=sys.argv[2], max_workers=2))
except (GatedRepoError, RepositoryNotFoundError) as e:
    print(type(e).__name__)
"""


@test
def test_the_official_client_is_satisfied_too():
    client_module("huggingface_hub")
    site = next(p for p in sys.path if p.startswith("build/clients/"))
    files = {**files_below(checkpoint()), **ggufs()}
    large = files_below(CHECKPOINT)  # the client keeps what it has by pieces of 10 MiB
    with Place({"org/gated": Repo(files, gated=True), "org/open": Repo(large)}) as w:
        env = dict(os.environ, HF_HOME=os.path.join(TMP, "hf-home"), PYTHONPATH=os.path.abspath(site), HF_HUB_DISABLE_TELEMETRY="1")

        def snapshot(repo, folder, **more):
            p = subprocess.run([sys.executable, "-c", SNAPSHOT, repo, os.path.join(TMP, folder)], env={**env, **more}, capture_output=True,
                               text=True, timeout=HANG_S)
            assert p.returncode == 0, p.stderr
            return p.stdout.strip().splitlines()[-1]

        def fetched(folder):
            return {n: d for n, d in files_below(os.path.join(TMP, folder)).items() if not n.startswith(".cache")}

        assert snapshot("org/none", "snap0") == "RepositoryNotFoundError"
        assert snapshot("org/gated", "snap1") == "GatedRepoError"
        snapshot("org/gated", "snap1", HF_TOKEN="hf_good")
        assert fetched("snap1") == files
        assert w.hub.asked("cdn") and not any("authorization" in (k.lower() for k in h) for _, _, h in w.hub.asked("cdn"))
        w.hub.fault(hashlib.sha256(large["model.safetensors"]).hexdigest(), "die", after=25 << 20)
        snapshot("org/open", "snap2")
        assert fetched("snap2") == large
        resumed = [h.get("Range") or h.get("range") for _, _, h in w.hub.asked("cdn")][-1]
        assert resumed is not None and resumed != "bytes=0-", resumed


if __name__ == "__main__":
    run_tests()
