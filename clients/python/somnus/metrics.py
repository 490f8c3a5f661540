"""The engine's metrics, parsed: the names of vLLM's metrics reader (LLM.get_metrics)."""
import dataclasses
import re
from typing import Dict, List

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclasses.dataclass
class Metric:
    name: str
    labels: Dict[str, str]


@dataclasses.dataclass
class Counter(Metric):
    value: float


@dataclasses.dataclass
class Gauge(Metric):
    value: float


@dataclasses.dataclass
class Histogram(Metric):
    count: int
    sum: float
    buckets: Dict[str, int]  # by the upper bound, as text ("+Inf" is the last); each counts those below, too


def _labels(text: str) -> Dict[str, str]:
    return {name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value) for name, value in _LABEL.findall(text)}


class _Histograms:
    """Gathers the samples of histograms, which come as several lines each."""

    def __init__(self) -> None:
        self.found: Dict[str, Histogram] = {}

    def add(self, name: str, sample: str, labels: Dict[str, str], value: float) -> None:
        bound = labels.pop("le", "")
        one = self.found.setdefault(f"{name} {sorted(labels.items())}", Histogram(name, labels, 0, 0.0, {}))
        if sample.endswith("_bucket"):
            one.buckets[bound] = int(value)
        elif sample.endswith("_count"):
            one.count = int(value)
        else:
            one.sum = value


def parse(text: str) -> List[Metric]:
    """Of Prometheus's text format 0.0.4; ValueError for a line that is none of the format. A counter's name ends as in the text,
    with _total."""
    metrics: List[Metric] = []
    kinds: Dict[str, str] = {}
    histograms = _Histograms()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        if not found:
            raise ValueError(f"no line of a metric: {line!r}")
        sample, labels, value = found[1], _labels(found[2] or ""), float(found[3])
        base = re.sub(r"_(?:bucket|count|sum)$", "", sample)
        if kinds.get(base) == "histogram":
            histograms.add(base, sample, labels, value)
        elif kinds.get(sample) == "counter":
            metrics.append(Counter(sample, labels, value))
        else:
            metrics.append(Gauge(sample, labels, value))
    return metrics + list(histograms.found.values())
