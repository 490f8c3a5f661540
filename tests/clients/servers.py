"""The parts that all drives share: the two servers, and the base classes of cases against each.

A drive is a file NAME_drive.py that uses one client library as its users do. run.sh makes the Python environment and runs
all drives in one process, so that the servers start once. Every case either works, or the server refuses with a message
that says what to do: an exception that is not expected fails the case.
"""
import atexit
import functools
import json
import os
import shutil
import tempfile
import unittest

from cluster.harness import ROOT, SMOLLM2, Cluster, tiny

KEY = "sk-drive"
TEMPLATES = os.path.join(ROOT, "tests", "data", "tokenizer", "templates.jsonl")
# Room for prompts with tools: the tiny tokenizer makes about one token of two bytes.
CONTEXT = 16384

# Short texts alone fit, so that forced calls of random weights end, too.
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome", "Zürich"]}, "days": {"enum": [1, 2, 3]}},
           "required": ["city", "days"], "additionalProperties": False}


def qwen3_template():
    """Qwen3's chat template with tools and thinking, as the tokenizer's tests have the text."""
    with open(TEMPLATES, encoding="utf-8") as file:
        templates = json.loads(file.readline())["templates"]
    return next(text for text in templates if isinstance(text, str) and "<tool_call>" in text and "enable_thinking" in text)


def qwen3_with_tools(directory):
    """A copy of the tiny Qwen3 in `directory`, with Qwen3's own template and a longer context. Random weights never end what
    they repeat: so thinking is off unless a request asks for thoughts, and a penalty leads out of white space."""
    for name in os.listdir(tiny("qwen3")):
        shutil.copyfile(os.path.join(tiny("qwen3"), name), os.path.join(directory, name))
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**config, "max_position_embeddings": CONTEXT}, file)
    with open(os.path.join(directory, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write("{%- set enable_thinking = enable_thinking | default(false) %}" + qwen3_template())
    with open(os.path.join(directory, "generation_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token_id": config["eos_token_id"], "repetition_penalty": 4.0}, file)
    return directory


@functools.cache
def server(name):
    """The cluster that serves `smollm2` or `qwen3`; started once, and ended with the process."""
    if name == "smollm2":
        cluster = Cluster(SMOLLM2, f"--api-key={KEY}", workers=2)
    else:
        directory = tempfile.TemporaryDirectory(prefix="somnus_qwen3_")
        atexit.register(directory.cleanup)
        cluster = Cluster(qwen3_with_tools(directory.name), f"--api-key={KEY}", "--dtype=float32", workers=1)
    atexit.register(cluster.__exit__)
    return cluster


class Drive(unittest.TestCase):
    """Cases against one server. `url` has no path, `v1` is what OpenAI's clients take."""

    served = ""
    room = 96  # tokens for an answer with a call or a form

    @classmethod
    def setUpClass(cls):
        cls.cluster = server(cls.served)
        cls.model = cls.cluster.name
        cls.url = f"http://127.0.0.1:{cls.cluster.port}"
        cls.v1 = cls.url + "/v1"

    def check_weather(self, arguments):
        """Arguments of a forced call fit WEATHER."""
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.assertEqual(set(arguments), {"city", "days"}, arguments)
        self.assertIn(arguments["city"], WEATHER["properties"]["city"]["enum"])
        self.assertIn(arguments["days"], (1, 2, 3))


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class SmolLm2(Drive):
    served = "smollm2"


class Qwen3(Drive):
    served = "qwen3"
    room = 600  # random weights spell a text by many short tokens
