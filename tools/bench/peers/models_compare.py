#!/usr/bin/env python3
"""Several models on a budget for a few of them: Somnus beside llama-server's router, on the same file and requests.

Usage: models_compare.py --gguf FILE [--llama-server BINARY] [--models 6] [--at-once 2] [--seconds 600] [--rate 1.0]
         [--zipf 1.0] [--policies fifo,slo] [--kv-bytes 67108864] [--json FILE] [-- FLAGS OF somnus serve]
Requests come at random times (Poisson); each names a model by Zipf's law and asks one of a few questions, greedily, for
16 to 64 tokens. The schedule is the same for every server. Somnus may hold at most --at-once times the memory of one
model, llama-server at most --at-once models. An answer is right when it is the beginning of what the same server answers
to that question while nothing else runs. Prints the time to the first token and to the last one, from when a request was
due: median, 99th percentile and worst; the longest wait of any model; how long switches took.
"""
import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

from free_port import free_port

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
QUESTIONS = ("What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Count from one to twenty.",
             "Write a short poem about the sea.", "What is a prime number?", "Who wrote Hamlet?", "How is bread made?")
LEAST_TOKENS, MOST_TOKENS = 16, 64
START_S, ANSWER_S = 120, 600


class Request:
    def __init__(self, due, model, question, num_tokens):
        self.due, self.model, self.question, self.num_tokens = due, model, question, num_tokens
        self.first = self.last = None  # seconds from when it was due
        self.text, self.error = "", None


def schedule(args):
    """[Request], the same for the same arguments."""
    draws = random.Random(args.seed)
    weights = [1 / (rank + 1) ** args.zipf for rank in range(args.models)]
    due, requests = 0.0, []
    while True:
        due += draws.expovariate(args.rate)
        if due > args.seconds:
            return requests
        requests.append(Request(due, f"m{draws.choices(range(args.models), weights)[0]}", draws.choice(QUESTIONS),
                                draws.randint(LEAST_TOKENS, MOST_TOKENS)))


def stream(port, request, start):
    """Asks, and notes when the first and the last text came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        body = {"model": request.model, "messages": [{"role": "user", "content": request.question}], "temperature": 0,
                "max_tokens": request.num_tokens, "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            request.error = f"http {response.status}: {response.read(200)!r}"
            return
        finished = False
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            choice = (json.loads(line[6:]).get("choices") or [{}])[0]
            text = choice.get("delta", {}).get("content") or ""
            if text and request.first is None:
                request.first = time.monotonic() - start - request.due
            request.text += text
            finished = finished or choice.get("finish_reason") is not None
        request.last = time.monotonic() - start - request.due
        if not finished or request.first is None:
            request.error = "cut"
    except (OSError, http.client.HTTPException) as error:
        request.error = type(error).__name__
    finally:
        connection.close()


def run(port, requests):
    start = time.monotonic()
    threads = []
    for request in requests:
        time.sleep(max(0.0, request.due - (time.monotonic() - start)))
        threads.append(threading.Thread(target=stream, args=(port, request, start)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def right_answers(port):
    """By question: the whole answer of a server that does nothing else."""
    answers = {}
    for question in QUESTIONS:
        request = Request(0.0, "m0", question, MOST_TOKENS)
        stream(port, request, time.monotonic())
        if request.error:
            raise SystemExit(f"error: no answer to '{question}': {request.error}")
        answers[question] = request.text
    return answers


def get(port, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).read().decode()


@contextlib.contextmanager
def serving(command, port, log):
    with open(log, "wb") as output:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                get(port, "/health")
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"error: {command[0]} did not start; see {log}")
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def metric(port, name, label=""):
    """Summed over the series that have the label."""
    lines = [line for line in get(port, "/metrics").splitlines()
             if line.startswith((name + "{", name + " ")) and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def somnus(args, paths, flags):
    port = free_port()
    return port, [os.path.join(BIN, "tools", "somnus"), "serve", *(f"--model={name}={path}" for name, path in paths.items()),
                  f"--port={port}", "--admin-port=0", "--grpc-port=0", "--control-port=0", "--workers=local:1",
                  f"--kv-cache-memory-bytes={args.kv_bytes}", "--max-model-len=2048", *flags, *args.flags]


def llama_server(args, folder):
    port = free_port()
    return port, [args.llama_server, "--models-dir", folder, "--models-max", str(args.at_once), "--port", str(port), "--host",
                  "127.0.0.1", "-t", str(os.cpu_count()), "-c", "8192", "--parallel", "4", "--no-webui"]


def budget_of(args, path):
    """Bytes of device memory that --at-once models take."""
    port, command = somnus(args, {"m0": path}, [])
    with serving(command, port, os.path.join(args.logs, "one.log")):
        return int(metric(port, "somnus:resident_bytes") * (args.at_once + 0.1))


def spread(values):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    return {"median": statistics.median(values), "p99": at(0.99), "worst": values[-1]}


def result_of(requests, answers):
    whole = [request for request in requests if request.error is None]
    worst = {model: max(request.first for request in requests)
             for model, requests in ((model, list(group)) for model, group in itertools.groupby(
                 sorted(whole, key=lambda request: request.model), key=lambda request: request.model))}
    errors = [request.error for request in requests if request.error is not None]
    return {"requests": len(requests), "errors": errors, "longest_wait_s": worst,
            "wrong": sum(not answers[request.question].startswith(request.text) for request in whole),
            "first_token_s": spread([request.first for request in whole]), "answer_s": spread([request.last for request in whole])}


def measure(name, args, port, command, results):
    with serving(command, port, os.path.join(args.logs, f"{name}.log")):
        answers = right_answers(port)
        requests = schedule(args)
        run(port, requests)
        results[name] = result_of(requests, answers)
        if name.startswith("somnus"):
            count = metric(port, "somnus:model_switch_seconds_count", 'phase="total"')
            results[name]["switches"] = {"count": count, "decisions": metric(port, "somnus:residency_decisions_total"),
                                         "mean_s": metric(port, "somnus:model_switch_seconds_sum", 'phase="total"') / max(1, count)}
    shown = results[name]
    print(f"{name:24} {shown['requests']} requests, {len(shown['errors'])} failed, {shown['wrong']} wrong")
    for what in ("first_token_s", "answer_s"):
        print(f"{'':24} {what:14} " + ", ".join(f"{key} {value:.3f}" for key, value in shown[what].items()))
    print(f"{'':24} longest wait by model: " +
          ", ".join(f"{model} {wait:.2f}" for model, wait in shown["longest_wait_s"].items()), flush=True)
    if "switches" in shown:
        print(f"{'':24} switches: {shown['switches']['count']:.0f}, {shown['switches']['mean_s']:.3f} s from the first request "
              "until awake in the mean", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--zipf", type=float, default=1.0)
    parser.add_argument("--policies", default="fifo,slo")
    parser.add_argument("--kv-bytes", type=int, default=64 << 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.logs = tempfile.mkdtemp(prefix="models_compare.")
        paths = {f"m{index}": os.path.join(folder, f"m{index}.gguf") for index in range(args.models)}
        for path in paths.values():
            os.symlink(os.path.abspath(args.gguf), path)
        results = {}
        budget = budget_of(args, args.gguf)
        print(f"{args.models} models in {budget / 2**20:.0f} MiB for {args.at_once}; logs in {args.logs}", flush=True)
        for policy in filter(None, args.policies.split(",")):
            port, command = somnus(args, paths, [f"--device-memory-budget={budget}", "--no-elastic-kv-cache",
                                                  f"--residency-policy={policy}"])
            measure(f"somnus {policy}", args, port, command, results)
        if args.llama_server:
            port, command = llama_server(args, folder)
            measure("llama-server's router", args, port, command, results)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
