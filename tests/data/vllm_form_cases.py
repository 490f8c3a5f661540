"""The requests of make_vllm_forms.py: forms, tool calls, Responses, Messages and embeddings.

A case is (name, path, body) and perhaps what to compare beyond status, error fields, types and ends: `same`, the paths of values
that no model can change, `json`, the paths of texts that are JSON with one possible value. Where vLLM's answer is an oddity,
`why` says which and `expect` replaces what was recorded. `setup` is a request before, whose answer's id stands for "$ID".
"""
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNT, EMBEDDINGS = "/v1/messages/count_tokens", "/v1/embeddings"
CONTENT, TEXT, FINISH = "choices[0].message.content", "choices[0].text", "choices[0].finish_reason"
CALL = "choices[0].message.tool_calls[0].function"

BAD_REQUEST = ["BadRequestError"]
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red"]}, "n": {"const": 7}}, "required": ["colour", "n"],
          "additionalProperties": False}
NO_POINTER = "the error has no field, and no code: neither says which keyword is in the way"
RED = {"colour": "red", "n": 7}
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome"]}}, "required": ["city"], "additionalProperties": False}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
EMPTY_TYPE = {"type": "object", "properties": {"a": {"type": "colour"}}}
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]


def function(name="get_weather", parameters=CITY, **fields):
    return {"type": "function", "function": {"name": name, "description": "Weather of a city", "parameters": parameters, **fields}}


def answered(*rules):
    """What is expected of a whole answer: rules of (path, op, value)."""
    return {"status": 200, "kind": "json", "invariants": [{"path": path, "op": op, "value": value} for path, op, value in rules]}


def refused(param, status=400, kind=BAD_REQUEST):
    return {"status": status, "kind": "json", "error_type": kind, **({"error_param": [param]} if param else {})}


def unsupported(pointer):
    return {**refused(None), "invariants": [{"path": "error.code", "op": "eq", "value": "unsupported_schema"},
                                            {"path": "error.param", "op": "eq", "value": pointer}]}


def named(name="get_weather"):
    return {"type": "function", "function": {"name": name}}


def schema(value, **fields):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": value, **fields}}


def case(name, path, body, **rules):
    return {"name": name, "path": path, "body": body, **rules}


def chat(name, _messages=None, same=(), json=(), setup=None, why=None, expect=None, policy=None, **fields):
    body = {"messages": QUESTION if _messages is None else _messages, "temperature": 0, "max_tokens": 48, **fields}
    return case(name, CHAT, body, same=same, json=json, setup=setup, why=why, expect=expect, policy=policy)


def completion(name, same=(), json=(), why=None, expect=None, policy=None, **fields):
    return case(name, COMPLETIONS, {"prompt": "The answer:", "temperature": 0, "max_tokens": 48, **fields}, same=same, json=json, why=why,
                expect=expect, policy=policy)


def response(name, same=(), json=(), setup=None, why=None, expect=None, policy=None, **fields):
    body = {"input": "What is the weather in Rome?", "temperature": 0, "max_output_tokens": 48, **fields}
    return case(name, RESPONSES, body, same=same, json=json, setup=setup, why=why, expect=expect, policy=policy)


def message(name, path=MESSAGES, same=(), json=(), why=None, expect=None, **fields):
    body = {"messages": QUESTION, **({"temperature": 0, "max_tokens": 48} if path == MESSAGES else {}), **fields}
    return case(name, path, {key: value for key, value in body.items() if value is not None}, same=same, json=json, why=why, expect=expect)


def forms():
    yield chat("format/text", response_format={"type": "text"}, max_tokens=4)
    yield chat("format/null", response_format=None, max_tokens=4)
    yield chat("format/object", response_format={"type": "json_object"}, max_tokens=8)
    yield chat("format/object_stream", response_format={"type": "json_object"}, max_tokens=8, stream=True)
    yield chat("format/schema", json=[CONTENT], response_format=schema(COLOUR))
    yield chat("format/schema_strict", json=[CONTENT], response_format=schema(COLOUR, strict=True))
    yield chat("format/schema_stream", json=["choices[0].text"], response_format=schema(COLOUR), stream=True,
               stream_options={"include_usage": True})
    yield chat("format/schema_cut", response_format=schema(COLOUR), max_tokens=2)
    yield chat("format/schema_refused", response_format=schema(EMPTY_TYPE), why=NO_POINTER, expect=unsupported("/properties/a/type"))
    yield chat("format/schema_is_text", response_format=schema("{}"))
    yield chat("format/schema_is_list", response_format=schema([]))
    yield chat("format/schema_missing", response_format={"type": "json_schema"})
    yield chat("format/schema_without_schema", response_format={"type": "json_schema", "json_schema": {"name": "a"}})
    yield chat("format/schema_without_name", response_format={"type": "json_schema", "json_schema": {"schema": COLOUR}},
               why="a name says nothing of the form", expect=answered((CONTENT, "json_eq", RED)))
    yield chat("format/strict_is_text", response_format=schema(COLOUR, strict="very"))
    yield chat("format/without_type", response_format={"json_schema": {"name": "a", "schema": COLOUR}})
    yield chat("format/is_text", response_format="json_object")
    unique = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2}
    yield chat("format/unique_items", response_format=schema(unique), why=NO_POINTER, expect=unsupported("/uniqueItems"))
    yield chat("format/not", max_tokens=24, response_format=schema({"not": {"type": "object"}}))
    yield completion("format/completion_schema", json=[TEXT], response_format=schema(COLOUR))
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}
    yield chat("format/structural_tag", same=[CONTENT], response_format=tag)
    yield chat("format/structural_tag_first_form", max_tokens=8, response_format={
        "type": "structural_tag", "structures": [{"begin": "<a>", "schema": COLOUR, "end": "</a>"}], "triggers": ["<a"]})
    yield chat("format/structural_tag_wrong", response_format={"type": "structural_tag", "format": {"type": "const"}})
    yield chat("format/beside_structured_outputs", response_format=schema(COLOUR), structured_outputs={"choice": ["yes"]})


def structured():
    yield completion("structured/choice", same=[TEXT], structured_outputs={"choice": ["blue whale"]})
    yield completion("structured/choice_stream", same=["choices[0].text"], stream=True, structured_outputs={"choice": ["blue whale"]})
    yield completion("structured/choice_twice", same=["choices[0].text", "choices[1].text"], n=2, temperature=1,
                     structured_outputs={"choice": ["blue whale"]})
    yield completion("structured/choice_empty", structured_outputs={"choice": []})
    yield completion("structured/choice_numbers", structured_outputs={"choice": [1, 2]})
    yield completion("structured/regex", same=[TEXT], structured_outputs={"regex": "ab{3}c"})
    yield completion("structured/regex_wrong", structured_outputs={"regex": "(ab"})
    yield completion("structured/regex_look_ahead", structured_outputs={"regex": "(?=a)ab"})
    yield completion("structured/grammar", same=[TEXT], structured_outputs={"grammar": 'root ::= "yes" | "yes"'})
    yield completion("structured/grammar_wrong", structured_outputs={"grammar": "root ::= ("})
    yield completion("structured/grammar_lark", structured_outputs={"grammar": 'start: "yes"'}, policy="differs",
                     why="grammars are EBNF alone here; vLLM hands Lark's form to another engine", expect=refused("structured_outputs"))
    yield completion("structured/json", json=[TEXT], structured_outputs={"json": COLOUR})
    yield completion("structured/json_text", json=[TEXT], structured_outputs={"json": '{"const": 7}'})
    yield completion("structured/json_wrong_text", structured_outputs={"json": "{"},
                     why="the error has no code of its own; here every schema that is refused has one", expect=unsupported(None))
    yield completion("structured/json_object", structured_outputs={"json_object": True}, max_tokens=8)
    yield completion("structured/json_object_false", structured_outputs={"json_object": False}, max_tokens=8)
    tag = '{"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}'
    yield completion("structured/structural_tag", same=[TEXT], structured_outputs={"structural_tag": tag})
    yield completion("structured/two", structured_outputs={"regex": "a", "choice": ["a"]})
    yield completion("structured/none", structured_outputs={}, max_tokens=4)
    yield completion("structured/one_line", structured_outputs={"json": COLOUR, "disable_any_whitespace": True},
                     why="the text has white space before a colon in spite of the option",
                     expect=answered((TEXT, "eq", '{"colour": "red", "n": 7}')))
    yield completion("structured/stop_within", same=[TEXT], structured_outputs={"choice": ["one two three"]}, stop=[" two"])
    yield completion("structured/min_tokens", structured_outputs={"choice": ["yes"]}, min_tokens=20,
                     why="the answer is shorter than min_tokens, and nothing says so", expect=refused(None))
    yield completion("structured/ignore_eos", structured_outputs={"choice": ["yes"]}, ignore_eos=True,
                     why="the text goes on behind the end of its form", expect=answered((TEXT, "eq", "yes"), (FINISH, "eq", "stop")))
    for name, value, rule in (("json", COLOUR, (TEXT, "json_eq", RED)), ("regex", "ab{3}c", (TEXT, "eq", "abbbc")),
                              ("choice", ["blue whale"], (TEXT, "eq", "blue whale")), ("grammar", 'root ::= "yes"', (TEXT, "eq", "yes"))):
        yield completion(f"guided/{name}", why="the older names of the fields are ignored, so that the text has no form",
                         expect=answered(rule), **{f"guided_{name}": value})


def forced(name, stream=False, **fields):
    """A forced call, with room for one."""
    call = "choices[0].tool_calls[0]" if stream else CALL
    return chat(name, json=[f"{call}.arguments"], same=[f"{call}.name"], max_tokens=96, parallel_tool_calls=False,
                **({"stream": True} if stream else {}), **fields)


def forced_calls():
    tool, time = function(strict=True), function("get_time", NO_ARGUMENTS, strict=True)
    yield forced("tools/required", tools=[tool], tool_choice="required")
    yield forced("tools/required_stream", stream=True, tools=[tool], tool_choice="required", stream_options={"include_usage": True})
    yield forced("tools/named", tools=[tool, time], tool_choice=named())
    yield forced("tools/named_stream", stream=True, tools=[tool, time], tool_choice=named())
    yield forced("tools/named_beside_format", tools=[tool, time], tool_choice=named(), response_format={"type": "json_object"})
    rome = answered((f"{CALL}.name", "eq", "get_weather"), (f"{CALL}.arguments", "json_eq", {"city": "Rome"}))
    for name, choice in (("required", "required"), ("named", named())):
        yield chat(f"tools/{name}_not_strict", tools=[function()], tool_choice=choice, max_tokens=96, parallel_tool_calls=False,
                   expect=rome, why="without strict the arguments of a forced call need not fit their schema: they were a text")
    yield chat("tools/named_without_arguments", tools=[tool, time], tool_choice=named("get_time"), max_tokens=96,
               why="white space has no bound, so that the call was cut, and was shown as text",
               expect=answered((f"{CALL}.name", "eq", "get_time"), (f"{CALL}.arguments", "json_eq", {}), (FINISH, "eq", "stop")))
    yield chat("tools/named_cut", tools=[tool, time], tool_choice=named(), max_tokens=3,
               why="a forced call that is cut within its marker shows the marker as text",
               expect=answered((FINISH, "eq", "length"), (CONTENT, "in", ["", None])))
    yield chat("tools/schema_refused", tools=[function(parameters=EMPTY_TYPE)], tool_choice="required",
               why="a schema that is wrong is passed over where strict is not given",
               expect=unsupported("/tools/0/function/parameters/properties/a/type"))
    written = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    yield chat("tools/beside_choice", tools=[function()], structured_outputs={"choice": [written]}, policy="differs",
               why="choices and grammars go with no tools here; vLLM forgets the tools until the text is complete",
               expect=refused("structured_outputs"))


def tools():
    two = [function(), function("get_time", NO_ARGUMENTS)]
    yield chat("tools/none", tools=[function()], tool_choice="none", max_tokens=4)
    yield chat("tools/auto_text", tools=[function()], tool_choice="auto", max_tokens=4)
    yield chat("tools/auto_stream", tools=[function()], stream=True, max_tokens=4)
    yield chat("tools/required_without_tools", tool_choice="required")
    yield chat("tools/required_empty_tools", tools=[], tool_choice="required")
    yield chat("tools/auto_without_tools", tool_choice="auto", max_tokens=4)
    yield chat("tools/named_unknown", tools=two, tool_choice=named("get_news"))
    yield chat("tools/named_without_name", tools=two, tool_choice={"type": "function", "function": {}})
    yield chat("tools/choice_unknown", tools=two, tool_choice="sometimes")
    yield chat("tools/choice_number", tools=two, tool_choice=5)
    yield chat("tools/without_parameters", tools=[{"type": "function", "function": {"name": "now"}}], tool_choice="auto", max_tokens=4)
    yield chat("tools/without_name", tools=[{"type": "function", "function": {"description": "x"}}], tool_choice="auto")
    yield chat("tools/type_unknown", tools=[{**function(), "type": "search"}], tool_choice="auto", max_tokens=4)
    yield chat("tools/parameters_list", tools=[function(parameters=[])], tool_choice="auto")
    yield chat("tools/is_object", tools=function(), tool_choice="auto")


def tool_history():
    called = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]}
    cut = {**called, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"}
    for name, turns in (("whole", [called, result]), ("parts", [called, {**result, "content": [{"type": "text", "text": "Sunny"}]}]),
                        ("arguments_no_json", [cut, result]), ("without_id", [called, {"role": "tool", "content": "Sunny"}])):
        yield chat(f"tools/history_{name}", _messages=[*QUESTION, *turns], tools=[function()], max_tokens=4)


def responses():
    format_ = {"format": {"type": "json_schema", "name": "answer", "schema": COLOUR}}
    said, whale = "output[0].content[0].text", {"choice": ["blue whale"]}
    yield response("responses/text", max_output_tokens=4)
    yield response("responses/choice", same=[said], structured_outputs=whale)
    yield response("responses/stream", stream=True, structured_outputs=whale, same=["first.response_output_text_done.text"])
    yield response("responses/stream_cut", max_output_tokens=4, stream=True,
                   why="a stream of a response that is cut ends with response.completed, where OpenAI has response.incomplete",
                   expect={"status": 200, "kind": "sse", "invariants": [{"path": "last.type", "op": "eq", "value": "response.incomplete"}]})
    yield response("responses/schema", json=[said], text=format_)
    yield response("responses/schema_stream", text=format_, stream=True, json=["first.response_output_text_done.text"])
    yield response("responses/object", text={"format": {"type": "json_object"}}, max_output_tokens=8)
    yield response("responses/format_text", text={"format": {"type": "text"}}, max_output_tokens=4)
    yield response("responses/format_unknown", text={"format": {"type": "yaml"}})
    yield response("responses/schema_without_name", text={"format": {"type": "json_schema", "schema": COLOUR}})
    yield response("responses/schema_refused", text={"format": {"type": "json_schema", "name": "answer", "schema": EMPTY_TYPE}},
                   why=NO_POINTER, expect=unsupported("/properties/a/type"))
    yield response("responses/items", max_output_tokens=4, input=[
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}, {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"}])
    yield response("responses/instructions", instructions="Be brief.", max_output_tokens=4)
    yield response("responses/metadata", metadata={"a": "b"}, user="me", same=["metadata", "user"], max_output_tokens=4)
    yield response("responses/logprobs", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=2)
    yield response("responses/input_missing", input=None)
    yield response("responses/input_number", input=5)
    yield response("responses/input_empty_list", input=[], max_output_tokens=4)
    yield response("responses/tokens_zero", max_output_tokens=0, why="the error names a field that the request does not have",
                   expect=refused("max_output_tokens"))
    yield response("responses/tokens_text", max_output_tokens="four")
    yield response("responses/temperature_high", temperature=9)
    yield response("responses/truncation_unknown", truncation="middle")
    yield response("responses/model_unknown", model="nobody", max_output_tokens=4)
    yield response("responses/background_not_stored", background=True, store=False)


def response_calls():
    tool = {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": CITY, "strict": True}
    call = {"tools": [tool], "max_output_tokens": 96, "parallel_tool_calls": False}
    by_name = {"type": "function", "name": "get_weather"}
    whole = {"same": ["output[0].name"], "json": ["output[0].arguments"]}
    streamed = {"stream": True, "same": ["first.response_output_item_done.item.name"],
                "json": ["first.response_function_call_arguments_done.arguments"]}
    yield response("responses/tools_auto", tools=[tool], max_output_tokens=4)
    yield response("responses/tools_none", tools=[tool], tool_choice="none", max_output_tokens=4)
    yield response("responses/required", tool_choice="required", **call, **whole)
    yield response("responses/required_stream", tool_choice="required", **call, **streamed)
    yield response("responses/named", tool_choice=by_name, **call, **whole)
    yield response("responses/named_stream", tool_choice=by_name, **call, **streamed)
    yield response("responses/named_unknown", tools=[tool], tool_choice={"type": "function", "name": "get_news"})
    yield response("responses/required_without_tools", tool_choice="required")
    yield response("responses/tool_nested_form", tools=[function()], max_output_tokens=4)
    yield response("responses/call_items", max_output_tokens=4, tools=[tool], input=[
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny"}])


def stored_responses():
    kept = {"method": "POST", "path": RESPONSES, "body": {"model": "$MODEL", "input": "Say hi", "max_output_tokens": 4, "temperature": 0}}
    yield response("responses/previous", setup=kept, previous_response_id="$ID", max_output_tokens=4)
    for name, ident in (("unknown", "resp_0123456789abcdef0123456789abcdef"), ("malformed", "nobody")):
        code = {"path": "error.code", "op": "eq", "value": "previous_response_not_found"}
        lost = {**refused("previous_response_id"), "invariants": [code]}
        yield response(f"responses/previous_{name}", previous_response_id=ident, expect=lost,
                       why="OpenAI answers with a 400 that names the field, and a code by which clients begin anew")
    one_set = "errors have the types of vLLM's other routes"
    for name, method, path in (("get", "GET", "resp_0123456789abcdef"), ("get_malformed", "GET", "nobody"),
                               ("cancel", "POST", "resp_0123456789abcdef/cancel")):
        yield {**case(f"responses/{name}_unknown", f"{RESPONSES}/{path}", {} if method == "POST" else None), "method": method,
               "why": one_set, "expect": refused("response_id", 404, ["NotFoundError"])}
    yield {**case("responses/get", RESPONSES + "/$ID", None), "method": "GET", "setup": kept}
    yield {**case("responses/cancel_ended", RESPONSES + "/$ID/cancel", {}), "setup": kept, "why": one_set, "expect": refused("response_id")}


def messages():
    yield message("messages/text", max_tokens=4)
    yield message("messages/stream", max_tokens=4, stream=True)
    yield message("messages/system", system="Be brief.", max_tokens=4)
    yield message("messages/blocks", max_tokens=4, system=[{"type": "text", "text": "Be brief."}],
                  messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    yield message("messages/schema", output_config={"format": {"type": "json_schema", "schema": COLOUR}}, json=["content[0].text"])
    yield message("messages/without_max_tokens", max_tokens=None)
    yield message("messages/max_tokens_zero", max_tokens=0)
    yield message("messages/without_messages", messages=None)
    yield message("messages/no_messages", messages=[])
    yield message("messages/role_unknown", messages=[{"role": "robot", "content": "x"}])
    yield message("messages/block_unknown", messages=[{"role": "user", "content": [{"type": "smell"}]}])
    yield message("messages/model_unknown", model="nobody")
    yield message("messages/temperature_text", temperature="hot")
    yield message("count/text", COUNT, same=["input_tokens"])
    yield message("count/system", COUNT, system="Be brief.", same=["input_tokens"])
    yield message("count/without_messages", COUNT, messages=None)


def message_calls():
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": CITY}
    call = {"tools": [{**tool, "strict": True}], "max_tokens": 96}
    whole = {"same": ["content[0].name", "content[0].input"]}
    yield message("messages/tool_auto", tools=[tool], max_tokens=4)
    yield message("messages/tool_any", tool_choice={"type": "any", "disable_parallel_tool_use": True}, **call, **whole)
    yield message("messages/tool_named", tool_choice={"type": "tool", "name": "get_weather"}, **call, **whole)
    yield message("messages/tool_named_stream", tool_choice={"type": "tool", "name": "get_weather"}, stream=True, **call)
    yield message("messages/tool_not_strict", tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=96,
                  why="arguments that are no object become a 400, although the request is right",
                  expect=answered(("content[0].name", "eq", "get_weather"), ("content[0].input", "eq", {"city": "Rome"})))
    yield message("messages/tool_unknown", tools=[tool], tool_choice={"type": "tool", "name": "get_news"})
    yield message("messages/tool_without_name", tools=[tool], tool_choice={"type": "tool"})
    yield message("messages/any_without_tools", tool_choice={"type": "any"}, why="a call is demanded where there is nothing to call",
                  expect=refused(None, 400, ["invalid_request_error"]))
    used = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    yield message("messages/tool_history", max_tokens=4, tools=[tool], messages=[
        *QUESTION, {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny"}]}])


def embeddings():
    why = "one server gives text and embeddings, where vLLM starts for either"
    yield case("embeddings/text", EMBEDDINGS, {"input": "Hello"}, why=why, expect=answered(
        ("data[0].object", "eq", "embedding"), ("data[0].embedding", "len_eq", 576), ("usage.prompt_tokens", "eq", 1)))
    yield case("embeddings/no_input", EMBEDDINGS, {}, why=why, expect=refused("input"))


def cases():
    for group in (forms, structured, forced_calls, tools, tool_history, responses, response_calls, stored_responses, messages,
                  message_calls, embeddings):
        yield from group()
