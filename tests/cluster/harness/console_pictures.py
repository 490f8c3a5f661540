#!/usr/bin/env python3
"""Writes pictures of all views of the console, for an author who has changed a page: dark, light, and as narrow as a phone.

Usage: console_pictures.py FOLDER [VIEW ...]
A picture is FOLDER/VIEW-SCREEN.png. The pages are those of the programs in bazel-bin (SOMNUS_BIN names another folder), which
serve two tiny models of two replicas each. A recorded stream takes the place of the answers of the chat: random weights write
nothing that would look like an answer. It needs //tests/worker:faulty_worker, whose workers stop in the middle of a wake-up, and
Chromium. It is no part of the test run.
"""
import argparse
import json
import math
import os
import sys
import threading

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))
from cluster.harness import browser, tiny, wait_until  # noqa: E402
from cluster.harness.browser import ENTER, RIGHT, Browser  # noqa: E402
from cluster.harness.console_pages import ENDED, ConsolePages  # noqa: E402
from cluster.poison_test import FaultyCluster  # noqa: E402

SCREENS = {"dark": (False, "dark"), "light": (False, "light"), "phone": (True, "light"), "phone-dark": (True, "dark")}
# The page's requests for an answer get the recorded stream; all others go to the server.
RECORDED = """window.recorded = arguments[0];
if (!window.realFetch) {
  window.realFetch = window.fetch;
  window.fetch = (url, options) => String(url).endsWith("/chat/completions")
    ? Promise.resolve(new Response(window.recorded, {headers: {"Content-Type": "text/event-stream"}})) : window.realFetch(url, options);
}"""
THOUGHT = "The user asks how to sum a list. A loop would do, but Python has `sum`.\n\nI should name the empty list, too."
TEXT = """Use the built-in **`sum`**; it also takes a start value:

```python
def total(prices: list[float], discount: float = 0.0) -> float:
    """ + "\"\"\"The sum of all prices, less a discount.\"\"\"" + """
    return sum(prices) * (1 - discount)
```

An empty list has the sum `0`. For floats that differ much in size, `math.fsum` loses nothing."""
WORDS = [(" The", 0.97), (" quick", 0.55), (" brown", 0.92), (" fox", 0.99), (" jumps", 0.31), (" over", 0.95), (" a", 0.08),
         (" sleeping", 0.004), (" dog", 0.7), (",", 0.62), (" which", 0.2), (" wakes", 0.05), (" up", 0.98), (".", 0.88)]


def stream(*deltas, finish="stop", logprobs=None, tokens=100):
    """A recorded answer."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "logprobs": logprobs, "finish_reason": finish})
    chunks = [{"choices": [choice]} for choice in choices]
    usage = {"prompt_tokens": 314, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 256}}
    chunks.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def tool_call():
    arguments = json.dumps({"city": "Reykjavík", "days": 3})
    return {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "get_weather", "arguments": arguments}}]}


def shades():
    others = [{"token": " cat", "logprob": math.log(0.2)}, {"token": "\n", "logprob": math.log(0.01)}]
    words = [{"token": word, "logprob": math.log(p)} for word, p in WORDS]
    content = [{**word, "top_logprobs": [word, *others]} for word in words]
    return stream({"content": "".join(word for word, _ in WORDS)}, logprobs={"content": content}, tokens=len(WORDS))


class Pictures(ConsolePages):
    def __init__(self, folder, wanted):
        self.folder, self.wanted = folder, wanted
        self.faulty = FaultyCluster("", f"--model=qwen={tiny('qwen3')}", "--data-parallel-size=2", "--kv-cache-memory-bytes=4MiB",
                                    "--max-num-waiting=20000", "--max-viewed-requests=10000", workers=1)
        self.cluster = self.faulty.cluster
        try:
            self.browser = Browser(1360, 900)
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.browser:
            self.browser.close()
        self.faulty.__exit__()

    def take(self, view, whole=False):
        if self.wanted and view not in self.wanted:
            return
        for screen, (is_phone, scheme) in SCREENS.items():
            self.browser.phone(is_phone)
            self.browser.colours(scheme)
            self.browser.script("""const scroller = document.getElementById('scroller');
                scroller?.scrollTo(0, scroller.scrollHeight);
                return new Promise((done) => setTimeout(done, 300))""")  # canvases follow the size of the page
            self.browser.screenshot(os.path.join(self.folder, f"{view}-{screen}.png"), whole)
        self.browser.phone(False)

    def says(self, recorded, text):
        self.browser.script(RECORDED, recorded)
        self.ask(text)

    def take_chat(self):
        self.open_chat()
        self.take("chat-settings")
        self.browser.click("#close-settings")
        self.take("chat-empty")
        self.says(stream({"reasoning": THOUGHT}, {"content": TEXT}), "How do I sum a list of prices in Python, with a discount?")
        self.take("chat-answer")
        self.browser.script("document.querySelector('.reasoning').open = true")
        self.says(stream({"reasoning": "I need the forecast."}, tool_call(), finish="tool_calls"), "Will it rain in Reykjavík?")
        self.take("chat-tool")
        self.browser.type(".tool-form textarea", '{"rain": "on two days", "wind": "strong"}')
        self.browser.script(RECORDED, stream({"content": "Yes, on two of the three days, with strong wind."}))
        self.browser.click(".tool-form button")
        self.browser.wait(ENDED, "the answer to the result")
        self.take("chat-result")
        self.browser.click("#new-chat")
        self.says(shades(), "Write a sentence about a fox.")
        for _ in range(8):
            self.browser.type(".tokens", RIGHT)
        self.take("chat-shades")
        self.browser.click("#transcript .user .actions button")
        self.take("chat-edit")
        self.browser.script(RECORDED, 'data: {"error": {"message": "The prompt has 9,000 tokens; the model takes 512 at most."}}\n\n')
        self.browser.type("#prompt", "A long prompt." + ENTER)
        self.browser.wait("document.querySelector('.message .error:not([hidden])')?.textContent", "the error")
        self.take("chat-error")
        self.browser.script("document.getElementById('key').click()")
        self.take("chat-key")
        self.browser.click("#key-cancel")

    def take_asleep(self):
        self.operator("/sleep?level=1&model=qwen")
        self.open_chat()
        self.browser.script("document.getElementById('close-settings').click()")
        self.choose("qwen")
        self.browser.wait("!document.getElementById('state-note').hidden", "asleep")
        self.take("chat-asleep")
        self.browser.script("document.getElementById('tab-models').click()")
        self.browser.wait("document.querySelectorAll('#model-rows tr').length === 2", "the models")
        self.take("models")
        self.open_operations()
        self.choose("qwen")
        self.browser.wait("document.getElementById('state').textContent === 'asleep, level 1'", "asleep")
        self.take("operations-asleep", whole=True)
        self.operator("/sleep?level=2&model=qwen")
        self.faulty.faults.set_moment("access#2", "wait@0", times=2)
        self.browser.click("button[aria-label='Wake up: qwen']")
        self.browser.wait("/wake-up: map/.test(document.getElementById('rank-rows').textContent)", "the transition")
        self.take("operations-waking", whole=True)
        self.faulty.set_faults("")
        self.browser.wait("document.getElementById('state').textContent === 'awake'", "awake")

    def take_operations(self):
        self.open_operations()
        self.take("operations-idle", whole=True)
        self.load(seconds=15)
        with self.held():
            self.browser.wait("document.querySelectorAll('#request-rows tr').length >= 2", "the requests")
            self.browser.set("#trace-seconds", "60")
            self.browser.click("#trace-load")
            self.browser.wait("/steps: /.test(document.getElementById('trace-summary').textContent)", "the steps")
            self.browser.type("#trace", "+++" + RIGHT)
            self.take("operations", whole=True)
        self.operator(f"/pause?model={self.cluster.name}")
        crowd = [self.completion([[5 + number]] * 1000, f"crowd-{number}", max_tokens=1) for number in range(10)]
        wait_until(lambda: self.browser.text("#tile-waiting") == "10,000", 60, "all requests")
        self.take("operations-crowd", whole=True)
        self.operator(f"/resume?model={self.cluster.name}")
        for connection in crowd:
            connection.getresponse().read()
            connection.close()

    def load(self, seconds):
        """Streams for so long, for numbers and lines that go up and down."""
        ends = threading.Event()

        def client(number):
            while not ends.wait(0.3 * number):
                self.cluster.tokens([5 + number] * 40, max_tokens=100, ignore_eos=True)
        threads = [threading.Thread(target=client, args=(number,)) for number in range(1, 6)]
        for thread in threads:
            thread.start()
        ends.wait(seconds)
        ends.set()
        for thread in threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("views", nargs="*", metavar="VIEW", help="only these, as chat-answer or operations")
    args = parser.parse_args()
    if not (browser.DRIVER and browser.CHROMIUM):
        raise SystemExit(f"error: {browser.MISSING}")
    os.makedirs(args.folder, exist_ok=True)
    pictures = Pictures(args.folder, args.views)
    try:
        for take in (pictures.take_chat, pictures.take_asleep, pictures.take_operations):
            take()
    finally:
        pictures.close()


if __name__ == "__main__":
    main()
