#!/usr/bin/env python3
"""Writes tests/data/vllm_signatures.json: names, kinds and defaults of the arguments of vLLM's Python classes.

Usage: PYTHON tests/data/make_vllm_signatures.py > tests/data/vllm_signatures.json
PYTHON is that of an environment in which vLLM is installed. tools/compatibility.py compares the file with clients/python.

An argument is [name, kind] where it has no default, else [name, kind, default]. kind: "p" may be positional, "k" by name alone,
"*" and "**" are the rest. A default that JSON does not have is {"is": "how Python writes it"}.
"""
import dataclasses
import enum
import inspect
import json
import sys

import vllm
from vllm import LLM, EngineArgs, PoolingParams, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

KINDS = {inspect.Parameter.POSITIONAL_ONLY: "p", inspect.Parameter.POSITIONAL_OR_KEYWORD: "p", inspect.Parameter.KEYWORD_ONLY: "k",
         inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
CLASSES = (LLM, AsyncLLM)
PARAMETERS = (SamplingParams, StructuredOutputsParams, BeamSearchParams, PoolingParams, LoRARequest)


def shown(value):
    if isinstance(value, enum.Enum):
        return {"is": f"{type(value).__name__}.{value.name}"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and not value:
        return []
    if isinstance(value, dict) and not value:
        return {}
    return {"is": "set()" if value == set() else type(value).__name__}


def arguments(function):
    rows = []
    for one in inspect.signature(function).parameters.values():
        if one.name == "self" or one.name.startswith("_"):
            continue
        row = [one.name, KINDS[one.kind]]
        rows.append(row if one.default is inspect.Parameter.empty else [*row, shown(one.default)])
    return rows


def methods(owner):
    found = inspect.getmembers(owner, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
    return {name: arguments(function) for name, function in found if not name.startswith("_")}


def engine_arguments():
    """With the values of fields that are made for each object."""
    rows = []
    for field in dataclasses.fields(EngineArgs):
        if field.name.startswith("_"):
            continue
        row = [field.name, "p"]
        if field.default_factory is not dataclasses.MISSING:
            row.append(shown(field.default_factory()))
        elif field.default is not dataclasses.MISSING:
            row.append(shown(field.default))
        rows.append(row)
    return rows


def written(value, indent):
    """As JSON, with a line for each argument."""
    deeper = indent + " "
    if isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values()) and "is" not in value:
        rows, ends = [f"{json.dumps(key)}: {written(one, deeper)}" for key, one in value.items()], "{}"
    elif isinstance(value, list) and value and isinstance(value[0], list):
        rows, ends = [json.dumps(one) for one in value], "[]"
    else:
        return json.dumps(value)
    return ends[0] + ",".join(f"\n{deeper}{row}" for row in rows) + ends[1]


def main():
    golden = {
        "version": vllm.__version__,
        "LLM": arguments(LLM.__init__),
        "EngineArgs": engine_arguments(),
        "methods": {owner.__name__: methods(owner) for owner in CLASSES},
        "parameters": {one.__name__: arguments(one) for one in PARAMETERS},
        "outputs": {"CompletionOutput": [field.name for field in dataclasses.fields(CompletionOutput)],
                    "RequestOutput": [row[0] for row in arguments(RequestOutput.__init__) if row[1] != "**"]},
    }
    sys.stdout.write(written(golden, "") + "\n")


if __name__ == "__main__":
    main()
