"""Adapters of the model, as vLLM's requests name them, and those that the engine has loaded (docs/lora.md)."""
import asyncio
import contextlib
import dataclasses
import os
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterable, List, Optional

from somnus.errors import ConflictError


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """An adapter: a name, a number above 0 and a directory as PEFT saves one. Another number or path under a known name is a new
    adapter, which takes the place of the old one. load_inplace: every call that names the adapter reads the directory anew."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id: {self.lora_int_id} is not above 0")
        if not self.lora_path:
            raise ValueError("lora_path: the directory of the adapter")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id


@dataclasses.dataclass
class _Loaded:
    request: LoRARequest
    users: int = 0
    current: bool = False  # the engine has what the directory had when the last call began

    def serves(self, request: LoRARequest) -> bool:
        return self.current and self.request == request


class Adapters:
    """Those that this program has loaded. An adapter is loaded when a request first names it; where every place of the engine is
    taken, the adapter that was unused for longest goes, and where all are in use, the request waits. Of one event loop at a time.

    `operate`: sends a body to a path of the operators' listener (EngineClient.operate).
    """

    def __init__(self, operate: Callable[[str, Any], Awaitable[Any]]):
        self._operate = operate
        self._loaded: Dict[str, _Loaded] = {}  # by name; the one that was unused for longest first
        self._changing = False
        self._waiting: "List[asyncio.Future[None]]" = []

    def begin_call(self, requests: Iterable[Optional[LoRARequest]]) -> None:
        """A call of the program begins, with these adapters."""
        for request in set(requests):
            if request is not None and request.load_inplace and request.lora_name in self._loaded:
                self._loaded[request.lora_name].current = False

    @contextlib.asynccontextmanager
    async def use(self, request: Optional[LoRARequest]) -> AsyncIterator[None]:
        """The engine has the adapter as long as the block runs. Errors are those of EngineClient.operate()."""
        if request is None:
            yield
            return
        loaded = await self._acquire(request)
        try:
            yield
        finally:
            loaded.users -= 1
            self._tell_waiting()

    async def _acquire(self, request: LoRARequest) -> _Loaded:
        while True:
            found = self._loaded.get(request.lora_name)
            if found is not None and found.serves(request):
                self._loaded[request.lora_name] = self._loaded.pop(request.lora_name)
                found.users += 1
                return found
            if self._changing or not await self._change(request):
                await self._until_something_ends()

    async def _change(self, request: LoRARequest) -> bool:
        """Loads the adapter, or makes room for the adapter. False: nothing can be done while others are in use."""
        old = self._loaded.get(request.lora_name)
        if old is not None and old.users > 0:
            return False
        self._changing = True
        try:
            return await self._load(request, old) or await self._unload_one()
        finally:
            self._changing = False
            self._tell_waiting()

    async def _load(self, request: LoRARequest, old: Optional[_Loaded]) -> bool:
        """False: there is no place. Where the caller is cancelled nobody knows whether the engine has the adapter: the adapter
        stays among the loaded ones, and the next load replaces it."""
        loaded = self._loaded[request.lora_name] = _Loaded(request)
        try:
            await self._operate("/v1/load_lora_adapter", {
                "lora_name": request.lora_name, "lora_path": os.path.abspath(os.path.expanduser(request.lora_path)),
                "load_inplace": True})
        except Exception as error:
            del self._loaded[request.lora_name]
            if old is not None:  # the engine has kept it
                old.current = False
                self._loaded[request.lora_name] = old
            if not self._loaded or not isinstance(error, ConflictError):
                raise
            return False
        loaded.current = True
        return True

    async def _unload_one(self) -> bool:
        for name, loaded in self._loaded.items():
            if loaded.users == 0:
                loaded.current = False
                with contextlib.suppress(LookupError):  # a load that was cancelled
                    await self._operate("/v1/unload_lora_adapter", {"lora_name": name})
                del self._loaded[name]
                return True
        return False

    async def _until_something_ends(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            self._waiting.remove(future)

    def _tell_waiting(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
