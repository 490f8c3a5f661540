#!/usr/bin/env python3
"""Compares Somnus's chat templates with Python's jinja2, set up as transformers does it.

    bazel build //tests/jinja:render_cli
    tools/compare_chat_templates.py [--binary PATH] [--golden OUT.jsonl [--withhold]] [--no-micro] [DIRECTORY...]

Renders the micro templates of chat_template_cases.py, and the chat template of each DIRECTORY (chat_template.jinja, or
tokenizer_config.json; or a .jinja file) over all conversations. The texts must be equal; where jinja2 fails, ours must
fail. --golden writes jinja2's results as golden files of the tests. Needs `pip install jinja2`.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_template_cases import CONVERSATIONS, EXPRESSIONS, TEMPLATES, V


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment


def expected(environment, template, context):
    try:
        return {"text": environment.from_string(template).render(**context)}
    except Exception as error:  # pylint: disable=broad-except
        return {"error": "%s: %s" % (type(error).__name__, error)}


def read_template(directory):
    if directory.endswith(".jinja"):
        with open(directory, encoding="utf-8") as file:
            return file.read()
    path = os.path.join(directory, "chat_template.jinja")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return file.read()
    with open(os.path.join(directory, "tokenizer_config.json"), encoding="utf-8") as file:
        return json.load(file).get("chat_template", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="*")
    parser.add_argument("--binary", default="bazel-bin/tests/jinja/render_cli")
    parser.add_argument("--golden")
    parser.add_argument("--no-micro", action="store_true", help="only the directories' templates")
    parser.add_argument("--withhold", action="store_true", help="leave the template's text out of the golden file")
    args = parser.parse_args()
    cases = []
    if not args.no_micro:
        cases = [("{{ %s }}" % e, V) for e in EXPRESSIONS] + [(t, V) for t in TEMPLATES]
    for directory in args.directories:
        cases += [(read_template(directory), conversation) for conversation in CONVERSATIONS]
    environment = make_environment()
    wanted = [expected(environment, template, context) for template, context in cases]
    lines = [json.dumps({"template": t, "context": c}, ensure_ascii=False) for t, c in cases]
    run = subprocess.run([args.binary], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    bad = len(cases) - len(answers)
    for (template, context), want, got in zip(cases, wanted, answers):
        if want.get("text") != got.get("text") or ("error" in want) != ("error" in got):
            bad += 1
            print("MISMATCH %s\n  jinja2 %s\n  ours   %s" % (json.dumps(template[:300], ensure_ascii=False), want, got))
    if args.golden:
        write_golden(args.golden, cases, wanted, args.withhold)
    failing = sum("error" in want for want in wanted)
    print("%d renders (%d of them errors), %d mismatches" % (len(cases), failing, bad))
    return 1 if bad else 0


def write_golden(path, cases, wanted, withhold):
    """A header with the contexts and templates, then a line per render. withhold: no template texts."""
    contexts, templates, entries = [], [], []
    for (template, context), want in zip(cases, wanted):
        if template not in templates:
            templates.append(template)
        if context not in contexts:
            contexts.append(context)
        entry = {"template": templates.index(template), "context": contexts.index(context), "text": want.get("text")}
        entries.append(entry)
    with open(path, "w", encoding="utf-8") as file:
        for entry in [{"contexts": contexts, "templates": [] if withhold else templates}] + entries:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
