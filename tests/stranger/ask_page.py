#!/usr/bin/env python3
"""A question typed into the page at an address, in Chromium: ask_page.py URL QUESTION. Prints the answer that the page shows in the end."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "page"))
from chromium import Browser  # noqa: E402


def main():
    url, question = sys.argv[1:]
    browser = Browser()
    try:
        page = browser.open(url)
        page.wait("document.querySelector('#model').textContent !== ''", "(the model's name)")
        page.click("#prompt")
        page.type(question)
        page.press("Enter")
        page.wait("document.querySelectorAll('.answer').length === 1 && document.querySelector('[aria-busy]') === null && "
                  "document.querySelector('#stop').hidden", "(an answer that has ended)")
        # Right behind the last line the model may still be loaded: the page asks again.
        page.expect_clean(url.rstrip("/"), allow=("503 (Service Unavailable)",))
        print(page.text(".answer .markdown").strip())
    finally:
        browser.close()


if __name__ == "__main__":
    main()
