"""Texts that a hostile or broken model could write: to run a script, to load something, to take time. All else is drawn from a seed."""

SCRIPT = "window.__xss=1;alert(1)"

CRAFTED = [
    f"<script>{SCRIPT}</script>", f"<img src=x onerror=\"{SCRIPT}\">", "<img src=https://evil.example/pixel.png>", f"<svg onload=\"{SCRIPT}\">",
    f"<svg><script>{SCRIPT}</script></svg>", f"<iframe srcdoc=\"<script>{SCRIPT}</script>\"></iframe>", "<iframe src=javascript:alert(1)>",
    "<iframe src=https://evil.example/></iframe>", f"<body onload={SCRIPT}>", f"<details open ontoggle={SCRIPT}>", f"<input autofocus onfocus={SCRIPT}>",
    "<link rel=stylesheet href=https://evil.example/a.css>", "<style>@import url(https://evil.example/b.css);*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>", "<base href=https://evil.example/>", "<form action=https://evil.example/><button>x",
    "<object data=https://evil.example/x.swf></object>", "<embed src=https://evil.example/>", "<video src=https://evil.example/v autoplay>",
    f"<math><mtext></mtext><mglyph><svg><mtext><style><img src=x onerror={SCRIPT}></style></svg></math>",
    f"<template><script>{SCRIPT}</script></template>", f"<noscript><p title=\"</noscript><img src=x onerror={SCRIPT}>\">",
    f"</article></main><script>{SCRIPT}</script>", f"<!--><script>{SCRIPT}</script>-->", f"<![CDATA[<script>{SCRIPT}</script>]]>",
    "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](java\tscript:alert(1))", "[a](java\nscript:alert(1))", "[a]( javascript:alert(1))",
    "[a](\x01javascript:alert(1))", "[a](&#106;avascript:alert(1))", "[a](javascript&colon;alert(1))", "[a](javascript:alert(1)//https://x)",
    "[a](data:text/html,<script>alert(1)</script>)", "[a](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)", "[a](vbscript:msgbox(1))",
    "[a](file:///etc/passwd)", "[a](blob:https://x/y)", "[a](//evil.example/x)", "[a](/v1/models)", "[a](#/cluster)", "[a](?x)", "[a](../..)",
    "[a](<javascript:alert(1)>)", "[a](https://x\"onmouseover=\"alert(1))", "[a](https://x/ \"t\" onclick=alert(1))", "[a](https://x/ '\" onclick=alert(1)')",
    "[<img src=x onerror=alert(1)>](https://example.org)", "![x](javascript:alert(1))", "![x](https://evil.example/i.png)",
    "![x](https://evil.example/i.png \"title\")", "![<b>](data:image/svg+xml,<svg onload=alert(1)>)", "[![x](https://evil.example/i.png)](javascript:alert(1))",
    "[![x](javascript:alert(1))](https://example.org)", "<javascript:alert(1)>", "<https://x/\"onclick=alert(1)>", "<https://evil.example/>",
    "https://x/\"onmouseover=alert(1)", "http://[::1", "https://\x00evil", "https://user:password@example.org/", "mailto:a@b.c?subject=<script>", "<a@b.example>",
    "[r]: javascript:alert(1)\n\n[r]", "`<script>alert(1)</script>`", "``` <script>\nalert(1)\n```", "```\"><script>alert(1)</script>\nx\n```",
    "```javascript\nalert(1)\n```", "```html\n<script>alert(1)</script>\n```", "~~~\n</code></pre><script>alert(1)</script>", "    <script>alert(1)</script>",
    "# <script>alert(1)</script>", "- <script>alert(1)</script>", "> <script>alert(1)</script>", "| <script>alert(1)</script> | b |\n|---|---|\n| <img src=x> | c |",
    "$$<script>alert(1)</script>$$", r"\(<img src=x onerror=alert(1)>\)", "&lt;script&gt;alert(1)&lt;/script&gt;", "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&#x3c;script&#x3e;alert(1)&#x3c;/script&#x3e;", "&constructor;&toString;&__proto__;", "&#0;&#xd800;&#x110000;&#9999999;", "\\<script>alert(1)\\</script>",
    "**<b>**", "***", "****", "*_*_*_", "~~~~", "[[[[", "]]]]", "![![![", "](", "[](", "[]()", "[]( )", "[a](", "[a](b", "[a](<b", "[a](b \"c", "``", "`a", "```", "~~~",
    "|", "||", "|-|", "|-|\n|-|", "a|b\n-|-", "|a|\n|-|\n", "-", "- ", "-\n-", "1.", "1. ", "999999999. x", "9999999999. x", "> ", ">", ">>>>", "#", "####### x", "===", "a\n===",
    "a\n---", "\t", " \t\n", "\r\n\r\n", "\r", "\n\r", "\u2028\u2029", "\x00", "\ud800", "\udfff\ud800", "\ufeff", "\u202edesrever", "\u200b", "a\u0300" * 50, "\x7f\x80\x9f",
    "constructor", "__proto__", "hasOwnProperty", "<br>", "<br/><BR />", "a\\\nb", "- [x] done\n- [ ] <script>", "1. a\n\n   ```\n   x\n   ```\n2. b", "- a\n```\nb\n```\n- c",
    "> - > - > - x", "- - - - x", "* a\n + b\n  - c\n   1. d", "![a](b)[c](d)", "[a](https://x)[b](https://y)", "[a [b](https://x) c](https://y)", "*a [b* c](https://x)",
    "**a `b** c`", "_a_b_c_", "__a__b", "*a**b*", "**a*b**", "a * b * c", "* * *", "+ + +", "\\*a\\*", "\\", "\\\\", "&amp", "&;", "&#;", "&#x;", "<>", "< a>", "<https://>", "http://", "https:// x",
]

# What takes a naive parser more than linear time. Each takes a number and gives a text of about so many characters.
SLOW = {
    "openers": lambda n: "*a " * (n // 3), "closers": lambda n: "a* " * (n // 3), "both": lambda n: "*a* " * (n // 4), "mixed marks": lambda n: "*_" * (n // 2),
    "nested emphasis": lambda n: "*a **a " * (n // 16) + "b" + "** a* a" * (n // 16), "stars": lambda n: "*" * n, "underscores": lambda n: "a_" * (n // 2),
    "rule of three": lambda n: "a***b**c*" * (n // 9), "strikes": lambda n: "~~a " * (n // 4), "brackets": lambda n: "[" * n, "closing brackets": lambda n: "]" * n,
    "links in links": lambda n: "[" * (n // 16) + "a" + "](https://x)" * (n // 16), "images in images": lambda n: "![" * (n // 16) + "a" + "](https://x)" * (n // 16),
    "open links": lambda n: "[a](" * (n // 4), "open targets": lambda n: "[a](<" * (n // 5), "open titles": lambda n: "[a](b \"" * (n // 7), "parentheses": lambda n: "[a](" + "(" * n,
    "links": lambda n: "[a](https://x) " * (n // 15), "angles": lambda n: "<" * n, "open angles": lambda n: "<a " * (n // 3), "ampersands": lambda n: "&#" * (n // 2),
    "bare addresses": lambda n: "http://" * (n // 7), "broken addresses": lambda n: "http://[" * (n // 8), "addresses with ends": lambda n: "http://a" + ")" * n,
    "backquotes": lambda n: "`a" * (n // 2), "rising backquotes": lambda n: " ".join("`" * i for i in range(1, int((2 * n) ** 0.5))), "formulas": lambda n: "$$a" * (n // 3), "backslashes": lambda n: "\\(" * (n // 2),
    "quotes": lambda n: ">" * n, "quotes of lines": lambda n: "> a\n" * (n // 4), "deep quotes of lines": lambda n: (">" * 40 + "a\n") * (n // 42), "items in a line": lambda n: "- " * (n // 2) + "a",
    "deep items": lambda n: "".join("  " * i + "- a\n" for i in range(int(n ** 0.5))), "items": lambda n: "- a\n" * (n // 4), "loose items": lambda n: "- a\n\n" * (n // 5),
    "numbers": lambda n: "1. a\n" * (n // 5), "blank lines in an item": lambda n: "- a" + "\n" * n + "  b", "spaces": lambda n: " " * n + "a", "tabs": lambda n: "\t" * n + "a", "blank lines": lambda n: "\n" * n,
    "hashes": lambda n: "# " + "#" * n + " a", "heading spaces": lambda n: "# a" + " " * n + "b", "rules": lambda n: "- " * (n // 2), "underlines": lambda n: "a\n=" * (n // 3),
    "a wide table": lambda n: "|a" * 64 + "|\n" + "|-" * 64 + "|\n" + "|\n" * (n // 2), "a long table": lambda n: "|a|b|\n|-|-|\n" + "|a|b|\n" * (n // 6), "bars": lambda n: "|" * n + "\n" + "|-" * (n // 2),
    "tables": lambda n: "|a|\n|-|\n\n" * (n // 9), "one line": lambda n: "a" * n, "words": lambda n: "word " * (n // 5), "lines": lambda n: "line\n" * (n // 5), "an open fence": lambda n: "```\n" + "a b\n" * (n // 4),
    "a long line of code": lambda n: "```c\n" + "x" * n, "fences": lambda n: "```\n" * (n // 4), "fences in items": lambda n: "- a\n  ```\n" * (n // 10), "comment starts": lambda n: "```c\n" + "/*" * (n // 2) + "\n```",
    "open texts": lambda n: "```c\n" + "\"" * n + "\n```", "backslashes in texts": lambda n: "```c\n\"" + "\\" * n + "\n```", "indented code": lambda n: "    a\n" * (n // 6), "carriage returns": lambda n: "a\r" * (n // 2),
    "tags": lambda n: "<div>" * (n // 5), "emoji": lambda n: "\U0001f600*" * (n // 3), "combining": lambda n: "a" + "\u0300" * n, "nulls": lambda n: "\0" * n,
    "breaks": lambda n: "a  \n" * (n // 4), "trailing spaces": lambda n: ("a" + " " * 100 + "\n") * (n // 102), "entities": lambda n: "&amp;" * (n // 5),
}

PIECES = ["*", "**", "***", "_", "__", "~~", "`", "``", "```", "~~~", "[", "]", "(", ")", "![", "](", "](https://example.org)", "](javascript:alert(1))", "<", ">", "</", "<script>",
          "</script>", "<img src=https://evil.example/i.png>", "https://example.org", "mailto:a@b.c", "&lt;", "&#60;", "&amp;", "\\", "\\(", "\\)", "$$", "|", "|-|", "---", "===", "#", "##",
          "- ", "1. ", "2) ", "+ ", "> ", "- [x] ", "    ", "  ", " ", "\t", "\n", "\n", "\n\n", "\r\n", "a", "word", "h", "http", "é", "\U0001f600", "\u202e", "\u2028", "\0", ".", ",", "!", '"', "'",
          "```python\n", "\n```\n", "| a | b |\n|---|:-:|\n", "| c |\n", "x = 1", "/* ", " */", "#!", "<br>", "<https://example.org/>"]


def random_text(r):
    text = "".join(r.choice(PIECES) for _ in range(r.choice((3, 10, 40, 150))))
    return text + r.choice(CRAFTED) if r.random() < 0.3 else text
