#!/usr/bin/env python3
"""One step of reinforcement learning against a running server, with a checkpoint in the place of a trainer.

The engine sleeps at level 2, its weights' memory comes back, the tensors of CHECKPOINT (a directory with .safetensors files,
of the architecture that is served) are pushed, the KV cache comes back, and the prompt is answered with the new weights.
Prints the answer as a line of JSON. Needs neither PyTorch nor NumPy.
"""
import argparse
import glob
import json
import mmap
import os
import struct
import sys
from typing import Any, Iterator, Tuple

from somnus import Client

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def read_tensors(folder: str) -> Iterator[Tuple[str, Any]]:
    """Yields (name, (bytes, type, shape)) of every tensor. The format: eight bytes, the length of a JSON header, the header,
    then the data (huggingface.co/docs/safetensors)."""
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(bytes(data[8:begin])).items():
            if name == "__metadata__":
                continue
            first, last = tensor["data_offsets"]
            yield name, (data[begin + first:begin + last], DTYPES[tensor["dtype"]], tensor["shape"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--grpc", default="127.0.0.1:50051")
    parser.add_argument("--control", default="127.0.0.1:50054")
    parser.add_argument("--shared-memory", action="store_true", help="the workers run on this host")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()
    with Client(options.grpc, options.control) as client:
        client.sleep(level=2, mode="wait", force=True)  # an earlier step's weights may be there
        client.wake_up(["weights"], load_weights=False)
        version = client.update_weights(read_tensors(options.checkpoint), shared_memory=options.shared_memory)
        client.wake_up(["kv_cache"])
        answer = client.generate(options.prompt, max_tokens=options.max_tokens, temperature=0)[0]
    if answer.weights_version != version:
        sys.exit(f"the answer is of version {answer.weights_version}, not of {version}")
    print(json.dumps({"weights_version": version, "text": answer.text, "token_ids": answer.token_ids}))


if __name__ == "__main__":
    main()
