"""Checkpoints whose layers have windows, made from a tiny checkpoint that has a tokenizer."""
import json
import os
import shutil
import tempfile

from cluster.harness import tiny

WINDOW = 20  # tokens; two blocks of 16 hold it, or three


def window_checkpoint(test_class, name, layer_types=None, window=WINDOW):
    """Copies the tiny checkpoint `name`, of Qwen2 or Qwen3, to a folder that goes when the tests of the class have ended. In the
    copy all layers have a window, or those that `layer_types` names. Returns the folder."""
    folder = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(folder.cleanup)
    copy = os.path.join(folder.name, name)
    shutil.copytree(tiny(name), copy, copy_function=shutil.copyfile)
    os.chmod(copy, 0o755)
    path = os.path.join(copy, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.update(use_sliding_window=True, sliding_window=window, max_window_layers=0)
    if layer_types:
        config["layer_types"] = layer_types
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return copy
