"""What the tests of the page share: one Chromium, a server for each test, and checks of what every page must be like. Standard library.

A site is a server with url, and with what a test needs of it: MockServer here; od-main itself where a test starts it."""
import atexit
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integ"))
import tap_tests  # noqa: E402
from chromium import Browser, program  # noqa: E402
from mock_server import MockServer  # noqa: E402

SEED = int(os.environ.get("OD_SEED", "1"))
_tests, _browser, _sites = [], [], []


def test(f):
    _tests.append(f)
    return f


def browser():
    if not _browser:
        _browser.append(Browser())
    return _browser[0]


def site(*args, **kwargs):
    s = MockServer(*args, **kwargs)
    _sites.append(s)
    atexit.register(s.stop)
    return s


def seeded(what):
    return random.Random(f"{SEED} {what}")


def open_chat(s, **emulate):
    page = browser().open(s.url + "/", **emulate)
    page.wait("document.querySelector('#model').textContent !== ''", "(the model's name)")
    return page


def say(page, text):
    page.click("#prompt")
    page.type(text)
    page.press("Enter")


def ended(page, n=1):
    """Until n answers are shown, and none is being written."""
    page.wait(f"document.querySelectorAll('.answer').length === {n} && document.querySelector('[aria-busy]') === null && "
              "document.querySelector('#stop').hidden", f"({n} ended answers)")


def skip(why):
    raise tap_tests.Skip(why)


def _skipped(f):
    def skipped():
        skip("there is no Chromium here (deploy/install-deps.sh chromium)")
    skipped.__name__ = f.__name__
    return skipped


def run_tests():
    tests = [t for t in _tests if t.__module__ == "__main__"]
    sys.exit(tap_tests.run(tests if program() else [_skipped(t) for t in tests]) > 0)


# ---- Accessibility ----

FOCUSABLE = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "listbox", "tab", "slider", "radio"}

# The contrast of each shown text with what is behind it, as WCAG 2.1 defines it; those below 4.5 (large texts: 3).
CONTRAST = r"""(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
	const rgba = (c) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = c;
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
		return [r, g, b, a / 255];
	};
	const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
	const behind = (e) => e === null ? [255, 255, 255, 1] : over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement));
	const light = (c) => [0, 1, 2].map((i) => c[i] / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const bad = [];
	let n = 0;
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let t = walker.nextNode(); t !== null; t = walker.nextNode()) {
		const e = t.parentElement, style = getComputedStyle(e);
		if (t.data.trim() === '' || !e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || e.closest('.hidden, :disabled, noscript'))
			continue;
		const back = behind(e), front = over(rgba(style.color), back);
		const [a, b] = [light(front), light(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
		const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
		n++;
		if (ratio < (large ? 3 : 4.5))
			bad.push(`${ratio.toFixed(2)}: ${e.tagName}.${e.className} "${t.data.trim().slice(0, 40)}"`);
	}
	return { n, bad };
})()"""


def check_accessible(page):
    """The accessibility tree: every control has a name and a role, headings leave no level out, images have a text; contrast as WCAG AA has it."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    headings, bad, n_controls = [], [], 0
    for node in nodes:
        role, name = node.get("role", {}).get("value", ""), node.get("name", {}).get("value", "").strip()
        properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
        if node.get("ignored"):
            continue
        if properties.get("focusable") and role not in ("RootWebArea",):
            n_controls += 1
            if not name and role not in ("main",):
                bad.append(f"a focusable {role} has no name: {describe(page, node)}")
            if role in ("generic", "none", ""):
                bad.append(f"a focusable element has no role: {describe(page, node)}")
        if role in ("image", "img", "Canvas", "graphics-document", "dialog", "navigation", "article") and not name:
            bad.append(f"{role} without a name: {describe(page, node)}")
        if role == "heading":
            headings.append((properties["level"], name))
            if not name:
                bad.append("an empty heading")
    level = 1 if page.evaluate("document.querySelector('dialog[open]') !== null") else 0  # behind a dialog nothing is read
    for now, name in headings:
        if now > level + 1:
            bad.append(f"heading {name!r} of level {now} follows one of level {level}")
        level = now
    ids = page.evaluate("(() => { const seen = new Set(), twice = []; for (const e of document.querySelectorAll('[id]')) "
                        "{ if (seen.has(e.id)) twice.push(e.id); seen.add(e.id); } return twice; })()")
    contrast = page.evaluate(CONTRAST)
    assert not bad and not ids and not contrast["bad"], json.dumps([bad, ids, contrast["bad"]], indent=1)
    assert n_controls >= 1 and len(headings) >= 1 and contrast["n"] >= 5, (n_controls, headings, contrast["n"])


def describe(page, node):
    try:
        d = page.call("DOM.describeNode", backendNodeId=node["backendDOMNodeId"])["node"]
        return f"{d['nodeName']} {d.get('attributes')}"
    except (AssertionError, KeyError):
        return str(node)[:200]
