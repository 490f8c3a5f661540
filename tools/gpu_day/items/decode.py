"""Decode at several batches, prefill, and the graphs of two models with random weights."""
import bench

MODELS = (("qwen3-8b", "1,8,32,128,256"), ("qwen3-0.6b", "1,8,256"))


def run(kit):
    if kit.rehearse:
        bench.rows_of(kit, "decode.tiny", "--parts=model")
        return
    for shape, batches in MODELS:
        bench.rows_of(kit, f"decode.{shape}", "--parts=model", f"--model={kit.path('tools', 'bench', 'shapes', shape)}",
                      f"--batches={batches}", "--prefill-tokens=4096")
