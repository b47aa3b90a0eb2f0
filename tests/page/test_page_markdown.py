#!/usr/bin/env python3
"""The page's Markdown against cmark-gfm, the reference implementation of CommonMark with tables, on texts that a seed draws: emphasis of every kind, and documents of well-formed blocks in each other. Where the page differs on purpose, the texts have none of it: raw HTML,
images, references, addresses without brackets, and inner lists that are indented too little."""
import html.parser
import json
import shutil
import subprocess

from page_tests import open_chat, run_tests, seeded, site, skip, test

REFERENCE = shutil.which("cmark-gfm")
END = "<!-- raw HTML omitted -->"  # what stands for a comment, which ends all blocks

# What the page showed, as [tag, children]; texts with single spaces. Boxes of the page's own are left out, headings have the level that was written.
READ = r"""(() => {
	const { html } = hostile;
	const skip = (e) => e.matches('.segment, .table-box, .code, thead, tbody');
	function read(e) {
		const list = [];
		for (const n of e.childNodes) {
			if (n.nodeType === Node.TEXT_NODE)
				list.push(n.data);
			else if (n.matches('.code-head'))
				continue;
			else if (skip(n))
				list.push(...read(n));
			else if (n.matches('.code pre'))
				list.push(['pre', [n.textContent]]);
			else if (n.matches('[class^="c-"]'))
				list.push(...read(n));
			else
				list.push([/^H\d$/.test(n.tagName) ? n.className.replace('-', '') : n.tagName.toLowerCase() + (n.tagName === 'A' ? ` ${n.getAttribute('href')}` :
					n.tagName === 'OL' && n.hasAttribute('start') ? ` ${n.getAttribute('start')}` : ''), read(n)]);
		}
		return list;
	}
	hostile.read = (text) => {
		const node = document.createElement('div');
		hostile.show(node, text);
		return read(node);
	};
})()"""
SKIPPED = {"thead", "tbody"}


class Reader(html.parser.HTMLParser):
    """HTML of cmark-gfm as [tag, children]."""

    def __init__(self, text):
        super().__init__()
        self.stack = [["", []]]
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag in SKIPPED or (tag == "code" and self.stack[-1][0] == "pre"):
            return
        node = [tag + (f" {a['href']}" if tag == "a" else f" {a['start']}" if tag == "ol" and "start" in a else ""), []]
        self.stack[-1][1].append(node)
        if tag not in ("br", "hr"):
            self.stack.append(node)

    def handle_endtag(self, tag):
        if tag not in SKIPPED | {"br", "hr"} and not (tag == "code" and self.stack[-1][0] == "pre"):
            self.stack.pop()

    def handle_data(self, data):
        self.stack[-1][1].append(data)


def tidy(nodes, in_pre=False):
    """Neighbouring texts are one; white space at the ends of blocks says nothing."""
    out = []
    for n in nodes:
        if isinstance(n, str):
            if out and isinstance(out[-1], str):
                out[-1] += n
            else:
                out.append(n)
        else:
            out.append([n[0], tidy(n[1], n[0] == "pre")])
    if in_pre:
        return ["".join(out).rstrip("\n")]
    for i, n in enumerate(out):
        if isinstance(n, str):
            n = " ".join(n.split()) if not n.strip() else n
            before, after = (out[i - 1] if i > 0 else None), (out[i + 1] if i + 1 < len(out) else None)
            if before is None or is_block(before):
                n = n.lstrip()
            if after is None or is_block(after):
                n = n.rstrip()
            out[i] = n
    return [n for n in out if n != ""]


def is_block(n):
    return not isinstance(n, str) and n[0].split()[0] not in ("em", "strong", "code", "a", "del", "span")


def reference(texts):
    whole = "".join(f"{t}\n\n<!-- -->\n\n" for t in texts)
    out = subprocess.run([REFERENCE, "--hardbreaks", "--extension", "table"], input=whole, capture_output=True, text=True, check=True).stdout
    return out.split(END)[:-1]


def compare(make, count, what):
    if REFERENCE is None:
        skip("there is no cmark-gfm here (deploy/install-deps.sh cmark-gfm)")
    s = site()
    page = open_chat(s)
    page.evaluate("(async () => { const m = await import('/page/markdown.js'); window.hostile = { show: m.showMarkdown }; })()")
    page.evaluate(READ)
    r = seeded(what)
    for _ in range(0, count, 200):
        texts = [make(r) for _ in range(200)]
        for text, found, there in zip(texts, page.evaluate(f"{json.dumps(texts)}.map(hostile.read)"), reference(texts), strict=True):
            expected = tidy(Reader(there).stack[0][1])
            found = tidy(found)
            assert found == expected, f"{text!r}\nfound    {json.dumps(found)}\nexpected {json.dumps(expected)}"
    page.expect_clean(s.url)


# Runs of backquotes that pair otherwise are not here: cmark-gfm 0.29 forgets a run when it has closed one of the same length.
INLINE = ["*", "*", "**", "**", "***", "_", "_", "__", "a", "b", "word", " ", " ", ".", ",", "(", ")", "\"", "é", " `c` ", " ``d`e`` ", "[l](https://example.org/)", "[*m*](https://example.org/n)", "\\*",
          "\\_", "&amp;", "\n"]


def inline(r):
    return "x" + "".join(r.choice(INLINE) for _ in range(r.randint(1, 14))) + "y"


@test
def test_emphasis_is_commonmark_s():
    compare(inline, 3000, "inline")


def words(r):
    return " ".join(r.choice(["one", "two", "*three*", "**four**", "`five`", "six_seven", "[eight](https://example.org/)", "nine."]) for _ in range(r.randint(1, 5)))


def indented(lines, first, rest):
    return [((first if i == 0 else rest) + line).rstrip() for i, line in enumerate(lines)]


def block(r, depth):
    """Lines of one block."""
    kind = r.choice(["p", "p", "h", "code", "hr", "table", "ul", "ol", "quote"] if depth < 3 else ["p"])
    if kind == "p":
        return [words(r) for _ in range(r.randint(1, 3))]
    if kind == "h":
        return ["#" * r.randint(1, 6) + " " + words(r)]
    if kind == "code":
        fence = r.choice(["```", "~~~", "````"])
        return [fence + r.choice(["", "c", "python"]), *r.choice([["x = 1"], ["a", "", "  b"], ["# no heading", "- no item"]]), fence]
    if kind == "hr":
        return ["***"]
    if kind == "table":
        n = r.randint(1, 4)
        return ["|" + "|".join(f" {words(r)} " for _ in range(n)) + "|", "|" + "|".join(r.choice(["---", ":--", "--:", ":-:"]) for _ in range(n)) + "|",
                *("|" + "|".join(f" {words(r)} " for _ in range(n)) + "|" for _ in range(r.randint(1, 3)))]
    if kind == "quote":
        return indented(document(r, depth + 1), "> ", "> ")
    lines, start, tight = [], r.choice([1, 1, 3]), r.random() < 0.5
    for i in range(r.randint(1, 3)):
        marker = "- " if kind == "ul" else f"{start + i}. "
        inside = [words(r)] if tight else document(r, depth + 1)
        if inside[0].startswith(("- ", "***")) or inside[0][0].isdigit() or inside[0].startswith(("```", "~~~", "|")):
            inside = [words(r), "", *inside]
        lines += ([""] if lines and not tight else []) + indented(inside, marker, " " * len(marker))
    return lines


def document(r, depth=0):
    blocks = [block(r, depth) for _ in range(r.randint(1, 3))]
    lines = blocks[0]
    for before, after in zip(blocks, blocks[1:]):
        # Two lists would be one; a rule and a list have the same mark.
        separator = [words(r), ""] if is_list(before) and (is_list(after) or after[0].startswith(" ")) else []
        lines = lines + ["", *separator, *after]
    return lines


def is_list(lines):
    return lines[0].startswith("- ") or lines[0][0].isdigit()


@test
def test_blocks_are_commonmark_s():
    compare(lambda r: "\n".join(document(r)), 1200, "blocks")


if __name__ == "__main__":
    run_tests()
