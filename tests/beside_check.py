#!/usr/bin/env python3
"""Checks that a public function of the product or of od-bench is defined in the file beside the header that declares it: part of
check-source. Kernels (.cu) have no headers of their own. Exempt are headers that two files of one idea share (*_internal.h) and
those in SPREAD, each for its reason."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPREAD = {
    "common/compute/cpu/cpu_tables.h",  # a list: a function for each instruction set, in the file of its name
    "common/text/jinja/jinja.h",  # all that users of the library see; its parser and its evaluator have inner headers
    "tests/bench/bench.h",  # a list: the benchmarks, each in its file
    "tests/bench/live/ablate.h",  # one benchmark in three files: plan, runs, report
}
WORD = re.compile(r"\w+")
DEFINED = re.compile(r"^(?!static\b|typedef\b|else\b|extern\b)[A-Za-z_][\w \t*()]*?[ *](\w+)\((?:[^;{}]*)\)\n\{", re.MULTILINE)


def bare(text: str) -> str:
    """Without comments, texts, lines of the preprocessor and all that stands in braces."""
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.DOTALL)
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)
    return text


def declared(header: str) -> set[str]:
    text = bare(header)
    # Behind the body of an inline function there is no semicolon.
    while (less := re.sub(r"(\)\s*)?\{[^{}]*\}", lambda m: ");" if m.group(1) else "", text)) != text:
        text = less
    found = set()
    for line in re.split(r";|\n(?=static\b|typedef\b)", text):
        line = line.strip()
        if not line.startswith(("static", "typedef")):
            found.update(WORD.findall(line))
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.split()
    files = [f for f in listed if re.search(r"\.[ch]$", f) and (not f.startswith("tests/") or f.startswith("tests/bench/"))
             and (ROOT / f).exists()]
    headers = {f: declared((ROOT / f).read_text()) for f in files if f.endswith(".h")}
    names: dict[str, list[str]] = {}
    for header, words in headers.items():
        for word in words:
            names.setdefault(word, []).append(header)
    bad, n = [], 0
    for f in files:
        if f.endswith(".h"):
            continue
        for name in DEFINED.findall(bare((ROOT / f).read_text())):
            n += 1
            where = names.get(name, [])
            beside = f.rsplit(".", 1)[0] + ".h"
            if where and beside not in where and not any(h in SPREAD or h.endswith("_internal.h") for h in where):
                bad.append(f"{where[0]} declares {name}, which stands in {f}: declare it in {beside}, or move it")
    if n < 1000:
        bad.append(f"beside_check: expected 1000 public functions or more, found {n}")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
