"""Headless Chromium, driven by the DevTools protocol over two pipes (--remote-debugging-pipe). Standard library.

A Browser is one process with a profile of its own; a Page is a tab in it. A Page records what it asked for on the network, what its console
said and what its security policy forbade; expect_clean() fails where that is not as it has to be."""
import atexit
import base64
import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

HANG_S = 90  # nothing here takes so long, unless it hangs
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowUp": (38, ""), "ArrowDown": (40, ""), "Backspace": (8, ""), "End": (35, ""),
        "Home": (36, "")}
ALT, CONTROL, SHIFT = 1, 2, 8
FLAGS = ["--headless=new", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--mute-audio", "--hide-scrollbars",
         "--disable-features=Translate,OptimizationHints,MediaRouter", "--remote-debugging-pipe"]


def program():
    """The path of Chromium, or None."""
    return os.environ.get("OD_CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Failed(AssertionError):
    pass


class Browser:
    def __init__(self, *flags):
        self.profile = tempfile.mkdtemp(prefix="od-page.")
        self.ids = itertools.count(1)
        self.answers = {}
        self.pages = {}
        self.lock = threading.Lock()
        self._start([*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), *flags])
        atexit.register(self.close)
        threading.Thread(target=self._read, daemon=True).start()

    def _start(self, flags):
        """Chromium reads from descriptor 3 and writes to 4."""
        to_read, self.write_fd = os.pipe()
        self.read_fd, to_write = os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write)]

        def place():
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self.p = subprocess.Popen([program(), f"--user-data-dir={self.profile}", *flags, "about:blank"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place, pass_fds=(3, 4),
                                  env={**os.environ, "HOME": self.profile})
        for fd in (to_read, to_write, *theirs):
            os.close(fd)

    def _read(self):
        rest = b""
        while piece := os.read(self.read_fd, 1 << 20):
            *messages, rest = (rest + piece).split(b"\0") if b"\0" in piece else ([rest + piece])
            for m in messages:
                self._take(json.loads(m))
        with self.lock:
            for q in self.answers.values():
                q.put({"error": {"message": "Chromium ended"}})

    def _take(self, message):
        if "id" in message:
            with self.lock:
                q = self.answers.pop(message["id"], None)
            if q is not None:
                q.put(message)
        elif (page := self.pages.get(message.get("sessionId"))) is not None:
            page.on_event(message["method"], message["params"])

    def call(self, method, session=None, **params):
        n, q = next(self.ids), queue.Queue()
        with self.lock:
            self.answers[n] = q
        message = {"id": n, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        with self.lock:
            while data:
                data = data[os.write(self.write_fd, data):]
        try:
            answer = q.get(timeout=HANG_S)
        except queue.Empty:
            raise Failed(f"no answer to {method} in {HANG_S} s") from None
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url, **emulate):
        """A new tab in a context of its own: nothing stored is shared with another tab."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        page = Page(self, context)
        page.emulate(**emulate)
        page.go(url)
        return page

    def close(self):
        if self.p.poll() is None:
            self.p.terminate()
            try:
                self.p.wait(10)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    def __init__(self, browser, context):
        self.browser = browser
        self.context = context
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.target = target
        self.requests = []  # addresses
        self.problems = []  # of the console, exceptions and the security policy
        self.dialogs = []  # alert() and its like
        browser.pages[self.session] = self
        for domain in "Page", "Runtime", "Network", "Log", "DOM", "Accessibility":
            self.call(f"{domain}.enable")
        self.call("Audits.enable")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def on_event(self, method, p):
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.problems.append("exception: " + d.get("exception", {}).get("description", d["text"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {p['entry']['text']} {p['entry'].get('url', '')}")
        elif method == "Audits.issueAdded" and p["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.problems.append(f"policy: {json.dumps(p['issue']['details'])}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(p["message"])
            threading.Thread(target=self.call, args=("Page.handleJavaScriptDialog",), kwargs={"accept": True}, daemon=True).start()

    def emulate(self, width=1280, height=800, scale=1, mobile=False, dark=False, reduced_motion=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"}])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait("window.isOld === undefined && document.readyState === 'complete'")

    def evaluate(self, expression):
        """The value of an expression; of a promise, what it resolves to."""
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            d = r["exceptionDetails"]
            raise Failed(f"{d.get('exception', {}).get('description', d['text'])} in {expression[:300]}")
        return r["result"].get("value")

    def wait(self, condition, why=""):
        """Until a condition of the page is true; returns its value."""
        end = time.monotonic() + HANG_S
        while True:
            try:
                if value := self.evaluate(condition):
                    return value
            except Failed as e:  # the page may just be changing
                if time.monotonic() > end:
                    raise Failed(f"never: {condition} {why}: {e}") from None
            if time.monotonic() > end:
                raise Failed(f"never: {condition} {why}; problems: {self.problems}; the page says: {self.text()[-1500:]}")
            time.sleep(0.03)

    def wait_text(self, text, selector="body"):
        self.wait(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(text)})", f"({text!r} in {selector})")

    def text(self, selector="body"):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def texts(self, selector):
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")

    def count(self, selector):
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def is_shown(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.checkVisibility({{visibilityProperty: true}}) ?? false")

    # What a user does

    def click(self, selector, last=False):
        find = f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility({{visibilityProperty: true}}))" \
               f".at({-1 if last else 0})"
        self.wait(f"{find} !== undefined", f"({selector} to click on)")
        self.evaluate(f"{find}.scrollIntoView({{block: 'nearest', inline: 'nearest', behavior: 'instant'}})")
        x, y = self.evaluate(f"(() => {{ const r = {find}.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in "mousePressed", "mouseReleased":
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, modifiers=0):
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        more = {"text": text} if text and not modifiers & (ALT | CONTROL) else {}
        name = f"Key{key.upper()}" if len(key) == 1 and key.isalpha() else key
        common = {"key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if more else "rawKeyDown", **common, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        for c in text:
            if c == "\n":
                self.press("Enter", SHIFT)
            else:
                self.call("Input.dispatchKeyEvent", type="keyDown", key=c, text=c)
                self.call("Input.dispatchKeyEvent", type="keyUp", key=c)

    def screenshot(self, path):
        # A headless page that nothing has changed may not have been painted in its last size.
        self.evaluate("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def expect_clean(self, origin, allow=()):
        """Nothing was said on the console, nothing forbidden was tried, and only the page's own server was asked. allow: parts of messages that
        a test causes on purpose."""
        bad = [p for p in self.problems if not any(a in p for a in allow)]
        assert not bad, bad
        assert not self.dialogs, self.dialogs
        strange = [r for r in self.requests if not r.startswith((origin + "/", "blob:" + origin, "about:blank"))]
        assert not strange, strange

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.pages.pop(self.session, None)
