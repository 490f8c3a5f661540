"""Streams of every kind, and the clients' answers in the end: compared answers must be equal, digit for digit."""
import http.client
import json
import threading
import time

STREAM_TIMEOUT_S = 180
WORDS = ("river", "engine", "winter", "letter", "garden", "signal", "harbor", "window", "copper", "morning", "market",
         "shadow", "bridge", "silver", "forest", "number")


def sentence(rng, words):
    return "The " + " ".join(rng.choice(WORDS) for _ in range(words)) + " of"


def chat(rng, words):
    return {"messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": sentence(rng, words)}]}


# How a request is made of a random generator: the path and the fields of the kind.
KINDS = {
    "greedy": lambda rng: ("/v1/completions", {"prompt": sentence(rng, 8), "temperature": 0}),
    "seeded": lambda rng: ("/v1/completions", {"prompt": sentence(rng, 12), "temperature": 0.9, "top_p": 0.95, "logprobs": 3}),
    "chat": lambda rng: ("/v1/chat/completions", {**chat(rng, 10), "temperature": 0, "logprobs": True, "top_logprobs": 2}),
    "long": lambda rng: ("/v1/completions", {"prompt": sentence(rng, rng.randint(200, 500)), "temperature": 0, "logprobs": 0}),
    "choices": lambda rng: ("/v1/completions", {"prompt": sentence(rng, 6), "n": 2, "temperature": 1.1, "top_k": 40}),
    "penalties": lambda rng: ("/v1/chat/completions", {**chat(rng, 20), "temperature": 0.7, "presence_penalty": 0.8,
                                                       "frequency_penalty": 0.3}),
    "stop": lambda rng: ("/v1/completions", {"prompt": sentence(rng, 9), "temperature": 0, "stop": [" and", "\n\n", ". It"]}),
    "echo": lambda rng: ("/v1/completions", {"prompt": sentence(rng, 40), "temperature": 0, "echo": True, "logprobs": 1}),
}


def make_requests(rng, count, max_tokens):
    """`count` requests (path, body) of all kinds in turn, each of at most `max_tokens` tokens and at least half of them."""
    requests = []
    for number in range(count):
        path, fields = list(KINDS.values())[number % len(KINDS)](rng)
        body = {"max_tokens": rng.randint(max_tokens // 2, max_tokens), "seed": rng.randrange(1 << 31), "stream": True,
                "ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}, **fields}
        requests.append((path, body))
    return requests


def event_texts(answer):
    """The data of every server-sent event until the response ends; AssertionError for a line that is none."""
    for line in iter(answer.readline, b""):
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data: "):
            yield line[6:].decode()
        elif line and not line.startswith(b":"):  # comments keep proxies from closing the connection
            raise AssertionError(f"a line that is no event: {line[:200]!r}")


class Answer:
    """All that the client of a stream has in its hands at the end."""

    def __init__(self):
        self.choices, self.usage, self.num_done = {}, None, 0

    def take(self, text):
        if self.num_done:
            raise AssertionError(f"an event after [DONE]: {text[:200]}")
        if text == "[DONE]":
            self.num_done += 1
            return
        event = json.loads(text)
        if "error" in event:
            raise AssertionError(f"an error event: {event['error']}")
        for choice in event["choices"]:
            self._add(self.choices.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": {}}), choice)
        if event.get("usage"):
            if self.usage is not None:
                raise AssertionError("usage came twice")
            # How many prompt tokens came from the cache depends on the time of their computation.
            self.usage = {key: count for key, count in event["usage"].items() if key != "prompt_tokens_details"}

    @staticmethod
    def _add(whole, choice):
        whole["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        whole["token_ids"] += choice.get("token_ids") or []
        for key, values in (choice.get("logprobs") or {}).items():
            if values is not None:
                whole["logprobs"].setdefault(key, []).extend(values)
        for key in ("finish_reason", "stop_reason"):
            if choice.get(key) is not None:
                if key in whole:
                    raise AssertionError(f"{key} came twice")
                whole[key] = choice[key]

    def check_whole(self):
        unfinished = [index for index, choice in self.choices.items() if "finish_reason" not in choice]
        if self.num_done != 1 or self.usage is None or unfinished or not self.choices:
            raise AssertionError(f"[DONE] {self.num_done} times, usage {self.usage}, choices without an end: {unfinished}")

    def difference(self, other):
        """The first difference to the other answer; None when both are equal."""
        if self.usage != other.usage:
            return f"usage {other.usage} instead of {self.usage}"
        if self.choices.keys() != other.choices.keys():
            return f"choices {sorted(other.choices)} instead of {sorted(self.choices)}"
        for index, ours in self.choices.items():
            theirs = other.choices[index]
            for key in sorted(ours.keys() | theirs.keys()):
                if ours.get(key) != theirs.get(key):
                    return f"choice {index}: {key} {theirs.get(key)!r} instead of {ours.get(key)!r}"
        return None


def ask(cluster, request, on_token=lambda: None):
    """The whole Answer of one stream. AssertionError for everything that a client would call an error."""
    path, body = request
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=STREAM_TIMEOUT_S)
    try:
        connection.request("POST", path, body=json.dumps({"model": cluster.name, **body}),
                           headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"HTTP {response.status}: {response.read()[:300]}")
        answer = Answer()
        for text in event_texts(response):
            answer.take(text)
            if '"token_ids":[' in text and '"token_ids":[]' not in text:
                on_token()
        answer.check_whole()
        return answer
    finally:
        connection.close()


class Round:
    """All requests at once, each on its own thread. Thread safe; to be used once."""

    def __init__(self, cluster, requests):
        self.cluster, self.requests = cluster, requests
        self.token_times = []  # of every event with tokens, by the monotonic clock; list.append is atomic
        self.started = time.monotonic()
        self._answers = [None] * len(requests)
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(len(requests))]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        try:
            self._answers[number] = ask(self.cluster, self.requests[number], lambda: self.token_times.append(time.monotonic()))
        except (OSError, http.client.HTTPException, AssertionError, ValueError, KeyError) as error:
            self._answers[number] = error

    def over(self):
        return not any(thread.is_alive() for thread in self._threads)

    def answers(self):
        """Waits for all; AssertionError names the requests that failed."""
        for thread in self._threads:
            thread.join(STREAM_TIMEOUT_S)
        problems = [f"request {number} ({describe(self.requests[number])}): {type(answer).__name__} {answer}"
                    for number, answer in enumerate(self._answers) if not isinstance(answer, Answer)]
        if problems:
            raise AssertionError("\n".join(problems))
        return self._answers

    def check(self, expected):
        """Waits for all; AssertionError unless every answer is the expected one."""
        problems = []
        for number, (ours, answer) in enumerate(zip(expected, self.answers())):
            difference = ours.difference(answer)
            if difference:
                problems.append(f"request {number} ({describe(self.requests[number])}): {difference}")
        if problems:
            raise AssertionError("\n".join(problems))

    def stall_after(self, moment):
        """Seconds from `moment` to the end of the longest later silence; None when no token came any more.

        Tokens that were on the way at `moment` still arrive later, so that the first later token says nothing.
        """
        times = [moment] + sorted(when for when in list(self.token_times) if when > moment)
        if len(times) == 1:
            return None
        return max(zip(times, times[1:]), key=lambda pair: pair[1] - pair[0])[1] - moment


def describe(request):
    path, body = request
    shown = {key: value for key, value in body.items() if key not in ("prompt", "messages", "stream_options", "stream")}
    return f"{path} {json.dumps(shown)}"
