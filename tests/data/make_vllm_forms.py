#!/usr/bin/env python3
"""Records what vLLM answers to the requests of vllm_form_cases.py, which tests/cluster/api_cases_test.py sends to our own server.

Usage: make_vllm_forms.py BASE_URL > tests/data/api_cases_forms.jsonl
The server has SmolLM2-135M-Instruct in bfloat16 under the name "smollm2", keeps responses, and reads tool calls:
  VLLM_ENABLE_RESPONSES_API_STORE=1 vllm serve DIR --served-model-name smollm2 --dtype bfloat16 --max-model-len 4096 \\
      --enable-auto-tool-choice --tool-call-parser hermes
The file has the form of api_cases.jsonl. A line expects of an answer what no model changes: the status, the fields of an error,
the members that are not null and their types, why the answer ends, the order of a stream's events. "why" and "expect" of a
case replace what vLLM answered, and then "policy" is "better" (or "differs", where vLLM has something that is not here).
"""
import json
import os
import sys
import urllib.error
import urllib.request

from vllm_form_cases import MESSAGES, RESPONSES, cases

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from cluster.harness import Response  # noqa: E402
from cluster.harness.api_cases import document, substitute, type_names, values_at  # noqa: E402

MODEL = "smollm2"
# Members of vLLM's own: a server of OpenAI's or Anthropic's has none of them.
OWN = {"system_fingerprint", "presence_penalty", "frequency_penalty", "input_tokens_per_turn", "cached_tokens_per_turn",
       "output_tokens_per_turn", "tool_output_tokens", "tool_output_tokens_per_turn", "context_management"}
# The names and values of these members are the client's, and come back.
ECHOED = {"tools", "schema", "metadata", "parameters", "input"}
# These events have the response as it will be at the end, with less in it.
UNDER_WAY = {"response_created", "response_in_progress"}
BAD_REQUEST = ["BadRequestError", "Bad Request"]
ANTHROPIC_ERRORS = {400: "invalid_request_error", 404: "not_found_error"}
ANTHROPIC_WHY = "below /v1/messages clients read Anthropic's error object, and its types; vLLM answers with OpenAI's"


def send(base_url, method, path, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base_url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as error:
        answer = error
    return Response(answer.status, answer.headers, answer.read())


def shapes(value, path=""):
    """path:type of every member that is not null; of a list's items, the members that all of them have."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in OWN or item is None:
                continue
            where = f"{path}.{key}" if path else key
            # Beside calls vLLM says "" for no text, and OpenAI null.
            yield f"{where}:string|null" if key == "content" and value.get("tool_calls") else f"{where}:{type_name(item)}"
            if key not in ECHOED:
                yield from shapes(item, where)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        found = [set(shapes(item, f"{path}[]")) for item in value]
        yield from sorted(set.intersection(*found))


def type_name(value):
    return "number" if "number" in type_names(value) else min(type_names(value))


def rule(doc, path, op="eq", **more):
    return {"path": path, "op": op, "value": values_at(doc, path)[0], **more}


def json_rules(path, doc):
    if path.startswith(RESPONSES):
        rules = [rule(doc, "object"), rule(doc, "output[0].type"), rule(doc, "usage.input_tokens", tok=True)]
        if doc["incomplete_details"]:
            return [rule(doc, "status"), rule(doc, "incomplete_details.reason"), *rules]
        return [rule(doc, "status"), *rules]
    if path == MESSAGES:
        names = ["type", "role", "stop_reason", *(["stop_sequence"] if "stop_sequence" in doc else []), "content[0].type"]
        return [rule(doc, name) for name in names]
    if "choices" not in doc:
        return []
    rules = [rule(doc, "object"), rule(doc, "usage.prompt_tokens", tok=True),
             {"path": "choices", "op": "len_eq", "value": len(doc["choices"])}]
    for i, choice in enumerate(doc["choices"]):
        rules.append(rule(doc, f"choices[{i}].finish_reason"))
        empty = [key for key, item in choice.get("message", {}).items() if item is None]
        rules += [{"path": f"choices[{i}].message.{key}", "op": "absent_or_null"} for key in empty]
    return rules


def stream_rules(doc):
    rules = [rule(doc, "done"), rule(doc, "usage_events"), rule(doc, "bad_events"), rule(doc, "errors")]
    if doc["types"]:
        return [rule(doc, "types"), {"path": "names", "op": "len_eq", "value": {"path": "events", "len": True}}, *rules]
    for i, choice in enumerate(doc["choices"]):
        rules += [rule(doc, f"choices[{i}].finish_reasons"), rule(doc, f"choices[{i}].roles")]
        rules += [{"path": f"choices[{i}].tool_calls", "op": "len_eq", "value": len(choice["tool_calls"])}]
        rules += [{"path": f"choices[{i}].tool_calls[].id", "op": "len_ge", "value": 1} for _ in choice["tool_calls"][:1]]
        rules += [rule(doc, f"choices[{i}].tool_calls[{call}].type") for call in range(len(choice["tool_calls"]))]
    return rules


def own_rules(case, doc):
    """The values that the case says no model can change."""
    for path in case.get("same", ()):
        yield rule(doc, path)
    for path in case.get("json", ()):
        yield {"path": path, "op": "json_eq", "value": json.loads(values_at(doc, path)[0])}


def error_expectation(status, doc):
    error = doc.get("error") if isinstance(doc, dict) else None
    if not isinstance(error, dict):
        return {"status": status}
    kind = error["type"]
    expect = {"status": status, "kind": "json", "error_code": error["code"], "error_type": BAD_REQUEST if kind in BAD_REQUEST else [kind]}
    if error.get("param"):
        expect["error_param"] = [error["param"]]
    return expect


def expectation(case, response):
    kind, doc = document(response)
    if response.status != 200:
        return error_expectation(response.status, doc)
    expect = {"status": 200, "kind": kind}
    if kind == "sse":
        members = {f"first.{name}": event for name, event in doc["first"].items() if name not in UNDER_WAY}
        shape = [one for name, event in members.items() for one in shapes(event, name)]
        invariants = [*stream_rules(doc), *own_rules(case, doc)]
    else:
        shape = list(shapes(doc))
        invariants = [*json_rules(case["path"], doc), *own_rules(case, doc)]
    return {**expect, **({"shape": shape} if shape else {}), "invariants": invariants}


def record(base_url, case):
    setup, ident = case.get("setup"), None
    if setup:
        ident = send(base_url, setup["method"], setup["path"], substitute(setup["body"], MODEL, 0, ident)).json["id"]
    body = case["body"]
    if body and "model" not in body:
        body = {"model": "$MODEL", **body}
    method = case.get("method", "POST")
    response = send(base_url, method, substitute(case["path"], MODEL, 0, ident), substitute(body, MODEL, 0, ident))
    line = {"id": f"forms/{case['name']}", "group": case["name"].split("/")[0], "method": method, "path": case["path"]}
    if body is not None:
        line["body"] = body
    if setup:
        line["setup"] = [setup]
    recorded = {"status": response.status, "kind": document(response)[0]}
    if case.get("expect"):
        return {**line, "policy": case.get("policy") or "better", "why": case["why"], "recorded": recorded, "expect": case["expect"]}
    if case["path"].startswith(MESSAGES) and response.status in ANTHROPIC_ERRORS:
        expect = {"status": response.status, "kind": "json", "error_type": [ANTHROPIC_ERRORS[response.status]],
                  "invariants": [{"path": "type", "op": "eq", "value": "error"}]}
        return {**line, "policy": "better", "why": ANTHROPIC_WHY, "recorded": recorded, "expect": expect}
    return {**line, "policy": "same", "expect": expectation(case, response)}


def main():
    for case in cases():
        try:
            print(json.dumps(record(sys.argv[1], case)), flush=True)
        except (TypeError, ValueError) as error:
            raise SystemExit(f"error: {case['name']}: the answer does not have what the case compares: {error}") from error


if __name__ == "__main__":
    main()
