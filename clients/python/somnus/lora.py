"""Adapters of the model, as vLLM's requests name them, and those that the engine has loaded (docs/lora.md)."""
import asyncio
import contextlib
import dataclasses
import os
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterable, List, Optional


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """An adapter: a name, a number above 0 and a directory as PEFT saves one. Another number or path under a known name is a new
    adapter, which takes the place of the old one. load_inplace: every call that names the adapter reads the directory anew."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: Optional[str] = None  # means nothing here: an adapter belongs to the engine's one model
    load_inplace: bool = False
    is_3d_lora_weight: bool = False  # means nothing here: the shapes of an adapter's tensors tell

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
    """The adapters that this program has loaded. An adapter is loaded when a request first names it. The engine itself forgets
    adapters, and reads them again, where there are fewer places than adapters. For a single event loop at a time.

    `operate`: sends a body to a path of the operators' listener (EngineClient.operate).
    """

    def __init__(self, operate: Callable[[str, Any], Awaitable[Any]]):
        self._operate = operate
        self._loaded: Dict[str, _Loaded] = {}  # by name
        self._is_loading = False
        self._waiting: "List[asyncio.Future[None]]" = []

    def begin_call(self, requests: Iterable[Optional[LoRARequest]]) -> None:
        """A call of the program begins, with these adapters."""
        for request in set(requests):
            if request is not None and request.load_inplace and request.lora_name in self._loaded:
                self._loaded[request.lora_name].current = False

    @contextlib.asynccontextmanager
    async def use(self, request: Optional[LoRARequest]) -> AsyncIterator[Callable[[], None]]:
        """The name stands for this adapter as long as the block runs, or until the function that it gets is called: the engine
        has begun with the request, and ends it with the same adapter. Errors are those of EngineClient.operate()."""
        loaded = None if request is None else await self._acquire(request)

        def let_go() -> None:
            nonlocal loaded
            if loaded is not None:
                loaded.users -= 1
                loaded = None
                self._tell_waiting()

        try:
            yield let_go
        finally:
            let_go()

    async def _acquire(self, request: LoRARequest) -> _Loaded:
        while True:
            found = self._loaded.get(request.lora_name)
            if found is not None and found.serves(request):
                found.users += 1
                return found
            # One load at a time: a load may wait for a place, and the engine bounds the operators' calls under way.
            if self._is_loading or (found is not None and found.users > 0):
                await self._until_something_ends()
            else:
                await self._load(request, found)

    async def _load(self, request: LoRARequest, old: Optional[_Loaded]) -> None:
        """Where the caller is cancelled nobody knows whether the engine has the adapter: it stays among the loaded ones, and
        the next load replaces it."""
        loaded = self._loaded[request.lora_name] = _Loaded(request)
        self._is_loading = True
        try:
            await self._operate("/v1/load_lora_adapter", {
                "lora_name": request.lora_name, "lora_path": os.path.abspath(os.path.expanduser(request.lora_path)),
                "load_inplace": True})
            loaded.current = True
        except Exception:
            del self._loaded[request.lora_name]
            if old is not None:  # the engine has kept it
                old.current = False
                self._loaded[request.lora_name] = old
            raise
        finally:
            self._is_loading = False
            self._tell_waiting()

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
