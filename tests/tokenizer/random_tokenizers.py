#!/usr/bin/env python3
"""Writes tokenizers in many forms, each with what transformers makes of some texts.

    random_tokenizers.py OUT [SEED]
    bazel-bin/tests/tokenizer/tokenizer_cli OUT/*

Needs transformers. All start from tests/data/tiny/qwen3 (512 byte-level tokens). A folder has the tokenizer's files, a
tiny model around them, and golden.jsonl (text, ids, decoded), or error.txt: a part of the message that has to come.
"""
import copy
import json
import pathlib
import random
import shutil
import sys

from transformers import AutoTokenizer

TINY = pathlib.Path(__file__).resolve().parent.parent / "data" / "tiny" / "qwen3"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
ALPHABET = ["the", " The ", "ing", "\n", "  ", "\t", "123", "4", "caf\u00e9", "cafe\u0301", "\ufb01", "\u0130", "\u03a3\u03a3", "!?", "'ll",
            "_", "\u4e2d\u6587", "\U0001f600", "\u200d", "\u00a0", "\u3000", "\x00", "<|x|>", "<|im_end|>", "<s>", "<a>", "<A>",
            "ab", "aab", "\u0660", "\u00bd", "a\u0308\u0323", "e", "s"]


def special(ids):
    return {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}


def template(before, after, ids):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
            + [{"SpecialToken": {"id": t, "type_id": 0}} for t in after],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special(ids)}


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **options}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def added(number, content, **options):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **options}


def changed(base, **parts):
    """Returns `base` with some parts replaced; the parts of "model" are replaced one by one."""
    out = copy.deepcopy(base)
    model = parts.pop("model", {})
    out.update(parts)
    out["model"].update(model)
    return out


def pairs_of(base):
    return [m.split(" ") if isinstance(m, str) else m for m in base["model"]["merges"]]


def models(base, first):
    pairs = pairs_of(base)
    yield "merges-pairs", changed(base, model={"merges": pairs}), None, None
    yield "merges-strings", changed(base, model={"merges": [" ".join(m) for m in pairs]}), None, None
    yield "ignore-merges", changed(base, model={"ignore_merges": True}), None, None
    yield "decoder-WordPiece", changed(base, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), None, "decoder.type: WordPiece"
    yield "WordPiece", changed(base, model={"type": "WordPiece"}), None, "a tokenizer of kind WordPiece is not supported"
    yield "Unigram", changed(base, model={"type": "Unigram"}), None, "a tokenizer of kind Unigram is not supported"
    yield "suffix", changed(base, model={"end_of_word_suffix": "</w>"}), None, "model.end_of_word_suffix"
    fewer = {t: i for t, i in base["model"]["vocab"].items() if t not in ("z", "Z", "\u0120")}
    kept = [m for m in pairs if m[0] in fewer and m[1] in fewer and m[0] + m[1] in fewer]
    for fuse in (True, False):
        model = {"vocab": fewer, "merges": kept, "unk_token": first, "fuse_unk": fuse}
        yield f"unknown-{fuse}", changed(base, model=model), None, None
    yield "no-vocab", changed(base, model={"vocab": None}), None, "tokenizer.json"
    yield "merge-of-nothing", changed(base, model={"merges": [["a", "nowhere"]]}), None, "is not in the vocabulary"


def normalizers(base):
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield f"normalizer-{form}", changed(base, normalizer={"type": form}), None, None
    yield "normalizer-both", changed(base, normalizer=sequence("normalizers", {"type": "NFC"}, {"type": "Lowercase"})), None, None
    for form, options in {"Replace": {"pattern": {"String": " "}, "content": "\u2581"}, "Prepend": {"prepend": "x"},
                          "Strip": {"strip_left": True, "strip_right": True}}.items():
        yield f"normalizer-{form}", changed(base, normalizer={"type": form, **options}), None, None
    yield "normalizer-StripAccents", changed(base, normalizer={"type": "StripAccents"}), None, "normalizer.type: StripAccents is not supported"


def pre_tokenizers(base):
    for space in (True, False):
        yield f"bytes-space-{space}", changed(base, pre_tokenizer=byte_level(add_prefix_space=space)), None, None
    yield "bytes-whole", changed(base, pre_tokenizer=byte_level(use_regex=False)), None, None
    bare = byte_level(use_regex=False)
    yield "llama3", changed(base, pre_tokenizer=sequence("pretokenizers", split(LLAMA3), bare)), None, None
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            steps = sequence("pretokenizers", split(r"[\s\d]", behavior, invert), bare)
            yield f"split-{behavior}-{invert}", changed(base, pre_tokenizer=steps), None, None
    for kind, options in {"Digits": {"individual_digits": True}, "Punctuation": {"behavior": "MergedWithNext"}, "Whitespace": {},
                          "WhitespaceSplit": {}}.items():
        steps = sequence("pretokenizers", {"type": kind, **options}, byte_level())
        yield f"pre-{kind}", changed(base, pre_tokenizer=steps), None, None
    yield "pre-runs", changed(base, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, bare)), None, None
    yield "pre-literal", changed(base, pre_tokenizer=sequence("pretokenizers", split("ab", "Removed", kind="String"), bare)), None, None
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    yield "pre-Metaspace", changed(base, pre_tokenizer=sequence("pretokenizers", metaspace, bare)), None, None
    yield "pre-UnicodeScripts", changed(base, pre_tokenizer={"type": "UnicodeScripts"}), None, "pre_tokenizer.type: UnicodeScripts is not supported"


def post_processors(base, first, last):
    ids = {token["content"]: token["id"] for token in base["added_tokens"]}
    yield "post-none", changed(base, post_processor=None), None, None
    yield "post-bos", changed(base, post_processor=template([first], [], ids)), None, None
    yield "post-both", changed(base, post_processor=template([first, last], [last], ids)), None, None
    steps = sequence("processors", byte_level(), template([first], [last], ids))
    yield "post-sequence", changed(base, post_processor=steps), None, None
    roberta = {"type": "RobertaProcessing", "sep": [last, ids[last]], "cls": [first, ids[first]], "trim_offsets": True,
               "add_prefix_space": False}
    yield "post-roberta", changed(base, post_processor=roberta), None, None


def added_tokens(base):
    more = base["added_tokens"] + [
        added(512, "<|x|>", special=True), added(513, "<a>", normalized=True), added(514, "<A>", lstrip=True, rstrip=True),
        added(515, "ab", single_word=True), added(516, "\u4e2d", normalized=True, lstrip=True), added(517, "caf\u00e9", normalized=True)]
    for form in (None, {"type": "NFC"}, {"type": "Lowercase"}):
        yield f"added-{form and form['type']}", changed(base, added_tokens=more, normalizer=form), None, None


def configs(base, first, last):
    ids = {token["content"]: token["id"] for token in base["added_tokens"]}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": first, "eos_token": last}
    yield "config", changed(base), config, None
    objects = {**config, "eos_token": {"__type": "AddedToken", "content": last, "lstrip": False}}
    yield "config-objects", changed(base), objects, None
    yield "config-only-specials", changed(base, added_tokens=[]), config, None
    decoder = {"512": {"content": "<|x|>", "special": True}, "513": {"content": "<a>", "special": False}}
    yield "config-added", changed(base), {**config, "added_tokens_decoder": decoder}, None
    for bos in (True, False):
        for eos in (True, False):
            flags = {**config, "add_bos_token": bos, "add_eos_token": eos}
            yield f"config-add-{bos}-{eos}", changed(base), flags, None
            yield f"config-add-{bos}-{eos}-over", changed(base, post_processor=template([last], [], ids)), flags, None
    yield "config-add-bos-llama", changed(base), {**config, "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}, None
    yield "config-extra", changed(base, added_tokens=[]), {**config, "additional_special_tokens": [base_token(base, 300)]}, None


def forms(base, names):
    """Returns (name, tokenizer.json, tokenizer_config.json or None, error or None) of each case."""
    first, last = names
    yield from models(base, first)
    yield from normalizers(base)
    yield from pre_tokenizers(base)
    yield from post_processors(base, first, last)
    yield from added_tokens(base)
    yield from configs(base, first, last)


def base_token(base, number):
    return next(token for token, i in base["model"]["vocab"].items() if i == number)


def texts(rng):
    yield from ("", " ", "Hello, world! It's 12345 o'clock.\n\n  zZz z Z zz", "<|x|><|im_end|> <a> <A> ab aab")
    for _ in range(60):
        yield "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 14)))


def main():
    root, rng = pathlib.Path(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    base = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    names = [token["content"] for token in base["added_tokens"]]
    for name, tokenizer, config, error in forms(base, (names[-2], names[-1])):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(TINY / file, folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        if config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        if error is not None:
            (folder / "error.txt").write_text(error)
            continue
        (folder / "config.json").rename(folder / "away")  # AutoTokenizer would pick Qwen's own class by it
        reference = AutoTokenizer.from_pretrained(folder, **({} if config else {"tokenizer_class": "PreTrainedTokenizerFast"}))
        (folder / "away").rename(folder / "config.json")
        with open(folder / "golden.jsonl", "w", encoding="utf-8") as out:
            for text in texts(rng):
                ids = reference.encode(text)
                decoded = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
                out.write(json.dumps({"text": text, "ids": ids, "decoded": decoded}) + "\n")


if __name__ == "__main__":
    main()
