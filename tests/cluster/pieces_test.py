"""Tokenizers of SentencePiece's kind, and directories without tokenizer.json, in whole clusters: a prompt becomes the file's
tokens, and an answer is the same text whole, streamed, and as the end of the text of prompt and answer together."""
import json
import os
import shutil
import tempfile
import unittest

from cluster.harness import Cluster, tiny

MODEL = "llama-uneven"
SIZE = 512  # the size of the tiny models' vocabularies
SPACE = "\u2581"
WORD = SPACE + "the"


def vocabulary():
    """Special tokens, bytes, letters, the merges of " the", and words that no merge forms, for answers."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [SPACE, *"abcdefghijklmnopqrstuvwxyz"]
    merges = [[SPACE, "t"], ["h", "e"], [SPACE + "t", "he"]]
    tokens += [left + right for left, right in merges]
    tokens += [f"{SPACE}w{number}" for number in range(SIZE - len(tokens))]
    return {token: i for i, token in enumerate(tokens)}, merges


def llama2():
    """A tokenizer.json in the form of Llama 2."""
    vocab, merges = vocabulary()
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {"added_tokens": [{"id": i, "content": token, **special} for i, token in enumerate(("<unk>", "<s>", "</s>"))],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]},
            "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab, "merges": merges}}


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


class Pieces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model")
        os.mkdir(self.model)
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(tiny(MODEL), name), os.path.join(self.model, name))

    def ids(self, cluster, text):
        answer = cluster.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json["tokens"]

    def text(self, cluster, ids):
        return cluster.request("POST", "/detokenize", {"tokens": ids}).json["prompt"]

    def test_answers_whole_and_streamed(self):
        write(self.model, "tokenizer.json", llama2())
        vocab, _ = vocabulary()
        with Cluster(self.model, workers=1) as cluster:
            self.assertEqual(self.ids(cluster, "the the"), [vocab[WORD], vocab[WORD]])
            self.assertEqual(self.ids(cluster, "<s>the\u00e9"), [1, vocab[WORD], 3 + 0xC3, 3 + 0xA9])
            self.assertEqual(self.text(cluster, self.ids(cluster, " the\n caf\u00e9")), " the\n caf\u00e9")
            for prompt in ([1, vocab[WORD]], [1, *(3 + byte for byte in "\u4e2d".encode())], [vocab["a"]] * 9, [1]):
                fields = {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 60}
                whole = cluster.complete(prompt, **fields)["choices"][0]
                stream = cluster.open_stream(prompt, **fields)
                parts = [event["choices"][0]["text"] for event in stream.events() if event["choices"]]
                stream.close()
                with self.subTest(prompt=prompt):
                    self.assertEqual("".join(parts), whole["text"])
                    both = self.text(cluster, prompt + whole["token_ids"])
                    alone = self.text(cluster, prompt) + whole["text"]
                    self.assertEqual(both[:len(alone)], alone)
                    # An answer leaves out a character that the answer's end cuts.
                    self.assertIn(both[len(alone):], ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3))

    def test_the_class_cuts_text_where_there_is_no_tokenizer_json(self):
        with open(os.path.join(tiny("qwen2"), "tokenizer.json"), encoding="utf-8") as file:
            model = json.load(file)["model"]
        write(self.model, "vocab.json", model["vocab"])
        write(self.model, "merges.txt", "".join((m if isinstance(m, str) else " ".join(m)) + "\n" for m in model["merges"]))
        with Cluster(self.model, workers=1, wait=False) as cluster:  # the model's type is llama: tokenizer.model
            self.assertNotEqual(cluster.process.wait(60), 0)
            self.assertIn("tokenizer.model", cluster.log())
        write(self.model, "tokenizer_config.json", {"tokenizer_class": "BloomTokenizer"})
        with Cluster(self.model, workers=1, wait=False) as cluster:
            self.assertNotEqual(cluster.process.wait(60), 0)
            self.assertIn("tokenizer_class: BloomTokenizer is not supported without tokenizer.json", cluster.log())
        composed = {}
        for name in ("GPT2Tokenizer", "Qwen2Tokenizer"):
            write(self.model, "tokenizer_config.json", {"tokenizer_class": name})
            with Cluster(self.model, workers=1) as cluster:
                self.assertEqual(self.text(cluster, self.ids(cluster, "a\n\nb 1")), "a\n\nb 1")
                composed[name] = self.ids(cluster, "e\u0301")
        self.assertNotEqual(composed["GPT2Tokenizer"], composed["Qwen2Tokenizer"])  # Qwen2's class composes characters first
