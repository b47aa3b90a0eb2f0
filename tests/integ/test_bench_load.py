#!/usr/bin/env python3
"""od-bench load: which lines there are, and that what they say fits the pack; never how fast."""
from cluster_util import FAR, pack, run_tests, test, tool
import gpu_util  # noqa: F401: which GPU
import json
import os
import tempfile
from unittest import mock


def bench(*args, **kw):
    r = tool("od-bench", "load", "--rounds", 2, "--json", *args, **kw)
    return json.loads(r.stdout) if kw.get("ok", True) else r.stderr


def info(path):
    return json.loads(tool("od-pack", "info", "--json", path).stdout)


@test
def every_source_form_and_number_of_threads():
    r = bench("--pack", pack(), "--pace", "1GB/s,2.5GB/s", "--load-threads", "1,3", "--slots", 1)
    rows = r["loads"]
    assert [(x["source"], x["form"], x["load_threads"]) for x in rows] == [
        (s, f, n) for s in ("cache", "disk", "1GB/s", "2.5GB/s") for f in ("bf16", "planes") for n in (1, 3)], rows
    limit = 16 / info(pack())["bits_per_weight"]
    for x in rows:
        assert x["codec"] == "planes", x
        assert abs(x["ratio_limit"] / limit - 1) < 0.02, (x, limit)
        for key in ("raw_gbps", "published_gbps", "ratio", "read_percent", "inflate_percent"):
            assert x[key] > 0, (key, x)
        assert abs(x["wait_percent"] + x["inflate_percent"] - 100) < 1e-6, x
        if "GB/s" in x["source"]:  # the clock never releases more than it should
            assert x["raw_gbps"] <= float(x["source"][:-4]) * 1.0001, x
            assert x["published_gbps"] <= float(x["source"][:-4]) * x["ratio_limit"] * 1.0001, x


@test
def the_device_of_the_environment_plays_no_part():
    """Loads are timed on the CPU, unless --device says something else."""
    with mock.patch.dict(os.environ, FAR):
        assert len(bench("--pack", pack(), "--source", "cache", "--load-threads", 1)["loads"]) == 2


@test
def loads_to_a_gpu():
    rows = bench("--pack", pack(), "--device", "cuda", "--source", "cache,direct,paced", "--pace", "1GB/s")
    assert rows["device"].startswith("cuda:0"), rows
    assert [(x["source"], x["form"]) for x in rows["loads"]] == [
        (s, f) for s in ("cache", "1GB/s") for f in ("bf16", "planes")], rows  # parts are read to stages, so not past the page cache
    assert all(x["published_gbps"] > 0 for x in rows["loads"]), rows
    text = bench("--pack", pack(), "--device", "cuda", "--source", "direct", ok=False)
    assert "no GPU with memory of its own" in text, text
    text = bench("--pack", pack(), "--device", "cuda:0,1", ok=False)
    assert "one card" in text, text


@test
def past_the_page_cache_planes_only():
    with open(os.path.join(pack(), "experts.bin"), "rb") as f:
        try:
            os.close(os.open(f.name, os.O_RDONLY | os.O_DIRECT))
        except OSError:  # a file system without it
            assert "leave direct out" in bench("--pack", pack(), "--source", "direct", ok=False)
            return
    rows = bench("--pack", pack(), "--source", "disk,direct")["loads"]
    assert [(x["source"], x["form"]) for x in rows] == [("disk", "bf16"), ("disk", "planes"), ("direct", "planes")], rows


@test
def codecs_side_by_side():
    with tempfile.TemporaryDirectory() as d:
        model = d + "/model"
        tool("od-bench", "synth", model, "--preset", "tiny")
        packs = []
        for codec in ("zstd", "lz4", "raw"):
            packs.append(f"{d}/{codec}")
            tool("od-pack", model, packs[-1], "--codec", codec, "--shadow", "none")
        r = bench("--pack", ",".join(packs), "--source", "cache,paced", "--pace", "1GB", "--experts", 3)
        assert [(x["source"], x["codec"], x["form"]) for x in r["loads"]] == [
            (s, c, "bf16") for s in ("cache", "1GB") for c in ("zstd", "lz4", "raw")], r  # no planes, no such form
        assert [x["ratio_limit"] for x in r["loads"] if x["codec"] == "raw"] == [1, 1]
        text = bench("--pack", packs[0], "--form", "planes", ok=False)
        assert "nothing to measure" in text, text


@test
def what_cannot_be_is_said():
    for args, words in ((["--source", "tape"], ["--source", "tape", "paced"]),
                        (["--pace", "0"], ["--pace", "0"]),
                        (["--pace", "fast"], ["--pace", "like 3.5GB/s", "fast"]),
                        (["--load-threads", "0"], ["--load-threads", "0"]),
                        (["--experts", "4000"], ["--experts", "4000"]),
                        (["--form", "round"], ["--form", "round", "planes"])):
        text = bench("--pack", pack(), *args, ok=False)
        for w in words:
            assert w in text, (args, text)


run_tests()
