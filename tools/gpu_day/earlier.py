"""The H100's numbers (docs/gpu_verification.md, R3 and R4), and the expectations of an H200 before anything had run on an H200.

Expectations were computed on 2026-11-28 from ceilings of 4.3 TB/s of copies, 55 GB/s of the bus and 790 TFLOP/s.
"""
RUNS = 4  # that docs/gpu_verification.md has, R1 to R4
ROWS = (1, 8, 64, 256, 2048, 4096)
# The products of a layer of the 8B shape, for ROWS: time and share of copy bandwidth, or TFLOP/s.
LINEAR = {
    "qkv [6144, 4096]": ("18.6 us, 0.91", "19.1 us, 0.89", "20.3 us, 0.86", "23.7 us, 0.79", "762 TFLOP/s", "736 TFLOP/s"),
    "out [4096, 4096]": ("13.4 us, 0.85", "14.2 us, 0.80", "15.0 us, 0.78", "18.0 us, 0.71", "757 TFLOP/s", "762 TFLOP/s"),
    "up [24576, 4096]": ("70.1 us, 0.97", "71.6 us, 0.95", "74.7 us, 0.93", "83.7 us, 0.87", "750 TFLOP/s", ""),
    "down [4096, 12288]": ("37.3 us, 0.91", "40.4 us, 0.84", "41.5 us, 0.83", "47.7 us, 0.77", "745 TFLOP/s", "708 TFLOP/s"),
    "head [151936, 4096]": ("420 us, 1.00", "432 us, 0.97", "460 us, 0.94", "533 us, 0.89", "", ""),
}
# Attention by the ends of gpu_bench's names of rows.
ATTENTION = {
    "1 x 1024 tokens, 1 new": "13.1 us, 0.11", "1 x 32768 tokens, 1 new": "64.2 us, 0.70", "1 x 131072 tokens, 1 new": "205 us, 0.88",
    "8 x 4096 tokens, 1 new": "60.2 us, 0.75", "32 x 4096 tokens, 1 new": "201 us, 0.90", "128 x 1024 tokens, 1 new": "203 us, 0.89",
    "256 x 512 tokens, 1 new": "203 us, 0.89", "1 x 2048 tokens, 2048 new": "232 us, 148 TFLOP/s",
    "1 x 16384 tokens, 2048 new": "2,238 us, 230 TFLOP/s", "4 x 512 tokens, 512 new": "82 us, 105 TFLOP/s",
}
BATCHES = (1, 8, 32, 128, 256)
# tokens/s (share of copy bandwidth) for BATCHES, and then for prefill of 4,096 tokens.
MODELS = {
    "qwen3-0.6b": ("950 (0.40)", "5,984 (0.42)", "14,074 (0.47)", "28,092 (0.67)", "34,043 (0.76)", "238,362"),
    "qwen3-8b": ("162 (0.83)", "1,177 (0.78)", "4,138 (0.77)", "11,763 (0.78)", "16,180 (0.75)", "35,621"),
}
# Sleeps of the 8B shape with a KV cache of 60 GB.
SLEEPS = {"first": "sleep 1.32 to 3.29 s", "second": "sleep 54, 82, 89 ms; wake at once 392 to 455 ms",
          "one-second": "wake a second after the sleep 307, 316 ms"}
CEILINGS = "copy 2,967 to 3,004 GB/s, bus 54.0 to 55.0 GB/s"

# (name, key of day_page.measured(), the H100's number, the expected number of an H200, where to look if the expectation fails).
EXPECTED = (
    ("8B, batch 1", "decode qwen3-8b 1", "6.17 ms, 0.83", "4.6-4.9 ms, 0.73-0.77",
     "launch gaps and attention's fixed cost weigh 1.4 times as much"),
    ("8B, batch 32 at 512 tokens", "decode qwen3-8b 32", "7.7 ms", "5.8-6.2 ms", "power cap: clocks.csv"),
    ("8B, batch 256 at 512 tokens", "decode qwen3-8b 256", "15.8 ms", "11.5-12.5 ms", "power cap: clocks.csv"),
    ("0.6B, batch 1", "decode qwen3-0.6b 1", "1.05 ms, 0.40", "0.92-0.98 ms, 0.29-0.31", "bound by 290 kernels"),
    ("decode attention 32 x 4,096", "op paged attention, 32 x 4096 tokens, 1 new", "201 us, 0.90", "145-155 us, 0.80-0.87",
     "in flight: 2 blocks x 2 of 3 stages = 128 KiB an SM, enough for 4.3 TB/s"),
    ("prefill of 4,096, 8B", "prefill qwen3-8b", "115 ms", "112-118 ms", "the same arithmetic"),
    ("prefill attention 2,048 of 16,384", "op paged attention, 1 x 16384 tokens, 2048 new", "230 TFLOP/s", "225-235 TFLOP/s", ""),
    ("wake of 16.4 GB at once", "wake second", "392-455 ms", "480-600 ms (KV cache of 110 GB)", "the driver clears what was released"),
    ("wake of 16.4 GB after 1 s", "wake one-second", "307-316 ms", "305-320 ms", "the driver clears what was released"),
    ("second sleep", "sleep second", "54-89 ms", "90-150 ms", "the driver clears what was released"),
)
