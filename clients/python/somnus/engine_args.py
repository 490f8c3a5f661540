"""Keyword arguments of LLM and AsyncLLM become the coordinator's flags. A flag that vLLM has, too, has vLLM's name, so most
arguments are flags as they are (docs/flags.md); the tables below have the others."""
import enum
import functools
import json
import os
import re
import subprocess
import warnings
from typing import Any, Callable, Collection, Dict, List, Mapping, Tuple

from somnus import vllm_names

_SHOWN_FLAG = re.compile(r"^  --([a-z][a-z0-9-]*)(=?)", re.MULTILINE)
_GIB = 1 << 30

# The engine gives these itself: it has private addresses and keys, and workers of its own.
_OWN = frozenset({
    "host", "port", "admin-host", "admin-port", "grpc-port", "control-port", "ssl-certfile", "ssl-keyfile", "ssl-ca-certs",
    "admin-ssl-certfile", "admin-ssl-keyfile", "api-key", "api-key-file", "admin-api-key", "admin-api-key-file", "workers",
    "cluster-host", "cluster-port", "log-level", "run-dir", "config", "worker-binary", "idle-timeout", "shutdown-timeout",
    "stay-after-failure", "server-dev-mode", "help", "version"})

# vLLM's arguments that mean nothing here, and why; a warning says so, unless the value is one of these.
_NOTHING: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "enable_chunked_prefill": ((True, None), "prompts are always computed in chunks"),
    "trust_remote_code": ((False,), "no code of a model is ever run"),
    "tokenizer_mode": (("auto",), "there is one tokenizer"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always there"),
    "revision": ((None,), "models are directories or files, not hub names"),
    "code_revision": ((None,), "no code of a model is ever run"),
    "tokenizer_revision": ((None,), "models are directories or files, not hub names"),
    "download_dir": ((None,), "nothing is downloaded"),
    "hf_token": ((None,), "nothing is downloaded"),
    "allowed_local_media_path": (("",), "there are no images"),
    "disable_custom_all_reduce": ((False,), "the all-reduce is chosen by measured times"),
    "disable_log_stats": ((True, False, None), "get_metrics() has the numbers"),
    "distributed_executor_backend": ((None, "mp"), "workers are processes of this host"),
    "worker_extension_cls": (("",), "workers run no Python"),
    "compilation_config": ((None, 0, {}), "nothing is compiled at run time"),
    "attention_backend": ((None,), "kernels are chosen by the device"),
    "attention_config": ((None,), "kernels are chosen by the device"),
    "max_logprobs": ((None, 20), "up to 20 alternatives can be asked for"),
    "max_seq_len_to_capture": ((None,), "graphs are captured by --graph-sizes"),
    "cpu_offload_gb": ((0, 0.0, None), "weights are wholly on the device"),
    "mm_processor_kwargs": ((None, {}), "there are no images"),
    "limit_mm_per_prompt": ((None, {}), "there are no images"),
    "disable_sliding_window": ((False,), "windows are as the model has them"),
    "use_tqdm_on_load": ((True, False), "loading shows no bar"),
    "model_loader_extra_config": ((None, {}), "files are read by our own reader"),
    "ray_workers_use_nsight": ((False,), "there is no Ray"),
    "lora_dtype": (("auto", None), "an adapter has the type of activations"),
    "fully_sharded_loras": ((False,), "adapters are divided as the model's matrices are"),
    "async_engine_args": ((None,), "there is one kind of arguments"),
}

_ALIASES = {
    "tensor_parallel_size": "tensor-parallel-size",
    "gpu_memory_utilization": "memory-utilization",
    "kv_cache_memory": "kv-cache-memory-bytes",
    "cudagraph_capture_sizes": "graph-sizes",
    "device_ids": "device-indices",
}


def _dtype(value: Any) -> List[str]:
    name = str(value).rsplit(".", maxsplit=1)[-1]  # torch.bfloat16
    return [f"--dtype={ {'half': 'float16', 'float': 'float32'}.get(name, name)}"]


def _swap_space(value: Any) -> List[str]:
    """vLLM counts GiB, with a fraction."""
    return [f"--swap-space={int(float(value) * _GIB)}B" if isinstance(value, (int, float)) else f"--swap-space={value}"]


def _seed(value: Any) -> List[str]:
    return [] if value is None else [f"--seed={value}"]


def _sleep_mode(_: Any) -> List[str]:
    """Every engine can sleep, so that no flag is needed; False is what vLLM's own default says."""
    return []


def _tokenizer(_: Any) -> List[str]:
    raise ValueError("tokenizer: the tokenizer is always the model's own")


def _speculative(config: Mapping[str, Any]) -> List[str]:
    known = {"method": "speculative", "num_speculative_tokens": "num-speculative-tokens", "model": "draft-model",
             "prompt_lookup_min": "prompt-lookup-min", "prompt_lookup_max": "prompt-lookup-max"}
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ValueError(f"speculative_config: {', '.join(unknown)}: not known here; {', '.join(known)} are")
    fields = dict(config)
    fields.setdefault("method", "draft" if "model" in fields else "ngram")
    fields["method"] = {"draft_model": "draft"}.get(fields["method"], fields["method"])
    return [f"--{known[name]}={value}" for name, value in fields.items()]


def _reasoning_parser(name: str) -> List[str]:
    """vLLM's default is the empty name."""
    return [f"--reasoning-parser={name}"] if name else []


def _pooler(config: Any) -> List[str]:
    fields = dict(config) if isinstance(config, Mapping) else {"pooling_type": getattr(config, "pooling_type", None)}
    unknown = [name for name in fields if name != "pooling_type"]
    if unknown:
        raise ValueError(f"pooler_config: {', '.join(unknown)}: not known here; pooling_type is")
    return [f"--pooling-type={str(fields['pooling_type']).lower()}"]


def _runner(value: Any) -> List[str]:
    """Also `task`, of earlier versions."""
    pooling = {"embed": "pooling", "embedding": "pooling", "pooling": "pooling", "encode": "pooling"}
    return [f"--runner={pooling.get(value, 'generate' if value in ('auto', 'generate') else value)}"]


_TRANSLATED: Dict[str, Callable[[Any], List[str]]] = {
    "dtype": _dtype,
    "enable_sleep_mode": _sleep_mode,
    "swap_space": _swap_space,
    "seed": _seed,
    "tokenizer": _tokenizer,
    "speculative_config": _speculative,
    "pooler_config": _pooler,
    "override_pooler_config": _pooler,
    "reasoning_parser": _reasoning_parser,
    "runner": _runner,
    "task": _runner,
}


@functools.lru_cache(maxsize=None)
def flags_of(coordinator: str) -> Mapping[str, bool]:
    """The coordinator's flags as --help=all shows them, and whether each takes a value; switches take none."""
    shown = subprocess.run([coordinator, "--help=all"], check=True, capture_output=True,
                           text=True, stdin=subprocess.DEVNULL).stdout
    return {name: bool(takes) for name, takes in _SHOWN_FLAG.findall(shown)}


def _as_flag(name: str, takes_value: bool, value: Any) -> List[str]:
    if not takes_value:
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    elif isinstance(value, Mapping):
        value = json.dumps(value)
    elif isinstance(value, bool):
        value = str(value).lower()
    return [f"--{name}={value}"]


def _is_one_of(value: Any, values: Tuple[Any, ...]) -> bool:
    """1 is not True."""
    return any(type(value) is type(one) and value == one for one in values)


# vLLM's short names of fields of speculative_config.
_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


def _with_speculation(given: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments with speculative_config in the place of the short names."""
    config = {field: given[name] for name, field in _SPECULATION.items() if name in given}
    if not config:
        return given
    if "speculative_config" in given:
        raise ValueError(f"speculative_config: has {', '.join(config)} already, by short names")
    others = {name: value for name, value in given.items() if name not in _SPECULATION}
    return {**others, "speculative_config": config}


class Place(enum.Enum):
    """What becomes of an argument."""

    FLAG = "a flag"
    TRANSLATED = "one or several flags, after a translation"
    NOTHING = "nothing: the argument means nothing here"
    ABSENT = "an error: there is no such thing here"
    OWN = "an error: the engine gives the flag itself"
    UNKNOWN = "an error: nobody knows the argument"


def place_of(name: str, flags: Collection[str]) -> Tuple[Place, str]:
    """The place of an argument among a coordinator's flags, with the flag's name, or why there is nothing."""
    flag = _ALIASES.get(name, name.replace("_", "-"))
    if name in _NOTHING:
        return Place.NOTHING, _NOTHING[name][1]
    if name in vllm_names.MEANINGLESS:
        return Place.NOTHING, vllm_names.MEANINGLESS[name]
    if name in vllm_names.ABSENT:
        return Place.ABSENT, vllm_names.ABSENT[name][1]
    if flag in _OWN:
        return Place.OWN, flag
    if name in _TRANSLATED or name in _SPECULATION:
        return Place.TRANSLATED, ""
    return (Place.FLAG, flag) if name in _ALIASES or flag in flags else (Place.UNKNOWN, "")


def to_flags(coordinator: str, arguments: Mapping[str, Any]) -> List[str]:
    """The flags for the arguments; one that is None is not given. TypeError names all arguments that nobody knows, and those that
    only the engine itself gives; arguments of vLLM that mean nothing here are a UserWarning, those of things that are not here a
    ValueError."""
    known = flags_of(coordinator)
    flags, unknown, own = [], [], []
    for name, value in _with_speculation({name: value for name, value in arguments.items() if value is not None}).items():
        place, detail = place_of(name, known)
        if place is Place.FLAG:
            flags += _as_flag(detail, known.get(detail, True), value)
        elif place is Place.TRANSLATED:
            flags += _TRANSLATED[name](value)
        elif place is Place.NOTHING and not _is_one_of(value, _NOTHING.get(name, ((), ""))[0]):
            warnings.warn(f"{name} means nothing here: {detail}", stacklevel=4)
        elif place is Place.ABSENT and not _is_one_of(value, vllm_names.ABSENT[name][0]):
            raise ValueError(f"{name}: this engine has no such thing ({detail or 'docs/compatibility.md'})")
        elif place is Place.OWN:
            own.append(name)
        elif place is Place.UNKNOWN:
            unknown.append(name)
    if unknown:
        raise TypeError(f"unknown engine arguments: {', '.join(unknown)}; `{os.path.basename(coordinator)} --help=all` lists the "
                        "flags, which are arguments with _ in the place of -")
    if own:
        raise TypeError(f"arguments that the engine gives itself: {', '.join(own)}; to serve others, run `somnus serve`")
    return flags
