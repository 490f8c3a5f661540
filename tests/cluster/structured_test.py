"""Structured outputs and tool calls of SmolLM2 through the whole cluster: generated text has the form that was asked for, streamed
or whole, and beside other requests. Greedy answers of forms of every kind are the same on any number of ranks and under preemption,
drafts, sleeps and killed workers; crossings_test.py has a form beside windows, experts, adapters and stages."""
import functools
import json
import os
import re
import signal
import tempfile
import threading
import unittest

from clients.servers import qwen3_with_tools
from cluster.harness import SMOLLM2, Cluster, begin_and_stop, tiny, wait_until
from cluster.harness.run_directory import pids
from cluster.harness.together import Together, complete, prompt

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Describe a person in JSON."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"], "additionalProperties": False}}}


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def chat(self, **fields):
        body = {"messages": QUESTION, "max_tokens": 120, "temperature": 0, **fields}
        reply = self.cluster.request("POST", CHAT, body)
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json["choices"][0]

    def refused(self, path=CHAT, **fields):
        reply = self.cluster.request("POST", path, {"messages": QUESTION, "prompt": "x", "max_tokens": 8, **fields})
        self.assertEqual(reply.status, 400, reply.text)
        return reply.json["error"]

    def check_person(self, text):
        person = json.loads(text)
        self.assertEqual(set(person), {"name", "age", "tags"})
        self.assertLessEqual(len(person["name"]), 12)
        self.assertTrue(0 <= person["age"] <= 120 and isinstance(person["age"], int))
        self.assertTrue(1 <= len(person["tags"]) <= 3 and set(person["tags"]) <= {"red", "green"}, person)

    def test_a_schema_holds_at_any_temperature(self):
        for seed in range(4):
            choice = self.chat(response_format=as_format(PERSON), temperature=1.5, seed=seed)
            self.assertEqual(choice["finish_reason"], "stop")
            self.check_person(choice["message"]["content"])

    def test_a_schema_holds_with_penalties_and_log_probabilities(self):
        for penalties in ({"presence_penalty": 2, "frequency_penalty": 2}, {"repetition_penalty": 1.8}, {"logit_bias": {"2": 100}}):
            with self.subTest(penalties):
                choice = self.chat(response_format=as_format(PERSON), logprobs=True, top_logprobs=3, **penalties)
                self.check_person(choice["message"]["content"])
                *told, end = choice["logprobs"]["content"]
                self.assertEqual("".join(one["token"] for one in told), choice["message"]["content"])
                self.assertEqual(choice["finish_reason"], "stop")
                self.assertIn(end["token"], ("<|im_end|>", "<|endoftext|>"))  # the model's two end tokens
                self.assertTrue(all(one["logprob"] <= 0 for one in told))

    def test_choices_of_one_request(self):
        body = {"messages": QUESTION, "max_tokens": 120, "temperature": 1, "seed": 3, "n": 4, "response_format": as_format(PERSON)}
        choices = self.cluster.request("POST", CHAT, body).json["choices"]
        self.assertEqual(len(choices), 4)
        for choice in choices:
            self.check_person(choice["message"]["content"])

    def test_the_stream_says_the_same(self):
        whole = self.chat(response_format=as_format(PERSON))["message"]["content"]
        body = {"messages": QUESTION, "max_tokens": 120, "temperature": 0, "stream": True, "response_format": as_format(PERSON)}
        events = self.cluster.request("POST", CHAT, body).text.split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), whole)

    def test_other_forms(self):
        base = {"prompt": "The colour of the sky is", "max_tokens": 24, "temperature": 0}
        for form, fits in (({"regex": r"[a-z]{3,5}-\d{2}"}, lambda text: re.fullmatch(r"[a-z]{3,5}-\d{2}", text)),
                           ({"choice": ["bright red", "dark blue"]}, lambda text: text in ("bright red", "dark blue")),
                           ({"grammar": 'root ::= "yes" | "no" ", never"'}, lambda text: text in ("yes", "no, never")),
                           ({"json": {"type": "object", "properties": {"a": {"enum": [7, 8]}}, "required": ["a"]},
                             "disable_additional_properties": True, "disable_any_whitespace": True},
                            lambda text: json.loads(text) in ({"a": 7}, {"a": 8})),
                           ({"json": {"const": {"a": [1, 2]}}, "whitespace_pattern": "[\n ]?"},
                            lambda text: text == '{"a": [1, 2]}'),
                           ({"json": {"const": {"a": [1, 2]}}}, lambda text: json.loads(text) == {"a": [1, 2]})):
            self.check_form({"structured_outputs": form}, fits, **base)

    def test_forms_of_other_names(self):
        base = {"prompt": 'The object {"a": 1} is once more the object', "max_tokens": 160, "temperature": 0}
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "end": "</a>",
                                                    "content": {"type": "json_schema", "json_schema": {"enum": [1, 22]}}}}
        small = {"type": "object", "properties": {"a": {"enum": [7, 8]}}, "required": ["a"], "additionalProperties": False}
        for fields, fits in (({"structured_outputs": {"json_object": True}}, lambda text: isinstance(json.loads(text), dict)),
                             ({"structured_outputs": {"structural_tag": json.dumps(tag)}},
                              lambda text: re.fullmatch(r"<a>\s*(1|22)\s*</a>", text)),
                             ({"guided_json": small}, lambda text: json.loads(text) in ({"a": 7}, {"a": 8})),
                             ({"guided_json": json.dumps(small)}, lambda text: json.loads(text) in ({"a": 7}, {"a": 8})),
                             ({"guided_grammar": 'root ::= "yes" | "no" ", never"'}, lambda text: text in ("yes", "no, never"))):
            self.check_form(fields, fits, **base)

    def check_form(self, fields, fits, **base):
        with self.subTest(fields):
            reply = self.cluster.request("POST", "/v1/completions", {**base, **fields})
            self.assertEqual(reply.status, 200, reply.text)
            choice = reply.json["choices"][0]
            self.assertTrue(fits(choice["text"]), choice)
            self.assertEqual(choice["finish_reason"], "stop")

    def test_what_cannot_be_enforced_is_refused(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}
        error = self.refused(response_format=as_format(schema))
        self.assertEqual((error["code"], error["param"]), ("unsupported_schema", "/properties/a/uniqueItems"))
        for fields in ({"structured_outputs": {"json": {}, "regex": "a"}}, {"structured_outputs": {}},
                       {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"grammar": "root ::= ("}},
                       {"response_format": {"type": "xml"}}, {"response_format": {"type": "json_schema"}},
                       {"structured_outputs": {"json": {}, "whitespace_pattern": "\t"}},
                       {"structured_outputs": {"json": {}, "whitespace_pattern": "("}},
                       {"structured_outputs": {"json": {}, "whitespace_pattern": "(|)" * 60 + "(?!)"}},
                       {"structured_outputs": {"json": {}, "whitespace_pattern": "[^a]*"}},
                       {"structured_outputs": {"choice": []}}, {"structured_outputs": {"regex": "a"}, "guided_regex": "b"},
                       {"structured_outputs": {"regex": "a"}, "use_beam_search": True, "n": 2}):
            with self.subTest(fields):
                self.assertTrue(self.refused(**fields)["message"])

    def test_a_forced_call_fits_its_schema(self):
        for choice, reason in (("required", "tool_calls"), ({"type": "function", "function": {"name": "get_weather"}}, "stop")):
            with self.subTest(choice):
                answer = self.chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, temperature=1, seed=5)
                call = answer["message"]["tool_calls"][0]
                self.assertEqual((call["type"], call["function"]["name"]), ("function", "get_weather"))
                arguments = json.loads(call["function"]["arguments"])
                self.assertEqual(set(arguments), {"city", "days"})
                self.assertIn(arguments["days"], (1, 2, 3))
                self.assertEqual(answer["finish_reason"], reason)
                self.assertIsNone(answer["message"]["content"])

    def test_allowed_tools_are_the_only_ones_that_are_called(self):
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
        choice = {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
        for seed in range(3):
            answer = self.chat(tools=[other, WEATHER], tool_choice=choice, temperature=1, seed=seed, max_tokens=200)
            self.assertEqual({call["function"]["name"] for call in answer["message"]["tool_calls"]}, {"get_weather"})

    def test_a_call_in_openais_first_form(self):
        answer = self.chat(functions=[WEATHER["function"]], function_call={"name": "get_weather"})
        call = answer["message"]["function_call"]
        self.assertEqual((call["name"], set(json.loads(call["arguments"]))), ("get_weather", {"city", "days"}))

    def test_a_structural_tag_in_vllms_first_form(self):
        form = {"type": "structural_tag", "triggers": ["<"],
                "structures": [{"begin": "<a>", "schema": {"enum": [1, 22]}, "end": "</a>"}]}
        text = self.chat(response_format=form, max_tokens=40, messages=[{"role": "user", "content": "Repeat: <a>1</a> <a>22</a>"}])
        rest = re.sub(r"<a>\s*(1|22)\s*</a>", "", text["message"]["content"])
        self.assertRegex(rest, r"^[^<]*(<(a(>.*)?)?)?$", "behind a trigger comes a structure, or the cut")
        form["structures"][0]["schema"] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
        self.assertTrue(self.refused(response_format=form)["param"].startswith("/structures/0/schema"))

    def test_a_forced_call_goes_before_a_response_format(self):
        answer = self.chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, response_format=as_format(PERSON))
        self.assertEqual(set(json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"])), {"city", "days"})

    def test_a_long_text_keeps_its_length(self):
        schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 900, "maxLength": 1000}},
                  "required": ["text"], "additionalProperties": False}
        choice = self.chat(response_format=as_format(schema), max_tokens=60)
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(choice["message"]["content"].lstrip().startswith("{"))

    def test_a_forced_call_in_a_stream(self):
        body = {"messages": QUESTION, "max_tokens": 120, "temperature": 0, "stream": True, "tools": [WEATHER],
                "tool_choice": "required", "parallel_tool_calls": False}
        events = self.cluster.request("POST", CHAT, body).text.split("\n\n")
        deltas = [json.loads(event[6:])["choices"][0] for event in events if event.startswith("data: {")]
        calls = [call for delta in deltas for call in delta["delta"].get("tool_calls", [])]
        self.assertEqual((calls[0]["index"], calls[0]["function"]), (0, {"name": "get_weather", "arguments": ""}))
        self.assertTrue(calls[0]["id"].startswith("call_"))
        arguments = json.loads("".join(call["function"]["arguments"] for call in calls[1:]))
        self.assertEqual(set(arguments), {"city", "days"})
        self.assertEqual(deltas[-1]["finish_reason"], "tool_calls")

    def test_tools_that_may_be_called(self):
        answer = self.chat(tools=[WEATHER], messages=[{"role": "user", "content": "Say hello."}])
        self.assertIn(answer["finish_reason"], ("stop", "length", "tool_calls"))
        self.assertEqual(self.refused(tools=[WEATHER], tool_choice="sometimes")["param"], "tool_choice")
        self.assertEqual(self.refused(tool_choice="auto")["param"], "tool_choice")
        other = {"type": "function", "function": {"name": "other"}}
        self.assertEqual(self.refused(tools=[WEATHER], tool_choice=other)["param"], "tool_choice")

    def test_answers_that_are_searched_for_calls_are_counted(self):
        def count(mode, outcome, request_type="chat_completions"):
            return self.cluster.metric("vllm:tool_call_parser_invocations_total", mode=mode, outcome=outcome,
                                       request_type=request_type) or 0

        def counts():
            return [count("non_streaming", "tool_call"), count("non_streaming", "no_tool_call"), count("streaming", "tool_call"),
                    count("non_streaming", "tool_call", "responses")]

        before = counts()
        forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        self.chat(**forced)
        self.chat(tools=[WEATHER], tool_choice="none")
        self.chat()
        body = {"messages": QUESTION, "max_tokens": 120, "temperature": 0, "stream": True, **forced}
        self.assertEqual(self.cluster.request("POST", CHAT, body).status, 200)
        flat = {"type": "function", **WEATHER["function"]}
        body = {"input": "The weather?", "max_output_tokens": 120, "temperature": 0, **forced, "tools": [flat]}
        self.assertEqual(self.cluster.request("POST", "/v1/responses", body).status, 200)
        self.assertEqual([now - then for now, then in zip(counts(), before)], [1, 0, 1, 1])
        self.chat(tools=[WEATHER])
        self.assertEqual(count("non_streaming", "no_tool_call"), before[1], "SmolLM2's template has no form for calls")

    def test_neighbours_have_their_tokens(self):
        alone = self.cluster.tokens("Once upon a time", max_tokens=48, ignore_eos=True)
        results = []
        threads = [threading.Thread(target=lambda: results.append(self.chat(response_format=as_format(PERSON)))) for _ in range(6)]
        for thread in threads:
            thread.start()
        beside = self.cluster.tokens("Once upon a time", max_tokens=48, ignore_eos=True)
        for thread in threads:
            thread.join()
        self.assertEqual(beside, alone)
        self.assertEqual(len({choice["message"]["content"] for choice in results}), 1)


MODEL = "qwen3"
WORDS = {"type": "object", "properties": {"words": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 4,
                                                   "maxItems": 4}}, "required": ["words"], "additionalProperties": False}
FORMS = ({"regex": "(ab|[c-f]|[0-9]){100}"}, {"json": WORDS}, {"json": {"type": "string", "minLength": 30, "maxLength": 90}},
         {"choice": ["Anna Karenina", "Animal Farm", "Ana"]}, {"json_object": True, "disable_any_whitespace": True},
         {"grammar": 'root ::= "[" item ("," item)* "]"\nitem ::= [a-z]{2,9} | "(" item ")"'})
REQUESTS = [{"prompt": prompt(7 * index + copy, 20), "max_tokens": 150, "temperature": 0, "structured_outputs": form}
            for index, form in enumerate(FORMS) for copy in (0, 1)]
ATTEMPTS = 20  # a fast machine may have ended the requests before the disturbance came


def answer(cluster, body):
    return [(choice["token_ids"], choice["finish_reason"]) for choice in complete(cluster, body)]


@functools.cache
def answers_alone():
    """Of one rank, one request at a time."""
    with Cluster(tiny(MODEL), "--dtype=float32", workers=1) as cluster:
        return [answer(cluster, body) for body in REQUESTS]


class SameTokens(unittest.TestCase):
    """Greedy answers under grammars, alone and on one rank, are what two ranks give in a batch and under any disturbance; in float32,
    as ranks add up differently. The cache has room for a few requests at once."""

    flags = ("--keep-kv-on-sleep",)

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--max-num-seqs=16", "--max-recoveries=100",
                              f"--kv-cache-memory-bytes={20 * 2 * 8192}", *cls.flags, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def asked(self):
        """All requests begin together; an answer has begun when this returns."""
        self.cluster.admin("/pause")
        asked = Together(self.cluster, REQUESTS, answer)
        self.cluster.wait_waiting(len(REQUESTS))
        before = self.cluster.metric("vllm:generation_tokens_total")
        self.cluster.admin("/resume")
        wait_until(lambda: self.cluster.metric("vllm:generation_tokens_total") > before, 120, "requests run", poll=0.005)
        return asked

    def disturbed(self, disturb):
        """Calls disturb(), which returns the number of open requests, until there was an open request; every answer is as
        wanted."""
        for _ in range(ATTEMPTS):
            asked = self.asked()
            found = disturb()
            self.assertEqual(asked.join(), answers_alone())
            if found:
                return
        self.fail(f"the requests had ended before, in {ATTEMPTS} attempts")

    def num_open(self):
        status = self.cluster.status()
        return status["num_requests_running"] + status["num_requests_waiting"]

    def test_a_batch_and_preemption(self):
        before = self.cluster.metric("vllm:num_preemptions_total")
        self.assertEqual(self.asked().join(), answers_alone())
        self.assertGreater(self.cluster.metric("vllm:num_preemptions_total"), before)

    def test_sleeps_that_keep_requests(self):
        def sleep(level):
            self.cluster.admin(f"/sleep?level={level}&mode=keep")
            found = self.num_open()
            self.cluster.admin("/wake_up")
            return found
        for level in (1, 2):
            with self.subTest(level=level):
                self.disturbed(lambda level=level: sleep(level))

    def test_killed_workers(self):
        def kill(rank):
            before = self.cluster.metric("somnus:recoveries_total")
            self.cluster.admin("/pause?mode=keep")
            found = self.num_open()
            os.kill(pids(self.cluster)[rank], signal.SIGKILL)
            wait_until(lambda: self.cluster.metric("somnus:recoveries_total") == before + 1, 120, self.cluster.log)
            self.cluster.admin("/resume")
            return found
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.disturbed(lambda rank=rank: kill(rank))


class SameTokensOfDrafts(SameTokens):
    flags = ("--num-speculative-tokens=4", "--no-drafts-must-pay")

    def test_drafts_are_accepted(self):
        self.assertEqual(self.asked().join(), answers_alone())
        self.assertGreater(self.cluster.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)


class Reasoning(unittest.TestCase):
    """Thoughts, a bound of them, and a form of the answer in one request. A tiny Qwen3 with random weights never ends its thoughts
    by itself."""

    BUDGET = 20
    END = len("\n</think>\n\n")  # tokens at most

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="somnus_qwen3_")
        cls.addClassCleanup(folder.cleanup)
        # Qwen3 begins thoughts itself, which random weights would not do: so the prompt begins the thoughts, where thoughts are
        # asked for.
        with open(os.path.join(qwen3_with_tools(folder.name), "chat_template.jinja"), "a", encoding="utf-8") as file:
            file.write("{%- if add_generation_prompt and enable_thinking %}{{- '<think>\\n' }}{%- endif %}")
        cls.cluster = Cluster(folder.name, "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_the_form_begins_behind_thoughts_that_are_bounded(self):
        schema = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"],
                  "additionalProperties": False}
        for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
            body = {"messages": QUESTION, "max_tokens": 600, "chat_template_kwargs": {"enable_thinking": True},
                    "thinking_token_budget": self.BUDGET, **sampling}
            free = self.cluster.request("POST", CHAT, body).json["choices"][0]["message"]
            for stream in (False, True):
                with self.subTest(sampling, stream=stream):
                    self.check(schema, free, {**body, "response_format": as_format(schema), "stream": stream,
                                              **({"stream_options": {"include_usage": True}} if stream else {})})

    def check(self, schema, free, body):
        reply = self.cluster.request("POST", CHAT, body)
        self.assertEqual(reply.status, 200, reply.text)
        if body["stream"]:
            chunks = [json.loads(event[6:]) for event in reply.text.split("\n\n") if event.startswith("data: {")]
            parts, usage = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]], chunks[-1]["usage"]
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
        else:
            parts, usage = [reply.json["choices"][0]["message"]], reply.json["usage"]
            reasons = [reply.json["choices"][0]["finish_reason"]]
        reasoning, content = ("".join(part.get(name) or "" for part in parts) for name in ("reasoning", "content"))
        self.assertEqual(reasons[-1], "stop")
        answer = json.loads(content)
        self.assertEqual(set(answer), {"days"})
        self.assertIn(answer["days"], schema["properties"]["days"]["enum"])
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        # The end of the thoughts is written for the model, and counts as thoughts: with this tokenizer some short tokens.
        self.assertTrue(self.BUDGET <= thought <= self.BUDGET + self.END, usage)
        self.assertGreater(usage["completion_tokens"], thought)
        # The thoughts are the same as in a request without a form: the form has no part in thoughts.
        self.assertEqual(reasoning, free["reasoning"])


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class Replicas(unittest.TestCase):
    def test_a_form_outlives_the_worker_of_its_replica(self):
        with Cluster(SMOLLM2, "--data-parallel-size=2", workers=1) as cluster:
            bodies = [{"messages": [{"role": "user", "content": f"Describe person {index} in JSON."}], "max_tokens": 120,
                       "temperature": 1, "seed": index, "response_format": as_format(PERSON)} for index in range(6)]

            def ask(body):
                return cluster.request("POST", CHAT, body).json["choices"][0]["message"]["content"]

            def begin():
                answers = {}
                threads = [threading.Thread(target=lambda at=at: answers.update({at: ask(bodies[at])}))
                           for at in range(len(bodies))]
                for thread in threads:
                    thread.start()
                wait_until(lambda: running() > 0 or not any(thread.is_alive() for thread in threads), 60, "requests run",
                           poll=0.005)
                return threads, answers

            def finish(work):
                for thread in work[0]:
                    thread.join()
                self.assertEqual([work[1].get(at) for at in range(len(bodies))], alone)

            def running():
                return int(cluster.status()["replicas"][1]["num_requests_running"])

            alone = [ask(body) for body in bodies]
            pid = next(rank["pid"] for rank in cluster.status()["ranks"] if rank["replica"] == 1)
            work = begin_and_stop(pid, begin, lambda: running() > 0, finish)
            os.kill(pid, signal.SIGKILL)
            finish(work)
            wait_until(lambda: int(cluster.status()["replicas"][1]["num_recoveries"]) == 1, 120, "the replica has recovered")
            for text in alone:
                Structured.check_person(self, text)
