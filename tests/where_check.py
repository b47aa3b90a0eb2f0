#!/usr/bin/env python3
"""Checks docs/ARCHITECTURE.md's table "Where is it?": each file and folder that it names exists, and each other name stands in a file
that its row names. Part of check-source."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ARCHITECTURE.md"


def rows(text: str) -> list[str]:
    section = text.split("## Where is it?", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| Wh") or line.startswith("| How")]


def problems(row: str) -> list[str]:
    names = re.findall(r"`([^`]+)`", row)
    paths = [n for n in names if "/" in n]
    found = [f"{p} does not exist" for p in paths if not (ROOT / p).exists()]
    texts = [(ROOT / p).read_text() for p in paths if (ROOT / p).is_file()]
    words = [n for n in names if "/" not in n and re.fullmatch(r"\w+", n)]
    return found + [f"{w} stands in no file of its row" for w in words if not any(re.search(rf"\b{w}\b", t) for t in texts)]


def main() -> int:
    table = rows(PAGE.read_text())
    bad = [f"{PAGE.name}: {p}" for row in table for p in problems(row)]
    if len(table) < 40:
        bad.append(f"{PAGE.name}: expected 40 rows or more in \"Where is it?\", found {len(table)}")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
