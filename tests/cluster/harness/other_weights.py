"""A second checkpoint of the same architecture, and the tensors of either."""
import json
import os
import re
import shutil
import struct
import tempfile

LAYER = re.compile(r"layers\.([01])\.")


def read_file(path):
    """The header of a .safetensors file, by tensor, and the bytes after the header."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:begin]), data[begin:]


def swapped_layers(model, folder):
    """Copies the checkpoint `model`, in one .safetensors file, to `folder`; the weights of its first two layers change places.
    Returns the folder."""
    shutil.copytree(model, folder)
    path = os.path.join(folder, "model.safetensors")
    tensors, data = read_file(path)
    header = json.dumps({LAYER.sub(lambda match: f"layers.{1 - int(match[1])}.", name): tensor
                         for name, tensor in tensors.items()}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)
    return folder


def second_checkpoint(test_class, model):
    """swapped_layers of `model`, in a folder that goes when the tests of the class have ended. Returns the folder."""
    folder = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(folder.cleanup)
    return swapped_layers(model, os.path.join(folder.name, "other"))


def tensors_of(folder):
    """(name, shape, bytes) of every tensor of a checkpoint."""
    tensors, data = read_file(os.path.join(folder, "model.safetensors"))
    for name, tensor in tensors.items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            yield name, tensor["shape"], data[first:last]
