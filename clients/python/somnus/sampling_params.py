"""How tokens are chosen: the names and the defaults of vLLM's SamplingParams."""
import dataclasses
import enum
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union


class RequestOutputKind(enum.Enum):
    """The contents of a stream's outputs (AsyncLLM.generate)."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # everything, once, at the end


@dataclasses.dataclass
class StructuredOutputsParams:
    """The form that the text must have: exactly one of FORMS. docs/structured_outputs.md says what is enforced."""

    json: Union[str, Dict[str, Any], None] = None  # a JSON schema, or the schema's text
    regex: Optional[str] = None  # that the whole text matches
    choice: Optional[List[str]] = None  # one of these texts
    grammar: Optional[str] = None  # in EBNF, with the first rule `root`
    json_object: Optional[bool] = None  # True: any JSON object
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: Optional[str] = None
    structural_tag: Union[str, Dict[str, Any], None] = None

    def __post_init__(self) -> None:
        given = [field for field in FORMS if getattr(self, field) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"structured outputs need exactly one of {', '.join(FORMS)}; there are {given or 'none'}")

    def to_json(self) -> Dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, False)}


MOST_LOGPROBS = 20  # alternatives to a token that the server gives
FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

# Fields that the server reads under the same name, where the value is not the default below.
_SENT = ("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
         "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "logprobs", "prompt_logprobs", "skip_special_tokens",
         "include_stop_str_in_output", "logit_bias", "allowed_token_ids", "bad_words", "truncate_prompt_tokens",
         "stream_interval")
# Fields for which the model's generation_config.json may have another default: always sent.
MODEL_DEFAULTS = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")

# Fields of vLLM's that the engine does not serve: the values that ask for nothing, and why there is nothing else.
REFUSED: Mapping[str, Tuple[Tuple[Any, ...], str]] = {
    "logits_processors": ((None, []), "Python functions, which the engine does not run; logit_bias, allowed_token_ids, bad_words "
                                      "and structured_outputs do most of what they are for"),
    "extra_args": ((None, {}), "not known to this engine"),
    "watermarking": ((None, False), "texts are not marked"),
    "prompt_logprob_token_ids": ((None, []), "prompt_logprobs has the likeliest tokens alone"),
    "prompt_logprob_start": ((None, 0), "prompt_logprobs are of the whole prompt"),
    "logprob_token_ids": ((None, []), "logprobs has the likeliest tokens alone"),
    "flat_logprobs": ((False,), "logprobs are a list with a dictionary for each token"),
    "skip_reading_prefix_cache": ((None, False), "a cache_salt of its own keeps a prompt from what is cached"),
    "thinking_token_budget": ((None, -1), "a server's chat route bounds reasoning, this class does not"),
    "repetition_detection": ((None,), "not known to this engine"),
    "routed_experts_prompt_start": ((0,), "the experts of tokens are not returned"),
    "trace_decode_token_ids": ((None, []), "prompt_logprobs of a prompt that has the tokens tell their log-probabilities"),
}


def _refuse_fields(params: object, refused: Mapping[str, Tuple[Tuple[Any, ...], str]]) -> None:
    for name, (nothing, why) in refused.items():
        if getattr(params, name) not in nothing:
            raise ValueError(f"{name}: {why}")


@dataclasses.dataclass
class SamplingParams:
    """The sampling of a request, with the fields in vLLM's order. Bounds are the server's (docs/api.md), which refuses a wrong
    value with its name. ValueError names a field of vLLM's that is not served.

    logprobs, prompt_logprobs: how many alternatives to each token; 0: the token's own alone; None: none.
    max_tokens: None: to the end of the context.
    detokenize: False: the outputs have no text.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: Optional[bool] = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[str, List[str], None] = None
    stop_token_ids: Optional[List[int]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    prompt_logprob_token_ids: Optional[List[int]] = None
    prompt_logprob_start: Optional[int] = None
    logprob_token_ids: Optional[List[int]] = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: Optional[int] = None  # tokens of each output of a stream
    skip_clone: bool = False  # means nothing here: parameters are never changed
    output_text_buffer_length: int = 0  # means nothing here: the server keeps back what a stop string could begin with
    structured_outputs: Optional[StructuredOutputsParams] = None
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[List[int]] = None
    extra_args: Optional[Dict[str, Any]] = None
    bad_words: Optional[List[str]] = None
    skip_reading_prefix_cache: Optional[bool] = None
    thinking_token_budget: Optional[int] = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Optional[List[int]] = None
    # Of earlier versions of vLLM.
    truncate_prompt_tokens: Optional[int] = None
    best_of: Optional[int] = None
    logits_processors: Optional[List[Any]] = None

    def __post_init__(self) -> None:
        _refuse_fields(self, REFUSED)
        if self.prompt_logprobs == -1 or self.logprobs == -1:
            raise ValueError("logprobs and prompt_logprobs of the whole vocabulary (-1) are not there: at most 20 alternatives")
        if isinstance(self.structured_outputs, dict):
            self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)

    def clone(self) -> "SamplingParams":
        return dataclasses.replace(self)

    @property
    def num_sequences(self) -> int:
        """Sequences that one prompt takes."""
        return max(self.n, self.best_of or 1)

    def to_json(self, max_model_len: int) -> Dict[str, Any]:
        """The fields of a body of /v1/completions."""
        fields: Dict[str, Any] = {}
        for name in _SENT:
            value = getattr(self, name)
            if name in MODEL_DEFAULTS or value != _DEFAULTS[name]:
                fields[name] = value
        # A length that does not fit behind the prompt is clipped.
        fields["max_tokens"] = max_model_len if self.max_tokens is None else self.max_tokens
        if self.structured_outputs is not None:
            fields["structured_outputs"] = self.structured_outputs.to_json()
        return fields


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(SamplingParams)}


@dataclasses.dataclass
class BeamSearchParams:
    """Of a beam search (docs/api.md). beam_width: beams, and answers. temperature: checked, and changes nothing: a search takes
    the likeliest continuations of the model as it is. skip_special_tokens: of the answers' texts."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: Optional[StructuredOutputsParams] = None
    skip_special_tokens: bool = True
    watermarking: Optional[bool] = None

    def __post_init__(self) -> None:
        if self.watermarking:
            raise ValueError("watermarking: texts are not marked")
        if self.beam_width < 1:
            raise ValueError(f"beam_width: {self.beam_width} is not above 0")
        if self.structured_outputs is not None:
            raise ValueError("structured_outputs: a beam search has no form")

    def to_json(self) -> Dict[str, Any]:
        """The fields of a body of /v1/completions. The answers have the token that ended them, whose log-probability counts."""
        return {"use_beam_search": True, "n": self.beam_width, "max_tokens": self.max_tokens, "ignore_eos": self.ignore_eos,
                "temperature": self.temperature, "length_penalty": self.length_penalty, "include_stop_str_in_output": True,
                "logprobs": min(2 * self.beam_width, MOST_LOGPROBS)}


# As REFUSED, of PoolingParams.
POOLING_REFUSED: Mapping[str, Tuple[Tuple[Any, ...], str]] = {
    "step_tag_id": ((None,), "reward models are not served"),
    "returned_token_ids": ((None, []), "reward models are not served"),
    "task": ((None, "embed"), "'embed' is the only task"),
    "requires_token_ids": ((False,), "an output has the token ids of a prompt that was given so"),
    "skip_reading_prefix_cache": ((None, False), "a cache_salt of its own keeps a prompt from what is cached"),
    "late_interaction_params": ((None,), "a prompt has one vector"),
    "extra_kwargs": ((None, {}), "not known to this engine"),
}


@dataclasses.dataclass
class PoolingParams:
    """Of vectors. dimensions: the first so many numbers, of a model that was trained so. use_activation, or normalize by its
    older name: vectors of the length 1; None: as the call has it. truncate_prompt_tokens: only the last so many tokens count.
    ValueError names a field of vLLM's that is not served."""

    use_activation: Optional[bool] = None
    dimensions: Optional[int] = None
    step_tag_id: Optional[int] = None
    returned_token_ids: Optional[List[int]] = None
    task: Optional[str] = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: Optional[bool] = None
    late_interaction_params: Any = None
    extra_kwargs: Optional[Dict[str, Any]] = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY  # means nothing here: a vector comes whole
    # Of earlier versions of vLLM.
    truncate_prompt_tokens: Optional[int] = None
    normalize: Optional[bool] = None

    def __post_init__(self) -> None:
        _refuse_fields(self, POOLING_REFUSED)

    def to_json(self) -> Dict[str, Any]:
        """The fields of a body of /v1/embeddings that are given."""
        normalize = self.normalize if self.use_activation is None else self.use_activation
        fields = {"truncate_prompt_tokens": self.truncate_prompt_tokens, "dimensions": self.dimensions, "normalize": normalize}
        return {name: value for name, value in fields.items() if value is not None}
