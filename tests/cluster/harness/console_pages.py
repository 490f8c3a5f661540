"""The console's pages in a browser, over a cluster, for console_test.py and for console_pictures.py."""
import contextlib
import json

from cluster.harness import Stream
from cluster.harness.browser import ENTER

LAST = "document.querySelector('#transcript article:last-of-type')"
ENDED = f"{LAST}?.classList.contains('assistant') && !{LAST}.hasAttribute('aria-busy') && {LAST}.querySelector('.facts').textContent"
PREFIX = list(range(1, 65))  # tokens of four blocks
# Qwen3 begins its thoughts by itself, which random weights would not do: a template that ends so begins them in the prompt.
THINKS = "{%- if add_generation_prompt and enable_thinking %}{{- '<think>\\n' }}{%- endif %}"


class ConsolePages:
    """Opens the pages, and holds requests still while someone looks. `streamed`: tokens of the streams that are held."""

    browser = cluster = None
    key = operators_key = ""
    streamed = 400

    def open(self, port, key, ready, path="/"):
        page = self.browser
        page.open(f"http://127.0.0.1:{port}{path}")
        if page.wait(f"document.querySelector('dialog[open]') ? 'asks' : {ready} && 'ready'", "the page") == "asks":
            page.type("#key-input", key + ENTER)
        page.wait(ready, "the page is ready")

    def open_chat(self, port=None, path="/"):
        self.open(port or self.cluster.port, self.key, "document.getElementById('model').value", path)
        self.browser.script("document.getElementById('reset-settings').click()")  # fields of an earlier case
        for name, value in (("temperature", "0"), ("max_tokens", "12")):
            self.browser.set(f"#set-{name}", value)

    def open_operations(self, port=None, path="/"):
        self.open(port or self.cluster.admin_port, self.operators_key, "document.querySelectorAll('#rank-rows tr').length === 2", path)

    def ask(self, text):
        self.browser.type("#prompt", text + ENTER)
        return self.browser.wait(ENDED, "the answer has ended")

    def choose(self, model):
        self.browser.script("""const select = document.getElementById('model');
                               select.value = arguments[0]; select.dispatchEvent(new Event('change'))""", model)

    def authorization(self):
        return {"Authorization": f"Bearer {self.key}"}

    def operator(self, path):
        headers = {"Authorization": f"Bearer {self.operators_key}"}
        response = self.cluster.request("POST", path, port=self.cluster.admin_port, headers=headers)
        if response.status != 200:
            raise AssertionError(f"{path}: HTTP {response.status}: {response.text}")

    def completion(self, prompt, name, **fields):
        """A connection with a completion under way, of which nothing is read."""
        connection = self.cluster.connection(self.cluster.port)
        connection.request("POST", "/v1/completions", json.dumps({"model": self.cluster.name, "prompt": prompt, **fields}),
                           {"Content-Type": "application/json", "X-Request-Id": name, **self.authorization()})
        return connection

    def shared_streams(self):
        """Two streams that have begun, and share the blocks of PREFIX."""
        streams = []
        for number in range(2):
            body = {"model": self.cluster.name, "prompt": [*PREFIX, 100 + number], "max_tokens": self.streamed, "ignore_eos": True,
                    "temperature": 0, "stream": True}
            headers = {"X-Request-Id": f"sharer-{number}", **self.authorization()}
            streams.append(Stream(self.cluster.connection(self.cluster.port), "/v1/completions", body, headers))
            next(streams[-1].events())
        return streams

    @contextlib.contextmanager
    def held(self):
        """Two streams are held by a pause between two tokens, and a third request waits. The end lets all three end."""
        for _ in range(100):  # a fast server may have ended them before
            streams = self.shared_streams()
            self.operator(f"/pause?clear_cache=false&model={self.cluster.name}")
            if self.cluster.status()["num_requests_running"] == 2:
                break
            for stream in streams:
                stream.close()
            self.operator(f"/resume?model={self.cluster.name}")
        waiter = self.completion([7, 8, 9], "waiter", max_tokens=1)
        try:
            yield
        finally:
            for stream in streams:
                stream.close()
            self.operator(f"/resume?model={self.cluster.name}")
            waiter.getresponse().read()
            waiter.close()
            self.cluster.wait_idle()
