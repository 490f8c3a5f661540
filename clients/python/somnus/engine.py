"""A started engine, and the calls that operate the engine: the common part of LLM and AsyncLLM."""
import asyncio
import functools
import os
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from somnus import programs
from somnus.engine_args import to_flags
from somnus.engine_client import EngineClient, query
from somnus.engine_process import EngineProcess

Tags = Union[str, Sequence[str], None]


def start(model: Any, arguments: Mapping[str, Any]) -> EngineProcess:
    """An engine that serves. The process is ended where that fails."""
    coordinator = f"{programs.folder()}/coordinator/coordinator"
    process = EngineProcess(os.path.expanduser(os.fspath(model)), to_flags(coordinator, arguments))
    try:
        process.wait_ready()
    except BaseException:
        process.stop()
        raise
    return process


def end_with(owner: object, end: Callable[..., None], *arguments: Any) -> Callable[[], object]:
    """Calls end(*arguments) once: when the result is called, when nobody holds `owner` any more, or at the interpreter's end."""
    return weakref.finalize(owner, end, *arguments)


async def sleep(client: EngineClient, level: int, mode: str, tags: Tags, force: bool) -> Dict[str, Any]:
    result: Dict[str, Any] = await client.operate(query("/sleep", level=level, mode=mode, tags=tags, force=force))
    return result


async def wake_up(client: EngineClient, tags: Tags, load_weights: Optional[bool]) -> Dict[str, Any]:
    result: Dict[str, Any] = await client.operate(query("/wake_up", tags=tags, load_weights=load_weights))
    return result


async def is_sleeping(client: EngineClient) -> bool:
    result: bool = (await client.operate("/is_sleeping", method="GET"))["is_sleeping"]
    return result


async def collective_rpc(client: EngineClient, method: Any,
                         args: Sequence[Any], kwargs: Optional[Mapping[str, Any]]) -> List[Any]:
    if not isinstance(method, str):
        raise TypeError("collective_rpc: workers run no Python; `method` is a name (docs/api.md, /collective_rpc)")
    result: List[Any] = (await client.operate("/collective_rpc", {
        "method": method, "args": list(args), "kwargs": dict(kwargs or {})}))["results"]
    return result


async def reset_prefix_cache(client: EngineClient, reset_running_requests: bool) -> bool:
    path = query("/reset_prefix_cache", reset_running_requests=reset_running_requests or None)
    result: bool = (await client.operate(path))["success"]
    return result


async def get_world_size(client: EngineClient, include_dp: bool) -> int:
    result: int = (await client.operate(query("/get_world_size", include_dp=include_dp), method="GET"))["world_size"]
    return result


async def get_weight_version(client: EngineClient) -> str:
    """"0": the weights are being replaced, or an update has failed."""
    return str((await client.operate("/weight_info", method="GET"))["weight_version"] or 0)


def update_weights(process: EngineProcess, named_tensors: Iterable[Tuple[str, Any]], fields: Mapping[str, Any]) -> int:
    """Blocks. ImportError without grpcio."""
    try:
        from somnus.client import Client
    except ImportError as error:
        raise ImportError("an update of the weights goes over gRPC: pip install 'somnus[grpc]'") from error
    addresses = [f"127.0.0.1:{port}" for port in (process.grpc_port, process.control_port)]
    with Client(*addresses, api_key=process.key, admin_api_key=process.admin_key) as client:
        return client.update_weights(named_tensors, **fields)


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments))
