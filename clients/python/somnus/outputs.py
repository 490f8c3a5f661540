"""The outputs of an engine, under the names of vLLM's outputs."""
import dataclasses
from typing import Any, Dict, List, Optional, Union


@dataclasses.dataclass
class Logprob:
    """The log-probability of a token at a position."""

    logprob: float
    rank: Optional[int] = None  # 1 is the likeliest; None: not known, because the token is not among the alternatives
    decoded_token: Optional[str] = None


# By token id: the chosen token first, then the alternatives, likeliest first.
PositionLogprobs = Dict[int, Logprob]


@dataclasses.dataclass
class CompletionOutput:
    """One choice."""

    index: int
    text: str
    token_ids: List[int]
    cumulative_logprob: Optional[float] = None  # None without SamplingParams.logprobs
    logprobs: Optional[List[PositionLogprobs]] = None  # one for each of token_ids
    finish_reason: Optional[str] = None  # "stop", "length" or "abort"; None: the choice goes on
    stop_reason: Union[int, str, None] = None  # the stop string, or the id of the stop token
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """The choices of one prompt."""

    request_id: str
    prompt: Optional[str]  # None: the prompt was given as token ids
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool
    prompt_logprobs: Optional[List[Optional[PositionLogprobs]]] = None  # None for the first token
    num_cached_tokens: Optional[int] = None  # of the prompt; None: not known for each prompt of a batch
    metrics: Any = None
    lora_request: Any = None


@dataclasses.dataclass
class BeamSearchSequence:
    """One answer of a beam search. The tokens and the text begin with the prompt, as vLLM's do."""

    orig_prompt: Dict[str, Any]  # `prompt_token_ids`, and `prompt` where the prompt was a text
    tokens: List[int]
    logprobs: List[PositionLogprobs]  # of the tokens behind the prompt, the one that ended the answer included
    lora_request: Any = None
    cum_logprob: float = 0.0
    text: Optional[str] = None
    finish_reason: Optional[str] = None  # "stop": a token ended the answer; "length"
    stop_reason: Union[int, str, None] = None  # the token's id


@dataclasses.dataclass
class BeamSearchOutput:
    """The answers of one prompt, best first."""

    sequences: List[BeamSearchSequence]


@dataclasses.dataclass
class EmbeddingOutput:
    embedding: List[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclasses.dataclass
class EmbeddingRequestOutput:
    """The vector of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: Optional[List[int]] = None  # as the prompt was given; None: as text
    finished: bool = True


@dataclasses.dataclass
class PoolingOutput:
    data: List[float]


@dataclasses.dataclass
class PoolingRequestOutput:
    """The vector to which a prompt's final hidden states were pooled."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: Optional[List[int]] = None  # as the prompt was given; None: as text
    finished: bool = True


@dataclasses.dataclass
class ScoringOutput:
    score: float  # the cosine of the angle between two vectors


@dataclasses.dataclass
class ScoringRequestOutput:
    """How near two texts are to each other."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: Optional[List[int]] = None  # None: both were given as text
    finished: bool = True
