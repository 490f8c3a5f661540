"""The numbers of a checkpoint in float32, as the tiny ones are, without anything beside Python."""
import json
import struct


def read_f32(path):
    """{name: (shape, numbers)} of a safetensors file that is all float32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, info in header.items():
        if name != "__metadata__":
            if info["dtype"] != "F32":
                raise ValueError(f"{name} is {info['dtype']}")
            begin, end = info["data_offsets"]
            tensors[name] = (info["shape"], list(struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])))
    return tensors
