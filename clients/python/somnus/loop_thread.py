"""An event loop in a thread of its own, for calls that block."""
import asyncio
import concurrent.futures
import threading
from typing import Any, Callable, Coroutine, TypeVar

T = TypeVar("T")


class LoopThread:
    """Thread safe. A daemon: an interpreter that ends does not wait for this thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="somnus-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Where the caller is interrupted (Ctrl-C), the work is cancelled, and has ended then."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                asyncio.run_coroutine_threadsafe(_settle(), self._loop).result(timeout=5)
            raise

    def close(self, last: Callable[[], None]) -> None:
        """Ends the thread; what still runs is cancelled, then last() is called there."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(_cancel_all(last), self._loop).result(timeout=5)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


async def _settle() -> None:
    """Lets tasks that were cancelled close their connections."""
    for _ in range(3):
        await asyncio.sleep(0)


async def _cancel_all(last: Callable[[], None]) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    last()
    await asyncio.sleep(0)
