#!/usr/bin/env python3
"""Writes tests/data/pieces: small tokenizers of SentencePiece's kind, and texts with the ids of other implementations.

    pip install sentencepiece protobuf tokenizers transformers
    tests/data/make_pieces_goldens.py

    tokenizer.model    SentencePiece's BPE with byte fallback, trained on the pages of docs/
    tokenizer.json     the same vocabulary as Hugging Face writes it, without the steps around the model
    json_cases.jsonl   a line per form of tokenizer.json: the parts that differ, and texts with the ids and the decoded
                       text of `tokenizers`
    model_cases.jsonl  a line per tokenizer_config.json beside tokenizer.model: texts with their ids by `sentencepiece`
                       (of what stands between added tokens, as transformers cuts it) and what it decodes
    class_cases.jsonl  a line per tokenizer_config.json beside vocab.json and merges.txt of tests/data/tiny/qwen3: texts with
                       the ids and the decoded text of transformers
"""
import io
import json
import pathlib
import random
import re
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import Tokenizer

DATA = pathlib.Path(__file__).resolve().parent
OUT = DATA / "pieces"
ROOT = DATA.parent.parent
TINY = DATA / "tiny" / "qwen3"
SPACE = "\u2581"
ADDED = ["<s>", "</s>", "<|user|>", "<|end|>", "<unk>", "[INST]"]
WORDS = ["Hello", "world", "the", " The ", "ing", "sleep", "tokens,", "a  b", "   ", "\n", "\n\n", "\t", "123", "4", "0x1F", "caf\u00e9",
         "cafe\u0301", "\u4e2d\u6587", "\U0001f600", "\U0001f469\u200d\U0001f469", "\u00a0", "\u3000", "\x00", "\u2581", "\u2581\u2581x", "<0x41>", "<s>",
         "</s>", "<|user|>", "<|end|>", "<unk>", "<|us", "[INST]", "it's", "WE'LL", "\u0130", "\u05e9\u05dc\u05d5\u05dd", "\u0e44\u0e17\u0e22", "--", "**", "`x`", "\r\n"]


def texts(seed, count):
    rng = random.Random(seed)
    fixed = ["", " ", "  ", "Hello world", " Hello", "  Hello  world ", "\n", "\n Hello", "<s>", "<s>Hello", "<s> Hello</s> you", "Hello<s>",
             "<|user|>\nHi<|end|>\n<|user|> x", SPACE, "\u00e9\U0001f600", "aaaaaaaaaaaaaaaaaaaa", " " * 20 + "x", "\x00"]
    yield from fixed
    for _ in range(count - len(fixed)):
        yield "".join(rng.choice(WORDS) + rng.choice(["", "", " "]) for _ in range(rng.randint(1, 9)))


def train():
    lines = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        lines += page.read_text(encoding="utf-8").split("\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines[:6000]), model_writer=model, model_type="bpe", vocab_size=620, byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, control_symbols=["<|user|>", "<|end|>"], user_defined_symbols=["[INST]"],
        character_coverage=0.995, num_threads=1, minloglevel=2)
    proto = model_pb2.ModelProto.FromString(model.getvalue())
    proto.trainer_spec.ClearField("input")
    return proto


def merges_of(proto):
    """The merges in the order of transformers: by the score of the merged token."""
    normal = {piece.piece: (-piece.score, i) for i, piece in enumerate(proto.pieces) if piece.type == 1}
    merges = []
    for token, (score, i) in normal.items():
        merges += [(score, i, token[:cut], token[cut:]) for cut in range(1, len(token)) if token[:cut] in normal and token[cut:] in normal]
    return [[left, right] for _, _, left, right in sorted(merges)]


def base_json(proto):
    added = [{"id": i, "content": piece.piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": piece.type != 4} for i, piece in enumerate(proto.pieces) if piece.type in (2, 3, 4)]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
             "vocab": {piece.piece: i for i, piece in enumerate(proto.pieces)}, "merges": merges_of(proto)}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def forms():
    llama = sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                     {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    gemma = sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"})
    legacy = sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE))
    bos = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    yield "llama2", {"normalizer": legacy, "decoder": llama, "post_processor": bos}
    yield "tinyllama-words", {"normalizer": legacy, "decoder": llama, "model": {"ignore_merges": True}}
    for scheme in ("first", "always", "never"):
        for split in (False, True):
            yield f"metaspace-{scheme}-{split}", {"pre_tokenizer": metaspace(scheme, split), "decoder": llama}
    yield "metaspace-decoder", {"pre_tokenizer": metaspace("always"), "decoder": metaspace("always")}
    yield "metaspace-decoder-never", {"pre_tokenizer": metaspace("never"), "decoder": metaspace("never")}
    yield "gemma", {"normalizer": replace(" ", SPACE), "decoder": gemma,
                    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}}
    yield "phi3", {"normalizer": legacy, "decoder": llama, "rstrip": ["<|user|>", "<|end|>", "</s>"]}
    yield "normalized-tokens", {"normalizer": legacy, "decoder": llama, "normalized": ["<|user|>", "</s>"]}
    yield "no-bytes", {"normalizer": legacy, "decoder": llama, "model": {"byte_fallback": False}}
    yield "no-bytes-no-fuse", {"normalizer": legacy, "decoder": llama, "model": {"byte_fallback": False, "fuse_unk": False}}
    spaces = sequence("normalizers", {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                      replace(" {2,}", " ", "Regex"), {"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE))
    yield "many-steps", {"normalizer": spaces, "decoder": llama}


def apply(base, parts):
    out = json.loads(json.dumps(base))
    for key, value in parts.items():
        if key == "model":
            out["model"].update(value)
        elif key in ("rstrip", "normalized"):
            for token in out["added_tokens"]:
                token[key] = token["content"] in value
        else:
            out[key] = value
    return out


def write(name, lines):
    with open(OUT / name, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def json_cases(base):
    for number, (name, parts) in enumerate(forms()):
        tokenizer = Tokenizer.from_str(json.dumps(apply(base, parts)))
        cases = []
        for text in texts(number, 60):
            ids = tokenizer.encode(text).ids
            # `tokenizers` writes a normalized added token with the normalizer's prefix, and then no longer skips the token.
            decoded = [] if "normalized" in parts else [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)]
            cases.append([text, ids, *decoded])
        yield {"name": name, "parts": parts, "cases": cases}


def by_sentencepiece(processor, text, legacy):
    """The ids as transformers' classes define encoding: added tokens are cut out first."""
    ids, first = [], True
    for part in re.split("(" + "|".join(map(re.escape, ADDED)) + ")", text):
        if part in ADDED:
            ids.append(processor.piece_to_id(part))
        elif part:
            if not legacy and (not first or part[0] in (" ", SPACE)):
                # Encodes without the prefix: behind a newline, whose ids are cut off.
                ids += processor.encode("\n" + part)[2:]
                assert processor.encode("\n" + part)[:2] == processor.encode("\n")
            else:
                ids += processor.encode(part)
        first = first and not part
    return ids


def model_cases(proto):
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    for legacy in (True, False):
        config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "add_bos_token": True, "add_eos_token": legacy}
        cases = []
        for text in texts(100 + legacy, 80):
            ids = by_sentencepiece(processor, text, legacy)
            # SentencePiece shows the unknown token, which transformers counts as special.
            decoded = [] if processor.unk_id() in ids else [processor.decode(ids)]
            cases.append([text, [1] + ids + ([2] if legacy else []), *decoded])
        yield {"config": config, "cases": cases}


def class_cases():
    from transformers import AutoTokenizer
    base = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    named = {token["content"]: token["id"] for token in base["added_tokens"]}
    vocab = base["model"]["vocab"]
    tokens = {"unk_token": "<|endoftext|>", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    decoder = {str(i): {"content": token, "lstrip": False, "rstrip": token == "<|more|>", "normalized": False, "single_word": False, "special": True}
               for token, i in (*named.items(), ("<|more|>", len(vocab)))}
    configs = [{"tokenizer_class": name, "add_prefix_space": space, "added_tokens_decoder": decoder, **tokens}
               for name in ("GPT2Tokenizer", "Qwen2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer") for space in (False, True)]
    start = {**tokens, "bos_token": "<|im_start|>"}
    configs += [{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "added_tokens_decoder": decoder, **start}]
    configs += [{"tokenizer_class": name, "cls_token": "<|im_start|>", "sep_token": "<|im_end|>", "added_tokens_decoder": decoder,
                 **start, "mask_token": "<|endoftext|>"} for name in ("RobertaTokenizer",)]
    for number, config in enumerate(configs):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
            merges = [m if isinstance(m, str) else " ".join(m) for m in base["model"]["merges"]]
            (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            tokenizer = AutoTokenizer.from_pretrained(folder)
            cases = []
            for text in texts(200 + number, 45):
                text = text.replace("<s>", "<|im_start|>").replace("</s>", "<|im_end|>").replace("<|user|>", "<|endoftext|>").replace("<|end|>", "<|more|>")
                ids = tokenizer.encode(text)
                cases.append([text, ids, tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)])
            yield {"config": config, "cases": cases}


def main():
    proto = train()
    (OUT / "tokenizer.model").write_bytes(proto.SerializeToString())
    base = base_json(proto)
    (OUT / "tokenizer.json").write_text(json.dumps(base, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    write("json_cases.jsonl", json_cases(base))
    write("model_cases.jsonl", model_cases(proto))
    write("class_cases.jsonl", class_cases())


if __name__ == "__main__":
    main()
