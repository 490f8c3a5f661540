"""Chromium without a window, driven over WebDriver's plain HTTP protocol (Debian's chromium and chromium-driver).

The browser notes what a page asks for and what the page's Content-Security-Policy has forbidden.
"""
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
MISSING = "chromium and chromium-driver are not here (tools/setup.sh tests installs them for root)"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference to an element
ENTER, ESCAPE, RIGHT, HOME, SHIFT = "\ue007", "\ue00c", "\ue014", "\ue011", "\ue008"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
# Chromium's own services stay silent: the test must see the page's requests alone.
FLAGS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--no-proxy-server",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync")
NOTE_VIOLATIONS = """
window.cspViolations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.cspViolations.push(`${event.effectiveDirective}: ${event.blockedURI}`));
"""
WAIT_S = 60


class Browser:
    """The only page of a browser without a window."""

    def __init__(self, width=1280, height=900):
        self._violations = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._driver = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
        try:
            self._begin([*FLAGS, f"--window-size={width},{height}", *(["--no-sandbox"] if os.geteuid() == 0 else [])])
        except BaseException:
            self.close()
            raise

    def _begin(self, flags):
        self._await_driver()
        options = {"binary": CHROMIUM, "args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._driver += f"/session/{session['sessionId']}"
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source=NOTE_VIOLATIONS)

    def _await_driver(self):
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self._call("GET", "/status")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._driver + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {json.load(error)['value'].get('message', '')[:1000]}") from error

    def close(self):
        """Ends the driver and the browser, which is the driver's child."""
        try:
            if "/session/" in self._driver:
                self._call("DELETE", "")
        except (OSError, AssertionError):
            pass  # the browser has ended already
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()

    def devtools(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        self._keep_violations()
        self._call("POST", "/url", {"url": url})

    def script(self, text, *arguments):
        """The result of the script; a promise is waited for."""
        return self._call("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector):
        """The texts of all such elements."""
        return self.script("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)

    def wait_text(self, selector, pattern, what):
        """The text of the first such element, once the pattern fits it."""
        deadline = time.monotonic() + WAIT_S
        while not re.search(pattern, text := self.text(selector)):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {WAIT_S} s: {what}; {selector} says: {text}")
            time.sleep(0.05)
        return text

    def _element(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._call("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector, text):
        self._call("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def set(self, selector, value):
        """Puts a value into a field, as typing in an empty field would."""
        self.script("""const node = document.querySelector(arguments[0]);
                       if (node.type === 'checkbox') node.checked = arguments[1]; else node.value = arguments[1];
                       node.dispatchEvent(new Event('input', {bubbles: true}));""", selector, value)

    def wait(self, condition, what):
        """The first value of the script's expression that is true."""
        deadline = time.monotonic() + WAIT_S
        while True:
            value = self.script(f"return {condition}")
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {WAIT_S} s: {what}; the page says: {self.text('body')[:3000]}")
            time.sleep(0.05)

    def colours(self, scheme):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def phone(self, on):
        """The screen of a phone, or the window."""
        self.devtools("Emulation.setDeviceMetricsOverride", **PHONE) if on else self.devtools("Emulation.clearDeviceMetricsOverride")

    def screenshot(self, path, whole=False):
        """`whole`: of the whole page, also where the page is higher than the window."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        part = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True} if whole else {}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.devtools("Page.captureScreenshot", **part)["data"]))

    def _keep_violations(self):
        self._violations += self.script("return (window.cspViolations ?? []).splice(0)")

    def violations(self):
        """The requests that the policies of the pages have forbidden since the last call."""
        self._keep_violations()
        found, self._violations = self._violations, []
        return found

    def hosts(self):
        """The hosts, with ports, that were asked for anything since the last call."""
        found = set()
        for entry in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                parameters = message["params"]
                url = urllib.parse.urlsplit(parameters.get("request", parameters)["url"])
                if url.scheme not in ("data", "blob", "about", "chrome"):
                    found.add(url.netloc)
        return found
