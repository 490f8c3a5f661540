#!/usr/bin/env python3
"""Sets Somnus beside transformers: a checkpoint of random weights, greedy tokens and log-probabilities of eight prompts.

transformers writes the checkpoint (transformers' initialization, seed 0). Somnus serves it in each type and answers by token
ids; transformers then computes the same sequences in one pass each and says which token is the greedy token after each prefix.
The promises: in float32 every token, and log-probabilities within 1e-3; in bfloat16 a mean difference below 0.02, and 95 of 100
tokens. Prints a JSON line for each type; "wrong" lists the broken promises. Needs torch and transformers.
Usage: model_check.py --shapes NAME... [--device cuda|cpu] [--worker-device cuda|cpu] [--tokens N] [--root BUNDLE --logs DIR]
"""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time

import torch
import transformers

import kits
import server

LENGTHS = (1, 7, 33, 128, 511, 1000, 2047, 3000)
TINY_LENGTHS = (1, 2, 5, 9, 16, 17, 33, 50)
MAX_LOG_DIFFERENCE, MAX_MEAN_DIFFERENCE, LEAST_SAME = 1e-3, 0.02, 0.95
# Two implementations need not agree on the order of two log-probabilities that are nearer than that.
TIES = {"float32": 1e-4, "bfloat16": 0.02}


def shapes():
    tiny = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": 640, "max_position_embeddings": 256}
    return {
        "qwen3-0.6b": transformers.Qwen3Config(
            hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
            vocab_size=151936, max_position_embeddings=40960, rope_theta=1e6, tie_word_embeddings=True),
        "llama3-8b-4-layers": transformers.LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
            vocab_size=128256, max_position_embeddings=8192, rope_theta=5e5, tie_word_embeddings=False, rms_norm_eps=1e-5),
        "tiny-qwen3": transformers.Qwen3Config(**tiny, rope_theta=1e6, tie_word_embeddings=True),
        "tiny-llama": transformers.LlamaConfig(**tiny, rope_theta=5e5, tie_word_embeddings=False),
    }


def write_checkpoint(config, folder, device, tokenizer):
    """The model in bfloat16, whose files Somnus reads."""
    torch.manual_seed(0)
    with torch.device(device):
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), folder)


def load(folder, dtype, device):
    """The checkpoint as transformers reads it. Casting a model that is loaded would round its rotary frequencies, too."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()


def ask(kit, folder, shape, dtype, prompts, args):
    """Somnus's tokens and log-probabilities for each prompt."""
    longest = max(map(len, prompts)) + args.tokens
    flags = [f"--device={args.worker_device}", f"--dtype={dtype}", f"--max-model-len={longest + 16}", "--max-num-seqs=4"]
    if args.worker_device == "cuda" and kit.rehearse:
        flags += ["--max-num-batched-tokens=32", "--kv-cache-memory-bytes=2MiB", "--graph-sizes=1,2,4"]
    else:
        flags += ["--kv-cache-memory-bytes=4GiB" if longest > 1000 else "--kv-cache-memory-bytes=64MiB"]
    answers = []
    with server.Server(kit, folder, *flags, log=f"model.{shape}.{dtype}") as one:
        for prompt in prompts:
            choice = one.complete(prompt, args.tokens, logprobs=1)
            answers.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    return answers


def reference(model, prompt, tokens):
    """transformers' log-probabilities [tokens, vocabulary] after each prefix, the head in float32."""
    ids = torch.tensor([prompt + tokens[:-1]], device=model.device)
    hidden = model.model(ids).last_hidden_state[0, len(prompt) - 1:]
    return torch.log_softmax(hidden.float() @ model.lm_head.weight.float().t(), dim=-1)


def compare(model, prompts, answers, tie):
    """Counts the greedy tokens, the tokens that are as good (ties), and the differences of log-probabilities."""
    same, ties, count, differences = 0, 0, 0, []
    for prompt, (tokens, logprobs) in zip(prompts, answers):
        wanted = reference(model, prompt, tokens)
        ours = wanted.gather(1, torch.tensor(tokens, device=wanted.device)[:, None])[:, 0]
        best, greedy = wanted.max(dim=1)
        for token, one, top, number in zip(tokens, ours.tolist(), best.tolist(), greedy.tolist()):
            count += 1
            same += token == number
            ties += token != number and top - one < tie
        differences += [abs(one - other) for one, other in zip(ours.tolist(), logprobs)]
    return {"tokens": count, "same": same, "ties": ties, "max_difference": max(differences), "mean_difference": sum(differences) / count}


def wrongs(dtype, found):
    if dtype == "float32":
        return [text for text, bad in (
            (f"float32: {found['same']} of {found['tokens']} tokens are transformers'", found["same"] + found["ties"] < found["tokens"]),
            (f"float32: log-probabilities differ by {found['max_difference']:.2g}", found["max_difference"] > MAX_LOG_DIFFERENCE)) if bad]
    return [text for text, bad in (
        (f"{dtype}: {found['same']} of {found['tokens']} tokens are transformers'", found["same"] < LEAST_SAME * found["tokens"]),
        (f"{dtype}: log-probabilities differ by {found['mean_difference']:.2g} on the average",
         found["mean_difference"] >= MAX_MEAN_DIFFERENCE)) if bad]


def check(kit, args, shape, folder):
    config = shapes()[shape]
    tiny = shape.startswith("tiny")
    draw = random.Random(0)
    prompts = [[draw.randrange(config.vocab_size) for _ in range(length)] for length in (TINY_LENGTHS if tiny else LENGTHS)]
    began = time.monotonic()
    write_checkpoint(config, folder, args.device, kit.path("tests", "data", "tiny", "qwen3"))
    written = time.monotonic() - began
    asked = {dtype: ask(kit, folder, shape, dtype, prompts, args) for dtype in ("bfloat16", "float32")}
    for dtype, answers in asked.items():
        with torch.inference_mode():
            found = compare(load(folder, dtype, args.device), prompts, answers, TIES[dtype])
        print(json.dumps({"name": f"{shape}, {dtype}", **found, "written_s": round(written, 1), "wrong": wrongs(dtype, found)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", required=True, nargs="+", choices=sorted(shapes()))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of transformers")
    parser.add_argument("--worker-device", choices=("cuda", "cpu"), default="cuda", help="of Somnus")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--root", help="a bundle or a rehearsal's folder, where no day runs this")
    parser.add_argument("--logs", default=".", help="with --root: where the servers' logs go")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        if args.root:
            own = kits.Kit(root=os.path.abspath(args.root), logs=os.path.abspath(args.logs), scratch=folder)
            os.environ[kits.VARIABLE] = own.text()
        for shape in args.shapes:
            check(kits.current(), args, shape, os.path.join(folder, shape))
    return 0


if __name__ == "__main__":
    sys.exit(main())
