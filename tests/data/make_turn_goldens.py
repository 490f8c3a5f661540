#!/usr/bin/env python3
"""Makes tool_turns.jsonl: turns as GPT-OSS and Mistral models write them, taken apart by the vendors' own libraries.

GPT-OSS: openai-harmony parses the texts below. Mistral: mistral-common writes the texts of the calls below, by version of
its tokenizer; tests/text_tools/turn_goldens_test.cc compares our parser with both.

    python3 -m venv V; V/bin/pip install openai-harmony==0.0.8 "mistral-common[sentencepiece]==1.13.1"
    TIKTOKEN_ENCODINGS_BASE=DIR V/bin/python tests/data/make_turn_goldens.py

DIR holds o200k_base.tiktoken, which openai-harmony otherwise downloads; litellm's package has the file under another name
(litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790).
"""
import json
import os
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ANALYSIS, FINAL, COMMENTARY = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>commentary"
START = "<|start|>assistant"
CALL = COMMENTARY + " to=functions.{} <|constrain|>json<|message|>{}<|call|>"
CALLS = [("get_weather", {"city": "Paris", "days": 3}), ("get_time", {}), ("run", {"code": 'print("[ARGS] {é}")\n'}),
         ("run", {"code": "", "deep": {"list": [1, 2.5, None, True, {"a": "}"}]}})]

# The end of a turn (<|return|>) is a token that the server does not pass to the parser.
HARMONY = [
    ANALYSIS + "Simple.<|end|>" + START + FINAL + "Hello, world.",
    FINAL + "Hello.",
    ANALYSIS + "I need the weather.<|end|>" + START + CALL.format("get_weather", '{"city":"Paris","days":3}'),
    COMMENTARY + "<|message|>I will look.<|end|>" + START + CALL.format("get_time", "{}"),
    ANALYSIS + "One.<|end|>" + START + ANALYSIS + "Two.<|end|>" + START + FINAL + "Done: a <b> & c.",
    ANALYSIS + "x<|end|>" + START + " to=functions.run" + COMMENTARY + " <|constrain|>json<|message|>" + json.dumps(CALLS[2][1]) +
    "<|call|>",
    ANALYSIS + "Why? {\"name\": \"get_time\"} to=functions.get_time<|end|>" + START + FINAL + "No call: to=functions.run",
    CALL.format("run", json.dumps(CALLS[3][1])),
    ANALYSIS + "cut in the mid",
    ANALYSIS + "x<|end|>" + START + COMMENTARY + " to=functions.run <|constrain|>json<|message|>{\"code\": \"ab",
]


def of_harmony():
    import openai_harmony
    encoding = openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    for text in HARMONY:
        parser = openai_harmony.StreamableParser(encoding, openai_harmony.Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        parser.process_eos()
        turn = {"reasoning": "", "content": "", "calls": []}
        for message in parser.messages:
            said = "".join(part.text for part in message.content)
            if (message.recipient or "").startswith("functions."):
                turn["calls"].append([message.recipient.removeprefix("functions."), said])
            else:
                part = "reasoning" if message.channel == "analysis" else "content"
                turn[part] += ("\n" if turn[part] else "") + said  # messages of one channel become lines
        yield {"tools": "openai", "reasoning_format": "openai_gptoss", "text": text, **turn}


def vocabulary_of(version, folder):
    """A file of a tokenizer of the version: the package has files up to v7, and the code of the later ones."""
    import mistral_common
    from mistral_common.tokens.tokenizers.base import SpecialTokens
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    data = os.path.join(os.path.dirname(mistral_common.__file__), "data")
    if version in ("v3", "v7"):
        return os.path.join(data, {"v3": "mistral_instruct_tokenizer_240323.model.v3",
                                   "v7": "mistral_instruct_tokenizer_241114.model.v7"}[version])
    with open(os.path.join(data, "tekken_240911.json")) as file:
        tokenizer = json.load(file)
    tokenizer["config"]["version"] = version
    names = [token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    names += [token.value for token in SpecialTokens if token.value not in names]
    tokenizer["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    path = os.path.join(folder, f"tekken_{version}.json")
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return path


def of_mistral(folder):
    from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
    from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    formats = {"v3": "mistral", "v7": "mistral", "v11": "mistral_v11", "v13": "mistral_v11"}
    for version, tools in formats.items():
        tokenizer = MistralTokenizer.from_file(vocabulary_of(version, folder))
        for calls in (CALLS[:1], CALLS[1:2], CALLS[2:3], CALLS[3:4], CALLS[:3]):
            texts = [json.dumps(arguments, ensure_ascii=False) for _, arguments in calls]
            made = [ToolCall(id=f"{index:09d}", function=FunctionCall(name=name, arguments=text))
                    for index, ((name, _), text) in enumerate(zip(calls, texts))]
            message = AssistantMessage(content=None, tool_calls=made)
            tokens = tokenizer.instruct_tokenizer.encode_assistant_message(message, False)
            text = tokenizer.instruct_tokenizer.tokenizer._to_string(tokens).removesuffix("</s>")
            yield {"tools": tools, "reasoning_format": "", "text": text.replace("▁", " "), "reasoning": "", "content": "",
                   "calls": [[name, arguments] for name, arguments in calls], "version": version}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(HERE, "tool_turns.jsonl"), "w") as file:
        for turn in (*of_harmony(), *of_mistral(folder)):
            file.write(json.dumps(turn, ensure_ascii=False) + "\n")
