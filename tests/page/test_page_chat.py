#!/usr/bin/env python3
"""The page's chat in Chromium, used as people use it: with keys and clicks."""
import contextlib
import json
import os
import tempfile
import threading

from chromium import ALT, SHIFT, Failed
from page_tests import browser, check_accessible, ended, open_chat, run_tests, say, site, test

TEXT = [("text", "A *first* part, "), ("text", "then **more**.\n\n```c\nint x;\n"), ("text", "```\n")]


@test
def test_an_answer_comes_piece_by_piece():
    go, more = threading.Event(), threading.Event()
    s = site({"Hello": [("text", "One "), ("wait", go), ("text", "two "), ("wait", more), ("text", "three.")]})
    page = open_chat(s)
    say(page, "Hello")
    page.wait_text("One", ".answer .markdown")
    assert page.is_shown("#stop") and not page.is_shown("#send")
    assert "two" not in page.text(".answer")
    go.set()
    page.wait_text("One two", ".answer .markdown")
    more.set()
    ended(page)
    assert page.text(".answer .markdown").strip() == "One two three."
    assert "12.5 tokens/s" in page.text(".statistics") and "42 tokens" in page.text(".statistics"), page.text(".statistics")
    assert "15 of 20 drafts" in page.text(".statistics")
    request = s.asked[0]
    assert request["messages"] == [{"role": "user", "content": "Hello"}] and request["stream"] is True, request
    assert "temperature" not in request and "enable_thinking" not in request
    page.expect_clean(s.url)


@test
def test_shift_enter_begins_a_line_and_enter_sends():
    s = site()
    page = open_chat(s)
    page.click("#prompt")
    page.type("one")
    page.press("Enter", SHIFT)
    page.type("two")
    assert page.evaluate("document.querySelector('#prompt').value") == "one\ntwo"
    assert s.asked == []
    page.press("Enter")
    ended(page)
    assert s.asked[0]["messages"][0]["content"] == "one\ntwo"
    assert page.text(".bubble") == "one\ntwo"


@test
def test_markdown_is_shown():
    s = site({"Go": TEXT})
    page = open_chat(s)
    say(page, "Go")
    ended(page)
    assert page.texts(".markdown em") == ["first"] and page.texts(".markdown strong") == ["more"]
    assert page.text(".code code") == "int x;" and page.text(".code-head span") == "c"


@test
def test_thoughts_are_folded():
    go = threading.Event()
    s = site({"Why": [("thought", "I think so"), ("wait", go), ("thought", ", really."), ("text", "Because.")]})
    page = open_chat(s)
    say(page, "Why")
    page.wait_text("Thinking", ".thoughts summary")
    assert not page.evaluate("document.querySelector('.thoughts').open") and not page.is_shown(".thoughts-text")
    page.click(".thoughts summary")
    page.wait_text("I think so", ".thoughts-text")
    go.set()
    ended(page)
    assert page.text(".thoughts-text") == "I think so, really." and page.text(".thoughts summary") == "Thoughts"
    assert page.text(".markdown").strip() == "Because."
    say(page, "And?")
    ended(page, 2)
    assert s.asked[1]["messages"][1] == {"role": "assistant", "content": "Because."}, s.asked[1]


@test
def test_calls_of_tools_are_shown_and_their_results_given():
    s = site({"Weather": [("call", "get_weather", ['{"city": ', '"Bern"', ', "days": 3}'])], "Sunny": [("text", "It is sunny.")]})
    page = open_chat(s)
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    page.click("#open-settings")
    page.click("#settings details summary")
    page.click("#set-tools")
    page.type("[oops")
    page.click("#settings .primary")
    page.wait("!document.querySelector('#settings-error').hidden")
    page.evaluate(f"document.querySelector('#set-tools').value = {json.dumps(json.dumps(tools))}")
    page.click("#settings .primary")
    say(page, "Weather")
    ended(page)
    assert page.text(".call summary") == "Called get_weather"
    assert json.loads(page.text(".call pre")) == {"city": "Bern", "days": 3} and "\n" in page.text(".call pre")
    assert s.asked[0]["tools"] == tools
    page.click(".calls textarea")
    page.type("Sunny")
    page.click(".calls .primary")
    ended(page, 2)
    *_, call, result = s.asked[1]["messages"]
    assert call["tool_calls"] == [{"id": "call_0", "type": "function",
                                   "function": {"name": "get_weather", "arguments": '{"city": "Bern", "days": 3}'}}], call
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "Sunny"}, result
    assert "It is sunny." in page.text("#messages")
    page.expect_clean(s.url)


@test
def test_stop_and_escape_keep_what_came():
    never = threading.Event()
    s = site({"Long": [("text", "A part"), ("wait", never), ("text", " and the rest.")]})
    page = open_chat(s)
    say(page, "Long")
    page.wait_text("A part", ".markdown")
    page.click("#stop")
    ended(page)
    assert page.text(".markdown").strip() == "A part" and "Stopped." in page.text(".notice")
    page.click("[aria-label='Answer again']")
    page.wait("document.querySelector('[aria-busy]') !== null && document.querySelector('.markdown').innerText.includes('A part')")
    page.press("Escape")
    ended(page)
    assert "2 / 2" in page.text(".branches") and "Stopped." in page.text(".notice")
    page.expect_clean(s.url)


@test
def test_an_edited_message_is_a_branch():
    s = site()
    page = open_chat(s)
    say(page, "alpha")
    ended(page)
    say(page, "second")
    ended(page, 2)
    page.click(".user [aria-label='Edit the message']")
    page.wait("document.activeElement.matches('.edit')")
    page.evaluate("document.activeElement.select()")
    page.type("beta")
    page.press("Enter")
    ended(page, 1)
    assert page.texts(".bubble") == ["beta"] and "You said: beta" in page.text(".answer")
    assert s.asked[-1]["messages"] == [{"role": "user", "content": "beta"}]
    assert "2 / 2" in page.text(".branches")
    page.click("[aria-label='Earlier version']")
    page.wait("[...document.querySelectorAll('.bubble')].map((e) => e.innerText).join() === 'alpha,second'")
    assert page.count(".answer") == 2
    assert page.evaluate("document.activeElement.ariaLabel") == "Later version"  # the one that was pressed has nothing left to show
    page.click("[aria-label='Later version']")
    page.wait("document.querySelectorAll('.bubble').length === 1")
    page.click(".answer [aria-label='Answer again']")
    page.wait("document.querySelectorAll('.branches').length === 2")
    ended(page)
    assert page.texts(".branches") == ["2 / 2", "2 / 2"], page.texts(".branches")
    page.click(".answer [aria-label='Delete from here on']")
    page.click("#ask-ok")
    page.wait("document.querySelectorAll('.branches').length === 1")
    assert page.texts(".bubble") == ["beta"] and page.count(".answer") == 1
    page.expect_clean(s.url)


@test
def test_conversations_survive_a_reload():
    s = site()
    page = open_chat(s)
    say(page, "Remember me")
    ended(page)
    page.click("#new-chat")
    page.wait("document.querySelectorAll('.bubble').length === 0")
    say(page, "Another one")
    ended(page)
    page.wait("[...document.querySelectorAll('.chats a')].map((e) => e.innerText).join() === 'Another one,Remember me'")
    page.reload()
    page.wait("document.querySelector('.bubble')?.innerText === 'Another one'")
    assert "You said: Another one" in page.text(".answer")
    page.click(".chats li:nth-child(2) a")
    page.wait_text("You said: Remember me", ".answer")
    page.click("#search")
    page.type("anoth")
    page.wait("document.querySelectorAll('.chats a').length === 1")
    assert page.texts(".chats a") == ["Another one"]
    page.evaluate("document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input'))")
    page.click("[aria-label='Rename Remember me']")
    page.wait("document.activeElement.id === 'ask-input'")
    page.type("Kept")
    page.press("Enter")
    page.wait("[...document.querySelectorAll('.chats a')].some((e) => e.innerText === 'Kept')")
    page.click("[aria-label='Delete Kept']")
    page.click("#ask-ok")
    page.wait("document.querySelectorAll('.chats a').length === 1")
    page.reload()
    page.wait("document.querySelectorAll('.chats a').length === 1")
    page.expect_clean(s.url)


@test
def test_a_page_that_is_closed_keeps_the_part_of_the_answer():
    never = threading.Event()
    s = site({"Long": [("text", "A part"), ("wait", never)]})
    page = open_chat(s)
    say(page, "Long")
    page.wait_text("A part", ".markdown")
    page.reload()
    page.wait_text("A part", ".markdown")
    assert "closed before the answer ended" in page.text(".notice")


@test
def test_an_answer_goes_on_while_another_conversation_is_shown():
    go = threading.Event()
    s = site({"Slow": [("text", "Begun"), ("wait", go), ("text", " and ended.")]})
    page = open_chat(s)
    say(page, "Slow")
    page.wait_text("Begun", ".markdown")
    page.click("#new-chat")
    page.wait("document.querySelectorAll('.chats .dots').length === 1")  # it is in the list while it is written
    say(page, "Quick")
    ended(page)
    go.set()
    page.wait("document.querySelectorAll('.chats .dots').length === 0")
    page.click(".chats a[title='Slow']")
    page.wait_text("Begun and ended.", ".markdown")
    page.expect_clean(s.url)


@test
def test_an_edit_or_a_deletion_ends_the_answer_that_is_being_written():
    never = threading.Event()
    s = site({"Long": [("text", "A part"), ("wait", never)], "Other": [("text", "Another part"), ("wait", never)]})
    page = open_chat(s)
    say(page, "Long")
    page.wait_text("A part", ".markdown")
    page.click(".user [aria-label='Edit the message']")
    page.wait("document.activeElement.matches('.edit')")
    page.evaluate("document.activeElement.select()")
    page.type("Other")
    page.press("Enter")
    page.wait_text("Another part", ".markdown")
    assert page.is_shown("#stop") and page.texts(".branches") == ["2 / 2"]
    page.click("#stop")
    ended(page)
    assert "Stopped." in page.text(".notice")
    page.click("[aria-label='Earlier version']")
    page.wait_text("A part", ".markdown")
    assert "Stopped." in page.text(".notice")
    say(page, "Long")
    page.wait("document.querySelector('[aria-busy] .markdown')?.innerText.includes('A part')")
    page.click("[aria-label='Delete Long']")
    page.click("#ask-ok")
    page.wait("document.querySelectorAll('.chats a').length === 0")
    page.reload()
    page.wait("document.querySelector('#model').textContent !== ''")
    assert page.count(".chats a") == 0 and page.count(".bubble") == 0
    page.expect_clean(s.url)


@test
def test_a_wrong_key_then_the_right_one():
    s = site(key="open sesame")
    page = browser().open(s.url + "/")
    page.wait("document.querySelector('#key-dialog').open")
    assert "asks for an API key" in page.text("#key-text")
    page.click("#key")
    page.type("wrong")
    page.press("Enter")
    page.wait("document.querySelector('#key-dialog').open && document.querySelector('#key-text').innerText.includes('did not accept')")
    page.click("#key")
    page.type("open sesame")
    page.click("#key-remember")
    page.click("#key-dialog .primary")
    page.wait("document.querySelector('#model').textContent !== ''")
    assert page.evaluate("localStorage.getItem('od-moe.key')") == "open sesame"
    say(page, "Hello")
    ended(page)
    assert "You said: Hello" in page.text(".answer")
    page.reload()
    page.wait("document.querySelector('#model').textContent !== ''")
    assert not page.evaluate("document.querySelector('#key-dialog').open")
    s.key = "changed"
    say(page, "Again")
    page.wait("document.querySelector('#key-dialog').open")
    page.click("#key")
    page.type("changed")
    page.press("Enter")
    ended(page, 2)
    assert "You said: Again" in page.text("#messages")
    assert page.evaluate("localStorage.getItem('od-moe.key')") is None  # this one was not to be remembered
    page.click("#open-settings")
    page.click("#forget-key")
    page.click("#settings .cancel")
    say(page, "Once more")
    page.wait("document.querySelector('#key-dialog').open")
    page.click("#key-dialog .cancel")
    ended(page, 3)
    assert "does not accept" in page.texts(".notice")[-1]
    assert all("sesame" not in r for r in page.requests)
    page.expect_clean(s.url, allow=("401",))


@test
def test_failures_are_said_in_words():
    n, seen = [], threading.Event()

    def once_busy(_):
        n.append(1)
        return ("status", 429, "the queue is full (64 requests)", {"Retry-After": "7"}) if len(n) == 1 else [("text", "Now.")]

    s = site({"busy": once_busy, "broken": [("text", "A part of"), ("wait", seen), ("break",)], "fails": [("text", "Some"), ("error", "a worker was lost")],
              "long": [("text", "cut"), ("finish", "length")], "refused": ("status", 400, "temperature: expected 0 to 2, found 9", {}),
              "odd": [("raw", b"data: {not json}\n\n")], "empty": [], "null": [("raw", b"data: null\n\n")],
              "huge": ("status", 413, "", {})})
    page = open_chat(s)

    def ask(text, answers, *words):
        say(page, text)
        ended(page, answers)
        assert all(w in page.texts(".notice")[-1] for w in words), (text, page.texts(".notice"))

    ask("busy", 1, "The queue is full (64 requests).", "Try again in 7 s.")
    page.click(".notice button")
    page.wait_text("Now.", ".markdown")
    ended(page)
    say(page, "broken")
    page.wait("[...document.querySelectorAll('.markdown')].at(-1).innerText.includes('A part of')")
    seen.set()
    ended(page, 2)
    assert "A part of" in page.texts(".markdown")[-1] and "connection" in page.texts(".notice")[-1]
    assert "Try again" in page.texts(".notice")[-1]
    ask("fails", 3, "A worker was lost.")
    assert "Some" in page.texts(".markdown")[-1]
    ask("long", 4, "greatest length")
    ask("refused", 5, "Temperature: expected 0 to 2, found 9.")
    ask("odd", 6, "not JSON")
    ask("empty", 7, "empty")
    ask("null", 8, "no chunk")
    ask("huge", 9, "too long for the server", "begin a new conversation")
    s.stop()
    ask("gone", 10, "cannot be reached")
    page.expect_clean(s.url, allow=("429", "400", "413", "ERR_"))


@test
def test_a_server_that_is_not_ready_is_asked_again():
    s = site()
    s.loading = True
    page = browser().open(s.url + "/")
    page.wait_text("The model is being loaded.", "#banner")
    s.loading = False
    page.wait("document.querySelector('#model').textContent !== '' && document.querySelector('#banner').hidden")


@test
def test_settings_go_with_the_request():
    s = site()
    page = open_chat(s)
    page.click("#open-settings")
    page.click("#set-system")
    page.type("Be brief.")
    page.click("#set-temperature")
    page.type("0.25")
    page.click("#set-top-p")
    page.type("0.9")
    page.click("#set-max-tokens")
    page.type("77")
    page.evaluate("document.querySelector('#set-reasoning').value = 'off'")
    assert "30.53 billion" in page.text("#model-facts")
    page.click("#settings .primary")
    say(page, "Hi")
    ended(page)
    r = s.asked[0]
    assert (r["temperature"], r["top_p"], r["max_tokens"], r["enable_thinking"]) == (0.25, 0.9, 77, False), r
    assert r["messages"][0] == {"role": "system", "content": "Be brief."}
    page.reload()
    page.wait("document.querySelector('#model').textContent !== ''")
    page.click("#new-chat")
    say(page, "New")
    ended(page)
    assert s.asked[1]["messages"][0]["content"] == "Be brief."
    page.expect_clean(s.url)


@test
def test_export_and_import():
    s = site()
    page = open_chat(s)
    say(page, "Keep this")
    ended(page)
    with tempfile.TemporaryDirectory() as d:
        page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=d, browserContextId=page.context)
        page.click("#export")
        while not (names := [n for n in os.listdir(d) if n.endswith(".json")]):
            page.wait("true")
        path = os.path.join(d, names[0])
        while not (text := open(path).read()).endswith("}"):
            page.wait("true")
        o = json.loads(text)
        assert o["chats"][0]["title"] == "Keep this"
        other = open_chat(s)
        node = other.call("Runtime.evaluate", expression="document.querySelector('#import-file')")["result"]["objectId"]
        other.call("DOM.setFileInputFiles", files=[path], objectId=node)
        other.wait_text("1 conversation imported.", "#banner")
        other.click(".chats a")
        other.wait_text("You said: Keep this", ".answer")
        with open(path, "w") as f:
            f.write('{"chats": [{"nodes": [null, {"parent": 7}]}]}')
        other.call("DOM.setFileInputFiles", files=[path], objectId=node)
        other.wait_text("No conversation in this file can be read.", "#banner")
        other.expect_clean(s.url)
    page.expect_clean(s.url)


@test
def test_a_full_storage_is_said():
    s = site()
    page = open_chat(s)
    page.call("Storage.overrideQuotaForOrigin", origin=s.url, quotaSize=1)
    say(page, "Too much")
    page.wait_text("storage of this browser is full", "#banner")
    ended(page)
    assert "You said: Too much" in page.text(".answer")


@test
def test_keys():
    s = site()
    s.state = {"machines": [], "counters": {}}
    page = open_chat(s)
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.type("?")
    assert not page.evaluate("document.querySelector('#help').open")
    page.press("Backspace")
    page.evaluate("document.activeElement.blur()")
    page.press("?")
    page.wait("document.querySelector('#help').open")
    page.press("Escape")
    page.wait("!document.querySelector('#help').open")
    say(page, "first")
    ended(page)
    page.press("ArrowUp")
    page.wait("document.activeElement.matches('.edit')")
    page.press("Escape")
    page.wait("document.querySelector('.edit') === null")
    page.press("c", ALT)
    page.wait("!document.querySelector('#cluster-view').hidden")
    page.press("c", ALT)
    page.wait("!document.querySelector('#chat-view').hidden")
    page.press("n", ALT)
    page.wait("document.querySelectorAll('.bubble').length === 0")
    # Each control can be reached by Tab, and shows that it has the focus.
    seen = []
    for _ in range(40):
        page.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"))
        if seen[-1] != "BODY":
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none' || document.activeElement.id === 'main'"), seen
    assert {"theme", "open-settings", "open-help", "new-chat", "search", "export", "import", "prompt", "tab-chat", "tab-cluster"} <= set(seen), seen
    page.expect_clean(s.url)


@test
def test_the_focus_is_not_lost():
    """By keys alone: a conversation with a stop, an edit, branches, a deletion; the focus is always on something."""
    never = threading.Event()
    s = site({"Long": [("text", "A part"), ("wait", never)]})
    page = open_chat(s)
    focus = "document.activeElement.ariaLabel || document.activeElement.id"

    def to(name, modifiers=0):
        for _ in range(60):
            if page.evaluate(focus) == name:
                return
            page.press("Tab", modifiers)
        raise AssertionError(f"Tab does not reach {name}")

    def is_on(name):
        page.wait(f"({focus}) === {json.dumps(name)}", f"({page.evaluate(focus)} has the focus)")

    page.press("Tab")
    page.press("Enter")
    page.type("Long")
    to("Send")
    page.press("Enter")
    page.wait_text("A part", ".markdown")
    is_on("Stop the answer")
    page.press("Enter")
    ended(page)
    is_on("prompt")
    to("Answer again", SHIFT)
    page.press("Enter")
    page.wait("document.querySelector('[aria-busy]') !== null")
    is_on("prompt")
    page.press("Escape")
    ended(page)
    to("Earlier version", SHIFT)
    page.press("Enter")
    page.wait_text("1 / 2", ".branches")
    is_on("Later version")
    to("Edit the message", SHIFT)
    page.press("Enter")
    page.press("Escape")
    page.wait("document.querySelector('.edit') === null")
    is_on("Edit the message")
    to("Copy the message", SHIFT)
    page.press("Enter")
    page.wait("document.querySelector('[aria-label=\"Copied\"]') !== null")
    is_on("Copied")
    to("Rename Long", SHIFT)
    page.press("Enter")
    page.wait("document.activeElement.id === 'ask-input'")
    page.type("Other")
    page.press("Enter")
    is_on("Rename Other")
    page.press("Tab")
    page.press("Enter")
    page.wait("document.activeElement.id === 'ask-ok'")
    page.press("Enter")
    is_on("prompt")
    assert page.count(".chats li") == 0 and page.count(".bubble") == 0
    page.expect_clean(s.url)


@test
def test_an_input_method_has_its_keys():
    s = site()
    page = open_chat(s)
    page.click("#prompt")
    page.call("Input.imeSetComposition", text="\u306b", selectionStart=1, selectionEnd=1)
    key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true, %s}))"
    for how in "isComposing: true", "keyCode: 229":  # the second: Safari
        assert page.evaluate(key % how), "the key was taken"
    page.call("Input.insertText", text="\u65e5\u672c")
    assert s.asked == []
    page.press("Enter")
    ended(page)
    assert s.asked[0]["messages"][0]["content"] == "\u65e5\u672c"


@test
def test_a_long_conversation():
    """What is shown is bounded, also of a file that someone else made."""
    s = site()
    page = open_chat(s)
    nodes = [{"role": "root", "parent": -1}] + [{"parent": i, "role": ("user", "assistant")[i % 2], "text": f"text {i + 1}"} for i in range(15000)]
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "long.json"), "w") as f:
            json.dump({"chats": [{"title": "Long", "nodes": nodes, "settings": {"tools": "[oops", "temperature": 0.5}}]}, f)
        node = page.call("Runtime.evaluate", expression="document.querySelector('#import-file')")["result"]["objectId"]
        page.call("DOM.setFileInputFiles", files=[f.name], objectId=node)
        page.wait_text("1 conversation imported.", "#banner")
    page.click(".chats a")
    page.wait("document.querySelectorAll('.message').length === 100")
    page.wait("document.querySelector('.message:last-child').innerText.includes('text 15000')")
    page.wait("document.querySelector('#scroll').scrollHeight - document.querySelector('#scroll').scrollTop - document.querySelector('#scroll').clientHeight < 2")
    page.click(".messages > button")
    page.wait("document.querySelectorAll('.message').length === 200")
    assert "14800" in page.text(".messages > button"), page.text(".messages > button")
    say(page, "Hello")
    ended(page, 100)
    assert len(s.asked[0]["messages"]) == 15001 and s.asked[0]["temperature"] == 0.5 and "tools" not in s.asked[0]
    page.expect_clean(s.url)


@test
def test_another_tab_does_not_lose_what_this_one_wrote():
    s = site()
    page = open_chat(s)
    say(page, "first")
    ended(page)
    target = page.browser.call("Target.createTarget", url=page.evaluate("location.href"), browserContextId=page.context, background=True)["targetId"]
    session = page.browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def there(expression):
        return page.browser.call("Runtime.evaluate", session, expression=expression)["result"].get("value")

    def wait_there(n):
        for _ in range(1000):
            with contextlib.suppress(Failed):  # the tab may just be opening
                if there("document.querySelectorAll('.answer').length") == n:
                    return
            page.wait("true")
        raise AssertionError(there("document.body.innerText"))

    wait_there(1)
    say(page, "second")
    ended(page, 2)
    wait_there(2)
    there("document.querySelector('#prompt').value = 'third'; document.querySelector('#composer').requestSubmit()")
    page.wait("document.querySelectorAll('.answer').length === 3")
    assert [m["content"] for m in s.asked[2]["messages"][::2]] == ["first", "second", "third"], s.asked[2]
    page.expect_clean(s.url)


@test
def test_what_another_version_left_does_no_harm():
    s = site()
    page = open_chat(s)
    page.evaluate("""(async () => {
        localStorage.setItem('od-moe.settings', '{"system": {"a": 1}, "temperature": "hot", "tools": "no", "max_tokens": 9, "x": 1}');
        localStorage.setItem('od-moe.key', 'no key \u2013');
        const db = await new Promise((r) => { const q = indexedDB.open('od-moe'); q.onsuccess = () => r(q.result); });
        const t = db.transaction(['chats', 'titles'], 'readwrite');
        t.objectStore('chats').put({ id: 'aa', messages: [] });
        t.objectStore('titles').put({ id: 'aa', title: 'Of another version', updated: 1 });
        t.objectStore('titles').put({ id: 'bb', name: 5 });
        await new Promise((r) => { t.oncomplete = r; });
    })()""")
    page.reload()
    page.wait("document.querySelector('#model').textContent !== ''")
    assert page.texts(".chats a") == ["Of another version"]
    page.click(".chats a")
    page.wait("location.hash === '#/chat'")
    say(page, "Hello")
    ended(page)
    assert "system" not in s.asked[0] and s.asked[0]["messages"][0]["role"] == "user" and s.asked[0]["max_tokens"] == 9, s.asked[0]
    assert "temperature" not in s.asked[0] and "tools" not in s.asked[0]
    page.expect_clean(s.url)


@test
def test_a_key_with_strange_characters():
    s = site(key="good")
    page = browser().open(s.url + "/")
    page.wait("document.querySelector('#key-dialog').open")
    page.click("#key")
    page.call("Input.insertText", text="go\u200bod")
    page.press("Enter")
    page.wait_text("no API key", "#key-text")
    page.click("#key-dialog .cancel")
    page.wait_text("No API key", "#banner")
    say(page, "Hello")
    page.wait("document.querySelector('#key-dialog').open")
    page.click("#key")
    page.type("good")
    page.press("Enter")
    page.wait("document.querySelector('#model').textContent !== '' && document.querySelector('#banner').hidden")
    page.expect_clean(s.url, allow=("401",))


@test
def test_a_server_that_starts_again_with_another_model():
    first = site()
    page = open_chat(first)
    first.stop()
    say(page, "Hello")
    page.wait_text("cannot be reached", ".notice")
    page.wait_text("cannot be reached", "#banner")
    second = site(port=first.port, model="another-model")
    page.wait("document.querySelector('#model').textContent === 'another-model' && document.querySelector('#banner').hidden")
    page.click(".notice button")
    page.wait_text("You said: Hello", "#messages")
    assert second.asked[0]["model"] == "another-model"
    page.expect_clean(first.url, allow=("ERR_",))

@test
def test_a_narrow_screen():
    s = site()
    page = open_chat(s, width=320, height=640, mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == page.evaluate("innerWidth") == 320
    focus = "document.activeElement.id + document.querySelector('#main').inert"
    for closes in lambda: page.press("Escape"), lambda: page.evaluate("document.querySelector('#shade').click()"):
        page.click("#menu")
        page.wait(f"{focus} === 'new-chattrue'")
        check_accessible(page)
        closes()
        page.wait(f"{focus} === 'menufalse'")
    page.expect_clean(s.url)

@test
def test_colours_can_be_chosen():
    page = open_chat(site(), dark=True)
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.click("#theme")
    light = page.evaluate(back)
    assert light == "rgb(255, 255, 255)" and dark != light, (dark, light)
    page.reload()
    assert page.evaluate(back) == light
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate(back) == dark and page.evaluate("document.documentElement.dataset.theme") is None


@test
def test_screen_readers_hear_parts_not_tokens():
    go = threading.Event()
    s = site({"Go": [("text", "A "), ("text", "whole "), ("text", "sentence.\n"), ("text", "\n"), ("text", "Next "), ("wait", go), ("text", "one.")]})
    page = open_chat(s)
    say(page, "Go")
    page.wait_text("Next", ".markdown")
    assert page.texts("#announce p") == ["The answer begins.", "A whole sentence."], page.texts("#announce p")
    assert page.evaluate("document.querySelector('#announce').getAttribute('aria-live')") == "polite"
    go.set()
    ended(page)
    assert page.texts("#announce p")[-2:] == ["Next one.", "The answer has ended."]


@test
def test_it_is_accessible():
    answer = [("thought", "Hm."), ("text", "# Big\n### Small\ntext `code` [link](https://example.org)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n"
                                           "```python\nx = 'a' # b\nreturn 1\n```\n- [x] done\n"), ("call", "f", ["{}"])]
    for emulate in {"dark": False}, {"dark": True}, {"dark": True, "width": 390, "height": 844, "scale": 2, "mobile": True}:
        s = site({"Show": answer, "fails": [("text", "x"), ("error", "it broke")]})
        page = open_chat(s, **emulate)
        check_accessible(page)
        page.click("#prompt")
        page.type("Show")
        page.click("#send")
        ended(page)
        page.evaluate("document.querySelector('.thoughts').open = true")
        check_accessible(page)
        page.click("#prompt")
        page.type("fails")
        page.click("#send")
        ended(page, 2)
        check_accessible(page)
        for opener, closer in ("#open-settings", "#settings .cancel"), ("#open-help", "#help .primary"):
            page.click(opener)
            check_accessible(page)
            page.click(closer)
        if emulate.get("mobile"):
            page.click("#menu")
            page.wait("document.querySelector('#menu').getAttribute('aria-expanded') === 'true'")
            check_accessible(page)
            page.evaluate("document.querySelector('#shade').click()")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, "the page scrolls sideways"
        page.expect_clean(s.url)
        page.close()


if __name__ == "__main__":
    run_tests()
