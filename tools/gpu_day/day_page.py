"""day.md from the lines of day.jsonl: tables as docs/gpu_verification.md has them, each number beside the H100's."""
import earlier
import journal

LIMIT = 11500  # characters of what is printed, for a caller that keeps 12,000 characters of the output; day.md has all


def measured(lines):
    """The rows of gpu_bench by the keys of earlier.EXPECTED; of rows with one key the last."""
    found = {}
    for line in lines:
        row = line.get("row", {})
        part, name, model = row.get("part"), row.get("name", ""), row.get("model", "")
        if part == "model" and "batch" in row:
            found[f"decode {model} {row['batch']}"] = row
        elif part == "model" and name.startswith("prefill"):
            found[f"prefill {model}"] = row
        elif part == "sleep":
            found[f"sleep {name}"] = found[f"wake {name}"] = row
        elif part == "kernels":
            found[f"op {name}"] = row
    return found


def number(value, digits=3):
    """A float with that many significant digits, and commas between thousands."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    places = max(0, digits - (len(str(int(size))) if size >= 1 else 0))
    return f"{value:,.{min(places, 3)}f}"


def op_text(row):
    """The time, and the share of copy bandwidth, or TFLOP/s where arithmetic is the nearer bound (800 TFLOP/s)."""
    if row is None:
        return ""
    bound_by_memory = row.get("of_copy", 0) >= row.get("tflops", 0) / 800
    return f"{number(row['us'])} us, " + (f"{row['of_copy']:.2f}" if bound_by_memory else f"{number(row['tflops'])} TFLOP/s")


def value_text(key, row):
    if row is None:
        return "not measured"
    if key.startswith("decode"):
        return f"{number(row['step_ms'])} ms, {row['of_copy_bandwidth']:.2f}"
    if key.startswith("op"):
        return op_text(row)
    field = {"prefill": "seconds", "sleep": "sleep_seconds", "wake": "wake_seconds"}[key.split()[0]]
    return f"{number(row[field] * 1e3)} ms"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def why(data):
    """What the line of an item's end says of the end, and of what is missing."""
    missing = ", ".join(data.get("not_measured", []))
    return "; ".join(filter(None, (data.get("reason"), data.get("torch"), missing and f"no time was left for {missing}")))


def summary(lines):
    """A row for each call, as the table of runs has them, and a row for each item."""
    runs = []
    for count, data in enumerate((line["data"] for line in lines if line["item"] == "day"), earlier.RUNS + 1):
        gpu = data.get("gpu", {})
        runs.append([f"R{count}", data.get("commit", "")[:10] or "unknown",
                     f"{data.get('date')}: {gpu.get('name', 'no GPU')}, {gpu.get('memory.total', '?')}, driver "
                     f"{gpu.get('driver_version', '?')}, CUDA {gpu.get('cuda', '?')}, clock {gpu.get('clocks.sm', '?')} of "
                     f"{gpu.get('clocks.max.sm', '?')}, power limit {gpu.get('power.limit', '?')}; {data.get('cpus')} CPUs, "
                     f"{data.get('host_memory_bytes', 0) / 1e9:.0f} GB; cuBLASLt: {data.get('cublaslt') or 'none'}"
                     + (" (a rehearsal: no number counts)" if data.get("rehearsal") else "")])
    rows = []
    ends = {line["item"]: line for line in lines if "status" in line and line["item"] != "day"}
    for name, line in ends.items():
        status = "not ended" if line["status"] == "start" else line["status"]  # it runs, or the call was cut off
        rows.append([name, status, f"{line['seconds']:.1f}", why(line["data"])[:300].replace("|", "/")])
    return table(["run", "commit", "what"], runs) + table(["item", "status", "s", "why"], rows)


def verdicts(lines):
    tests = [(line["row"]["verdict"], f"{line['item']}: {line['row']['test']}") for line in lines if "verdict" in line.get("row", {})]
    if not tests:
        return []
    by = {verdict: [name for one, name in tests if one == verdict] for verdict in ("ok", "failed", "skipped")}
    named = [f"- {verdict}: {name}" for verdict in ("failed", "skipped") for name in by[verdict][:30]]
    return ["Tests: " + ", ".join(f"{len(names)} {verdict}" for verdict, names in by.items()) + ".", *named, ""]


def expectations(found):
    if not found:
        return []
    rows = [[name, h100, h200, value_text(key, found.get(key)), otherwise] for name, key, h100, h200, otherwise in earlier.EXPECTED]
    return ["## As expected?", "", *table(["", "H100", "H200, expected", "measured", "if not"], rows)]


def both(ours, h100):
    return f"{ours} (H100: {h100})" if ours and h100 else ours or (f"(H100: {h100})" if h100 else "")


def linears(found):
    rows = [[name, *[both(op_text(found.get(f"op linear {name}, {count} rows")), h100)
                     for count, h100 in zip(earlier.ROWS, earlier.LINEAR[name])]] for name in earlier.LINEAR
            if any(f"op linear {name}, {count} rows" in found for count in earlier.ROWS)]
    return table(["op", *[f"{count:,} rows" for count in earlier.ROWS]], rows) if rows else []


def attention(found):
    rows = []
    for name, h100 in earlier.ATTENTION.items():
        row = found.get(f"op paged attention, {name}")
        if row is not None:
            rows.append([name, op_text(row), h100])
    return table(["paged attention", "", "H100"], rows) if rows else []


def beside_torch(lines):
    rows = [line["row"] for line in lines if "torch_us" in line.get("row", {})]
    cells = [[row["name"], number(row["us"]), row["peer"], number(row["torch_us"]), f"{row['ratio']:.2f}"] for row in rows]
    return table(["op", "us", "peer", "its us", "ratio"], cells) if rows else []


def models(found):
    rows = []
    for model, h100 in earlier.MODELS.items():
        steps = [found.get(f"decode {model} {batch}") for batch in earlier.BATCHES]
        texts = [row and f"{number(row['tokens_per_second'], 5)} ({row['of_copy_bandwidth']:.2f})" for row in steps]
        prefill = found.get(f"prefill {model}")
        texts.append(prefill and number(prefill["tokens"] / prefill["seconds"], 5))
        if any(texts):
            rows.append([model, *[both(text or "", old) for text, old in zip(texts, h100)]])
    return table(["tokens/s (of copy)", *map(str, earlier.BATCHES), "prefill of 4,096"], rows) if rows else []


def graphs(lines):
    """A line for each model that was measured: what a decode step replays, and what the models and caches take."""
    rows = [line["row"] for line in lines if line.get("row", {}).get("part") == "model" and line["row"].get("name") == "graphs"]
    return [f"- {row['model']}: {row['count']} graphs in {row['seconds']:.2f} s, {row['bytes'] / (1 << 20):.1f} MiB; weights "
            f"{row['weights_bytes'] / 1e9:.2f} GB, KV cache {row['kv_cache_bytes'] / 1e9:.2f} GB; ready after {row['ready_seconds']:.2f} s"
            for row in rows] + [""] if rows else []


def sleeps(found):
    rows = [[name, f"{number(row['sleep_seconds'] * 1e3)} ms", f"{number(row['wake_seconds'] * 1e3)} ms",
             f"{number(row['released_bytes'] / row['held_bytes'] * 100, 4)} %", h100]
            for name, h100 in earlier.SLEEPS.items() for row in [found.get(f"sleep {name}")] if row]
    return table(["8B", "sleep", "wake", "released", "H100"], rows) if rows else []


def ceilings(lines):
    found = [line["row"] for line in lines if line.get("row", {}).get("part") == "ceilings"]
    copies = [f"{one['copy_gbps']:,.0f}" for one in found]
    buses = [f"{one['host_to_device_gbps']:.1f}" for one in found]
    return [f"Ceilings, in each run of gpu_bench: copy {', '.join(copies)} GB/s, bus {', '.join(buses)} GB/s "
            f"(H100: {earlier.CEILINGS}).", ""] if found else []


def chunks(lines):
    rows = [line["row"] for line in lines if line.get("row", {}).get("part") == "chunks"]
    calls = ("create", "map", "access", "unmap", "release")
    return table(["ms to", *calls], [[row["name"], *[number(row[f"{call}_ms"]) for call in calls]] for row in rows]) if rows else []


def others(lines):
    """A line for each row of the items that have no table."""
    told = [(line["item"], line["row"]) for line in lines
            if "row" in line and line["item"] in ("alive", "model", "served", "backups", "races", "ncu")
            and "verdict" not in line["row"] and "part" not in line["row"]]
    return [f"- {item}, {row.get('name', '')}: " + ", ".join(f"{key} {number(value)}" for key, value in row.items()
                                                          if key != "name" and not isinstance(value, (list, dict)))[:260]
            for item, row in told] + [""]


def text(lines):
    """The whole page."""
    found = measured(lines)
    return "\n".join(["# The device day", "", *summary(lines), *ceilings(lines), *verdicts(lines), *expectations(found), *others(lines),
                      *models(found), *graphs(lines), *sleeps(found), *linears(found), *attention(found), *beside_torch(lines),
                      *chunks(lines)])


def printed(lines):
    """The page, or as many of the first lines as LIMIT allows."""
    whole = text(lines)
    return whole if len(whole) <= LIMIT else whole[:whole.rindex("\n", 0, LIMIT)] + "\n\n... the rest is in day.md\n"
