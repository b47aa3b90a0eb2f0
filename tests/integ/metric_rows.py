"""The rows of the table in docs/METRICS.md, from what a server with a cluster shows. Standard library.

    curl -s http://127.0.0.1:8080/metrics | python3 tests/integ/metric_rows.py"""
import re
import sys

LABELS = r'(\w+)="(?:[^"\\]|\\.)*"'


def rows(text):
    """One a metric, in the order of the text: name, type, labels, help."""
    helps = re.findall(r"^# HELP (\S+) (.*)\n# TYPE (\S+) (\S+)$", text, re.M)
    out = []
    for name, text_, typed, kind in helps:
        assert name == typed, (name, typed)
        line = re.search(rf"^{name}(?:_bucket)?(?:\{{(.*?)\}})? \S+$", text, re.M)
        labels = re.findall(LABELS, line.group(1) or "") if line else []
        out.append(f"| `{name}` | {kind} | {' '.join(l for l in labels if l != 'le')} | {text_} |")
    return out


if __name__ == "__main__":
    print("\n".join(rows(sys.stdin.read())))
