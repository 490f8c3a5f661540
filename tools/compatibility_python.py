"""The tables of docs/compatibility.md about Python: vLLM's classes beside those of clients/python.

vLLM's side is tests/data/vllm_signatures.json, which tests/data/make_vllm_signatures.py reads from an installed vLLM; our side is
read from the classes themselves. A difference without a reason below, and a reason without a difference, end the program.
"""
import dataclasses
import enum
import inspect
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "clients", "python"))

# pylint: disable=wrong-import-position
from somnus import engine_args, lora, outputs, sampling_params, vllm_names  # noqa: E402
from somnus.async_llm import AsyncLLM  # noqa: E402
from somnus.engine_args import Place  # noqa: E402
from somnus.llm import LLM  # noqa: E402

CLASSES = {one.__name__: one for one in (LLM, AsyncLLM)}
PARAMETERS = {one.__name__: one for one in (
    sampling_params.SamplingParams, sampling_params.StructuredOutputsParams, sampling_params.BeamSearchParams,
    sampling_params.PoolingParams, lora.LoRARequest)}
OUTPUTS = {one.__name__: one for one in (outputs.CompletionOutput, outputs.RequestOutput)}

# Why the default of a flag is not vLLM's.
DEFAULTS = {
    "gpu_memory_utilization": "0.9 of a GPU; 0.5 of a host's free memory",
}
# Why a method takes other arguments, or has other defaults.
_KEEP = "`mode` is \"keep\": open requests survive"
_REPORT = "the bytes and the seconds of all ranks are returned"
_TENSORS = "pairs of a name and a tensor, which the call itself brings to the workers"
METHODS = {
    ("LLM", "sleep"): f"{_KEEP}; {_REPORT}",
    ("AsyncLLM", "sleep"): f"{_KEEP}; {_REPORT}",
    ("AsyncLLM", "pause_generation"): _KEEP,
    ("LLM", "update_weights"): _TENSORS,
    ("AsyncLLM", "update_weights"): _TENSORS,
}
# Why a method with the same arguments returns something else.
RETURNS = {("LLM", "wake_up"): _REPORT, ("AsyncLLM", "wake_up"): _REPORT}
# Fields that are taken, and mean nothing.
IGNORED = {
    ("SamplingParams", "skip_clone"): "parameters are never changed",
    ("SamplingParams", "output_text_buffer_length"): "the server keeps back what a stop string could begin with",
    ("PoolingParams", "output_kind"): "a vector comes whole",
    ("LoRARequest", "base_model_name"): "an adapter belongs to the engine's one model",
    ("LoRARequest", "is_3d_lora_weight"): "the shapes of an adapter's tensors tell",
}
REFUSED = {"SamplingParams": sampling_params.REFUSED, "PoolingParams": sampling_params.POOLING_REFUSED,
           "BeamSearchParams": {"structured_outputs": ((None,), "a beam search has no form"),
                                "watermarking": ((None, False), "texts are not marked")}}
_MISSING = object()


def golden():
    with open(os.path.join(ROOT, "tests", "data", "vllm_signatures.json"), encoding="utf-8") as file:
        return json.load(file)


def default_of(row):
    return row[2] if len(row) > 2 else _MISSING


def ours(value):
    """A default of ours in the form of the file."""
    if value is inspect.Parameter.empty or value is dataclasses.MISSING:
        return _MISSING
    if isinstance(value, enum.Enum):
        return {"is": f"{type(value).__name__}.{value.name}"}
    return list(value) if isinstance(value, tuple) else value


def shown(value):
    """As Python writes it."""
    if value is _MISSING:
        return ""
    return value["is"] if isinstance(value, dict) and "is" in value else repr(value)


def signature(rows):
    """vLLM's, without types."""
    parts, named = [], False
    for row in rows:
        if row[1] == "k" and not named:
            named = True
            parts.append("*")
        default = default_of(row)
        stars = row[1] if row[1].startswith("*") else ""
        parts.append(stars + row[0] + ("" if default is _MISSING else f"={shown(default)}"))
    return ", ".join(parts)


def flag_defaults():
    """The defaults of the coordinator's flags, as docs/flags.md has them."""
    with open(os.path.join(ROOT, "docs", "flags.md"), encoding="utf-8") as file:
        text = file.read()
    rows = re.split(r"\n  (?=--[a-z])", text)
    defaults = {row[2:].split()[0].split("=")[0]: " ".join(found[1].split()) if found else ""
                for row in rows for found in [re.search(r"\(default:\s*([^;)]*)", row)] if row.startswith("--")}
    defaults["tensor-parallel-size"] = defaults["workers"].removeprefix("local:")  # another name of --workers
    return defaults


def same_default(vllms, text):
    """Whether a flag's default is that of vLLM; None: vLLM chooses."""
    if vllms is None or vllms == "" or isinstance(vllms, (dict, list)):
        return True
    if isinstance(vllms, bool):
        return text == str(vllms).lower()
    if isinstance(vllms, (int, float)):
        return re.fullmatch(r"[\d.]+", text) is not None and float(text) == float(vllms)
    return text == vllms


def argument_rows(vllm):
    """Of LLM and EngineArgs."""
    flags, rows = flag_defaults(), []
    arguments = {row[0]: row for row in vllm["EngineArgs"]}
    arguments.update({row[0]: row for row in vllm["LLM"] if not row[1].startswith("*") and row[0] != "model"})
    words = dict(DEFAULTS)
    for name, row in sorted(arguments.items()):
        if name == "model":
            continue
        place, detail = engine_args.place_of(name, flags)
        if place is Place.UNKNOWN:
            sys.exit(f"LLM(..., {name}=...) is vLLM's, and clients/python/somnus/vllm_names.py says nothing of it")
        word = {Place.FLAG: f"`--{detail}`", Place.TRANSLATED: "", Place.OWN: "the engine gives it itself",
                Place.ABSENT: detail or "there is no such thing here"}.get(place, detail)
        if place is Place.FLAG and not same_default(default_of(row), flags.get(detail, "")):
            if name not in words:
                sys.exit(f"{name}: vLLM's default is {shown(default_of(row))}, that of --{detail} {flags.get(detail)!r}: "
                         "say why in DEFAULTS")
            word += f"; the default is {words.pop(name)}"
        status = {Place.FLAG: "here", Place.TRANSLATED: "here", Place.NOTHING: "no meaning"}.get(place, "refused")
        rows.append((f"`{name}`", f"`{shown(default_of(row))}`", status, word))
    if words:
        sys.exit(f"DEFAULTS has reasons without a difference: {', '.join(words)}")
    return rows


def differences(rows, function):
    """The arguments of vLLM's that ours does not take in the same way."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    by_name, wrong = {one.name: one for one in parameters}, []
    for at, row in enumerate(row for row in rows if not row[1].startswith("*")):
        one = by_name.get(row[0])
        at_place = one is not None and (row[1] == "k" or (at < len(parameters) and parameters[at].name == row[0]
                                                          and one.kind is not inspect.Parameter.KEYWORD_ONLY))
        # What vLLM wants and ours does not may be left out.
        if not at_place or (ours(one.default) != default_of(row) and default_of(row) is not _MISSING):
            wrong.append(row[0])
    return wrong


def method_rows(vllm):
    rows, words = [], dict(METHODS)
    for owner, methods in vllm["methods"].items():
        for name, arguments in sorted(methods.items()):
            shown_call = f"`{owner}.{name}({signature(arguments)})`"
            function = inspect.getattr_static(CLASSES[owner], name, None)
            if function is None:
                if name not in vllm_names.METHODS:
                    sys.exit(f"{owner}.{name} is vLLM's, and METHODS of clients/python/somnus/vllm_names.py says nothing of it")
                rows.append((shown_call, "not here", vllm_names.METHODS[name]))
                continue
            wrong = differences(arguments, getattr(CLASSES[owner], name))
            if wrong and (owner, name) not in words:
                sys.exit(f"{owner}.{name}: {', '.join(wrong)} differ from vLLM's: say why in METHODS")
            word = words.pop((owner, name), RETURNS.get((owner, name), ""))
            rows.append((shown_call, "differs" if word else "here", word))
    stale = [f"{owner}.{name}" for owner, name in words]
    if stale:
        sys.exit(f"METHODS has reasons without a difference: {', '.join(stale)}")
    return rows


def parameter_rows(vllm):
    rows = []
    for owner, arguments in vllm["parameters"].items():
        fields = {one.name: one for one in dataclasses.fields(PARAMETERS[owner])}
        for at, row in enumerate(arguments):
            name, default = row[0], default_of(row)
            if name not in fields or list(fields)[at] != name or ours(fields[name].default) != default:
                sys.exit(f"{owner}.{name} is not vLLM's field {at} with the default {shown(default)}")
            refused = REFUSED.get(owner, {}).get(name)
            ignored = IGNORED.get((owner, name))
            status = "refused" if refused else "no meaning" if ignored else "here"
            rows.append((f"`{owner}.{name}`", f"`{shown(default)}`" if default is not _MISSING else "", status,
                         refused[1] if refused else ignored or ""))
    return rows


def output_rows(vllm):
    return [(f"`{owner}.{name}`", "here" if name in {one.name for one in dataclasses.fields(OUTPUTS[owner])} else "not here", "")
            for owner, names in vllm["outputs"].items() for name in names]


def tables():
    """(title, columns, rows)"""
    vllm = golden()
    return [(f"Python: arguments of `LLM` (vLLM {vllm['version']})", ("argument", "vLLM's default"), argument_rows(vllm)),
            ("Python: methods of `LLM` and `AsyncLLM`", ("method",), method_rows(vllm)),
            ("Python: parameters", ("field", "default"), parameter_rows(vllm)),
            ("Python: outputs", ("field",), output_rows(vllm))]
