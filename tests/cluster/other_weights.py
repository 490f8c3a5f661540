"""A second checkpoint of the same architecture: the weights of the first two layers change places."""
import json
import os
import re
import shutil
import struct

LAYER = re.compile(r"layers\.([01])\.")


def swapped_layers(model, folder):
    """Copies the checkpoint `model`, in one .safetensors file, to `folder`, and returns that."""
    shutil.copytree(model, folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {LAYER.sub(lambda match: f"layers.{1 - int(match[1])}.", name): tensor
               for name, tensor in json.loads(data[8:begin]).items()}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data[begin:])
    return folder
