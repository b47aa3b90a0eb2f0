#!/usr/bin/env python3
"""od-chat as its user has it: on a pseudo-terminal and in a pipe, against a server that plays OpenAI's stream."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chat_server import MockServer, Refuse, answer, piece, usage
from cluster_util import BIN, HANG_S, Skip, TMP, free_port, run_tests, test, wait_for
from serve_util import Server, stop_servers

OD_CHAT, OD_MAIN = os.path.join(BIN, "od-chat"), os.path.join(BIN, "od-main")
CTRL_A, CTRL_C, CTRL_D, CTRL_L, CTRL_R, CTRL_Z = "\x01", "\x03", "\x04", "\x0c", "\x12", "\x1a"
LEFT, UP, BACKSPACE, DELETE = "\x1b[D", "\x1b[A", "\x7f", "\x1b[3~"


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("LC_") and k != "LANG"}
    return {**env, "XDG_STATE_HOME": tempfile.mkdtemp(dir=TMP), "TERM": "xterm-256color", "HOME": TMP, **more}


class Terminal:
    """od-chat on a terminal of 80 columns. All that it wrote is in .seen."""

    def __init__(self, server, *args, env=None, ready=True):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        self.p = subprocess.Popen([OD_CHAT, "--url", server.url, *args], stdin=slave, stdout=slave, stderr=slave,
                                  env=env or environment(), start_new_session=True,
                                  preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.path = os.ttyname(slave)
        os.close(slave)
        self.seen, self.at = "", 0
        self.raw = b""
        if ready:
            self.wait_for(server.model)
            self.prompt()

    def wait_for(self, pattern):
        """Reads on until what came since the last call has the pattern."""
        while not (m := re.search(pattern, self.seen[self.at:])):
            if not select.select([self.master], [], [], HANG_S)[0]:
                raise AssertionError(f"no {pattern!r} in {self.seen[self.at:]!r}")
            try:
                self.raw += os.read(self.master, 4096)
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.seen[self.at:]!r}") from None
            self.seen = self.raw.decode(errors="replace")
        self.at += m.end()
        return m

    def prompt(self):
        self.wait_for(r"(^|\n|\r)> ")
        self.wait_for_editing()

    def wait_for_editing(self):
        """Until keys are taken: libedit shows the prompt just before it changes the terminal's mode."""
        deadline = time.monotonic() + HANG_S
        while termios.tcgetattr(self.master)[3] & termios.ICANON:
            assert time.monotonic() < deadline and self.p.poll() is None, self.seen
            time.sleep(0.001)

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def bytes_read(self):
        with open(f"/proc/{self.p.pid}/io") as f:
            return int(re.search(r"rchar: (\d+)", f.read())[1])

    def during_key(self, key, change):
        """Types a key, and calls change while the program cannot write what it does for it: the terminal takes no output."""
        fd, before = os.open(self.path, os.O_RDWR | os.O_NOCTTY), self.bytes_read()
        termios.tcflow(fd, termios.TCOOFF)
        self.keys(key)
        wait_for(lambda: self.bytes_read() > before, lambda: self.seen)
        change()
        termios.tcflow(fd, termios.TCOON)
        os.close(fd)

    def keys(self, text):
        os.write(self.master, text.encode())

    def ask(self, text):
        """Types a line; what is on the screen behind it until the next prompt."""
        begin = self.at
        self.keys(text + "\r")
        self.prompt()
        return self.seen[begin:self.at]

    def end(self, keys=CTRL_D):
        self.wait_for_editing()
        self.keys(keys)
        try:
            while select.select([self.master], [], [], HANG_S)[0]:
                os.read(self.master, 4096)
        except OSError:  # the program has closed its side
            pass
        os.close(self.master)
        return self.p.wait(timeout=HANG_S)


def pipe(server, text, *args, env=None):
    return subprocess.run([OD_CHAT, "--url", server.url, *args], input=text, capture_output=True, text=True,
                          env=env or environment(), timeout=HANG_S)


@test
def an_answer_streams_and_the_conversation_goes_on():
    go_on = threading.Event()
    server = MockServer(lambda r: [piece("One "), go_on, piece("two"), piece(finish="stop"), usage(12, 2, 8), "[DONE]"])
    t = Terminal(server, "--system", "Be brief.", "--temperature", "0.5", "--seed", "7")
    t.keys("first\r")
    t.wait_for("One ")  # text is shown as it comes
    go_on.set()
    t.wait_for(r"two\r\n\x1b\[2m12 prompt tokens \(8 cached\), 2 generated; TTFT \d+\.\d{3} s, then [\d.]+ tok/s\x1b\[0m\r\n> ")
    t.ask("second")
    path, request = server.requests[-1]
    assert path == "/v1/chat/completions" and server.messages() == [
        ("system", "Be brief."), ("user", "first"), ("assistant", "One two"), ("user", "second")], request
    del request["messages"]
    assert request == {"model": "mock-model", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
                       "seed": 7}, request
    assert t.end() == 0
    server.stop()


@test
def figures_are_one_line_and_the_rest_is_verbose():
    server = MockServer(lambda r: [piece("a"), 0.1, piece("b"), piece(finish="length"), usage(5, 2), "[DONE]"])
    t = Terminal(server)
    shown = t.ask("x")
    assert shown.count("\n") == 3 and "cut off at the limit of tokens" in shown, shown
    t.end()
    t = Terminal(server, "--verbose")
    shown = t.ask("x")
    for line in (f"model       mock-model at {server.url}", "tokens      5 prompt, of these 0 cached; 2 generated",
                 "speed       TTFT ", "ended       length"):
        assert line in shown, (line, shown)
    assert re.search(r"time        \d+\.\d", shown), shown
    t.end()
    server.stop()


@test
def lines_are_edited():
    server = MockServer()
    t = Terminal(server)
    for keys, text in (("helo" + LEFT + "l", "hello"), ("xabc" + CTRL_A + DELETE, "abc"),
                       ("a\u4f60\u597d" + LEFT + BACKSPACE + "\u00e9\U0001f600", "a\u00e9\U0001f600\u597d"),  # wide characters
                       ("forget this" + CTRL_C + "but not this", "but not this"),
                       ("one\\\rtwo", "one\ntwo"), ('"""one\r\r  two"""', "one\n\n  two"),
                       ("lost\\\rlost too" + CTRL_C + "kept", "kept"), (" /not a command", " /not a command")):
        n = len(server.requests)
        t.keys(keys + "\r")
        t.wait_for("there.")
        t.prompt()
        assert len(server.requests) == n + 1 and server.messages()[-1] == ("user", text), (keys, server.messages()[-1])
    t.keys("this is on the screen")
    t.wait_for("on the screen")
    t.keys(CTRL_C + "this is not\r")
    t.wait_for("there.")
    t.prompt()
    assert server.messages()[-1] == ("user", "this is not"), server.messages()[-1]
    n = len(server.requests)
    t.keys("\r   \r" + CTRL_C + CTRL_C + "\r")
    assert t.end("/exit\r") == 0 and len(server.requests) == n, server.requests[n:]
    server.stop()


@test
def the_history_is_kept():
    server, env = MockServer(), environment()
    t = Terminal(server, env=env)
    for text in "first", "\u00fcber\u4f60", '"""one\rtwo"""', "/set top_k 4":
        t.keys(text + "\r")
        t.wait_for("there." if text[0] != "/" else "\n")
        t.prompt()
    t.keys(UP + UP + UP + "\r")
    t.wait_for("there.")
    assert server.messages()[-1] == ("user", "\u00fcber\u4f60"), server.messages()[-1]
    t.end()
    path = os.path.join(env["XDG_STATE_HOME"], "od-moe", "chat_history")
    assert os.stat(path).st_mode & 0o777 == 0o600
    t = Terminal(server, env=env)
    for keys, text in ((UP * 3 + "\r", "one\ntwo"), (CTRL_R + "fir\r", "first")):
        t.keys(keys)
        t.wait_for("there.")
        t.prompt()
        assert server.messages()[-1] == ("user", text), (keys, server.messages()[-1])
    t.end()
    home = environment()
    del home["XDG_STATE_HOME"]
    home["HOME"] = tempfile.mkdtemp(dir=TMP)
    t = Terminal(server, env=home)
    t.ask("x")
    t.end()
    assert os.path.exists(os.path.join(home["HOME"], ".local/state/od-moe/chat_history"))
    unusable = environment(XDG_STATE_HOME="/proc/nothing")
    t = Terminal(server, env=unusable)
    assert "the history is not kept" in t.seen
    t.ask("x")
    assert t.end() == 0
    server.stop()


@test
def ctrl_c_stops_the_answer_and_not_the_program():
    endless = [*(x for i in range(4) for x in (piece(f"w{i} "), 0.02)), 3600.0]  # a terminal drops what comes with Ctrl-C
    server = MockServer(lambda r: endless if r["messages"][-1]["content"] == "long" else answer("Fine."))
    t = Terminal(server)
    t.keys("long\r")
    t.wait_for("w3 ")
    t.keys(CTRL_C)
    t.wait_for("ended: by Ctrl-C")
    t.prompt()
    assert server.closed.wait(HANG_S), "the server sees the connection closed"
    shown = "".join(re.findall(r"w\d+ ", t.seen))
    t.ask("go on")
    assert server.messages() == [("user", "long"), ("assistant", shown), ("user", "go on")], server.messages()
    assert "w3 " in shown and t.seen.endswith("\r\n> ")
    # Before anything came: the question leaves no trace, but can be asked again.
    server.script = lambda r: [3600.0] if r["messages"][-1]["content"] == "silent" else answer("Fine.")
    server.closed.clear()
    t.keys("silent\r")
    while server.messages()[-1][1] != "silent":
        time.sleep(0.01)
    t.keys(CTRL_C)
    t.wait_for("no text in .*ended: by Ctrl-C")
    t.prompt()
    assert server.closed.wait(HANG_S)
    server.script = lambda r: answer("Now.")
    t.ask("/retry")
    assert server.messages()[2:] == [("user", "go on"), ("assistant", "Fine."), ("user", "silent")], server.messages()
    assert t.end() == 0
    server.stop()


@test
def ctrl_z_stops_it_until_it_is_continued():
    server = MockServer()
    master, slave = pty.openpty()
    env = environment(PS1="$ ")
    shell = subprocess.Popen(["bash", "--norc", "-i"], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
                             preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    t = Terminal.__new__(Terminal)
    t.master, t.p, t.seen, t.raw, t.at = master, shell, "", b"", 0
    t.keys(f"{os.path.abspath(OD_CHAT)} --url {server.url}\r")
    t.wait_for("mock-model at")
    t.prompt()
    t.keys("half" + CTRL_Z)
    t.wait_for("Stopped")
    t.keys("echo in the sh''ell\r")
    t.wait_for("in the shell\r\n")
    t.keys("fg\r")
    t.wait_for(r"> half")
    t.keys(" a line\r")
    t.wait_for("there.")
    t.prompt()
    assert server.messages() == [("user", "half a line")]
    t.keys(CTRL_D)
    t.wait_for(r"\$ $")
    t.end("exit\r")
    server.stop()


@test
def thoughts_and_progress_are_apart():
    server = MockServer(lambda r: [b": choice 0: prompt 512/\x1b[2J2048 tokens\n\n", 0.2, b": keep-alive\n\n", piece(thought="Let me "),
                                   piece(thought="see."), piece("It is 4."), piece(finish="stop"), "[DONE]"])
    t = Terminal(server)
    shown = t.ask("2+2")
    assert ("\r\x1b[K\x1b[2mprompt 512/\ufffd[2J2048 tokens\x1b[0m\r\x1b[K"
            "\x1b[2mThinking...\r\nLet me see.\r\n...done thinking.\r\n\x1b[0m\r\nIt is 4.\r\n") in shown, shown
    assert "keep-alive" not in t.seen
    t.ask("and?")
    assert server.messages()[1] == ("assistant", "It is 4."), "thoughts are not sent back"
    t.end()
    t = Terminal(server, env=environment(TERM="dumb"))
    shown = t.ask("2+2")
    assert "Thinking...\r\nLet me see.\r\n...done thinking.\r\n\r\nIt is 4.\r\n" in shown and "\x1b" not in shown and \
        "prompt 512" not in shown, shown
    t.end()
    server.stop()


@test
def commands():
    server = MockServer()
    t = Terminal(server)
    path = os.path.join(TMP, "saved.json")
    help_text = t.ask("/help")
    for name in "/help", "/clear", "/system", "/retry", "/set", "/save", "/load", "/exit", "Ctrl-C":
        assert name in help_text, help_text
    assert all(len(line) <= 80 for line in help_text.split("\r\n")), help_text
    t.ask("/system Be kind.")
    t.ask("/set temperature 0.25")
    t.ask("/set  max-tokens  9  ")
    assert "0.25" in t.ask("/set")
    t.ask("q1")
    assert server.messages() == [("system", "Be kind."), ("user", "q1")]
    assert server.requests[-1][1]["temperature"] == 0.25 and server.requests[-1][1]["max_tokens"] == 9
    t.ask("/set temperature default")
    t.ask("/retry")
    assert server.messages() == [("system", "Be kind."), ("user", "q1")] and "temperature" not in server.requests[-1][1]
    assert "2 messages saved" in t.ask(f"/save {path}")
    with open(path) as f:
        assert [m["content"] for m in json.load(f)] == ["Be kind.", "q1", "Hello there."]
    t.ask("/clear")
    assert "Be kind." in t.ask("/system")
    t.ask('/system ""')
    t.ask("q2")
    assert server.messages() == [("user", "q2")]
    assert "2 messages loaded, and a system prompt" in t.ask(f"/load {path}")
    t.ask('/system """two\rlines"""')
    t.ask("q3")
    assert server.messages() == [("system", "two\nlines"), ("user", "q1"), ("assistant", "Hello there."), ("user", "q3")]
    for line, says in (("/nothing", 'unknown command "/nothing"'), ("/save", "expected the name of a file"), ("/load /no/file", "/no/file"),
                       ("/save " + OD_CHAT, "exists"), ("/save! " + OD_CHAT, "not overwritten"), ("/set heat 3", "expected one of temperature"),
                       ("/set temperature hot", 'found "hot"'), ("/set temperature", "expected name and value")):
        shown = t.ask(line)
        assert says in shown.replace("\r\n", "") and shown.count("error:") == 1, (line, shown)
    assert t.end("/exit\r") == 0
    server.stop()


@test
def a_retry_gives_another_answer():
    server = MockServer(lambda r: answer("Hot.") if r.get("temperature") else answer("Cold ", str(r.get("seed"))))
    t = Terminal(server)
    t.ask("q")
    assert "The same answer" in t.ask("/retry") and "temperature" not in server.requests[-1][1]
    for _ in range(2):  # from now on it is known that the model answers greedily
        assert "With temperature 0.8" in t.ask("/retry") and server.requests[-1][1]["temperature"] == 0.8
    t.ask("go on")
    assert "temperature" not in server.requests[-1][1]
    t.ask("/set temperature 0.3")
    t.ask("/retry")  # as it is set, though the answer is the same: "Hot."
    assert server.requests[-1][1]["temperature"] == 0.3
    t.ask("/set temperature 0")
    t.ask("/retry")
    assert server.requests[-1][1]["temperature"] == 0.8
    t.ask("/set seed 41")
    for seed in 42, 43:
        assert f"With seed {seed}." in t.ask("/retry") and server.requests[-1][1]["seed"] == seed
    t.ask("next")
    assert server.requests[-1][1]["seed"] == 41
    assert t.end() == 0
    server.stop()


@test
def a_saved_conversation_is_only_overwritten_on_demand():
    server = MockServer()
    t = Terminal(server)
    path = os.path.join(TMP, "twice.json")
    t.ask("q1")
    assert "2 messages saved" in t.ask(f"/save {path}")
    t.ask("q2")
    before = open(path).read()
    assert "/save! writes over a saved conversation" in t.ask(f"/save {path}").replace("\r\n", "")
    assert open(path).read() == before
    assert "4 messages saved" in t.ask(f"/save! {path}") and len(json.load(open(path))) == 4
    assert "no conversation" in t.ask(f"/save! {OD_CHAT}").replace("\r\n", "")
    assert t.end() == 0
    server.stop()


@test
def tab_completes():
    server = MockServer()
    t = Terminal(server)
    folder = os.path.join(TMP, "completion")
    os.makedirs(os.path.join(folder, "talks"))
    for name in "one.json", "only.json", ".hidden":
        with open(os.path.join(folder, name), "w") as f:
            f.write('[{"role": "user", "content": "Hi"}]')
    t.ask("q")
    n = len(server.requests)
    t.ask("/ret\t")
    assert len(server.requests) == n + 1, "the whole command ran"
    t.ask("/set max_t\t7")
    t.ask(f"/load {folder[:-4]}\to\tl\t")  # a folder, what two names have in common, one name
    t.ask("a\tb")  # not a command: nothing to complete
    assert server.requests[-1][1]["max_tokens"] == 7 and server.messages()[-2:] == [("user", "Hi"), ("user", "ab")], server.requests[-1]
    t.keys("/sa\t\t")
    t.wait_for("/save  /save!\r\n")
    t.keys(CTRL_C + "/load " + folder + "/\t\t")
    t.wait_for(r"/one\.json  \S*/only\.json  \S*/talks/\r\n")
    t.keys(CTRL_C)
    t.wait_for(r"\r\n> ")  # between two lines the terminal takes Ctrl-D for the end of a file, and the program never sees it
    assert t.end() == 0
    server.stop()


def drawn(text, cursor, columns):
    """What draws this line anew, with the cursor so many characters from its beginning."""
    (row, column), (end_row, end_column) = (divmod(len("> ") + n, columns) for n in (cursor, len(text)))
    return (r"\r\x1b\[K" + r"\x1b\[A\x1b\[K" * row + "> " + text + " " * (end_column == 0) + r"\x1b\[J\r" + r"\x1b\[A" * (end_row - row) +
            r"\x1b\[C" * column + "$")


@test
def a_line_is_drawn_once_when_the_window_changes():
    """As terminals wrap it anew, the cursor is where its character is: so many rows below the prompt."""
    server = MockServer()
    t = Terminal(server)
    text = "a" * 99 + "b"
    t.keys(text)
    t.wait_for("b")
    for columns in 40, 75, 51, 33, 200:  # 51 and 2: it ends with the row
        t.resize(columns)
        t.wait_for(drawn(text, 100, columns))
    t.keys(LEFT * 30 + "Z")
    t.wait_for("Z")
    t.resize(40)  # it may not be back at its keys
    t.wait_for(drawn("a" * 70 + "Z" + "a" * 29 + "b", 71, 40))
    t.keys("\r")
    t.wait_for("there.")
    t.prompt()
    assert server.messages()[-1] == ("user", "a" * 70 + "Z" + "a" * 29 + "b"), server.messages()
    assert t.end() == 0
    server.stop()


@test
def a_window_that_changes_during_a_key_is_seen_after_it():
    """Ctrl-L draws more than the program writes at once."""
    server = MockServer()
    t = Terminal(server)
    text = "a" * 1499 + "b"
    t.keys(text)
    t.wait_for("b")
    t.resize(75)
    t.wait_for(drawn(text, 1500, 75))  # what follows is written for a key
    t.during_key(CTRL_L, lambda: t.resize(70))
    t.wait_for(drawn(text, 1500, 70))
    t.resize(72)
    t.wait_for(drawn(text, 1500, 72))
    assert t.end(CTRL_C + CTRL_D) == 0
    server.stop()


@test
def a_pipe_gets_answers_only():
    server = MockServer(lambda r: [piece(thought="hm"), *answer("About ", r["messages"][-1]["content"])])
    p = pipe(server, "one\n\ntwo\\\nlines\r\n/set top_k 3\n/system S\nlast without newline")
    assert (p.returncode, p.stderr) == (0, "") and p.stdout == "About one\nAbout two\nlines\nAbout last without newline\n", p
    assert server.messages() == [("system", "S"), ("user", "one"), ("assistant", "About one"), ("user", "two\nlines"),
                                 ("assistant", "About two\nlines"), ("user", "last without newline")]
    p = pipe(server, "one\n", "--verbose")
    assert p.returncode == 0 and p.stdout == "About one\n" and "tokens      9 prompt, of these 4 cached; 2 generated\n" in p.stderr, p
    p = subprocess.run([OD_CHAT, "--url", server.url], input=b"\xff\xc3\n", capture_output=True, env=environment(), timeout=HANG_S)
    assert p.returncode == 0 and server.messages() == [("user", "\ufffd\ufffd")], (p, server.messages())
    p = pipe(server, "x\n/clear\n/retry\nx\n")
    assert p.returncode == 1 and p.stdout == "About x\nAbout x\n" and "/retry: there is no question yet" in p.stderr, p
    assert not os.listdir(environment()["XDG_STATE_HOME"])
    with open("/dev/full", "w") as full:
        p = subprocess.run([OD_CHAT, "--url", server.url], input="x\n", stdout=full, stderr=subprocess.PIPE, text=True,
                           env=environment(), timeout=HANG_S)
    assert p.returncode == 1 and "a part of the output could not be written" in p.stderr, p
    server.stop()


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u009b2J\u0085\x08\x7f\rb\tc\nd"


@test
def hostile_text_does_not_steer_the_terminal():
    server = MockServer(lambda r: [piece(thought=HOSTILE), piece(HOSTILE), piece(finish="\x1b[5m"), usage(1, 1), "[DONE]"])
    server.model = "m\x1b[7m"
    t = Terminal(server, ready=False)
    t.wait_for("/help")
    t.prompt()
    shown = t.ask("x") + t.ask("/system \x16\x1b[5mblink")  # Ctrl-V quotes a key
    own = re.sub(r"\x1b\[[02]m", "", shown[shown.index("Thinking"):shown.rindex("/system")])
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", own), own
    want = "a\ufffd[31mred\ufffd]0;title\ufffd\ufffd2J\ufffd\ufffd\ufffdb\tc\r\nd"
    assert own.count(want) == 2, own
    assert "\x1b[7m" not in t.seen and "m\ufffd[7m at" in t.seen
    t.end()
    server.script = lambda r: Refuse(500, {"error": {"message": HOSTILE}}, Retry_After="1")
    p = pipe(server, "x\n")
    assert p.returncode == 1 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", p.stderr) and p.stderr.count("\n") == 1, p
    server.script = lambda r: answer(HOSTILE)
    assert pipe(server, "x\n").stdout == want.replace("\r", "") + "\n"
    server.stop()


@test
def failures_are_a_line_and_the_program_goes_on():
    part = [piece("Some ")]
    server = MockServer()
    cases = ((Refuse(429, {"error": {"message": "the queue is full"}}, Retry_After="3"), r"status 429: the queue is full \(try again in 3 s\)"),
             (Refuse(503, {"error": {"message": "the model is being loaded"}}), "status 503: the model is being loaded"),
             (Refuse(401, {"error": {"message": "no key"}}), "status 401: no key; --api-key-file"),
             (Refuse(404, b"<html>"), "status 404: the server does not say why; --url"),
             (Refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}), "too long; /clear begins a new"),
             (Refuse(302, {}, Location="/elsewhere"), "status 302"),
             (part + [None], "the connection broke off"),
             (part, "the stream ended before the answer did"),
             (part + [{"error": {"message": "no worker is left"}}], "the server stopped: no worker is left"),
             (part + ["not JSON"], "an event is not what a chat server sends"),
             (part + [b"data: " + b"x" * (1 << 20) + b"\n"], "a line of the stream is longer than 1048576 bytes"))
    t = Terminal(server)
    for script, says in cases:
        server.script = lambda r, s=script: s
        t.ask("/clear")
        shown = t.ask("why")
        line = re.search(r"od-chat: error: [^\n]*", shown.replace("\r\n", "\n"))
        assert line and re.search(says, shown.replace("\r\n", "")) and shown.count("error:") == 1, (says, shown)
        server.script = lambda r: answer("Fine.")
        t.ask("/retry" if isinstance(script, Refuse) else "go on")
        want = [("user", "why")] if isinstance(script, Refuse) else [("user", "why"), ("assistant", "Some "), ("user", "go on")]
        assert server.messages() == want, (says, server.messages())
    assert t.end() == 0
    server.script = lambda r: Refuse(503, {}) if r["messages"][-1]["content"] == "one" else answer("Fine.")
    p = pipe(server, "one\ntwo\n")
    assert p.returncode == 1 and p.stdout == "Fine.\n" and p.stderr.count("\n") == 1, p
    server.stop()


@test
def a_server_that_is_not_there_yet():
    server = MockServer(port=free_port())  # no other program gets it until the server is there again
    server.stop()
    t = Terminal(server, ready=False)
    t.wait_for(rf"error: {server.url}: .*is od-main serve running there\?")
    t.prompt()
    assert "is od-main serve running" in t.ask("x")
    server = MockServer(port=server.port)
    server.models_refusal = Refuse(503, {"error": {"message": "the model is being loaded"}})
    assert "status 503: the model is being loaded" in t.ask("y")
    server.models_refusal = Refuse(200, {"data": []})
    assert "names no model" in t.ask("y")
    server.models_refusal = Refuse(200, b"<html>")
    assert "not valid JSON" in t.ask("y")
    server.models_refusal = None
    t.ask("/retry")
    assert server.messages() == [("user", "y")] and server.requests[-1][1]["model"] == "mock-model"
    server.model = "another-model"  # a restarted server
    server.script = lambda r: answer("Hello there.") if r["model"] == server.model else Refuse(404, {"error": {"message": "no such model"}})
    assert "no such model" in t.ask("z")
    assert "Hello there." in t.ask("/retry") and t.end() == 0
    p = pipe(server, "x\n", "--url", "http://no.such.host.invalid")
    assert p.returncode == 1 and "no.such.host.invalid" in p.stderr, p
    for url in server.url + "/", server.url + "/v1", server.url + "/v1/", server.url[len("http://"):]:
        p = pipe(server, "x\n", "--url", url, env=environment(http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9"))
        assert p.stdout == "Hello there.\n", (url, p)
    for url in "file:///etc/passwd", "gopher://127.0.0.1/":
        p = pipe(server, "x\n", "--url", url)
        assert p.returncode == 1 and p.stdout == "" and "not supported or disabled" in p.stderr, p
    server.stop()


@test
def keys_and_certificates():
    cert, key = os.path.join(TMP, "cert.pem"), os.path.join(TMP, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
                    cert, "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    keys = os.path.join(TMP, "keys")
    with open(keys, "w") as f:
        f.write("# comment\n\n  sk-first \nsk-second\n")
    server = MockServer(cert=(cert, key))
    p = pipe(server, "x\n", "--api-key-file", keys)
    assert p.returncode == 1 and "--cacert FILE" in p.stderr and not server.keys, p
    p = pipe(server, "x\n", "--api-key-file", keys, "--cacert", cert)
    assert p.stdout == "Hello there.\n" and set(server.keys) == {"Bearer sk-first"}, (p, server.keys)
    server.stop()
    server = MockServer()
    pipe(server, "x\n")
    assert set(server.keys) == {None}, server.keys
    with open(keys, "w") as f:
        f.write("# none\n")
    for args, says in ((("--api-key-file", keys), "expected an API key"), (("--api-key-file", "/no/file"), "/no/file"),
                       (("--temperature", "hot"), "temperature"), (("--nothing",), "--nothing")):
        p = pipe(server, "x\n", *args)
        assert p.returncode != 0 and says in p.stderr and p.stdout == "", p
    server.stop()


@test
def numbers_have_points_in_every_locale():
    folder = os.path.join(TMP, "locales")
    os.mkdir(folder)
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", os.path.join(folder, "de_DE.UTF-8")], capture_output=True, text=True)
    if made.returncode:
        raise Skip(f"no locale with a decimal comma: {made.stderr.strip()}")
    server = MockServer()
    env = environment(LC_ALL="de_DE.UTF-8", LOCPATH=folder)
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # glibc keeps what it made of LOCPATH
    p = pipe(server, "x\n", "--temperature", "0.5", env=env)
    assert p.returncode == 0 and server.requests[-1][1]["temperature"] == 0.5, p
    server.stop()


@test
def a_signal_leaves_the_terminal_as_it_was():
    server = MockServer()
    t = Terminal(server)
    raw = termios.tcgetattr(t.master)[3]
    assert not raw & termios.ICANON, "the line is being edited"
    t.p.send_signal(signal.SIGTERM)
    assert t.p.wait(timeout=HANG_S) == -signal.SIGTERM
    flags = termios.tcgetattr(t.master)[3]
    assert flags & termios.ICANON and flags & termios.ECHO and flags & termios.ISIG
    server.stop()


def run(*argv):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S)


@test
def it_is_a_program_like_the_others():
    assert re.fullmatch(r"od-chat \d\S*\n", run(OD_CHAT, "--version").stdout)
    version = run(OD_MAIN, "--version").stdout
    assert run(OD_CHAT, "--version").stdout == version.replace("od-main", "od-chat"), version
    shown = run(OD_CHAT, "--help").stdout
    assert shown.startswith("Usage: od-chat [--url ") and "--api-key-file FILE" in shown and "--version" in shown, shown
    p = run(OD_CHAT, "--temprature", "1")
    assert p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1 and "--temprature" in p.stderr, p
    p = run(OD_MAIN, "chat", "--url", "http://127.0.0.1:9")
    assert p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1 and "run od-chat with the same options" in p.stderr, p
    assert not re.search("^  chat ", run(OD_MAIN, "--help").stdout, re.M)


@test
def only_it_needs_the_libraries_of_a_terminal():
    for program, needs in (OD_CHAT, {"libcurl", "libedit"}), (OD_MAIN, set()):
        found = run("ldd", program)
        assert found.returncode == 0 and "libc.so" in found.stdout, found
        assert set(re.findall(r"\b(libcurl|libedit)\b", found.stdout)) == needs, found.stdout


class Served:
    """od-main serve, with what Terminal and pipe need."""

    def __init__(self, *args, **kw):
        self.server = Server("--model-name", "talebook", *args, **kw)
        self.url, self.model = f"http://127.0.0.1:{self.server.port}", "talebook"


@test
def against_od_main_serve():
    served = Served()
    fields = {"max_tokens": 12, "temperature": 0}
    messages = [{"role": "user", "content": "Tell me of a wolf"}]
    p = pipe(served, "Tell me of a wolf\nAnd then?\n", "--max-tokens", "12", "--temperature", "0", "--verbose")
    want = []
    for question in "And then?", None:
        status, _, o = served.server.ask("/v1/chat/completions", {"messages": messages, **fields})
        assert status == 200, o
        want.append(o["choices"][0]["message"]["content"])
        messages += [{"role": "assistant", "content": want[-1]}, {"role": "user", "content": question}]
    assert p.returncode == 0 and p.stdout == "".join(w if w.endswith("\n") else w + "\n" for w in want) and len(set(want)) == 2, (p, want)
    assert f"{o['usage']['prompt_tokens']} prompt" in p.stderr and "12 generated" in p.stderr, p.stderr
    # Loads so slow that the text is not at its end when Ctrl-C comes.
    served = Served("--predictor", "none", "--worker-arg=--load-time=20", mode=("--local", 1))
    t = Terminal(served)
    t.keys("A long story\r")
    while served.server.metric("od_texts_running") == 0:
        time.sleep(0.01)
    t.keys(CTRL_C)
    t.wait_for("ended: by Ctrl-C")  # with or without some text
    while served.server.metric("od_texts_running") > 0 or served.server.metric('od_texts_total{finish="cancelled"}') != 1:
        time.sleep(0.01)
    t.prompt()
    assert t.end() == 0
    stop_servers()


run_tests()
