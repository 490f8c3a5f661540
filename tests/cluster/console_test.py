"""The console in a real browser, over a real cluster: a chat, a sleep and a wake-up, a worker that is killed while the page
watches, and a model that a message wakes up. Nothing leaves the machine, the pages break no policy of their own, and
axe-core finds nothing serious.
"""
import importlib.util
import json
import os
import signal
import unittest

from cluster.harness import Cluster, browser, tiny, wait_until
from cluster.harness.browser import ENTER, ESCAPE, RIGHT, Browser
from cluster.harness.prefix_proxy import PrefixProxy

KEY, OPERATORS_KEY = "chat-key", "operators-key"
LAST = "document.querySelector('#transcript article:last-of-type')"
ENDED = f"{LAST}?.classList.contains('assistant') && !{LAST}.hasAttribute('aria-busy') && {LAST}.querySelector('.facts').textContent"
RUN_AXE = """return axe.run(document, arguments[0]).then(({violations}) => violations
    .filter(({impact}) => ['serious', 'critical'].includes(impact))
    .map(({id, nodes}) => `${id}: ${nodes.map((node) => node.html.slice(0, 200)).join(' | ')}`))"""


def axe_source():
    """axe-core's script, from the folder of a package that carries it, or None."""
    spec = importlib.util.find_spec("axe_playwright_python")
    path = os.path.join(spec.submodule_search_locations[0], "axe.min.js") if spec else ""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


@unittest.skipUnless(browser.DRIVER and browser.CHROMIUM, browser.MISSING)
class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen3"), f"--api-key={KEY}", f"--admin-api-key={OPERATORS_KEY}", "--sleep-arrivals=wake",
                              "--max-model-len=512", "--root-path=/left", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.authorization = {"Authorization": f"Bearer {KEY}"}
        self.ports = {self.cluster.port, self.cluster.admin_port}

    def tearDown(self):
        """No page of any case has asked another host, or broken the page's own policy."""
        self.assertEqual(self.browser.violations(), [])
        self.assertLessEqual(self.browser.hosts(), {f"127.0.0.1:{port}" for port in self.ports})

    def open(self, port, key, ready, path="/"):
        page = self.browser
        page.open(f"http://127.0.0.1:{port}{path}")
        if page.wait(f"document.querySelector('dialog[open]') ? 'asks' : {ready} && 'ready'", "the page") == "asks":
            page.type("#key-input", key + ENTER)
        page.wait(ready, "the page is ready")

    def open_chat(self, port=None, path="/"):
        self.open(port or self.cluster.port, KEY, "document.getElementById('model').value", path)
        self.browser.script("document.getElementById('reset-settings').click()")  # fields of an earlier case
        for name, value in (("temperature", "0"), ("max_tokens", "12")):
            self.browser.set(f"#set-{name}", value)

    def open_operations(self, port=None, path="/"):
        self.open(port or self.cluster.admin_port, OPERATORS_KEY, "document.querySelectorAll('#rank-rows tr').length === 2", path)

    def ask(self, text):
        self.browser.type("#prompt", text + ENTER)
        return self.browser.wait(ENDED, "the answer has ended")

    def answer(self, messages, **fields):
        """The answer of the API to the same messages."""
        body = {"model": self.cluster.name, "messages": messages, "temperature": 0, "max_tokens": 12, **fields}
        response = self.cluster.request("POST", "/v1/chat/completions", body, headers=self.authorization)
        self.assertEqual(response.status, 200, response.text)
        return response.json["choices"][0]["message"]["content"]

    def shown(self):
        """The last answer's text, up to the last letter: a page shows no white space at a text's ends."""
        return self.browser.script(f"return {LAST}.querySelector('.body:not(details .body)').textContent")

    def assert_shows(self, text):
        self.assertEqual("".join(self.shown().split()), "".join(text.split()))

    def recoveries(self):
        return int(self.cluster.status()["num_recoveries"])

    def operator(self, path):
        response = self.cluster.request("POST", path, port=self.cluster.admin_port, headers={"Authorization": f"Bearer {OPERATORS_KEY}"})
        self.assertEqual(response.status, 200, response.text)

    def test_a_conversation_is_edited_and_goes_on(self):
        self.open_chat()
        facts = self.ask("One")
        self.assertIn("tokens in", facts)
        first = self.answer([{"role": "user", "content": "One"}])
        self.assert_shows(first)
        self.ask("Two")
        turns = [{"role": "user", "content": "One"}, {"role": "assistant", "content": first}, {"role": "user", "content": "Two"}]
        self.assert_shows(self.answer(turns))
        self.browser.click("#transcript .user .actions button")  # the first message is edited: all that follows goes
        self.browser.set("#transcript .user textarea", "Three")
        self.browser.click("#transcript .user .actions button")
        self.browser.wait(f"document.querySelectorAll('#transcript article').length === 2 && {ENDED}", "the edited conversation")
        self.assert_shows(self.answer([{"role": "user", "content": "Three"}]))
        self.browser.script("document.querySelector('#transcript .assistant').id = 'old'")
        self.browser.click("#old .actions button")
        self.browser.wait(f"!document.getElementById('old') && {ENDED}", "the answer is made again")
        self.assertEqual(self.browser.script("return [localStorage.length, Object.values(sessionStorage).includes(arguments[0])]", KEY),
                         [0, True], "the key is in the tab's storage alone")

    def test_pages_below_a_path_of_a_proxy(self):
        """A proxy that takes the path off, and requests as a proxy sends them that leaves the path (--root-path)."""
        wanted = self.answer([{"role": "user", "content": "One"}])
        with PrefixProxy({"/llm/": self.cluster.port, "/llm-ops/": self.cluster.admin_port}) as proxy:
            self.ports.add(proxy.port)
            for port, path in ((self.cluster.port, "/left/"), (proxy.port, "/llm/")):
                self.open_chat(port, path)
                self.ask("One")
                self.assert_shows(wanted)
            self.browser.script("sessionStorage.clear()")
            self.open_operations(proxy.port, "/llm-ops/")
            self.browser.wait("document.getElementById('tile-kv').textContent.includes('%')", "the status")
            self.assertEqual(proxy.outside, [])

    def test_a_long_answer_is_stopped(self):
        self.open_chat()
        self.browser.set("#set-max_tokens", "")
        self.browser.set("#set-more", '{"ignore_eos": true}')
        self.operator("/pause")  # a tiny model would have ended before the test looks
        self.browser.type("#prompt", "Go on" + ENTER)
        self.browser.wait("!document.getElementById('stop').hidden", "the answer is under way")
        self.browser.type("#prompt", ESCAPE)
        self.assertIn("stopped", self.browser.wait(ENDED, "the answer has stopped"))
        self.operator("/resume")
        self.cluster.wait_idle()

    def test_tokens_are_shaded_by_their_probabilities(self):
        self.open_chat()
        self.browser.set("#set-logprobs", True)
        self.ask("Shades")
        content = self.answer([{"role": "user", "content": "Shades"}])
        self.assertEqual(self.browser.text(".tokens"), content)
        self.browser.type(".tokens", RIGHT)
        self.assertIn("most likely:", self.browser.text(".readout"))

    def test_what_a_model_writes_is_never_markup(self):
        self.open_chat()
        self.ask("<img src=x onerror=alert(1)><script>alert(2)</script>")
        self.assertEqual(self.browser.script("return document.querySelectorAll('#transcript img, #transcript script').length"), 0)
        self.assertIn("<img src=x", self.browser.text("#transcript .user .text"))

    def test_a_message_wakes_a_model_that_sleeps(self):
        self.open_chat()
        self.operator("/sleep?level=1")
        self.ask("Wake")
        self.assert_shows(self.answer([{"role": "user", "content": "Wake"}]))

    def test_an_operator_puts_a_model_to_sleep_and_wakes_it(self):
        self.open_operations()
        self.browser.click("#model-rows button[aria-label^='Sleep:']")
        self.assertIn("freed", self.browser.wait("document.querySelector('#outcome[data-state=good]')?.textContent", "the sleep"))
        self.browser.wait("document.querySelector('.model-row .badge').textContent === 'asleep, level 1'", "the state")
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_ASLEEP")
        self.browser.wait("[...document.querySelectorAll('#rank-rows td:last-child')].every((cell) => cell.textContent.startsWith('sleep done'))",
                          "the ranks' transitions")
        self.browser.click("#model-rows button[aria-label^='Wake up:']")
        self.browser.wait("document.querySelector('.model-row .badge').textContent === 'awake'", "the wake-up")
        self.browser.wait("/mapped/.test(document.querySelector('#outcome[data-state=good]')?.textContent)", "the outcome")
        self.browser.wait("/Fell asleep.*/.test(document.getElementById('events').textContent)", "the event")
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")

    def test_a_worker_is_killed_while_the_page_watches(self):
        self.open_operations()
        before = self.recoveries()
        os.kill(self.cluster.status()["ranks"][1]["pid"], signal.SIGKILL)
        self.browser.wait("/Now recovering|is whole again/.test(document.getElementById('events').textContent)", "the loss is shown")
        self.browser.wait("/is whole again/.test(document.getElementById('events').textContent)", "the recovery is an event")
        wait_until(lambda: self.recoveries() == before + 1, 60, "the group is whole again")
        self.browser.wait(f"/ {before + 1} recoveries/.test(document.getElementById('ranks-hint').textContent)", "the count")
        self.browser.wait("document.querySelector('.model-row .badge').textContent === 'awake'", "it serves again")

    def test_requests_blocks_and_steps_are_shown(self):
        self.open_operations()
        stream = {"model": self.cluster.name, "prompt": list(range(1, 40)), "max_tokens": 400, "ignore_eos": True, "n": 2, "stream": True}
        connection = self.cluster.connection(self.cluster.port)
        self.operator("/pause")
        try:
            connection.request("POST", "/v1/completions", body=json.dumps(stream),
                               headers={"Content-Type": "application/json", "X-Request-Id": "watched", **self.authorization})
            self.browser.wait("[...document.querySelectorAll('#request-rows th')].filter((cell) => /watched/.test(cell.textContent)).length === 2",
                              "both choices of the request that waits")
            self.operator("/resume")
            connection.getresponse().read()
        finally:
            connection.close()
        self.browser.wait("/ (?!0[.]0 )[0-9.]+ % cached/.test(document.querySelector('#kv-maps canvas').getAttribute('aria-label'))",
                          "the blocks that the prefix cache holds")
        self.browser.set("#trace-seconds", "60")
        self.browser.click("#trace-load")
        self.browser.wait("/steps: .*decode/.test(document.getElementById('trace-summary').textContent)", "the summary of the steps")
        whole = self.browser.script("return document.getElementById('trace').getAttribute('aria-label')")
        self.browser.click("#trace-in")
        self.browser.wait(f"document.getElementById('trace').getAttribute('aria-label') !== '{whole}'", "a part of the time")

    def test_a_reader_who_gives_no_key_is_asked_once(self):
        self.open_operations()
        self.browser.script("sessionStorage.clear()")
        self.browser.open(f"http://127.0.0.1:{self.cluster.admin_port}/")
        self.browser.wait("document.querySelector('dialog[open]') && true", "the page asks for the key")
        self.browser.click("#key-cancel")
        self.browser.wait("performance.getEntriesByType('resource').filter(({name}) => name.endsWith('/status')).length > 3",
                          "looks that go on")
        self.assertFalse(self.browser.script("return Boolean(document.querySelector('dialog[open]'))"))

    def test_axe_finds_nothing_serious(self):
        axe = axe_source()
        if axe is None:
            self.skipTest("axe-playwright-python is not here (tools/setup.sh tests)")
        for opens, key in ((self.open_chat, KEY), (self.open_operations, OPERATORS_KEY)):
            opens()
            if key == KEY:
                self.browser.set("#set-logprobs", True)
                self.ask("Accessible?")
            self.browser.script(axe)
            for scheme, options in (("dark", {}), ("light", {"runOnly": ["color-contrast"]})):  # only colours differ
                self.browser.colours(scheme)
                self.assertEqual(self.browser.script(RUN_AXE, options), [], f"{key} {scheme}")

    def test_the_browser_sees_what_a_policy_forbids(self):
        """The cases above would fail on a page that asks another host."""
        self.open_chat()
        self.browser.script("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.2:9/x.png'}))")
        self.browser.wait("window.cspViolations.length > 0", "the violation")
        self.assertEqual(self.browser.violations(), ["img-src: http://127.0.0.2:9/x.png"])
        self.browser.open("about:blank")
        self.browser.hosts()
