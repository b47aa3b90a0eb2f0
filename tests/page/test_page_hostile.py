#!/usr/bin/env python3
"""What a hostile model, or a hostile server's text, can do in the page: nothing. Markdown and events are parsed in Chromium, from texts that are
crafted and from texts that a seed draws ($OD_SEED). $SECONDS: for so long, more of them (make fuzz-page)."""
import base64
import json
import os
import re
import time

from hostile_model import CRAFTED, SCRIPT, SLOW, random_text
from mock_cluster import MockCluster
from page_tests import SEED, browser, ended, open_chat, run_tests, say, seeded, site, test

SECONDS = int(os.environ.get("SECONDS", "0"))
SMALL, GROWTH = 2000, 16
MOST_GROWTH = 80  # linear time grows 16 times, quadratic time 256 times
TOO_SHORT_MS = 60  # such a time says nothing of how it grows


def lab():
    """A page with hostile_checks.js."""
    s = site()
    page = open_chat(s)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_checks.js")) as f:
        page.evaluate(f.read())
    return s, page


def bad_of(page, texts, seed):
    """Pairs of text and what is wrong with it. Lone surrogates travel as escapes of JSON."""
    call = f"{json.dumps(texts)}.map((t, i) => [t, hostile.check(t, {seed} + i)]).filter((p) => p[1] !== null)"
    return page.evaluate(call)


@test
def test_crafted_texts_do_nothing():
    s, page = lab()
    around = ["{}", "a {} b", "- {}", "> {}", "**{}**", "[{}](https://example.org)", "| {} | b |\n|---|---|\n| c | {} |", "```\n{}\n```", "# {}"]
    for form in around:
        bad = bad_of(page, [form.replace("{}", t) for t in CRAFTED], SEED)
        assert not bad, (form, bad[:5], len(bad))
    # Texts between two pages do not get lost either: what a tag would hide is read.
    shown = page.evaluate(f"(() => {{ const d = document.createElement('div'); d.innerText = ''; return hostile.html({json.dumps(CRAFTED[0])}); }})()")
    assert "&lt;script&gt;" in shown, shown
    page.wait("new Promise((r) => setTimeout(() => r(true), 300))")  # what loads later would be asked for by now
    page.expect_clean(s.url)


@test
def test_the_checks_see_what_is_forbidden():
    """The checks of this file, tried on elements that must not be there."""
    _, page = lab()
    for make in ("document.createElement('img')", "Object.assign(document.createElement('a'), {href: 'javascript:alert(1)'})",
                 "Object.assign(document.createElement('p'), {title: 'x'})", "document.createElement('script')",
                 "(() => { const p = document.createElement('p'); p.setAttribute('style', 'x'); return p; })()"):
        assert page.evaluate(f"(() => {{ const d = document.createElement('div'); d.append({make}); return hostile.problemOf(d); }})()"), make
    assert page.evaluate("hostile.problemOf(document.createElement('div'))") is None


@test
def test_nothing_parses_html():
    """The page's policy refuses all that would parse a text as HTML."""
    _, page = lab()
    for what in "innerHTML = '<b>x</b>'", "setAttribute('onclick', 'x')", "outerHTML = '<b>x</b>'", "insertAdjacentHTML('beforeend', '<b>x</b>')":
        said = page.evaluate(f"(() => {{ const d = document.createElement('div'); document.body.append(d); try {{ d.{what}; return 'done'; }} "
                             "catch (e) { return e.name; } finally { d.remove(); } })()")
        assert said == "TypeError", (what, said)


@test
def test_random_texts_do_nothing():
    s, page = lab()
    r, end, n = seeded("markdown"), time.monotonic() + SECONDS / 2, 0
    while n < 1500 or time.monotonic() < end:
        texts = [random_text(r) for _ in range(100)]
        bad = bad_of(page, texts, SEED + n)
        assert not bad, (SEED, n, bad[:3])
        n += len(texts)
    print(f"# {n} random texts")
    page.wait("new Promise((r) => setTimeout(() => r(true), 300))")
    page.expect_clean(s.url)


@test
def test_time_grows_as_the_text_does():
    _, page = lab()
    bad = []
    for name, make in SLOW.items():
        for streamed in False, True:
            size = SMALL if not streamed else SMALL // 2
            small, large = json.dumps(make(size)), json.dumps(make(size * GROWTH))
            for _ in range(4):  # a machine that is busy may be so sometimes, but not always
                then = page.evaluate(f"hostile.time({large}, {json.dumps(streamed)})")
                if then < TOO_SHORT_MS or then < page.evaluate(f"hostile.time({small}, {json.dumps(streamed)})") * MOST_GROWTH:
                    break
            else:
                bad.append((name, streamed, round(then)))
    assert not bad, bad


@test
def test_hostile_sizes_are_within_limits():
    s, page = lab()
    for name, make in SLOW.items():
        problem = page.evaluate(f"hostile.check({json.dumps(make(8000))}, 1, 300)")
        assert problem is None, (name, problem[:500])
    page.expect_clean(s.url)


# ---- Events ----

def reference_events(data):
    """Section 9.2.6 of the HTML standard, read from the whole."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    events, kind, lines = [], "", []
    for line in re.split("\r\n|\r|\n", text)[:-1]:  # a line that does not end is not one
        if line == "":
            if lines:
                events.append([kind or "message", "\n".join(lines)])
            kind, lines = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            lines.append(value)
        elif field == "event":
            kind = value
    return events


def random_events(r):
    pieces = [b"data: ", b"data:", b"data", b"event: ", b"event:x", b"id: 1", b"retry: 5", b": comment", b":", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b" ",
              "é€\U0001f600".encode(), b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\0", b"abc", b'{"a": "b:c"}', b"[DONE]", b"DATA: x", b"datax: y"]
    data = b"".join(r.choice(pieces) for _ in range(r.choice((5, 30, 200))))
    return b"\xef\xbb\xbf" + data if r.random() < 0.2 else data


@test
def test_events_are_read_as_the_standard_says():
    _, page = lab()
    r, end, n = seeded("events"), time.monotonic() + SECONDS / 2, 0
    while n < 1500 or time.monotonic() < end:
        data = [random_events(r) for _ in range(100)]
        calls = ", ".join(f"hostile.events('{base64.b64encode(d).decode()}', {r.choice((1, 2, 5, 1000))}, {n + i})" for i, d in enumerate(data))
        for d, found in zip(data, page.evaluate(f"[{calls}]"), strict=True):
            assert found == reference_events(d), (SEED, d, found, reference_events(d))
        n += len(data)
    print(f"# {n} random streams")


@test
def test_a_long_event_takes_linear_time():
    _, page = lab()
    first, then = page.evaluate("[hostile.timeEvents(100000, 16), hostile.timeEvents(1600000, 16)]")
    assert then < TOO_SHORT_MS or then < first * MOST_GROWTH, (first, then)


# ---- The whole page ----

@test
def test_hostile_answers_in_the_chat():
    texts = [t for t in CRAFTED if "\ud800" not in t]
    answer = [("thought", "\n\n".join(texts))]
    for t in texts:
        answer += [("text", t[:3]), ("text", t[3:] + "\n\n")]
    answer += [("call", f"<img src=x onerror={SCRIPT}>", [f'{{"a": "<script>{SCRIPT}</script>"', "}"])]
    s = site({"Go": answer, "Fail": [("error", f"<img src=x onerror={SCRIPT}>")], f"<img src=x onerror={SCRIPT}>": [("text", "ok")]})
    page = open_chat(s)
    before = page.count("script")
    say(page, "Go")
    ended(page)
    page.evaluate("document.querySelector('.thoughts').open = true")
    say(page, "Fail")
    ended(page, 2)
    say(page, f"<img src=x onerror={SCRIPT}>")
    ended(page, 3)

    def look():
        assert page.evaluate("window.__xss") is None
        assert page.count("script") == before and page.count("#messages :is(img, iframe, script, style, link, meta, base, form, object, embed, video, math)") == 0
        links = page.evaluate("[...document.querySelectorAll('#messages a')].map((a) => a.protocol)")
        assert set(links) <= {"http:", "https:", "mailto:"}, links

    look()
    page.reload()
    ended(page, 3)
    look()
    page.expect_clean(s.url)


@test
def test_a_click_on_a_link_keeps_the_page():
    s = site({"Go": [("text", "[a](javascript:window.__xss=1) [b](#/cluster) [c](/page/app.js)")]})
    page = open_chat(s)
    say(page, "Go")
    ended(page)
    assert page.count(".markdown a") == 0
    assert page.text(".markdown").strip() == "a (javascript:window.__xss=1) b (#/cluster) c (/page/app.js)"


@test
def test_hostile_names_of_hosts():
    c, s = MockCluster(2), site()
    state = c.state()
    evil = f"<img src=https://evil.example/x onerror={SCRIPT}>"
    for m in state["machines"]:
        m.update(host=evil, name=evil, problem=evil, remedy=evil, precision=evil)
    state.update(problem=evil, version=evil)
    state["model"]["name"] = evil
    s.push("state", state)
    page = browser().open(s.url + "/#/cluster")
    page.wait("document.querySelectorAll('.machine').length === 4")
    s.push("steps", {"steps": [{**c.next_step(), "kind": evil, "step": evil}]})
    page.click("#timeline-table-box summary")
    page.wait("document.querySelector('#timeline-table table') !== null")
    assert page.count("img") == 0 and page.evaluate("window.__xss") is None
    page.expect_clean(s.url)


@test
def test_hostile_files_to_import():
    s, page = lab()
    bad = page.evaluate("""(async () => {
        const tree = await import('/page/tree.js'), bad = [];
        const evil = [null, 7, 'x', [], {}, { chats: 5 }, { chats: [] }, { chats: [null, 7, {}, { nodes: {} }, { nodes: [] }, { nodes: [null] }] },
            { chats: [{ nodes: [null, { parent: 1, role: 'user' }, { parent: -1, role: 'user' }, { parent: 0.5, role: 'user' }, { parent: '0', role: 'user' }] }] }];
        for (const e of evil) {
            try {
                tree.importText(JSON.stringify(e));
                bad.push(JSON.stringify(e));
            } catch (error) {
                if (!/file/.test(error.message))
                    bad.push(error.message);
            }
        }
        const odd = JSON.parse('{"chats": [{"id": "<b>", "title": 5, "__proto__": {"polluted": 1}, "settings": {"system": 7, "temperature": "x", "evil": 1}, "nodes": ['
            + '{"chosen": 1}, {"parent": 0, "role": "user", "text": {"a": 1}, "chosen": 2, "__proto__": {"x": 1}}, {"parent": 1, "role": "assistant", "calls": [null, {"name": 7}], "chosen": 1},'
            + '{"parent": 2, "role": "root"}, {"parent": 2, "role": "tool", "results": "no"}]}]}');
        const [chat] = tree.importText(JSON.stringify(odd));
        if ({}.polluted !== undefined || chat.id === '<b>' || chat.title !== '' || Object.keys(chat.settings).length > 0)
            bad.push(JSON.stringify(chat));
        if (JSON.stringify(tree.path(chat)) !== '[1,2,4]' || chat.nodes[1].text !== '' || chat.nodes[3] !== null)
            bad.push(JSON.stringify(chat.nodes));
        tree.messagesUntil(chat, 4);
        return bad;
    })()""")
    assert not bad, bad


if __name__ == "__main__":
    run_tests()
