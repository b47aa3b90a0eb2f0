#!/usr/bin/env python3
"""The page's view of a cluster in Chromium: machines, curves, the timeline, and what happens when a machine or the server goes."""
from mock_cluster import LAYERS, MockCluster
from page_tests import browser, check_accessible, open_chat, run_tests, say, site, test


def open_cluster(s, **emulate):
    page = browser().open(s.url + "/#/cluster", **emulate)
    page.wait("document.querySelectorAll('.machine').length > 0", "(machines)")
    return page


def three_hosts():
    c = MockCluster(2, texts=16)
    s = site()
    s.push("state", c.state())
    return s, c


@test
def test_machines_are_shown():
    s, c = three_hosts()
    page = open_cluster(s)
    assert page.texts(".machine-name") == ["den", "nook", "box2", "box3"], page.texts(".machine-name")
    assert set(page.texts(".machine-state")) == {"serving"}
    for _ in range(3):
        s.push("state", c.second())
    page.wait_text("16 written, 8 waiting (of 64)", "#facts")
    cards = page.texts(".machine")
    assert "main" in cards[0] and "3.2 GB of memory" in cards[0], cards
    assert "shadow" in cards[1] and "int8" in cards[1] and f"layers 0 to {LAYERS - 1}" in cards[1], cards
    assert "worker" in cards[2] and "10.0.0.3:5701" in cards[2] and "1,536 experts on disk" in cards[2] and "16 slots" in cards[2], cards
    assert "24 layers of 128, 8 for each token" in page.text("#facts")
    page.expect_clean(s.url)


@test
def test_a_worker_is_lost_in_view_and_comes_back():
    s, c = three_hosts()
    page = open_cluster(s)
    c.lost[2] = ("box3 has not answered for 12 s.", "Look whether it has power and od-worker runs there.")
    s.push("state", c.second())
    page.wait("document.querySelectorAll('.machine.bad').length === 1")
    assert page.text(".machine.bad .machine-name") == "box3" and page.text(".machine.bad .machine-state") == "lost"
    assert page.text(".machine-problem") == "" and page.text(".machine.bad .machine-problem") == "box3 has not answered for 12 s."
    assert page.text(".machine.bad .machine-remedy") == "Look whether it has power and od-worker runs there."
    check_accessible(page)
    c.lost.clear()
    s.push("state", c.second())
    page.wait("document.querySelectorAll('.machine.bad').length === 0")
    assert not page.is_shown(".machine-problem") or page.text(".machine-problem") == ""
    page.expect_clean(s.url)


@test
def test_a_server_that_does_not_serve_says_why():
    s, c = three_hosts()
    page = open_cluster(s)
    state = c.second()
    state.update(ready=False, problem="No worker of group 1 is connected.", remedy="Start od-worker on box2.")
    s.push("state", state)
    page.wait_text("No worker of group 1 is connected. Start od-worker on box2.", "#cluster-problem")
    assert page.text("#link-state") == "Not ready."
    s.push("state", c.second())
    page.wait("document.querySelector('#cluster-problem').hidden")


@test
def test_curves_are_differences_of_counters():
    s, c = three_hosts()
    page = open_cluster(s)
    c.second()
    state = c.state()
    s.push("state", state)
    page.wait("document.querySelector('.curve-now').innerText !== '-'")
    later = {**state, "uptime_seconds": state["uptime_seconds"] + 2, "counters": {k: v for k, v in state["counters"].items()}}
    for name, more in ("tokens", 25), ("expert_uses", 400), ("ready_uses", 300), ("predicted_uses", 200), ("recalled_uses", 190):
        later["counters"][name] += more
    s.push("state", later)
    page.wait("document.querySelector('.curve-now').innerText === '12.5'")
    assert page.texts(".curve-now") == ["12.5", "95.0 %", "75.0 %", "24"], page.texts(".curve-now")
    assert page.evaluate("document.querySelector('.curve .line').getAttribute('d')").count(",") == 2
    # A server that has started again counts from 0: no negative value is shown.
    again = {**later, "uptime_seconds": 1.0, "counters": dict.fromkeys(later["counters"], 0)}
    s.push("state", again)
    s.push("state", {**again, "uptime_seconds": 2.0, "counters": {**again["counters"], "tokens": 4}})
    page.wait("document.querySelector('.curve-now').innerText === '4.0'")
    page.expect_clean(s.url)


PIXELS = """(() => {
	const c = document.querySelector('#timeline-canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = {};
	for (let i = 0; i < d.length; i += 4) {
		const key = `${d[i]},${d[i + 1]},${d[i + 2]}`;
		if (d[i + 3] === 255)
			seen[key] = (seen[key] ?? 0) + 1;
	}
	return seen;
})()"""


def colour_of(page, name):
    return page.evaluate(f"(() => {{ const e = document.createElement('i'); e.style.color = 'var(--{name})'; document.body.append(e); "
                         "const c = getComputedStyle(e).color.match(/\\d+/g).slice(0, 3).join(); e.remove(); return c; })()")


@test
def test_the_timeline_is_drawn():
    s, c = three_hosts()
    page = open_cluster(s)
    s.push("steps", {"steps": [c.next_step(), c.next_step()]})
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 2 steps')")
    seen = page.evaluate(PIXELS)
    for name in "attention", "wait", "head", "load", "compute", "good", "danger":
        assert seen.get(colour_of(page, name), 0) > 3, (name, seen)
    assert page.count("#legend li") == 10
    # What is under the mouse is said.
    x, y = page.evaluate("(() => { const r = document.querySelector('#timeline-canvas').getBoundingClientRect(); return [r.x + 122, r.y + 33]; })()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait_text("main, layer 0: attention", "#timeline-detail")
    page.evaluate("document.querySelector('#timeline-steps').value = '1'; document.querySelector('#timeline-steps').dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 1 steps')")
    page.expect_clean(s.url)


@test
def test_the_last_step_is_a_table_too():
    s, c = three_hosts()
    page = open_cluster(s)
    step = c.next_step()
    s.push("steps", {"steps": [step]})
    page.click("#timeline-table-box summary")
    page.wait("document.querySelector('#timeline-table table') !== null")
    text = page.text("#timeline-table")
    right, wrong = (sum(e[i] for e in step["shadow"]) for i in (2, 3))
    assert f"step {step['step']}" in text and f"predicted {right} experts right, {wrong} wrong" in text, text
    for w, name in (1, "box2"), (2, "box3"):
        mine = [e for e in step["workers"] if e[0] == w]
        assert f"{name}\t{sum(e[7] for e in mine)} experts, {sum(e[8] for e in mine)} ready in time\t{len(mine)}" in text, text
    check_accessible(page)


@test
def test_it_can_be_paused():
    s, c = three_hosts()
    page = open_cluster(s)
    page.click("#timeline-table-box summary")
    s.push("steps", {"steps": [c.next_step()]})
    page.wait_text("step 1001", "#timeline-table")
    page.click("#timeline-pause")
    s.push("steps", {"steps": [c.next_step()]})
    s.push("state", c.second())
    page.wait("document.querySelector('.curve-now').innerText !== '-'")
    assert "step 1001" in page.text("#timeline-table")
    page.click("#timeline-pause")
    s.push("steps", {"steps": [c.next_step()]})
    page.wait_text("step 1003", "#timeline-table")


@test
def test_it_connects_again_by_itself():
    s, c = three_hosts()
    page = open_cluster(s)
    s.drop_watchers()
    page.wait("document.body.classList.contains('link-lost')")
    page.wait("!document.body.classList.contains('link-lost')")
    port = s.port
    s.stop()
    page.wait_text("Connecting again.", "#link-state")
    again = site(port=port)
    again.push("state", c.second())
    page.wait_text("Serving.", "#link-state")
    page.expect_clean(s.url, allow=("ERR_",))


@test
def test_nobody_watches_while_the_chat_is_shown():
    s, _ = three_hosts()
    page = open_chat(s)
    assert not any(r.startswith(s.url + "/cluster") for r in page.requests)
    page.click("#tab-cluster")
    page.wait("document.querySelectorAll('.machine').length === 4")
    assert len(s.watchers) == 1
    page.click("#tab-chat")
    page.wait("!document.querySelector('#chat-view').hidden")
    s.push("state", s.state)  # the server sees by this that nobody reads
    s.push("state", s.state)
    page.wait("true")
    for _ in range(100):
        if not s.watchers:
            break
        s.push("state", s.state)
        page.wait("new Promise((r) => setTimeout(() => r(true), 50))")
    assert not s.watchers
    page.expect_clean(s.url)


@test
def test_a_key_is_asked_for_here_too():
    s, _ = three_hosts()
    s.key = "right"
    page = browser().open(s.url + "/#/cluster")
    page.wait("document.querySelector('#key-dialog').open")
    page.click("#key")
    page.type("right")
    page.press("Enter")
    page.wait("document.querySelectorAll('.machine').length === 4 && document.querySelector('#model').textContent !== ''")
    page.expect_clean(s.url, allow=("401",))


@test
def test_one_machine_and_forty():
    for n, machines in (0, 1), (38, 40):
        c, s = MockCluster(n), site()
        state = c.state()
        if n == 0:
            state.update(mode="memory", machines=state["machines"][:1])
        s.push("state", state)
        page = open_cluster(s)
        s.push("steps", {"steps": [c.next_step() for _ in range(8)]})
        assert page.count(".machine") == machines
        page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 2 steps')")
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        page.expect_clean(s.url)
        page.close()


@test
def test_states_that_say_little_or_nonsense_do_no_harm():
    s = site()
    s.push("state", {})
    page = browser().open(s.url + "/#/cluster")
    page.wait_text("Not ready.", "#link-state")
    for odd in ({"machines": None, "counters": None}, {"machines": [{}]}, {"machines": [{"id": 1, "role": "worker", "state": "unheard of"}]}):
        s.push("state", odd)
    s.push("steps", {"steps": [{"step": 1, "us": 5, "main": [["unheard of", 0, 0, 5]], "workers": [[77, 0, 0, 1, 0, 0, 1, 1, 1]]}, None, {}]})
    s.push("steps", {})
    page.wait_text("unheard of", ".machine-state")
    page.expect_clean(s.url)


@test
def test_it_is_accessible():
    for emulate in {"dark": False}, {"dark": True}, {"width": 390, "height": 844, "scale": 2, "mobile": True}:
        s, c = three_hosts()
        page = open_cluster(s, **emulate)
        s.push("state", c.second())
        s.push("steps", {"steps": [c.next_step()]})
        page.wait("document.querySelector('.curve-now').innerText !== '-'")
        check_accessible(page)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        page.close()


@test
def test_chat_and_cluster_at_once():
    s, c = three_hosts()
    page = open_chat(s)
    say(page, "A private question")
    page.wait_text("You said: A private question", ".answer")
    page.click("#tab-cluster")
    s.push("state", c.second())
    page.wait("document.querySelectorAll('.machine').length === 4")
    assert "private" not in page.text("#cluster-view")
    page.click("#tab-chat")
    page.wait_text("You said: A private question", ".answer")
    page.expect_clean(s.url)


@test
def test_colours_stay_apart_where_the_system_forces_its_own():
    s, c = three_hosts()
    page = open_cluster(s)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}])
    page.evaluate("dispatchEvent(new Event('themechange'))")
    s.push("steps", {"steps": [c.next_step() for _ in range(2)]})
    page.wait("document.querySelector('#timeline-canvas').getAttribute('aria-label').includes('The last 2 steps')")
    assert page.evaluate("""(() => { const c = document.querySelector('#timeline-canvas'), seen = new Map();
        const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) { const k = data.slice(i, i + 3).join(); seen.set(k, (seen.get(k) ?? 0) + 1); }
        return [...seen.values()].filter((n) => n > 50).length; })()""") >= 6


if __name__ == "__main__":
    run_tests()
