#!/usr/bin/env python3
"""Checks words in C sources, part of check-source:
- A comment has a subject and a verb, or is a unit. Those that begin with of, what, those, that, the same, who or which have neither.
- A tag in a file of more than 300 lines names one thing in the whole tree. Tags with the prefix of an interface (od_, gpu_, ...) may be
  defined once by each of its implementations.
- A line that is nothing but a comment has at most 120 columns; clang-format does not break it."""
import collections
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_SUBJECT = re.compile(r"/\*+\s*(of\b(?![\[.])|(?:what|those|that|the same|who|which)\b)", re.IGNORECASE)
TAG = re.compile(r"^(?:static |const |extern )*(?:struct|union|enum) (\w+) \{", re.MULTILINE)
INTERFACE = re.compile(r"(od|odm|ods|odw|odc|gpu|ptx|jinja|tok)_|gpu$")
LONG = 300
COLUMNS = 120


def sources() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                            text=True).stdout.split()
    return {f: (ROOT / f).read_text() for f in listed if re.search(r"\.(c|h|cu)$", f) and (ROOT / f).exists()}


def comments(name: str, text: str) -> list[str]:
    bad = []
    for m in re.finditer(r"/\*.*?\*/", text, re.DOTALL):
        first = NO_SUBJECT.match(m.group())
        line = text.count("\n", 0, m.start()) + 1
        if first:
            bad.append(f"{name}:{line}: a comment begins with \"{first.group(1)}\": give it a subject and a verb, or make it a unit")
    for n, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(/\*| \*)", line) and '"' not in line and len(line.expandtabs(8)) > COLUMNS:
            bad.append(f"{name}:{n}: a comment of more than {COLUMNS} columns")
    return bad


def tags(files: dict[str, str]) -> list[str]:
    defined = collections.defaultdict(list)
    for name, text in files.items():
        for m in TAG.finditer(text):
            defined[m.group(1)].append(name)
    return [f"tag {tag} is defined in {', '.join(where)}: give it another name in those with more than {LONG} lines"
            for tag, where in sorted(defined.items())
            if len(where) > 1 and not INTERFACE.match(tag) and any(files[f].count("\n") > LONG for f in where)]


def main() -> int:
    files = sources()
    bad = [line for name, text in sorted(files.items()) for line in comments(name, text)] + tags(files)
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
