#!/usr/bin/env python3
"""Measures speculative decoding, by prompt lookup or by a draft model: the same requests to a server with it and to one
without, in turns.

Usage: speculation.py MODEL [--draft-model PATH] [--rounds 5] [--concurrency 1] [--max-tokens 200]
                      [--num-speculative-tokens 8] [--json FILE] [-- SERVER FLAG ...]
Workloads: "edit" (a program again, with one name changed), "summary" (of a text of 280 words), "quote" (a text again),
"story" (free text, greedy), "random" (from random tokens, sampled). Answers to the first two end where the model ends them,
the others have --max-tokens. For each it prints tokens per second, their ratio, the ratio of the processor time that the
servers' processes took for a token, which share of guesses was right, and whether all tokens were the same. Both servers
have one worker with --threads threads; the one that is not asked is idle.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from free_port import free_port  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
START_S = 300
PROGRAM = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total += (value - center) ** 2
    return total / len(values)


def covariance(first, second):
    first_center = mean(first)
    second_center = mean(second)
    total = 0
    for one, other in zip(first, second):
        total += (one - first_center) * (other - second_center)
    return total / len(first)


def moving_average(values, width):
    averages = []
    total = 0
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        averages.append(total / min(index + 1, width))
    return averages
"""
TEXT = ("The lighthouse stood on a rock at the end of the bay. Every evening its keeper climbed the hundred and twelve steps, lit "
        "the lamp, and wrote the hour into a book that his grandfather had begun. On the ninth of March he found a line in it "
        "that nobody of his family had written.")
REPORT = " ".join("""The harbour of Lindholm was closed for eleven days this winter, longer than in any year since the ice records began. The
harbour board met on Tuesday to hear why. Its engineer, Marta Ekberg, said that the cold was not the main reason. The ice in the
bay was forty centimetres thick, ten less than in 1987, when the harbour was closed for four days only. But the icebreaker Tor
was in dry dock from the second of January on, because a bearing of its starboard shaft had failed, and the spare part came from
Rotterdam by road. The neighbouring port of Varby lent its own icebreaker for two of the eleven days.
The closure was expensive. Fourteen ships went to Varby instead, and the board lost about three hundred thousand crowns in fees.
The paper mill, which is the largest customer, stopped one of its two machines for a week, since its warehouse was full. The
fishing cooperative said that its members lost a tenth of their winter catch.
Ekberg proposed three measures. Bearings and seals for both shafts should be kept in Lindholm from now on, which costs ninety
thousand crowns. The yearly inspection of the Tor should be moved from January to May. And the agreement with Varby, which today
depends on goodwill, should be put into writing, so that each port helps the other within a day. The board accepted the first two
measures at once. The third one was postponed until March, because the mayor of Varby wants to be paid for each hour in which the
ship is lent, and the board has not decided how much it is willing to offer.""".split())


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def cpu_seconds(root):
    """Processor time of a process and of all that descend from it."""
    parents, seconds = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # from the state on: the name before it may hold blanks
            parents[int(pid)] = int(fields[1])
            seconds[int(pid)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = [root]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return sum(seconds.get(pid, 0.0) for pid in family)


def workload(name, index):
    """The route and the body of a workload's request; prompts differ by `index`, so that the prefix cache helps nobody."""
    if name == "edit":
        asked = chat(f"Rename the variable total to sum{index} and print the whole program again:\n\n{PROGRAM}")
        # A small model does not do what it is asked, but goes on with what has begun.
        begun = "\n".join(PROGRAM.splitlines()[:2]).replace("total", f"sum{index}")
        asked["messages"].append({"role": "assistant", "content": f"```python\n{begun}"})
        return "/v1/chat/completions", {**asked, "ignore_eos": False, "continue_final_message": True, "add_generation_prompt": False}
    if name == "summary":
        return "/v1/chat/completions", chat(f"Summarize report number {index} in five sentences:\n\n{REPORT}", ignore_eos=False)
    if name == "quote":
        return "/v1/chat/completions", chat(f"Repeat text number {index} word by word, again and again:\n\n{TEXT}")
    if name == "story":
        return "/v1/chat/completions", chat(f"Write a story in which the number {index} matters.")
    ids = [(7919 * (i + 1) * (index + 3)) % 40000 + 100 for i in range(100)]
    return "/v1/completions", {"prompt": ids, "temperature": 1.0, "seed": index}


class Server:
    def __init__(self, model, flags):
        self.port = free_port()
        self.process = subprocess.Popen([os.path.join(BIN, "tools", "somnus"), "serve", model, "--port", str(self.port),
                                         "--admin-port=0", "--grpc-port=0", "--control-port=0", *flags], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("error: the server did not start")
            time.sleep(0.1)

    def healthy(self):
        try:
            return self.get("/health") is not None
        except OSError:
            return False

    def get(self, path):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5).read().decode()

    def counter(self, name):
        found = re.search(rf"(?m)^{name}_total(?:{{[^}}]*}})? ([0-9.e+]+)$", self.get("/metrics"))
        return float(found.group(1)) if found else 0.0

    def tokens(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]["token_ids"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def run(server, name, first, count, max_tokens):
    """(the requests' tokens, tokens per second, processor seconds per token)"""
    bodies = [workload(name, first + i) for i in range(count)]
    for _, body in bodies:
        body.update({"max_tokens": max_tokens, "ignore_eos": body.get("ignore_eos", True), "return_token_ids": True})
    start, cpu = time.monotonic(), cpu_seconds(server.process.pid)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        tokens = list(pool.map(lambda one: server.tokens(*one), bodies))
    total = sum(map(len, tokens))
    return tokens, total / (time.monotonic() - start), (cpu_seconds(server.process.pid) - cpu) / total


def measure(name, without, with_drafts, args):
    speeds, ratios, cpu_ratios, same = {"without": [], "with": []}, [], [], True
    before = [with_drafts.counter(f"vllm:spec_decode_num_{what}_tokens") for what in ("draft", "accepted")]
    for attempt in range(args.rounds + 1):
        turns = [("without", without), ("with", with_drafts)]
        results = {label: run(server, name, 100 * attempt, args.concurrency, args.max_tokens)
                   for label, server in (turns if attempt % 2 else turns[::-1])}
        same &= results["with"][0] == results["without"][0]
        if attempt == 0:
            continue  # the first round warms both
        for label, (_, speed, _) in results.items():
            speeds[label].append(speed)
        ratios.append(results["with"][1] / results["without"][1])
        cpu_ratios.append(results["with"][2] / results["without"][2])
    drafted, accepted = (with_drafts.counter(f"vllm:spec_decode_num_{what}_tokens") - old
                         for what, old in zip(("draft", "accepted"), before))
    return {"workload": name, "concurrency": args.concurrency, "tokens_per_s": speeds["with"], "tokens_per_s_without": speeds["without"],
            "draft_model": args.draft_model, "ratio": statistics.median(ratios), "ratios": ratios, "cpu_ratios": cpu_ratios,
            "draft_tokens": drafted, "accepted_tokens": accepted, "same_tokens": same}


def spread(ratios):
    """'median (least..greatest; mean ± standard error)'"""
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return (f"{statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f}; mean {statistics.mean(ratios):.3f} "
            f"± {error:.3f})")


def speculation_flags(args):
    flags = [f"--num-speculative-tokens={args.num_speculative_tokens}"]
    return flags + ["--speculative=draft", f"--draft-model={args.draft_model}"] if args.draft_model else flags


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("server_flags", nargs="*", metavar="SERVER FLAG", help="of both servers, such as --dequantize")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--draft-model", metavar="PATH", help="guesses come from this model; without it from prompt lookup")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workloads", default="edit,summary,quote,story,random")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers there")
    args = parser.parse_intermixed_args()
    flags = ["--workers=local:1", f"--threads-per-worker={args.threads}", "--max-model-len=2048", "--kv-cache-memory-bytes=512MiB",
             *args.server_flags]
    results = []
    with contextlib.ExitStack() as stack:
        servers = []
        for more in ([], speculation_flags(args)):
            servers.append(Server(args.model, flags + more))
            stack.callback(servers[-1].stop)
        for name in args.workloads.split(","):
            result = measure(name, *servers, args)
            results.append(result)
            share = result["accepted_tokens"] / result["draft_tokens"] if result["draft_tokens"] else 0.0
            print(f"{name:7} {statistics.median(result['tokens_per_s_without']):8.1f} tokens/s without, "
                  f"{statistics.median(result['tokens_per_s']):8.1f} with: ratio {spread(result['ratios'])}, "
                  f"processor time {spread(result['cpu_ratios'])}, {share:.0%} of {result['draft_tokens']:.0f} guesses right, "
                  f"{'the same tokens' if result['same_tokens'] else 'OTHER TOKENS'}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0 if all(result["same_tokens"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
