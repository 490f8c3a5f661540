"""Sleeps and wake-ups of the 8B shape, then the calls of which they are made, for memory in pieces of several sizes."""
import bench


def run(kit):
    model = kit.pick((f"--model={kit.path('tools', 'bench', 'shapes', 'qwen3-8b')}",), ())
    bench.rows_of(kit, "sleep.bench", "--parts=sleep", f"--seconds={kit.limit(27)}", *model)
    bench.rows_of(kit, "sleep.chunks", "--parts=chunks", f"--seconds={kit.limit(17)}", *model)
