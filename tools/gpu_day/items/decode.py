"""Decode at several batches, prefill, and the graphs of two models with random weights."""
import bench

# Shape, batches, and the seconds after which no further batch begins, so that the second model has time, too.
MODELS = (("qwen3-8b", "1,8,32,128,256", 42), ("qwen3-0.6b", "1,8,256", 18))


def run(kit):
    if kit.rehearse:
        bench.rows_of(kit, "decode.tiny", "--parts=model")
        return
    for shape, batches, seconds in MODELS:
        bench.rows_of(kit, f"decode.{shape}", "--parts=model", f"--model={kit.path('tools', 'bench', 'shapes', shape)}",
                      f"--batches={batches}", "--prefill-tokens=4096", f"--seconds={seconds}")
