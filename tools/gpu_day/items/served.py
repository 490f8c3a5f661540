"""A served 8B shape under load: it sleeps in the middle of its streams, keeps KV blocks over a sleep, and loses its worker.

Every stream has the tokens of a run without all that: with --batch-invariant they do not depend on the batch.
"""
import concurrent.futures
import os
import signal
import subprocess
import threading
import time

import events
import server

PATIENCE_S = 60
RELEASED_SLACK_MIB = 1024  # by which a new worker may use more of the GPU than the killed one did


class Round:
    """Sends all requests once, `at_once` at a time, and counts their tokens as they come."""

    def __init__(self, one, requests, at_once):
        self._server, self._lock = one, threading.Lock()
        self.tokens, self.arrivals = 0, []
        self._pool = concurrent.futures.ThreadPoolExecutor(at_once)
        self._futures = [self._pool.submit(self._ask, prompt, count) for prompt, count in requests]

    def _ask(self, prompt, count):
        found = []
        for ids in self._server.stream(prompt, count):
            found += ids
            with self._lock:
                self.tokens += len(ids)
                self.arrivals.append(time.monotonic())
        return found

    def wait_tokens(self, count):
        """Waits until `count` tokens have come; events.Failed when the round ends or stands still before."""
        last, since = -1, time.monotonic()
        while self.tokens < count:
            if all(future.done() for future in self._futures):
                raise events.Failed(f"the streams ended after {self.tokens} tokens, before {count}: {self._error()}")
            if self.tokens != last:
                last, since = self.tokens, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise events.Failed(f"no token for {PATIENCE_S} s, after {self.tokens}")
            time.sleep(0.002)

    def answers(self):
        try:
            return [future.result() for future in self._futures]
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _error(self):
        return next((str(future.exception()) for future in self._futures if future.done() and future.exception()), "no error")

    def next_token_after(self, moment):
        """Milliseconds until the first token after a moment; None where none came."""
        later = [arrival for arrival in self.arrivals if arrival > moment]
        return round((min(later) - moment) * 1e3, 1) if later else None


def workload(kit):
    import workload as peers  # of tools/bench/peers
    if kit.rehearse:
        return peers.requests(4, (4, 8), (6, 10), highest_id=400)
    # Requests are shorter than nano-vllm's, so that four rounds with --batch-invariant, which costs speed, fit into a minute.
    return peers.requests(256, (100, 512), (16, 128))


def used_mib():
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                          timeout=30, check=False)
    return int(done.stdout.splitlines()[0]) if done.returncode == 0 and done.stdout.strip() else 0


def must_be(name, answers, wanted):
    wrong = sum(one != other for one, other in zip(answers, wanted))
    if wrong:
        raise events.Failed(f"{name}: {wrong} of {len(wanted)} streams have other tokens than without it")


def undisturbed(one, requests, at_once):
    """Returns the answers of a round and the count of their tokens."""
    began = time.monotonic()
    answers = Round(one, requests, at_once).answers()
    seconds, tokens = time.monotonic() - began, sum(map(len, answers))
    if [len(answer) for answer in answers] != [count for _, count in requests]:
        raise events.Failed("a stream has another number of tokens than was asked for")
    events.row(name="undisturbed", requests=len(requests), at_once=at_once, tokens=tokens, seconds=round(seconds, 2),
               tokens_per_s=round(tokens / seconds, 1))
    return answers, tokens


def nap(name, one, requests, at_once, wanted, total):
    """Sleeps at level 1 in the middle of a round, and returns the count of KV blocks that were kept."""
    streams = Round(one, requests, at_once)
    streams.wait_tokens(total // 3)
    asleep = one.admin("/sleep?level=1")
    left = one.resident_bytes()
    woke = one.admin("/wake_up")
    moment = time.monotonic()
    answers, kept = streams.answers(), int(one.metric("somnus:kv_blocks_kept_total"))
    events.row(name=name, sleep_s=round(asleep["seconds"], 3), wake_s=round(woke["seconds"], 3), resident_bytes_asleep=left,
               freed_bytes=total_freed(asleep), next_token_ms=streams.next_token_after(moment), kept_blocks=kept)
    must_be(name, answers, wanted)
    if left:
        raise events.Failed(f"{name}: {left} bytes are resident while it sleeps")
    return kept


def total_freed(answer):
    freed = answer.get("freed_bytes", 0)
    return sum(int(value) for value in freed.values()) if isinstance(freed, dict) else int(freed)


def kill(one, requests, at_once, wanted, total):
    """Kills the worker in the middle of a round. A new worker takes its place, and the streams go on."""
    before = used_mib()
    streams = Round(one, requests, at_once)
    streams.wait_tokens(total // 3)
    pid = one.worker_pid()
    moment = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    answers = streams.answers()
    after = used_mib()
    # A token that was under way may arrive at once: the pause is the longest gap after the kill.
    times = [moment] + sorted(arrival for arrival in streams.arrivals if arrival > moment)
    pause = max((later - earlier for earlier, later in zip(times, times[1:])), default=0)
    # The coordinator waits for the end of a killed process before it starts another one.
    dead_is_gone = not os.path.exists(f"/proc/{pid}")
    events.row(name="killed", pause_s=round(pause, 3), used_mib_before=before, used_mib_after=after, dead_is_gone=dead_is_gone,
               recoveries=int(one.status()["num_recoveries"]))
    must_be("killed", answers, wanted)
    if not dead_is_gone:
        raise events.Failed("the killed worker is still there")
    if after > before + RELEASED_SLACK_MIB:
        raise events.Failed(f"the dead worker's memory is not released: {after} MiB are used, and were {before}")


def run(kit):
    requests, at_once = workload(kit), kit.pick(64, 4)
    model, flags = kit.served("qwen3-8b")
    flags += ("--batch-invariant",) + kit.pick(("--max-num-seqs=64", "--max-model-len=2048"), ())
    with server.Server(kit, model, *flags, log="served.plain") as one:
        wanted, total = undisturbed(one, requests, at_once)
        nap("sleep in mid-stream", one, requests, at_once, wanted, total)
    with server.Server(kit, model, *flags, "--keep-kv-on-sleep", f"--swap-space={kit.pick('32GiB', '4MiB')}", log="served.kept") as one:
        if not nap("sleep that keeps KV blocks", one, requests, at_once, wanted, total):
            raise events.Failed("--keep-kv-on-sleep kept no block of the open requests")
        kill(one, requests, at_once, wanted, total)
