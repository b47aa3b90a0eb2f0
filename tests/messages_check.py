#!/usr/bin/env python3
"""Checks that each message of docs/TROUBLESHOOTING.md stands in a source. "…" in a message is what differs, so the texts between are
looked for, in this order, in what one file says. Part of check-source."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "TROUBLESHOOTING.md"


def messages() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [re.match(r"\| `([^`]+)`", row).group(1) for row in rows]


def said() -> list[str]:
    """The strings of each file, those that stand side by side joined."""
    listed = subprocess.run(["git", "ls-files", "*.c", "*.h"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = []
    for f in listed:
        if not f.startswith("tests/"):
            text = re.sub(r'(?<!\\)"\s*(?:PRI\w+\s*|[A-Z_]{3,}\s*)?"', "", (ROOT / f).read_text())
            texts.append("\n".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', text)))
    return texts


def main() -> int:
    texts = said()
    bad = []
    for message in messages():
        parts = [re.escape(p.strip()) for p in message.split("…") if p.strip()]
        wanted = re.compile(r"[^\n]*".join(parts))
        if not any(wanted.search(t) for t in texts):
            bad.append(f"{PAGE.name}: no source says \"{message}\"")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
