#!/usr/bin/env python3
"""Speed of our tokeniser beside Hugging Face tokenizers, one thread each, on 10 MB of English, of code and of a mixture of
languages: texts of this machine (docstrings and documentation, Python and C files, translations of programs). The tokenisers are
of the published kinds, with vocabularies that are trained on these texts. Both take turns; prints medians and whether the ids of
whole texts are the same.

    build/reference/bin/python tests/reference/tokenize_speed.py [--rounds 3] [--kinds qwen3,o200k,mixtral,deepseek_v3]
"""
import argparse
import glob
import gzip
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "golden", "tokenizer"))

import tokenizers  # noqa: E402
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers  # noqa: E402
from make_golden import DEEPSEEK_V3, LLAMA3, O200K, QWEN, QWEN_MARKS  # noqa: E402

BYTES = 10_000_000
PIECE = 8192


def read(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError):
        return ""


def translations(path):
    with open(path, "rb") as f:
        data = f.read()
    magic, _, n, _, at = struct.unpack("<5I", data[:20])
    for i in range(1, n if magic == 0x950412de else 0):
        size, begin = struct.unpack("<2I", data[at + 8 * i:at + 8 * i + 8])
        yield data[begin:begin + size].decode("utf-8", "ignore").replace("\0", "\n") + "\n"


def texts():
    rng = random.Random(1)
    code = sorted(glob.glob("/usr/lib/python3*/**/*.py", recursive=True) + glob.glob("/usr/include/**/*.h", recursive=True) +
                  glob.glob(os.path.dirname(tokenizers.__path__[0]) + "/**/*.py", recursive=True))
    mo = sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo"))
    docs = sorted(p for p in glob.glob("/usr/share/doc/**/*", recursive=True) if os.path.isfile(p))
    rng.shuffle(code)
    rng.shuffle(mo)
    english = (m + "\n\n" for p in code for m in re.findall(r'"""(.*?)"""', read(p), re.S))
    for name, parts in (("English", [*english, *map(read, docs)]), ("code", map(read, code)),
                        ("mixed", (s for p in mo for s in translations(p)))):
        data, size = [], 0
        for part in parts:
            data.append(part.encode())
            size += len(data[-1])
            if size >= BYTES:
                break
        yield name, b"".join(data)[:BYTES].decode("utf-8", "ignore")


def make(kinds, samples):
    """tokenizer.json of each kind."""
    last = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    split = lambda p: dict(type="Split", pattern={"Regex": p}, behavior="Isolated", invert=False)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(O200K), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(samples, trainers.BpeTrainer(vocab_size=60000, show_progress=False,
                                                       initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    byte = json.loads(t.to_str())
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(samples, trainers.BpeTrainer(vocab_size=32000 - 259, limit_alphabet=4000, show_progress=False))
    pieces = json.loads(t.to_str())["model"]
    head = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    pieces["vocab"] = {x: i for i, x in enumerate(head + [x for x in pieces["vocab"] if x not in head])}
    pieces.update(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    nfc, mark = dict(type="NFC"), dict(type="Replace", pattern={"String": " "}, content="▁")
    of = {"gpt2": (None, []), "llama3": (None, [LLAMA3]), "qwen3": (nfc, [QWEN]), "qwen3_5": (nfc, [QWEN_MARKS]),
          "o200k": (None, [O200K]), "deepseek_v3": (None, DEEPSEEK_V3),
          "mixtral": (dict(type="Sequence", normalizers=[dict(type="Prepend", prepend="▁"), mark]), None), "gemma": (mark, None)}
    for kind in kinds:
        norm, patterns = of[kind]
        d = dict(byte, normalizer=norm, decoder=None)
        if patterns is None:
            d.update(model=pieces, pre_tokenizer=None)
        else:
            steps = [*map(split, patterns), dict(last, use_regex=not patterns)]
            d["pre_tokenizer"] = dict(type="Sequence", pretokenizers=steps)
        yield kind, d


def cut(text):
    data, at, out = text.encode(), 0, []
    while at < len(data):
        end = min(at + PIECE, len(data))
        while end < len(data) and data[end] & 0xc0 == 0x80:
            end -= 1
        out.append(data[at:end].decode())
        at = end
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="qwen3,o200k,mixtral,deepseek_v3")
    parser.add_argument("--bin", default="build/bin")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        some = list(texts())
        for name, text in some:
            with open(at(name), "w", newline="", encoding="utf-8") as f:
                f.write(text)
        samples = [t[i:i + 4000] for _, t in some for i in range(0, len(t) // 2, 4000)]
        for kind, data in make(args.kinds.split(","), samples):
            with open(at("tokenizer.json"), "w") as f:
                json.dump(data, f)
            theirs = Tokenizer.from_file(at("tokenizer.json"))
            ours = lambda name, *more: json.loads(subprocess.run(
                [os.path.join(args.bin, "od-bench"), "tokenize", "--tokenizer", at("tokenizer.json"), "--repeats", "1", "--json", *more,
                 at(name)], check=True, capture_output=True, text=True).stdout)["texts"][0]["seconds_median"]
            for name, text in some:
                for size, parts in ("whole", [text]), ("pieces", cut(text)):
                    us, them, same = [], [], None
                    for i in range(args.rounds):
                        us.append(ours(name, *(["--piece", str(PIECE)] if size == "pieces" else ["--ids", at("ids")])))
                        begin = time.monotonic()
                        ids = [theirs.encode(p, add_special_tokens=False) for p in parts]
                        them.append(time.monotonic() - begin)
                        if size == "whole" and i == 0:
                            with open(at("ids"), "rb") as f:
                                got = f.read()
                            same = list(struct.unpack("<%di" % (len(got) // 4), got)) == ids[0].ids
                    size_mb = len(text.encode()) / 1e6
                    ratios = sorted(t / u for t, u in zip(them, us))
                    print("| %s | %s | %s | %.1f | %.1f | %.1f (%.1f to %.1f) | %s |" % (
                        kind, name, size, size_mb / statistics.median(us), size_mb / statistics.median(them), statistics.median(ratios),
                        ratios[0], ratios[-1], {True: "same", False: "DIFFERENT", None: ""}[same]), flush=True)


if __name__ == "__main__":
    main()
