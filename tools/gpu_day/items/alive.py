"""A served model with random weights: greedy tokens that are the same twice, without graphs, and with parts turned off."""
import time

import events
import server

PROMPT = [(37 * i + 11) % 400 for i in range(12)]  # up to 16 rows one kernel makes all products, with or without cuBLASLt
VARIANTS = (("plain", (), {}), ("eager", ("--enforce-eager",), {}), ("own-kernels", (), {"SOMNUS_CUDA_DISABLE": "cublaslt"}),
            ("no-programmatic-launch", (), {"SOMNUS_CUDA_DISABLE": "programmatic_launch"}))


def run(kit):
    count = kit.pick(16, 3)
    model, flags = kit.served("qwen3-0.6b")
    wanted = None
    for name, more, environment in VARIANTS:
        with server.Server(kit, model, *flags, *more, log=f"alive.{name}", env=environment) as one:
            began = time.monotonic()
            first = one.complete(PROMPT, 1)["token_ids"]
            first_ms = (time.monotonic() - began) * 1e3
            answers = [one.complete(PROMPT, count)["token_ids"] for _ in range(2)]
            events.row(name=name, ready_s=round(one.ready_seconds, 2), first_token_ms=round(first_ms, 1), tokens=answers[0],
                       cublaslt=server.mapped_library(one.worker_pid(), "libcublasLt"))
        if answers[0] != answers[1] or answers[0][:1] != first:
            raise events.Failed(f"{name}: the same request had other tokens: {first}, {answers[0]}, {answers[1]}")
        wanted = wanted or answers[0]
        if answers[0] != wanted:
            raise events.Failed(f"{name}: {answers[0]} instead of {wanted}")
