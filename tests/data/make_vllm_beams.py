#!/usr/bin/env python3
"""Records what a vLLM server answers to beam searches, which tests/cluster/smollm2_test.py sends to our own.

Usage: make_vllm_beams.py BASE_URL > tests/data/vllm_beams.json
The server has SmolLM2-135M-Instruct, the weights of the packaged file dequantized to float32, under the name "smollm2":
  vllm serve DIR --served-model-name smollm2 --dtype float32 --max-model-len 1024
"""
import json
import sys
import urllib.request

PROMPTS = ["The capital of France is", "Once upon a time, in a village by the sea,", "Q: What is the largest planet?\nA:"]
FIELDS = [{"n": 1, "max_tokens": 8}, {"n": 3, "max_tokens": 12}, {"n": 4, "max_tokens": 24, "length_penalty": 2.0},
          {"n": 4, "max_tokens": 16, "length_penalty": 0.2}, {"n": 2, "max_tokens": 20, "ignore_eos": True}]


def requests():
    for prompt in PROMPTS:
        for fields in FIELDS:
            yield "/v1/completions", {"prompt": prompt, **fields}
    for prompt in ("What is the capital of Italy?", "Name three colours."):
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "n": 3, "max_tokens": 16}


def ask(base_url, path, body):
    data = json.dumps({"model": "smollm2", "use_beam_search": True, "temperature": 0, **body}).encode()
    request = urllib.request.Request(base_url + path, data, {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=600))
    choices = [{"text": choice["text"] if "text" in choice else choice["message"]["content"],
                "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
               for choice in answer["choices"]]
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {"path": path, "body": body, "choices": choices, "usage": usage}


def main():
    version = json.load(urllib.request.urlopen(sys.argv[1] + "/version", timeout=60))["version"]
    exchanges = [ask(sys.argv[1], path, body) for path, body in requests()]
    lines = ",\n".join("  " + json.dumps(exchange) for exchange in exchanges)
    print(f'{{"server": "vLLM {version}", "exchanges": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
