#!/usr/bin/env python3
"""Runs a peer in this Python on workload.py's requests: all at once, sampled at temperature 0.6, never ended early.

Usage: offline_peer.py {transformers,nano-vllm,vllm} --model DIR [--json FILE] [--device cuda|cpu] [--dtype bfloat16|float32]
         [--dummy] [--num-requests N] [--input-len LOW-HIGH] [--output-len LOW-HIGH] [--highest-id ID] [--seed N]
Needs the peer installed for the Python that runs it, and a GPU (transformers runs with --device cpu too): otherwise it
says so in one line and ends with exit code 77. --dummy: random weights for DIR's config.json, for shapes without a
checkpoint.
"""
import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import time

import workload

SKIPPED = 77
MAX_MODEL_LEN = 4096  # as nano-vllm's bench.py
WARMUP = {"count": 8, "input_len": (16, 64), "output_len": (8, 32)}


class Transformers:
    """Its continuous batching, with whatever attention it finds installed."""
    module, devices = "transformers", ("cuda", "cpu")

    def __init__(self, args, requests):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
        dtype = getattr(torch, args.dtype)
        if args.dummy:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
        self.model = model.to(args.device)
        longest = max(output_len for _, output_len in requests)
        # An end token of -1 is none.
        self.config = GenerationConfig(do_sample=True, temperature=workload.TEMPERATURE, max_new_tokens=longest, eos_token_id=-1)
        # The manager with its cache and its captured graphs stays from the warm-up to the measured run.
        self.manager = self.model.init_continuous_batching(generation_config=self.config, **self._hints(requests, longest),
                                                           **self._cache(args.device, requests))
        if hasattr(self.manager, "warmup"):
            self.manager.warmup()
        self.manager.start()

    def _cache(self, device, requests):
        """By default its cache takes nearly all memory. On a CPU, which others share, it gets what the requests need."""
        if device != "cpu":
            return {}
        from transformers import ContinuousBatchingConfig
        config = ContinuousBatchingConfig()
        config.num_blocks = sum((len(prompt) + output_len) // config.page_size + 1 for prompt, output_len in requests) + 8
        return {"continuous_batching_config": config}

    def _hints(self, requests, longest):
        """The hints about requests that generate_batch gives its manager, where this version has hints."""
        try:
            from transformers.generation.continuous_batching.utils import WorkloadHints
        except ImportError:
            return {}
        return {"workload_hints": WorkloadHints(max_prompt_length=max(len(prompt) for prompt, _ in requests),
                                                max_generated_length=longest, num_requests=len(requests))}

    def generate(self, requests):
        for prompt, output_len in requests:
            self.manager.add_request(prompt, max_new_tokens=output_len)
        counts = []
        while len(counts) < len(requests):
            result = self.manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(f"a request failed: {result.error}")
            if result is not None and result.is_finished():
                counts.append(len(result.generated_tokens))
            elif result is None and not self.manager.is_running():
                raise RuntimeError("its generation thread has ended")
        return counts

    def close(self):
        self.manager.stop(block=True)


class NanoVllm:
    module, devices = "nanovllm", ("cuda",)

    def __init__(self, args, requests):
        from nanovllm import LLM, SamplingParams
        # The peer reads the *.safetensors that are there: in a folder without any, weights are the memory's old contents.
        self.llm, self.sampling = LLM(args.model, enforce_eager=False, max_model_len=MAX_MODEL_LEN), SamplingParams

    def generate(self, requests):
        sampling = [self.sampling(temperature=workload.TEMPERATURE, ignore_eos=True, max_tokens=output_len)
                    for _, output_len in requests]
        answers = self.llm.generate([prompt for prompt, _ in requests], sampling, use_tqdm=False)
        return [len(answer["token_ids"]) for answer in answers]

    def close(self):
        pass


class Vllm:
    module, devices = "vllm", ("cuda",)

    def __init__(self, args, requests):
        from vllm import LLM, SamplingParams
        self.sampling = SamplingParams
        self.llm = LLM(model=args.model, dtype=args.dtype, max_model_len=MAX_MODEL_LEN, max_num_seqs=len(requests),
                       load_format="dummy" if args.dummy else "auto")

    def generate(self, requests):
        sampling = [self.sampling(temperature=workload.TEMPERATURE, ignore_eos=True, max_tokens=output_len)
                    for _, output_len in requests]
        answers = self.llm.generate([{"prompt_token_ids": prompt} for prompt, _ in requests], sampling, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]

    def close(self):
        pass


PEERS = {"transformers": Transformers, "nano-vllm": NanoVllm, "vllm": Vllm}


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def check(name, device):
    """Ends the process where the peer cannot run here."""
    peer = PEERS[name]
    for module in ("torch", peer.module):
        if importlib.util.find_spec(module) is None:
            skip(f"{name} needs {module}, which is not installed for {sys.executable}")
    if device not in peer.devices:
        skip(f"{name} does not run on {device} here")
    import torch
    if device == "cuda" and not torch.cuda.is_available():
        skip(f"{name} needs a GPU, and torch sees none")


def version_of(module):
    distributions = importlib.metadata.packages_distributions().get(module)
    return importlib.metadata.version(distributions[0]) if distributions else getattr(sys.modules[module], "__version__", "")


def measure(args):
    requests = workload.from_arguments(args)
    start = time.perf_counter()
    peer = PEERS[args.peer](args, requests)
    load_s = time.perf_counter() - start
    peer.generate(workload.requests(highest_id=args.highest_id, seed=args.seed + 1, **WARMUP))
    start = time.perf_counter()
    counts = peer.generate(requests)
    seconds = time.perf_counter() - start
    peer.close()
    wanted = sum(output_len for _, output_len in requests)
    if sum(counts) != wanted:
        raise RuntimeError(f"{sum(counts)} tokens were generated where {wanted} were asked for")
    return {"options": {"peer": args.peer, "model": args.model, "device": args.device, "dtype": args.dtype, "dummy": args.dummy,
                        "version": version_of(PEERS[args.peer].module)},
            "how": "in process",
            "result": {"completed": len(counts), "duration_s": seconds, "load_s": load_s,
                       "prompt_tokens": sum(len(prompt) for prompt, _ in requests), "output_tokens": wanted,
                       "output_tokens_per_s": wanted / seconds}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--dummy", action="store_true")
    workload.add_arguments(parser)
    args = parser.parse_args()
    if not os.path.isfile(os.path.join(args.model, "config.json")):
        parser.error(f"--model: {args.model} has no config.json")
    check(args.peer, args.device)
    found = measure(args)
    result = found["result"]
    print(f"{args.peer}: {result['output_tokens']} tokens in {result['duration_s']:.2f} s, "
          f"{result['output_tokens_per_s']:.1f} output tokens/s", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
