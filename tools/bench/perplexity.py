#!/usr/bin/env python3
"""Measures what a served model makes of a fixed text: its perplexity, and how far another run's distributions are.

    perplexity.py [--url http://127.0.0.1:8000] [--save RUN.json]                       the model with 16-bit weights
    perplexity.py [--url http://127.0.0.1:8000] --against RUN.json [--json FILE]        the same one, quantized
    perplexity.py --peer llama-perplexity --peer-model MODEL.gguf                       the same text in llama.cpp

The text is cut into chunks of --ctx tokens, as llama-perplexity cuts it: each begins with the model's first special token
where its tokenizer adds one, the first half of a chunk is context alone, and the rest of it is scored. So the perplexities
of both programs can be compared where they read the same GGUF file. The log-probabilities come from prompt_logprobs of
/v1/completions with the 20 likeliest tokens of each position.

`mean_kl` is the mean over positions of the Kullback-Leibler divergence from the other run's distribution, in nats. Tokens
that one of the two has not listed count as one, so it is a lower bound of the whole distribution's. `same_top` is the
share of positions with the same likeliest token.
"""
import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "texts", "perplexity.txt")
URL = "http://127.0.0.1:8000"
TOP = 20
TIMEOUT_S = 600
# A share of probability that is nothing, so that its logarithm is a number.
LEAST = 1e-9


def cut(ids, ctx, first=None):
    """Whole chunks of `ctx` tokens; `first` takes the place of each one's first token."""
    chunks = [ids[begin:begin + ctx] for begin in range(0, len(ids) - ctx + 1, ctx)]
    return [[first] + chunk[1:] for chunk in chunks] if first is not None else chunks


def positions(chunk, answer):
    """The scored positions of a chunk, [{"token": id, "top": {id: logprob}}]; `answer`: prompt_logprobs of its tokens."""
    if len(answer) != len(chunk):
        raise ValueError(f"prompt_logprobs has {len(answer)} entries for {len(chunk)} tokens")
    scored = []
    for at in range(len(chunk) // 2 + 1, len(chunk)):
        top = {int(token): entry["logprob"] for token, entry in answer[at].items()}
        if chunk[at] not in top:
            raise ValueError(f"prompt_logprobs lacks the prompt's own token at position {at}")
        scored.append({"token": chunk[at], "top": top})
    return scored


def perplexity(run):
    """(perplexity, its standard error) of scored positions."""
    losses = [-position["top"][position["token"]] for position in run]
    value = math.exp(statistics.fmean(losses))
    error = value * statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    return value, error


def divergence(reference, other):
    """KL(reference || other) of one position, {id: logprob} each; what both do not list is one token."""
    common = [token for token in reference if token in other]
    total = sum(math.exp(reference[token]) * (reference[token] - other[token]) for token in common)
    rest, other_rest = (max(LEAST, 1 - sum(math.exp(top[token]) for token in common)) for top in (reference, other))
    return total + rest * math.log(rest / other_rest)


def compare(run, reference):
    """The changes of the run, position by position."""
    if [one["token"] for one in run] != [one["token"] for one in reference]:
        raise ValueError("the two runs have other tokens: another text, another --ctx or another tokenizer")
    divergences = sorted(divergence(there["top"], here["top"]) for here, there in zip(run, reference))
    same = sum(max(a["top"], key=a["top"].get) == max(b["top"], key=b["top"].get) for a, b in zip(run, reference))
    return {"mean_kl": statistics.fmean(divergences), "median_kl": statistics.median(divergences),
            "p99_kl": divergences[min(len(divergences) - 1, int(0.99 * len(divergences)))], "max_kl": divergences[-1],
            "same_top": same / len(run), "perplexity_ratio": perplexity(run)[0] / perplexity(reference)[0]}


def read_run(path):
    with open(path, encoding="utf-8") as file:
        run = json.load(file)["positions"]
    return [{"token": one["token"], "top": {int(token): logprob for token, logprob in one["top"].items()}} for one in run]


def peer_perplexity(output):
    """(perplexity, its error) of what llama-perplexity prints at its end."""
    found = re.search(r"Final estimate: PPL = ([\d.]+)(?: \+/- ([\d.]+))?", output)
    if not found:
        raise ValueError("llama-perplexity printed no final estimate")
    return float(found.group(1)), float(found.group(2) or 0)


class Server:
    """The few calls that are needed of an OpenAI-compatible server."""

    def __init__(self, url, api_key=""):
        self.url, self.headers = url.rstrip("/"), {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, self.headers), timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def model(self):
        return self.call("/v1/models")["data"][0]["id"]

    def tokens(self, model, text, special):
        return self.call("/tokenize", {"model": model, "prompt": text, "add_special_tokens": special})["tokens"]

    def prompt_logprobs(self, model, chunk):
        answer = self.call("/v1/completions", {"model": model, "prompt": chunk, "max_tokens": 1, "temperature": 0,
                                               "prompt_logprobs": TOP})
        return answer["choices"][0]["prompt_logprobs"]


def measure(server, model, text, ctx):
    """The scored positions of all chunks."""
    ids, plain = server.tokens(model, text, True), server.tokens(model, text, False)
    first = ids[0] if len(ids) > len(plain) else None
    chunks = cut(ids, ctx, first)
    if not chunks:
        raise ValueError(f"the text has {len(ids)} tokens, which is less than --ctx {ctx}")
    run = []
    for number, chunk in enumerate(chunks):
        run += positions(chunk, server.prompt_logprobs(model, chunk))
        print(f"chunk {number + 1} of {len(chunks)}: perplexity {perplexity(run)[0]:.4f}", file=sys.stderr, flush=True)
    return run


def run_peer(args):
    binary = shutil.which(args.peer)
    if binary is None:
        raise FileNotFoundError(f"--peer: there is no program {args.peer}")
    done = subprocess.run([binary, "-m", args.peer_model, "-f", args.text, "-c", str(args.ctx), "-b", str(args.ctx)],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise OSError(f"{args.peer} ended with {done.returncode}: {done.stderr[-500:]}")
    return peer_perplexity(done.stdout + done.stderr)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help=f"of the server, {URL} unless given")
    parser.add_argument("--api-key", default=os.environ.get("SOMNUS_API_KEY", ""))
    parser.add_argument("--model", help="the server's first one unless given")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--against", help="a run that --save wrote, or the URL of another server")
    parser.add_argument("--save", help="writes the run, for --against")
    parser.add_argument("--json", help="writes the result there as well")
    parser.add_argument("--peer", help="llama-perplexity: measures the text with it instead, or, with --url, as well")
    parser.add_argument("--peer-model", help="its GGUF file")
    args = parser.parse_args()
    if args.ctx < 8:
        parser.error("--ctx is at least 8")
    if bool(args.peer) != bool(args.peer_model):
        parser.error("--peer and --peer-model go together")
    return args


def measure_url(args, url):
    server = Server(url, args.api_key)
    model = args.model or server.model()
    with open(args.text, encoding="utf-8") as file:
        return model, measure(server, model, file.read(), args.ctx)


def main():
    args = arguments()
    result = {"text": os.path.basename(args.text), "ctx": args.ctx}
    if args.peer:
        result["peer_perplexity"], result["peer_perplexity_error"] = run_peer(args)
    if args.url or not args.peer:
        result["model"], run = measure_url(args, args.url or URL)
        result["num_scored"] = len(run)
        result["perplexity"], result["perplexity_error"] = perplexity(run)
        if args.against:
            reference = measure_url(args, args.against)[1] if "://" in args.against else read_run(args.against)
            result |= compare(run, reference)
        if args.save:
            with open(args.save, "w", encoding="utf-8") as file:
                json.dump({**result, "positions": run}, file)
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"perplexity.py: {error}")
