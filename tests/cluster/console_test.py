"""The console in a real browser, over real clusters: a chat with tools and thoughts, a sleep and a wake-up in all their phases,
a worker that is killed while the page watches, a model that a message wakes up, and ten thousand requests. Nothing leaves the
machine, the pages break no policy of their own, nothing is wider than a phone, and axe-core finds nothing serious.
"""
import importlib.util
import json
import math
import os
import re
import signal
import tempfile
import unittest

from clients.servers import qwen3_with_tools
from cluster.harness import Cluster, browser, tiny, wait_until
from cluster.harness.browser import ENTER, ESCAPE, HOME, RIGHT, SHIFT, Browser
from cluster.harness.console_pages import ENDED, LAST, PREFIX, THINKS, ConsolePages
from cluster.harness.prefix_proxy import PrefixProxy
from cluster.poison_test import FaultyCluster
from cluster.structured_test import WEATHER

KEY, OPERATORS_KEY = "chat-key", "operators-key"
RUN_AXE = """return axe.run(document, arguments[0]).then(({violations}) => violations
    .filter(({impact}) => ['serious', 'critical'].includes(impact))
    .map(({id, nodes}) => `${id}: ${nodes.map((node) => node.html.slice(0, 200)).join(' | ')}`))"""
# Visible parts that reach beyond the screen, but for the parts of a box that scrolls.
TOO_WIDE = """const width = document.documentElement.clientWidth;
  return [...document.body.querySelectorAll('*')].filter((node) => {
    const {left, right} = node.getBoundingClientRect();
    return node.checkVisibility() && right > left && (right > width + 0.5 || left < -0.5)
        && !node.closest('.unseen, .skip, .label-text') && !node.parentElement.closest('.table-box, pre');
  }).map((node) => node.outerHTML.slice(0, 120)).concat(
    document.documentElement.scrollWidth > width ? [`the page: ${document.documentElement.scrollWidth}`] : [])"""
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MANY = 10000


def close(one, other, slack):
    return abs(one - other) <= slack


def rank_memory(rank):
    """Bytes of a rank in GET /status, by the parts of a bar."""
    on_device = {tag: rank["bytes_by_tag"].get(tag, 0) for tag in ("weights", "kv_cache", "workspace")}
    away = sum(rank["host_bytes_by_tag"].values()) + sum(rank["file_bytes_by_tag"].values())
    return {**on_device, "graphs": rank["graph_bytes"], "host": away}


def axe_source():
    """axe-core's script, from the folder of a package that carries it, or None."""
    spec = importlib.util.find_spec("axe_playwright_python")
    path = os.path.join(spec.submodule_search_locations[0], "axe.min.js") if spec else ""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def setUpModule():
    if not (browser.DRIVER and browser.CHROMIUM):
        raise unittest.SkipTest(browser.MISSING)
    ConsoleCase.browser = Browser()
    unittest.addModuleCleanup(ConsoleCase.browser.close)


class ConsoleCase(ConsolePages, unittest.TestCase):
    """Cases over one cluster, which a class has as `cluster`, in the one browser of all classes."""

    def setUp(self):
        self.ports = {self.cluster.port, self.cluster.admin_port}

    def tearDown(self):
        """No page of any case has asked another host, or broken the page's own policy."""
        self.assertEqual(self.browser.violations(), [])
        self.assertLessEqual(self.browser.hosts(), {f"127.0.0.1:{port}" for port in self.ports})

    def chat(self, messages, **fields):
        """The choice with which the API answers the same messages."""
        body = {"model": self.cluster.name, "messages": messages, "temperature": 0, "max_tokens": 12, **fields}
        response = self.cluster.request("POST", "/v1/chat/completions", body, headers=self.authorization())
        self.assertEqual(response.status, 200, response.text)
        return response.json["choices"][0]

    def answer(self, messages, **fields):
        return self.chat(messages, **fields)["message"]["content"]

    def shown(self):
        """The last answer's text, up to the last letter: a page shows no white space at a text's ends."""
        return self.browser.script(f"return {LAST}.querySelector('.body:not(details .body)').textContent")

    def assert_shows(self, text):
        self.assertEqual("".join(self.shown().split()), "".join(text.split()))

    def transitions(self):
        return self.browser.script("return [...document.querySelectorAll('#rank-rows td:nth-child(3)')].map((cell) => cell.innerText)")


class Console(ConsoleCase):
    """One model with keys, which thinks and calls tools. Its cache has fewer blocks than a picture has cells."""

    key, operators_key = KEY, OPERATORS_KEY
    streamed = 1500

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="somnus_qwen3_")
        cls.addClassCleanup(folder.cleanup)
        with open(os.path.join(qwen3_with_tools(folder.name), "chat_template.jinja"), "a", encoding="utf-8") as file:
            file.write(THINKS)  # random weights would not begin to think by themselves
        cls.cluster = Cluster(folder.name, f"--api-key={KEY}", f"--admin-api-key={OPERATORS_KEY}", "--sleep-arrivals=wake",
                              "--max-model-len=2048", "--kv-cache-memory-bytes=4MiB", "--root-path=/left",
                              f"--max-num-waiting={2 * MANY}", f"--max-viewed-requests={MANY}", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def recoveries(self):
        return int(self.cluster.status()["num_recoveries"])

    def status(self):
        """What the page reads."""
        headers = {"Authorization": f"Bearer {OPERATORS_KEY}"}
        return self.cluster.request("GET", "/status", port=self.cluster.admin_port, headers=headers).json

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
        self.assert_shows(self.answer([{"role": "user", "content": "Three"}]))
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
        tokens = self.chat([{"role": "user", "content": "Shades"}], logprobs=True, top_logprobs=5)["logprobs"]["content"]
        shades = [f"p{sum(math.exp(one['logprob']) < bound for bound in (0.9, 0.6, 0.3, 0.1, 0.01))}" for one in tokens]
        self.assertGreater(len(set(shades)), 1, "a test of shades needs several")
        self.assertEqual(self.browser.texts(".tokens span"), [one["token"] for one in tokens])
        self.assertEqual(self.browser.script("return [...document.querySelectorAll('.tokens span')].map((span) => span.className)"), shades)
        self.browser.type(".tokens", RIGHT)
        self.assertIn("most likely:", self.browser.text(".readout"))

    def test_settings_are_fields_of_the_request(self):
        self.open_chat()
        self.browser.script("""const real = window.fetch;
                               window.fetch = (url, options) => ((window.sent = options.body ?? window.sent), real(url, options))""")
        numbers = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "max_tokens": 3, "seed": 11, "presence_penalty": 0.1,
                   "frequency_penalty": -0.1, "repetition_penalty": 1.5}
        more = {"priority": 1, "ignore_eos": True}
        for name, value in (*numbers.items(), ("system", "Be short."), ("stop", "END\n###"), ("more", json.dumps(more))):
            self.browser.set(f"#set-{name}", value)
        self.ask("Fields")
        turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Fields"}]
        self.assertEqual(json.loads(self.browser.script("return window.sent")), {
            "model": self.cluster.name, "messages": turns, "stream": True, "stream_options": {"include_usage": True},
            "stop": ["END", "###"], **numbers, **more})
        self.browser.set("#set-more", "{")
        self.browser.type("#prompt", "Wrong" + ENTER)
        self.assertIn("must be a JSON object", self.browser.wait("document.getElementById('problem').textContent", "what is wrong"))

    def test_a_thought_and_the_call_of_a_tool(self):
        self.open_chat()
        forced = {"tool_choice": "required", "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": True},
                  "thinking_token_budget": 20}
        for name, value in (("tools", json.dumps([WEATHER])), ("more", json.dumps(forced)), ("max_tokens", "600")):
            self.browser.set(f"#set-{name}", value)
        self.assertIn("calls tools", self.ask("Wet?"))
        turns = [{"role": "user", "content": "Wet?"}]
        wanted = self.chat(turns, tools=[WEATHER], max_tokens=600, **forced)["message"]
        self.assertEqual(self.browser.text(".reasoning .body").split(), wanted["reasoning"].split())
        self.assertRegex(self.browser.text(".reasoning summary"), r"^Reasoning, [0-9.]+\s(s|ms)$")
        self.assertFalse(self.browser.script("return document.querySelector('.reasoning').open"), "thoughts are folded away")
        self.assertEqual(self.browser.text(".tool-call strong"), "get_weather")
        call = wanted["tool_calls"][0]
        self.assertEqual(json.loads(self.browser.text(".tool-call pre")), json.loads(call["function"]["arguments"]))
        self.browser.set("#set-more", '{"tool_choice": "none"}')
        self.browser.set("#set-max_tokens", "12")
        self.browser.type(".tool-form textarea", "rain")
        self.browser.click(".tool-form button")
        self.browser.wait(f"document.querySelectorAll('#transcript article').length === 4 && {ENDED}", "the answer to the result")
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        self.assert_shows(self.answer([*turns, wanted, result], tools=[WEATHER], tool_choice="none"))
        self.browser.script(f"{LAST}.id = 'old'")
        self.browser.click(".message.tool .actions button")  # the form comes back, and what it sends replaces the result
        self.browser.type(".tool-form textarea", " and wind")
        self.browser.click(".tool-form button")
        self.browser.wait(f"!document.getElementById('old') && document.querySelectorAll('#transcript article').length === 4 && {ENDED}",
                          "the other answer")
        self.assertEqual(self.browser.text(".message.tool pre"), "rain and wind")

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
        self.browser.wait_text("#outcome[data-state=good]", "freed", "the sleep")
        self.browser.wait_text(".model-row .badge", "^asleep, level 1$", "the state")
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_ASLEEP")
        wait_until(lambda: all(text.startswith("sleep done") for text in self.transitions()), 60, "the ranks' transitions")
        self.browser.click("#model-rows button[aria-label^='Wake up:']")
        self.browser.wait_text(".model-row .badge", "^awake$", "the wake-up")
        self.browser.wait_text("#outcome[data-state=good]", "mapped", "the outcome")
        self.browser.wait_text("#events", "Fell asleep", "the event")
        self.assertEqual(self.cluster.status()["state"], "ENGINE_STATE_AWAKE")

    def test_a_worker_is_killed_while_the_page_watches(self):
        self.open_operations()
        before = self.recoveries()
        os.kill(self.cluster.status()["ranks"][1]["pid"], signal.SIGKILL)
        self.browser.wait_text("#events", "Now recovering|is whole again", "the loss is shown")
        self.browser.wait_text("#events", "is whole again", "the recovery is an event")
        wait_until(lambda: self.recoveries() == before + 1, 60, "the group is whole again")
        self.browser.wait_text("#ranks-hint", f" {before + 1} recoveries", "the count")
        self.browser.wait_text(".model-row .badge", "^awake$", "it serves again")

    def test_the_memory_of_each_rank_by_tag(self):
        self.open_operations()
        for path in ("/sleep?level=1", "/wake_up"):
            self.operator(path)
            state = {"/wake_up": "awake"}.get(path, "asleep, level 1")
            self.browser.wait_text(".model-row .badge", f"^{state}$", "the state")

            def ranks(state=state.split(",")[0]):
                found = self.status()["detail"]["ranks"]
                return [rank_memory(rank) for rank in found] if all(rank["state"] == state for rank in found) else None
            self.check_memory(wait_until(ranks, 60, "the ranks' state"))

    def check_memory(self, ranks):
        most = max(sum(rank.values()) for rank in ranks)
        parts = {"weights": "weights", "KV cache": "kv_cache", "workspace": "workspace", "graphs": "graphs", "asleep": "host"}

        def shown():
            rows = self.browser.script("""return [...document.querySelectorAll('#rank-rows .memory')].map((bar) =>
                [bar.previousSibling.textContent, Object.fromEntries([...bar.children].map((part) =>
                    [part.className, part.getBoundingClientRect().width / bar.getBoundingClientRect().width]))])""")
            return [({parts[name]: float(number) * UNITS[unit] for name, number, unit in
                      re.findall(r"([A-Za-z ]+?) ([0-9.]+)\s([KMG]?i?B)(?:, |$)", text)}, widths) for text, widths in rows]

        def is_right():
            return all(close(numbers.get(tag, 0), rank[tag], 0.01 * rank[tag]) and close(widths[tag], rank[tag] / most, 0.01)
                       for (numbers, widths), rank in zip(shown(), ranks, strict=True) for tag in rank)
        wait_until(is_right, 60, lambda: f"numbers and bars of {ranks}: {shown()}")

    def test_requests_and_their_blocks_are_shown(self):
        self.open_operations()
        with self.held():
            self.browser.wait_text("#requests-hint", "^2 run, 1 wait$", "how many run and wait")
            self.assertEqual((self.browser.text("#tile-running"), self.browser.text("#tile-waiting")), ("2", "1"))

            def rows():
                names, states = self.browser.texts("#request-rows th"), self.browser.texts("#request-rows td:nth-child(2)")
                return [(re.sub(r"^.*(sharer-\d|waiter).*$", r"\1", name), state) for name, state in zip(names, states)]
            wanted = [("sharer-0", "running"), ("sharer-1", "running"), ("waiter", "waiting")]
            wait_until(lambda: rows() == wanted, 60, lambda: f"pictures follow numbers: {rows()}")
            # The beginning is held once by both, and is drawn in the colour of the legend.
            self.wait_blocks("shared")
            self.assertEqual(self.browser.script("""const {map, grid, lastChild: canvas} = document.querySelector('#kv-maps > div');
                const legend = (name) => getComputedStyle(document.querySelector(`.key-${name}`), '::before').backgroundColor;
                const drawn = (letter) => {
                  const place = map.cells.indexOf(letter), scale = canvas.width / canvas.clientWidth;
                  const middle = (line) => Math.floor((line + 0.5) * grid.size * scale);
                  const [x, y] = [middle(place % grid.columns), middle(Math.floor(place / grid.columns))];
                  return `rgb(${[...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3).join(', ')})`;
                };
                return [[...map.cells].filter((letter) => letter === '2').length, drawn('2') === legend('shared2'),
                        drawn('1') === legend('held'), drawn('.') === legend('free')]"""), [len(PREFIX) // 16, True, True, True])
        self.wait_blocks("cached")
        for tile in ("throughput", "ttft", "tpot"):
            self.browser.wait_text(f"#tile-{tile}", "[0-9]", "the speeds")
        lines = self.browser.script("return [...document.querySelectorAll('.spark path')].map((path) => path.getAttribute('d'))")
        self.assertTrue(len(lines) == 12 and all(lines), lines)

    def wait_blocks(self, kind):
        """Until the map has blocks of this kind."""
        label = "document.querySelector('#kv-maps canvas').getAttribute('aria-label')"
        self.browser.wait(f"/ (?!0[.]0\\s)[0-9.]+\\s% {kind}/.test({label})", f"{kind} blocks")

    def test_ten_thousand_requests(self):
        self.open_operations()
        self.operator("/pause")
        self.addCleanup(self.operator, "/resume")
        open_ones = [self.completion([[5]] * 1000, f"many-{number}", max_tokens=1) for number in range(MANY // 1000)]
        self.browser.wait(f"document.getElementById('requests-table').getAttribute('aria-rowcount') === '{MANY + 1}'", "all requests")
        self.assertEqual(self.browser.text("#tile-waiting"), f"{MANY:,}")
        self.browser.script("const box = document.getElementById('requests-box'); box.scrollTop = box.scrollHeight")
        self.browser.wait(f"document.querySelector('#request-rows tr:last-child[aria-rowindex=\"{MANY + 1}\"]') && true", "the last row")
        seen = self.browser.script("""const box = document.getElementById('requests-box');
            box.scrollIntoView();
            const {left, top, bottom} = box.getBoundingClientRect();
            const isRow = (y) => Boolean(document.elementFromPoint(left + 20, y)?.closest('#request-rows'));
            return {rows: document.querySelectorAll('#request-rows tr').length, nodes: document.querySelectorAll('*').length,
                    filled: [top + 60, (top + bottom) / 2, bottom - 10].every(isRow)}""")
        self.assertLess(seen["rows"], 101)
        self.assertLess(seen["nodes"], 2500, "nodes do not grow with requests")
        self.assertTrue(seen["filled"], "rows are where the reader is")
        self.browser.set("#request-filter", "many-3")
        self.browser.wait("/ 1,000 found/.test(document.getElementById('requests-hint').textContent)", "the rows that fit")
        self.browser.click("#model-rows button[aria-label^='Resume:']")
        for connection in open_ones:
            self.assertEqual(len(json.loads(connection.getresponse().read())["choices"]), 1000)
            connection.close()
        self.browser.wait_text("#tile-waiting", "^0$", "all have ended")
        wait_until(lambda: self.browser.texts("#request-rows tr") == [], 60, "no rows")

    def test_the_steps_as_a_timeline(self):
        connection = self.completion([5, 6, 7], "traced", max_tokens=20, ignore_eos=True)
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        self.open_operations()
        self.browser.set("#trace-seconds", "60")
        self.browser.click("#trace-load")
        self.browser.wait("/steps: .*decode/.test(document.getElementById('trace-summary').textContent)", "the summary of the steps")

        def shown():
            return self.browser.script("return document.getElementById('trace').getAttribute('aria-label')")

        def changed(what, act):
            before = shown()
            act()
            wait_until(lambda: shown() != before, 60, what)

        whole = shown()
        changed("a click zooms", lambda: self.browser.click("#trace-in"))
        changed("a key zooms", lambda: self.browser.type("#trace", "+"))
        changed("an arrow moves", lambda: self.browser.type("#trace", RIGHT))
        changed("a key zooms out", lambda: self.browser.type("#trace", "-"))
        self.browser.type("#trace", HOME)
        wait_until(lambda: shown() == whole, 60, "all of it")
        changed("the wheel zooms where the pointer is", lambda: self.browser.script(
            "document.getElementById('trace').dispatchEvent(new WheelEvent('wheel', {deltaY: -100, clientX: 300, cancelable: true}))"))
        self.browser.type("#trace", HOME + SHIFT + RIGHT)
        first = self.browser.wait("document.getElementById('trace-detail').textContent", "the facts of a step")
        self.assertRegex(first, r"^(prefill|decode|mixed|free), .* at .*: ")
        self.browser.type("#trace", SHIFT + RIGHT)
        self.browser.wait(f"document.getElementById('trace-detail').textContent !== {json.dumps(first)}", "the next step")

    def test_a_reader_who_gives_no_key_is_asked_once(self):
        self.open_operations()
        self.browser.script("sessionStorage.clear()")
        self.browser.open(f"http://127.0.0.1:{self.cluster.admin_port}/")
        self.browser.wait("document.querySelector('dialog[open]') && true", "the page asks for the key")
        self.browser.click("#key-cancel")
        self.browser.wait("performance.getEntriesByType('resource').filter(({name}) => name.endsWith('/status')).length > 3",
                          "looks that go on")
        self.assertFalse(self.browser.script("return Boolean(document.querySelector('dialog[open]'))"))

    def views(self):
        """Opens all views in turn; yields the name of each."""
        self.open_chat()
        yield "a chat without messages, and the settings"
        self.browser.set("#set-logprobs", True)
        self.ask("Accessible?" + 300 * "x")
        yield "a chat with shades"
        self.browser.script("document.getElementById('close-settings').click()")
        yield "a chat without settings"
        self.browser.script("document.getElementById('tab-models').click()")
        self.browser.wait("document.querySelectorAll('#model-rows tr').length > 0", "the models")
        yield "the models"
        self.browser.script("document.getElementById('key').click()")
        yield "the key's dialog"
        with self.held():
            self.open_operations()
            self.browser.wait("document.querySelectorAll('#request-rows tr').length === 3", "the requests")
            self.browser.click("#trace-load")
            self.browser.wait("/steps: /.test(document.getElementById('trace-summary').textContent)", "the steps")
            yield "operations"

    def test_no_view_has_barriers_or_is_wider_than_a_phone(self):
        axe = axe_source()
        self.addCleanup(self.browser.colours, "light")
        self.addCleanup(self.browser.phone, False)
        colours = {"runOnly": ["color-contrast"]}  # nothing else differs from the screen before
        screens = ((False, "dark", {}), (False, "light", colours), (True, "light", {}), (True, "dark", colours))
        for view in self.views():
            self.browser.script(axe or "")
            for is_phone, scheme, options in screens:
                with self.subTest(view, phone=is_phone, colours=scheme):
                    self.browser.phone(is_phone)
                    self.browser.colours(scheme)
                    self.assertEqual(self.browser.script(TOO_WIDE), [])
                    if axe:
                        self.assertEqual(self.browser.script(RUN_AXE, options), [])
            self.browser.phone(False)
        if not axe:
            self.skipTest("axe-playwright-python is not here (tools/setup.sh tests)")

    def test_the_browser_sees_what_a_policy_forbids(self):
        """The cases above would fail on a page that asks another host."""
        self.open_chat()
        self.browser.script("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.2:9/x.png'}))")
        self.browser.wait("window.cspViolations.length > 0", "the violation")
        self.assertEqual(self.browser.violations(), ["img-src: http://127.0.0.2:9/x.png"])
        self.browser.open("about:blank")
        self.browser.hosts()


class SeveralModels(ConsoleCase):
    """Two models of two replicas each, without keys. Their workers stop where a case says so."""

    @classmethod
    def setUpClass(cls):
        cls.faulty = FaultyCluster("", f"--model=qwen={tiny('qwen3')}", "--data-parallel-size=2", "--kv-cache-memory-bytes=1MiB",
                                   "--sleep-arrivals=wake", "--sse-keepalive=50ms", workers=1)
        cls.cluster = cls.faulty.__enter__()
        cls.addClassCleanup(cls.faulty.__exit__)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.faulty.set_faults, "")  # nobody waits any longer

    def wait_states(self, **states):
        """`states`: by the model's name, with an underscore for a dash."""
        wanted = {name.replace("_", "-"): state for name, state in states.items()}

        def shown():
            return dict(zip(self.browser.texts(".model-row th"), self.browser.texts(".model-row .badge")))
        wait_until(lambda: shown() == wanted, 60, lambda: f"{wanted}: {shown()}")

    def buttons(self, model):
        return dict(zip(self.browser.texts(".model-row th"), self.browser.texts(".model-row .actions")))[model]

    def test_a_model_sleeps_and_wakes_beside_another(self):
        self.open_operations()
        self.wait_states(test_model="awake", qwen="awake")
        self.browser.click("button[aria-label='Sleep: qwen']")
        self.wait_states(test_model="awake", qwen="asleep, level 1")
        self.browser.wait_text("#outcome[data-state=good]", "^qwen: sleep took .*freed", "the outcome")
        self.assertEqual((self.buttons("qwen"), self.buttons("test-model")), ("Wake up", "SleepSleep deeplyPause"))
        self.assertEqual(self.browser.script("return document.getElementById('model').value"), "qwen", "its ranks are shown")
        self.browser.click("button[aria-label='Sleep deeply: test-model']")
        self.wait_states(test_model="asleep, level 2", qwen="asleep, level 1")
        for model in ("test-model", "qwen"):
            self.browser.click(f"button[aria-label='Wake up: {model}']")
            self.browser.wait_text("#outcome[data-state=good]", f"^{model}: wake up took .*mapped", "the outcome")
        self.wait_states(test_model="awake", qwen="awake")
        states = {card["id"]: card["state"] for card in self.cluster.request("GET", "/v1/models").json["data"]}
        self.assertEqual(states, {"test-model": "awake", "qwen": "awake"})

    def test_the_phases_of_a_wake_up_as_they_happen(self):
        self.operator("/sleep?level=2&model=qwen")
        maps, reads = self.faulty.faults.set_moments(("access#2", "wait@0"), ("read", "wait@0"), times=2)
        self.open_operations()
        self.choose("qwen")
        self.wait_states(test_model="awake", qwen="asleep, level 2")
        self.browser.click("button[aria-label='Wake up: qwen']")

        def held(phase):
            form = rf"wake-up: {phase}, [0-9.]+\sm?s\n[0-9.]+\s% of [0-9.]+\s[KM]iB"
            return next((text for text in self.transitions() if re.match(form, text)), None)
        first = wait_until(lambda: held("map"), 60, lambda: f"a rank that maps: {self.transitions()}")
        wait_until(lambda: held("map") not in (first, None), 60, "the seconds go on")
        self.wait_states(test_model="awake", qwen="wakes up")
        self.browser.wait_text(".model-row:nth-child(2) .why", r" for [0-9.]+\s.*; wake-up: map, ", "the call")
        self.assertEqual(self.buttons("qwen"), "End this call")
        self.faulty.set_faults(reads)
        wait_until(lambda: held("read"), 60, lambda: f"a rank that reads: {self.transitions()}")
        self.assertGreater(self.faulty.faults.strikes(maps), 0)
        self.faulty.set_faults("")
        wait_until(lambda: all(text.startswith("wake-up done") for text in self.transitions()), 60, lambda: f"{self.transitions()}")
        self.assertTrue(any(re.search(r"\nmap [0-9.]+\sm?s, read [0-9.]+\sm?s", text) for text in self.transitions()), self.transitions())
        self.wait_states(test_model="awake", qwen="awake")

    def test_a_message_says_why_it_waits_for_a_model_that_wakes(self):
        self.open_chat()
        self.operator("/sleep?level=1&model=qwen")
        self.choose("qwen")
        self.browser.wait("document.getElementById('state').textContent === 'asleep'", "the state")
        self.assertEqual(self.browser.text("#state-note"), "A message wakes this model.")
        self.faulty.faults.set_moment("access#2", "wait@0", times=2)  # both replicas: one that is awake would answer
        self.browser.type("#prompt", "Wake" + ENTER)
        self.browser.wait(f"/wak/i.test({LAST}?.querySelector('.waiting.reason')?.textContent)", "why nothing comes yet")
        self.faulty.set_faults("")
        self.browser.wait(ENDED, "the answer")
        self.assert_shows(self.answer([{"role": "user", "content": "Wake"}], model="qwen"))
        self.browser.click("#tab-models")
        wait_until(lambda: self.browser.texts("#model-rows td:nth-child(3)") == ["ready", "ready"], 60, "both serve")

    def test_replicas(self):
        self.open_operations()
        self.choose("test-model")

        def shown():
            return self.browser.script("""return [...document.querySelectorAll('#replica-rows tr')].map((row) =>
                                              [...row.cells].slice(1, 3).map((cell) => cell.textContent))""")
        with self.held():
            running = [str(replica["num_requests_running"]) for replica in self.cluster.status()["replicas"]]
            self.assertEqual(sorted(running)[-1], "2", "the common beginning of both is there")
            wait_until(lambda: [row[1] for row in shown()] == running, 60, lambda: f"{running}: {shown()}")
            self.browser.wait_text("#request-rows tr:last-child", "waiter.*waiting", "the request in the common queue")
        victim = next(rank for rank in self.cluster.status()["ranks"] if rank.get("replica", 0) == 1)
        os.kill(victim["pid"], signal.SIGKILL)
        self.browser.wait("document.querySelectorAll('#replica-rows tr')[1].cells[5].textContent === '1'", "the recovery")
        wait_until(lambda: [row[0] for row in shown()] == ["awake", "awake"], 60, lambda: f"both serve: {shown()}")
        self.browser.wait_text("#events", "is whole again", "the event")
