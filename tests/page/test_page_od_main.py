#!/usr/bin/env python3
"""The page as od-main serves it: a chat with the demo model, and three hosts with sixteen texts in view, of which one worker is killed."""
import atexit
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integ"))
from cluster_util import TMP, Daemon, hosts_file  # noqa: E402
from page_tests import browser, check_accessible, ended, open_chat, run_tests, say, test  # noqa: E402
from serve_util import Server, stop_servers  # noqa: E402

atexit.register(stop_servers)
TOKENS = 40
PROMPT = "Once upon a time there was a king"


class Site(Server):
    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


def settle(page):
    """Short and greedy answers, so that they can be compared."""
    page.click("#open-settings")
    page.click("#set-temperature")
    page.type("0")
    page.click("#set-max-tokens")
    page.type(str(TOKENS))
    page.click("#settings .primary")


@test
def test_a_chat():
    s = Site()
    page = open_chat(s)
    assert page.text("#model") in s.ask("/v1/models")[2]["data"][0]["id"]
    settle(page)
    say(page, PROMPT)
    ended(page)
    _, _, o = s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "temperature": 0})
    content = o["choices"][0]["message"]["content"]
    assert content.split() and page.text(".markdown").split() == content.split(), (page.text(".markdown"), content)
    assert "tokens/s" in page.text(".statistics") and f"{o['usage']['completion_tokens']} tokens" in page.text(".statistics"), page.text(".statistics")
    page.expect_clean(s.url)
    assert s.stop() == 0, s.log


@test
def test_a_wrong_key_and_the_right_one():
    keys = os.path.join(TMP, "page.keys")
    with open(keys, "w") as f:
        f.write("a-key-of-the-page\n")
    os.chmod(keys, 0o600)
    s = Site("--api-key-file", keys)
    page = browser().open(s.url + "/")
    for key, then in ("wrong", "document.querySelector('#key-text').innerText.includes('did not accept')"), \
                     ("a-key-of-the-page", "document.querySelector('#model').textContent !== ''"):
        page.wait("document.querySelector('#key-dialog').open")
        page.click("#key")
        page.type(key)
        page.press("Enter")
        page.wait(then)
    settle(page)
    say(page, PROMPT)
    ended(page)
    assert page.text(".markdown").strip()
    page.click("#tab-cluster")
    page.wait("document.querySelectorAll('.machine').length > 0")
    page.expect_clean(s.url, allow=("401",))
    assert s.stop() == 0, s.log


class Texts:
    """Sixteen texts at once, one after the other, until they are told to end."""

    def __init__(self, s):
        self.s, self.on, self.answers = s, True, []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(16)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while self.on:
            self.answers.append((i, self.s.complete(f"{PROMPT} {i}", 60, ignore_eos=True)["choices"][0]["text"]))

    def stop(self):
        self.on = False
        for t in self.threads:
            t.join()
        assert len(set(self.answers)) == len({i for i, _ in self.answers}) == 16  # each text was always the same


@test
def test_a_worker_is_killed_in_view():
    workers, shadow = [Daemon("worker", "--run-time=1") for _ in range(2)], Daemon("shadow")
    s = Site("--parallel", 16, mode=("--workers", hosts_file([*workers, shadow], "view.txt")))
    page = browser().open(s.url + "/#/cluster")
    page.wait("document.querySelectorAll('.machine.good').length === 4")
    texts = Texts(s)
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last')")
    page.wait("/^(1[0-6]|[1-9]) written/m.test(document.querySelector('#facts').innerText)")
    page.wait("parseFloat(document.querySelector('.curve-now').innerText) > 0")
    page.click("#timeline-table-box summary")
    page.wait("document.querySelector('#timeline-table')?.innerText.includes('ready in time')")
    check_accessible(page)
    workers[1].kill()
    page.wait("document.querySelectorAll('.machine.bad').length === 1")
    bad = page.text(".machine.bad")
    assert "lost" in bad and str(workers[1].port) in bad and "main connects again by itself" in bad, bad
    check_accessible(page)
    workers[1].start()
    page.wait("document.querySelectorAll('.machine.good').length === 4")
    texts.stop()
    seen = page.text("#cluster-view") + page.evaluate("document.querySelector('#timeline-canvas').getAttribute('aria-label')")
    assert PROMPT not in seen and not any(t[:20] in seen for _, t in texts.answers)
    page.expect_clean(s.url)
    if path := os.environ.get("OD_SCREENSHOT"):
        page.screenshot(path)
    assert s.stop() == 0, s.log
    for d in (*workers, shadow):
        d.kill()


@test
def test_od_main_ends_and_comes_back():
    s = Site()
    page = browser().open(s.url + "/#/cluster")
    page.wait("document.querySelectorAll('.machine').length === 1")
    port = s.port
    assert s.stop() == 0, s.log
    page.wait("document.body.classList.contains('link-lost')")
    s = Site(listen=f"127.0.0.1:{port}")
    page.wait("!document.body.classList.contains('link-lost')")
    page.expect_clean(s.url, allow=("ERR_",))
    assert s.stop() == 0, s.log


if __name__ == "__main__":
    run_tests()
