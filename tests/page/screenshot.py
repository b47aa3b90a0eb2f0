#!/usr/bin/env python3
"""Makes the pictures of the page that the documents show, with a server that answers from a script: docs/page.png and docs/page-cluster.png.

    tests/page/screenshot.py [FOLDER]"""
import os
import sys

from mock_cluster import MockCluster
from mock_server import MockServer
from page_tests import browser, ended, open_chat, say

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs")
QUESTION = "How do three small machines run a model that fits none of them?"
THOUGHTS = "They ask about od-moe: experts on demand, a shadow that predicts them, workers that load them."
ANSWER = """Each token needs only **a few experts** of each layer. So they are loaded *just before* they are used:

1. The **shadow** runs a small copy of the model a little ahead, and predicts the experts.
2. The **workers** load these experts from compressed storage.
3. **Main** computes attention and the router, and sends each expert its rows.

| machine | memory | does |
|:--------|-------:|:-----|
| main | 3.2 GB | attention, router, head |
| shadow | 5.1 GB | predicts 96% of the experts |
| worker | 5.1 GB | loads and runs experts |

A wrong prediction costs time and never changes a token:

```c
if (!resident(expert))
	load(expert); /* late, but the same bits */
```
"""


def chat(server):
    page = open_chat(server, width=1200, height=900)
    say(page, QUESTION)
    ended(page)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(os.path.join(FOLDER, "page.png"))


def cluster(server):
    c = MockCluster(2, texts=3, seed=4)
    server.push("state", c.state())
    page = browser().open(server.url + "/#/cluster", width=1200, height=800, dark=True)
    page.wait("document.querySelectorAll('.machine').length > 0 && document.querySelector('#model').textContent !== ''")
    for _ in range(90):
        server.push("state", c.second())
    server.push("steps", {"steps": [c.next_step() for _ in range(2)]})
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 2')")
    page.wait(f"document.querySelector('.curve-now').innerText !== '-' && {c.seconds} > 0")
    page.screenshot(os.path.join(FOLDER, "page-cluster.png"))


def main():
    server = MockServer({QUESTION: [("thought", THOUGHTS), ("text", ANSWER)]})
    chat(server)
    cluster(server)
    server.stop()


if __name__ == "__main__":
    main()
