"""A progress bar: tqdm's where that package is installed, else a line of our own."""
import sys
import time
from typing import Any, Callable, Protocol, TextIO, Union

_EVERY_S = 0.1


class Bar(Protocol):
    def update(self, n: int = 1) -> Any: ...

    def close(self) -> Any: ...


class _Line:
    """Rewrites one line of a terminal; writes nothing elsewhere."""

    def __init__(self, total: int, desc: str, out: TextIO):
        self._total, self._desc, self._out = total, desc, out
        self._done, self._begun, self._shown = 0, time.monotonic(), 0.0
        self._on = out.isatty()

    def update(self, n: int = 1) -> None:
        self._done += n
        now = time.monotonic()
        if self._on and (now - self._shown >= _EVERY_S or self._done == self._total):
            self._shown = now
            rate = self._done / max(now - self._begun, 1e-9)
            self._out.write(f"\r{self._desc}: {self._done}/{self._total} [{now - self._begun:.1f} s, {rate:.1f}/s]")
            self._out.flush()

    def close(self) -> None:
        if self._on:
            self._out.write("\n")
            self._on = False


class _Nothing:
    def update(self, n: int = 1) -> None:
        pass

    def close(self) -> None:
        pass


def open_bar(use_tqdm: Union[bool, Callable[..., Any]], total: int) -> Bar:
    """use_tqdm: as vLLM's: False: no bar; a callable: makes the bar, from tqdm's arguments total, desc and dynamic_ncols."""
    desc = "Processed prompts"
    if not use_tqdm:
        return _Nothing()
    if callable(use_tqdm):
        bar: Bar = use_tqdm(total=total, desc=desc, dynamic_ncols=True)
        return bar
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return _Line(total, desc, sys.stderr)
    bar = tqdm(total=total, desc=desc, dynamic_ncols=True)
    return bar
