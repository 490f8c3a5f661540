"""Replays one recorded exchange (tests/data/api_cases*.jsonl) against a server, and reports every mismatch.

A case holds a request and an expectation: status, kind, error fields, shapes ("path:type|type") and invariants
({path, op, value}). Paths: dots; [i] picks; [] is every element; {} every value of an object. The words of messages are
never part of a case. "$ID" in a path or a body stands for the id that the request of `setup` got.
"""
import base64
import json
import re
import time

MISSING = object()
GREEDY_TOLERANCE = 1e-4


def substitute(value, model, vocabulary, ident=None):
    """`value` with $MODEL, "$VOCAB", "$VOCAB-1" and, where there is one, $ID replaced, in every string and key."""
    numbers = {"$VOCAB": vocabulary, "$VOCAB-1": vocabulary - 1}
    if isinstance(value, str):
        return numbers[value] if value in numbers else value.replace("$MODEL", model).replace("$ID", ident or "$ID")
    if isinstance(value, list):
        return [substitute(item, model, vocabulary, ident) for item in value]
    if isinstance(value, dict):
        return {str(substitute(key, model, vocabulary, ident)): substitute(item, model, vocabulary, ident) for key, item in value.items()}
    return value


def sse_document(text):
    """The parts of an event stream that the rules see; ids and errors are counts, as the rules compare them with numbers."""
    events, names, after_done, bad, done = [], [], 0, 0, False
    for line in text.splitlines():
        if line.startswith("event:"):
            names.append(line[len("event:"):].strip())
        if not line.startswith("data:"):
            continue
        data = line[len("data:"):].strip()
        if done:
            after_done += 1
        elif data == "[DONE]":
            done = True
        else:
            try:
                events.append(json.loads(data))
            except ValueError:
                bad += 1
    usages = [event["usage"] for event in events if event.get("usage") is not None]
    return {"events": events, "last": events[-1] if events else None, "done": done, "after_done": after_done,
            "bad_events": bad, "ids": len({event["id"] for event in events if "id" in event}),
            "errors": sum("error" in event for event in events), "usage": usages[-1] if usages else None,
            "usage_events": len(usages), "choices": sse_choices(events), "names": names, "types": sse_types(events),
            "first": {event["type"].replace(".", "_"): event for event in reversed(events) if "type" in event}}


def sse_types(events):
    """The types of typed events in their order, each run of equal ones once."""
    types = [event["type"] for event in events if "type" in event]
    return [name for before, name in zip([None, *types], types) if name != before]


def sse_choices(events):
    choices = {}
    for choice in (choice for event in events for choice in event.get("choices", [])):
        whole = choices.setdefault(choice["index"], {"index": choice["index"], "text": "", "roles": [], "finish_reasons": [],
                                                     "stop_reason": None, "token_ids": [], "logprobs": 0, "tool_calls": []})
        delta = choice.get("delta") or {}
        whole["text"] += choice.get("text") or delta.get("content") or ""
        if delta.get("role"):
            whole["roles"].append(delta["role"])
        for part in delta.get("tool_calls") or []:
            add_call(whole["tool_calls"], part)
        if choice.get("finish_reason"):
            whole["finish_reasons"].append(choice["finish_reason"])
            whole["stop_reason"] = choice.get("stop_reason")
        whole["token_ids"] += choice.get("token_ids") or []
        logprobs = choice.get("logprobs") or {}
        whole["logprobs"] += len(logprobs.get("content") or logprobs.get("tokens") or [])
    return [choices[index] for index in sorted(choices)]


def add_call(calls, part):
    """Joins a piece of a streamed tool call to the call of its index."""
    while len(calls) <= part["index"]:
        calls.append({"id": "", "type": "", "name": "", "arguments": ""})
    call, function = calls[part["index"]], part.get("function") or {}
    call["id"], call["type"] = call["id"] or part.get("id") or "", call["type"] or part.get("type") or ""
    call["name"] += function.get("name") or ""
    call["arguments"] += function.get("arguments") or ""


def document(response):
    """(kind, document) of a response."""
    if not response.body:
        return "empty", {}
    if response.headers.get("Content-Type", "").startswith("text/event-stream"):
        return "sse", sse_document(response.text)
    try:
        return "json", json.loads(response.body)
    except ValueError:
        return "text", {"text": response.text}


def values_at(value, path):
    """Every value that `path` leads to; MISSING for values that are not there."""
    steps = re.findall(r"[^.\[\]{}]+|\[\d*\]|\{\}", path)
    found = [value]
    for step in steps:
        after = []
        for item in found:
            if step == "[]":
                after += item if isinstance(item, list) else [MISSING]
            elif step == "{}":
                after += item.values() if isinstance(item, dict) else [MISSING]
            elif step.startswith("["):
                index = int(step[1:-1])
                after.append(item[index] if isinstance(item, list) and index < len(item) else MISSING)
            else:
                after.append(item[step] if isinstance(item, dict) and step in item else MISSING)
        found = after
    return found


def type_names(value):
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    return {int: {"integer", "number"}, float: {"number"}, str: {"string"}, list: {"array"}, dict: {"object"}}[type(value)]


def top_is_max(doc):
    logprobs = doc["choices"][0]["logprobs"]
    if "content" in logprobs:
        pairs = [(item["logprob"], [top["logprob"] for top in item["top_logprobs"]]) for item in logprobs["content"]]
    else:
        pairs = [(chosen, list(top.values())) for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"])
                 if chosen is not None and top]
    return all(chosen >= max(tops, default=chosen) - GREEDY_TOLERANCE for chosen, tops in pairs)


# op -> (value found, value of the rule) -> bool
EACH = {
    "eq": lambda got, want: got == want and isinstance(got, bool) == isinstance(want, bool),
    "ne": lambda got, want: got != want,
    "lt": lambda got, want: got < want,
    "le": lambda got, want: got is None or got <= want,
    "gt": lambda got, want: got > want,
    "ge": lambda got, want: got >= want,
    "in": lambda got, want: got in want,
    "regex": lambda got, want: re.search(want, got) is not None,
    "startswith": lambda got, want: got.startswith(want),
    "endswith": lambda got, want: got.endswith(want),
    "contains": lambda got, want: want in got,
    "not_contains": lambda got, want: want not in got,
    "len_eq": lambda got, want: len(got) == want,
    "len_le": lambda got, want: len(got) <= want,
    "len_ge": lambda got, want: len(got) >= want,
    "items_le": lambda got, want: all(item is None or item <= want for item in got),
    "items_len_ge": lambda got, want: all(item is None or len(item) >= want for item in got),
    "items_len_le": lambda got, want: all(item is None or len(item) <= want for item in got),
    "items_in": lambda got, want: all(item in want for item in got),
    "sorted_asc": lambda got, _: got == sorted(got),
    "json_eq": lambda got, want: json.loads(got) == want,
    "sorted_desc": lambda got, _: got == sorted(got, reverse=True),
}
ALL = {
    "count": lambda got, want: len(got) == want,
    "unique": lambda got, _: len({json.dumps(item) for item in got}) == len(got),
    "all_equal": lambda got, _: len({json.dumps(item) for item in got}) <= 1,
    "sum_eq": lambda got, want: sum(got) == want,
}


class Replay:
    """`send(method, path, body, headers, admin)` returns an object with status, headers, body (bytes) and text."""

    def __init__(self, send, model, vocabulary, is_smollm2):
        self.send, self.model, self.vocabulary, self.is_smollm2 = send, model, vocabulary, is_smollm2

    def _request(self, request):
        body = request.get("body")
        if "body_b64" in request:
            body = base64.b64decode(request["body_b64"])
        elif isinstance(body, str):
            body = body.encode("utf-8", "surrogatepass")
        return self.send(request["method"], request["path"], body, request.get("headers", {}), request.get("listener") == "admin")

    def run(self, case):
        """Every mismatch, as text; empty when the case passes."""
        raw_body = case.get("body") if isinstance(case.get("body"), str) else None
        case = substitute(case, self.model, self.vocabulary)
        if raw_body is not None:
            case["body"] = raw_body.replace("$MODEL", self.model).replace('"$VOCAB-1"', str(self.vocabulary - 1)).replace(
                '"$VOCAB"', str(self.vocabulary))
        try:
            for request in case.get("setup", []):
                answer = self._request(request)
                if answer.status != 200:
                    return [f"setup {request['path']}: HTTP {answer.status}"]
                if "$ID" in json.dumps([case["path"], case.get("body")]):
                    case = substitute(case, self.model, self.vocabulary, answer.json["id"])
            problems = self._check(case)
            for _ in range(case.get("retries", 0)):
                if not problems:
                    break
                time.sleep(1)
                problems = self._check(case)
            return problems
        finally:
            for request in case.get("teardown", []):
                self._request(request)

    def _check(self, case):
        expect, response = case["expect"], self._request(case)
        kind, doc = document(response)
        statuses = expect["status"] if isinstance(expect["status"], list) else [expect["status"]]
        if response.status not in statuses:
            return [f"HTTP {response.status}, not {statuses}: {response.text[:300]}"]
        problems = []
        if expect.get("kind", kind) != kind:
            problems.append(f"{kind}, not {expect['kind']}")
        problems += self._error_problems(expect, doc)
        for shape in expect.get("shape", []):
            path, _, types = shape.rpartition(":")
            for value in values_at(doc, path):
                if value is MISSING or not type_names(value) & set(types.split("|")):
                    problems.append(f"{shape}: {'missing' if value is MISSING else repr(value)[:80]}")
        for rule in expect.get("invariants", []):
            if not rule.get("tok") or self.is_smollm2:
                problem = self._rule_problem(case, rule, doc)
                if problem:
                    problems.append(f"{json.dumps(rule)[:200]}: {problem}")
        return problems

    def _error_problems(self, expect, doc):
        error = doc.get("error") if isinstance(doc, dict) else None
        if not isinstance(error, dict):
            return ["no error object"] if any(key.startswith("error_") for key in expect) else []
        problems = []
        if "error_type" in expect and error.get("type") not in expect["error_type"]:
            problems.append(f"error.type {error.get('type')!r} is not in {expect['error_type']}")
        if "error_code" in expect and error.get("code") != expect["error_code"]:
            problems.append(f"error.code {error.get('code')!r} is not {expect['error_code']}")
        if "error_param" in expect:
            def first(name):
                names = [part for part in re.split(r"[.\[\]]", name or "") if part and part != "body"]
                return names[0] if names else None
            if first(error.get("param")) not in [first(name) for name in expect["error_param"]]:
                problems.append(f"error.param {error.get('param')!r} is not in {expect['error_param']}")
        return problems

    def _rule_problem(self, case, rule, doc):
        op, got = rule["op"], values_at(doc, rule.get("path", ""))
        want = rule.get("value")
        if isinstance(want, dict) and "path" in want:
            want = self._value_of(want, doc)
        try:
            if op == "top_is_max":
                return "" if top_is_max(doc) else "an alternative is likelier than the chosen token"
            if op == "absent_or_null":
                return "" if all(value is MISSING or value is None for value in got) else repr(got)[:200]
            if op in ALL:
                return "" if ALL[op](got, want) else repr(got)[:200]
            if MISSING in got:
                return "missing"
            if op == "repeat_same":
                again = values_at(document(self._request(case))[1], rule["path"])
                return "" if got == again else f"{got!r} then {again!r}"
            if op in ("same_as", "differs_from"):
                other = values_at(document(self._request(rule["request"]))[1], rule.get("other_path", rule["path"]))
                return "" if (got == other) == (op == "same_as") else f"{got!r} and {other!r}"
            bad = [value for value in got if not EACH[op](value, want)]
            return repr(bad)[:200] if bad else ""
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            return f"{type(error).__name__} on {got!r}"[:200]

    def _value_of(self, reference, doc):
        value = values_at(doc, reference["path"])[0]
        if reference.get("len"):
            value = len(value)
        return value + reference.get("add", 0) if "add" in reference else value


def load(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]
