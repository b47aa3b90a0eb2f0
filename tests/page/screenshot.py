#!/usr/bin/env python3
"""Makes the pictures of the page that the documents show, with od-main, a shadow and four workers that run the demo model: docs/page.png and
docs/page-cluster.png. Every figure in them is what these processes counted.

    tests/page/screenshot.py [FOLDER]"""
import atexit
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integ"))
from page_tests import browser, ended, open_chat, say  # noqa: E402
from serve_util import Server, stop_servers  # noqa: E402

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs")
BEGINS = ("A poor tailor went out into the wide world, and", "In the middle of the forest there stood a little house, and",
          "Once upon a time there was a king who had three daughters, and the", "Then the youngest")
TEXTS = 4
WATCHED_S = 75  # curves show a minute
atexit.register(stop_servers)


class Site(Server):
    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


def settle(page):
    """The demo model continues fairy tales; a little below 1 it keeps to its words."""
    page.click("#open-settings")
    page.click("#set-temperature")
    page.type("0.7")
    page.click("#set-max-tokens")
    page.type("90")
    page.click("#settings .primary")


def chat(s):
    """Three conversations; the last one has two answers."""
    page = open_chat(s, width=1100, height=760)
    settle(page)
    for begin in BEGINS[:3]:
        page.click("#new-chat")
        say(page, begin)
        ended(page)
    say(page, BEGINS[3])
    ended(page, 2)
    page.evaluate("document.activeElement.blur()")
    page.screenshot(os.path.join(FOLDER, "page.png"))


def cluster(s):
    page = browser().open(s.url + "/#/cluster", width=1100, height=1000, dark=True)
    page.wait("document.querySelectorAll('.machine.good').length === 6 && document.querySelector('#model').textContent !== ''")
    ends = time.monotonic() + WATCHED_S

    def write(i):
        while time.monotonic() < ends + 10:
            s.complete(BEGINS[i % len(BEGINS)], 200, temperature=0.7, ignore_eos=True)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(TEXTS)]
    for t in threads:
        t.start()
    time.sleep(WATCHED_S)
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 2')")
    page.screenshot(os.path.join(FOLDER, "page-cluster.png"))
    for t in threads:
        t.join()


def main():
    s = Site("--parallel", TEXTS, mode=("--local", 4))
    chat(s)
    cluster(s)
    assert s.stop() == 0, s.log


if __name__ == "__main__":
    main()
