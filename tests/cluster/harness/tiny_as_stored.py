"""tests/data/tiny/qwen2 with its layers quantized as files store them: each type of GGUF, and fp8.

Blocks of GGUF's K types are 256 numbers of a row, and the tiny model's rows are 64 or 128. So the GGUF file has a wider model
that computes the same: 192 more numbers in the residual stream and six more heads, which are zero throughout, and a longer MLP.
The numbers that are not zero lie in groups of 32 over the whole of a block. A block of zeros is exact in every type.
"""
import bisect
import json
import math
import os
import shutil
import struct

from cluster.harness import tiny
from f32_tensors import read_f32

MODEL = "qwen2"
HIDDEN, INTERMEDIATE, HEADS, HEAD_DIM = 256, 256, 8, 32
# Where the groups of 32 of the residual stream, of the heads' columns and of the MLP lie.
STREAM_AT, HEADS_AT, MLP_AT = (1, 6), (3, 4), (0, 2, 5, 7)
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values


def as_half(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def steps(values, step, offset, last):
    """The numbers 0 to `last` that are nearest: value / step + offset."""
    if step == 0:
        return [offset] * len(values)
    return [min(last, max(0, math.floor(value / step + 0.5) + offset)) for value in values]


def nibbles(numbers):
    return bytes(numbers[i] & 15 | (numbers[i + 16] & 15) << 4 for i in range(16))


def fifth_bits(numbers):
    return struct.pack("<I", sum((number >> 4) << i for i, number in enumerate(numbers)))


def farthest(values):
    return max(values, key=abs)


def parts_of(values, size):
    return [values[at:at + size] for at in range(0, len(values), size)]


# ---- Blocks of 32

def q8_0(values):
    d = as_half(abs(farthest(values)) / 127)
    return struct.pack("<e32b", d, *(number - 127 for number in steps(values, d, 127, 254)))


def q4_0(values):
    d = as_half(farthest(values) / -8)
    return struct.pack("<e", d) + nibbles(steps(values, d, 8, 15))


def q5_0(values):
    d = as_half(farthest(values) / -16)
    numbers = steps(values, d, 16, 31)
    return struct.pack("<e", d) + fifth_bits(numbers) + nibbles(numbers)


def from_minimum(values, last):
    low = as_half(min(values))
    d = as_half((max(values) - low) / last)
    return struct.pack("<ee", d, low), steps([value - low for value in values], d, 0, last)


def q4_1(values):
    head, numbers = from_minimum(values, 15)
    return head + nibbles(numbers)


def q5_1(values):
    head, numbers = from_minimum(values, 31)
    return head + fifth_bits(numbers) + nibbles(numbers)


def nearest_of(table, values, step):
    return [min(range(len(table)), key=lambda i: abs(table[i] * step - value)) for value in values]


def iq4_nl(values):
    d = as_half(farthest(values) / -127)
    return struct.pack("<e", d) + nibbles(nearest_of(IQ4_VALUES, values, d))


def mxfp4(values):
    largest = abs(farthest(values))
    exponent = math.floor(math.log2(largest)) - 2 if largest else -126
    return bytes([exponent + 127]) + nibbles(nearest_of(FP4_VALUES, values, 2.0 ** (exponent - 1)))


# ---- Blocks of 256: scales and minima of parts, as small multiples of the block's own

def scaled_minima(values, part_size, last, largest):
    """d, dmin, each part's scale and minimum up to `largest`, and each part's numbers up to `last`."""
    parts = parts_of(values, part_size)
    lows = [max(0.0, -min(part)) for part in parts]
    scales = [(max(0.0, *part) + low) / last for part, low in zip(parts, lows)]
    d, dmin = as_half(max(scales) / largest), as_half(max(lows) / largest)
    scale_steps, low_steps = steps(scales, d, 0, largest), steps(lows, dmin, 0, largest)
    numbers = [steps([value + dmin * low for value in part], d * scale, 0, last)
               for part, scale, low in zip(parts, scale_steps, low_steps)]
    return d, dmin, scale_steps, low_steps, numbers


def scaled(values, offset, largest):
    """d, the scale of each 16 values from -largest to largest, and their numbers from 0 to 2 * offset - 1."""
    parts = parts_of(values, 16)
    scales = [farthest(part) / -offset for part in parts]
    d = as_half(abs(farthest(scales)) / largest)
    scale_steps = [step - largest for step in steps(scales, d, largest, 2 * largest)]
    return d, scale_steps, [steps(part, d * scale, offset, 2 * offset - 1) for part, scale in zip(parts, scale_steps)]


def bit_pairs(numbers):
    """The bytes of 16 parts of 16 numbers, as Q2_K and Q3_K have the parts."""
    out = bytearray(64)
    for part, of_part in enumerate(numbers):
        for i, number in enumerate(of_part):
            out[32 * (part // 8) + 16 * (part % 2) + i] |= (number & 3) << (2 * (part // 2 % 4))
    return bytes(out)


def q2_k(values):
    d, dmin, scales, lows, numbers = scaled_minima(values, 16, 3, 15)
    return bytes(scale | low << 4 for scale, low in zip(scales, lows)) + bit_pairs(numbers) + struct.pack("<ee", d, dmin)


def q3_k(values):
    d, scales, numbers = scaled(values, 4, 31)
    third, packed = bytearray(32), bytearray(12)
    for part, of_part in enumerate(numbers):
        for i, number in enumerate(of_part):
            third[16 * (part % 2) + i] |= (number >> 2) << (part // 2)
    for part, scale in enumerate(scales):
        packed[part % 8] |= (scale + 32 & 15) << (4 * (part // 8))
        packed[8 + part % 4] |= (scale + 32 >> 4) << (2 * (part // 4))
    return bytes(third) + bit_pairs(numbers) + bytes(packed) + struct.pack("<e", d)


def six_bits(scales, lows):
    """The 12 bytes of eight scales and minima of Q4_K and Q5_K."""
    out = bytearray(12)
    for j in range(4):
        out[j] = scales[j] | scales[j + 4] >> 4 << 6
        out[j + 4] = lows[j] | lows[j + 4] >> 4 << 6
        out[j + 8] = scales[j + 4] & 15 | (lows[j + 4] & 15) << 4
    return bytes(out)


def paired_nibbles(numbers):
    return b"".join(bytes(low & 15 | (high & 15) << 4 for low, high in zip(*pair)) for pair in parts_of(numbers, 2))


def q4_k(values):
    d, dmin, scales, lows, numbers = scaled_minima(values, 32, 15, 63)
    return struct.pack("<ee", d, dmin) + six_bits(scales, lows) + paired_nibbles(numbers)


def q5_k(values):
    d, dmin, scales, lows, numbers = scaled_minima(values, 32, 31, 63)
    fifth = bytes(sum((numbers[j][i] >> 4) << j for j in range(8)) for i in range(32))
    return struct.pack("<ee", d, dmin) + six_bits(scales, lows) + fifth + paired_nibbles(numbers)


def q6_k(values):
    d, scales, numbers = scaled(values, 32, 127)
    flat, low, high = sum(numbers, []), bytearray(128), bytearray(64)
    for at, number in enumerate(flat):
        half, group, i = at // 128, at // 32 % 4, at % 32
        low[64 * half + 32 * (group % 2) + i] |= (number & 15) << (4 * (group // 2))
        high[32 * half + i] |= (number >> 4) << (2 * group)
    return bytes(low) + bytes(high) + struct.pack("<16be", *scales, d)


# Name: ggml's number of the type, numbers and bytes of a block, and how a block is made.
GGUF_TYPES = {
    "Q8_0": (8, 32, 34, q8_0), "Q4_0": (2, 32, 18, q4_0), "Q4_1": (3, 32, 20, q4_1), "Q5_0": (6, 32, 22, q5_0),
    "Q5_1": (7, 32, 24, q5_1), "IQ4_NL": (20, 32, 18, iq4_nl), "MXFP4": (39, 32, 17, mxfp4), "Q2_K": (10, 256, 84, q2_k),
    "Q3_K": (11, 256, 110, q3_k), "Q4_K": (12, 256, 144, q4_k), "Q5_K": (13, 256, 176, q5_k), "Q6_K": (14, 256, 210, q6_k)}
F32 = 0


# ---- The tiny model

def read_tensors():
    """{name: rows of numbers}, of a vector one row."""
    tensors = read_f32(os.path.join(tiny(MODEL), "model.safetensors"))
    return {name: parts_of(numbers, shape[-1]) for name, (shape, numbers) in tensors.items()}


def spread(values, groups, width, zero):
    """Groups of 32 values at their places in `width`, between copies of `zero`."""
    out = [zero] * width
    for group, at in enumerate(groups):
        out[32 * at:32 * at + 32] = values[32 * group:32 * group + 32]
    return out


def widen(matrix, row_groups, rows, column_groups, columns):
    """The matrix with spread rows and columns; rows or columns whose groups are None stay as they are."""
    if column_groups:
        matrix = [spread(row, column_groups, columns, 0.0) for row in matrix]
    return spread(matrix, row_groups, rows, [0.0] * len(matrix[0])) if row_groups else matrix


# GGUF's name, and what is widened: the rows and the columns of a layer's matrix.
STREAM, OF_HEADS, OF_MLP, AS_IT_IS = (STREAM_AT, HIDDEN), (HEADS_AT, HEADS * HEAD_DIM), (MLP_AT, INTERMEDIATE), (None, None)
LAYER = {"self_attn.q_proj": ("attn_q", OF_HEADS, STREAM), "self_attn.k_proj": ("attn_k", AS_IT_IS, STREAM),
         "self_attn.v_proj": ("attn_v", AS_IT_IS, STREAM), "self_attn.o_proj": ("attn_output", STREAM, OF_HEADS),
         "mlp.gate_proj": ("ffn_gate", OF_MLP, STREAM), "mlp.up_proj": ("ffn_up", OF_MLP, STREAM),
         "mlp.down_proj": ("ffn_down", STREAM, OF_MLP)}


def widened(tensors):
    """[(GGUF's name, rows of numbers, whether it is a layer's matrix)] of the wider model."""
    def norm(name):  # the mean of squares is over four times as many numbers
        return [spread([value / 2 for value in tensors[name + ".weight"][0]], STREAM_AT, HIDDEN, 0.0)]
    out = [("token_embd.weight", widen(tensors["model.embed_tokens.weight"], *AS_IT_IS, *STREAM), False),
           ("output_norm.weight", norm("model.norm"), False)]
    for layer in range(2):
        here, there = f"model.layers.{layer}.", f"blk.{layer}."
        out += [(there + "attn_norm.weight", norm(here + "input_layernorm"), False),
                (there + "ffn_norm.weight", norm(here + "post_attention_layernorm"), False)]
        for name, (gguf_name, rows, columns) in LAYER.items():
            out.append((f"{there}{gguf_name}.weight", widen(tensors[f"{here}{name}.weight"], *rows, *columns), True))
            if bias := tensors.get(f"{here}{name}.bias"):
                out.append((f"{there}{gguf_name}.bias", widen(bias, None, None, *rows), False))
    return out


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def metadata():
    """The encoded keys of the file, and how many there are."""
    with open(os.path.join(tiny(MODEL), "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(tiny(MODEL), "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    words = {"block_count": 2, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INTERMEDIATE,
             "attention.head_count": HEADS, "attention.head_count_kv": 1}
    floats = {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"] / 4, "rope.freq_base": config["rope_theta"]}
    entries = [string("general.architecture") + struct.pack("<I", 8) + string(MODEL)]
    entries += [string(f"{MODEL}.{key}") + struct.pack("<II", 4, value) for key, value in words.items()]
    entries += [string(f"{MODEL}.{key}") + struct.pack("<If", 6, value) for key, value in floats.items()]
    for key, value in (("model", "gpt2"), ("pre", MODEL)):
        entries.append(string(f"tokenizer.ggml.{key}") + struct.pack("<I", 8) + string(value))
    for key, texts in (("tokens", sorted(vocabulary, key=vocabulary.get)), ("merges", map(" ".join, tokenizer["model"]["merges"]))):
        texts = [string(text) for text in texts]
        entries.append(string(f"tokenizer.ggml.{key}") + struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(texts))
    kinds = [3 if token in special else 1 for token in range(len(vocabulary))]
    entries.append(string("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds))
    entries.append(string("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, config["eos_token_id"]))
    return b"".join(entries), len(entries)


def write_gguf(path, type_name):
    """The layers' matrices in this type, the embedding in Q8_0, the rest in float32."""
    infos, data = b"", b""
    tensors = widened(read_tensors())
    for name, matrix, in_layer in tensors:
        number, size, _, encode = GGUF_TYPES[type_name if in_layer else "Q8_0"]
        if in_layer or name == "token_embd.weight":
            encoded = b"".join(encode(block) for row in matrix for block in parts_of(row, size))
        else:
            number, encoded = F32, struct.pack(f"<{len(matrix[0])}f", *matrix[0])
        dims = [len(matrix[0])] + [len(matrix)] * (len(matrix) > 1)
        infos += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, len(data))
        data += encoded + bytes(-len(encoded) % 32)
    keys, num_keys = metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_keys) + keys + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


# ---- fp8

E4M3 = [(byte & 7) * 2.0 ** -9 if byte < 8 else (8 + (byte & 7)) * 2.0 ** ((byte >> 3) - 10) for byte in range(127)]


def e4m3(value):
    size = abs(value)
    above = min(bisect.bisect_left(E4M3, size), len(E4M3) - 1)
    best = min((max(0, above - 1), above), key=lambda byte: abs(E4M3[byte] - size))
    return best | (128 if value < 0 else 0)


def write_fp8(folder):
    """A checkpoint of `quant_method` fp8, with a scale for each of the layers' matrices."""
    shutil.copytree(tiny(MODEL), folder, dirs_exist_ok=True)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    header, data = {}, b""

    def add(name, dtype, shape, encoded):
        nonlocal data
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(encoded)]}
        data += encoded
    for name, matrix in read_tensors().items():
        flat = sum(matrix, [])
        shape = [len(matrix), len(matrix[0])] if len(matrix) > 1 else [len(flat)]
        if "_proj.weight" in name:
            scale = abs(farthest(flat)) / E4M3[-1]
            add(name, "F8_E4M3", shape, bytes(e4m3(value / scale) for value in flat))
            add(name + "_scale", "F32", [], struct.pack("<f", scale))
        else:
            add(name, "F32", shape, struct.pack(f"<{len(flat)}f", *flat))
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
