"""The tokenizer in a GGUF file as the files tokenizer.json and tokenizer_config.json, which smg reads. Only byte-level BPE with
single digits, as SmolLM2 has it."""
import json
import mmap
import os
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL = 3  # a token type


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(count)]
        return self.number(SCALARS[kind])


def metadata(path):
    """The keys of a GGUF file, each with its value."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = Reader(data)
        assert reader.number("I") == int.from_bytes(b"GGUF", "little"), path
        reader.number("I")  # the version
        reader.number("Q")  # tensors
        return {reader.string(): reader.value(reader.number("I")) for _ in range(reader.number("Q"))}


def write_tokenizer(path, directory):
    """Writes the tokenizer of the GGUF file `path` into `directory`."""
    keys = {name.removeprefix("tokenizer."): value for name, value in metadata(path).items() if name.startswith("tokenizer.")}
    assert (keys["ggml.model"], keys["ggml.pre"]) == ("gpt2", "smollm"), "another kind of tokenizer"
    tokens, byte_level = keys["ggml.tokens"], {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [{"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for at, kind in enumerate(keys["ggml.token_type"]) if kind == CONTROL]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                {"type": "ByteLevel", **byte_level}]},
        "post_processor": None, "decoder": {"type": "ByteLevel", **byte_level},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: at for at, token in enumerate(tokens)}, "merges": keys["ggml.merges"]}}
    config = {"tokenizer_class": "GPT2Tokenizer", "chat_template": keys["chat_template"],
              "bos_token": tokens[keys["ggml.bos_token_id"]], "eos_token": tokens[keys["ggml.eos_token_id"]]}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False)
