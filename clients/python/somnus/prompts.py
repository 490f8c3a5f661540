"""Prompts in the forms that vLLM takes: a text, token ids, or a dictionary with `prompt` or `prompt_token_ids`."""
import dataclasses
from typing import Any, List, Mapping, Optional, Sequence, Union

# The forms of a prompt.
PromptType = Union[str, Sequence[int], Mapping[str, Any]]

_KNOWN_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclasses.dataclass
class Prompt:
    """Either `text` or `token_ids`. `shown`: the text of token ids that a chat template has made."""

    text: Optional[str] = None
    token_ids: Optional[List[int]] = None
    cache_salt: Optional[str] = None
    shown: Optional[str] = None

    @property
    def value(self) -> Union[str, List[int]]:
        return self.text if self.text is not None else self.token_ids or []


def _is_ids(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(one, int) for one in value)


def read_prompt(value: PromptType) -> Prompt:
    """TypeError or ValueError for anything else."""
    if isinstance(value, str):
        return Prompt(text=value)
    if not isinstance(value, Mapping):
        if _is_ids(value):
            return Prompt(token_ids=list(value))
        raise TypeError(f"a prompt is a text, a list of token ids that is not empty, or a dictionary, not {type(value).__name__}")
    # A field that is None is as one that is not there.
    fields = {name: one for name, one in value.items() if one is not None}
    unknown = [str(name) for name in fields if name not in _KNOWN_KEYS]
    if unknown:
        raise ValueError(f"a prompt has {', '.join(unknown)}, which this engine does not know")
    salt = fields.get("cache_salt")
    if "prompt_token_ids" in fields:
        if not _is_ids(fields["prompt_token_ids"]):
            raise TypeError("prompt_token_ids: a list of token ids that is not empty")
        return Prompt(token_ids=list(fields["prompt_token_ids"]), cache_salt=salt)
    if not isinstance(fields.get("prompt"), str):
        raise ValueError("a prompt has neither `prompt`, a text, nor `prompt_token_ids`")
    return Prompt(text=fields["prompt"], cache_salt=salt)


def read_prompts(value: Union[PromptType, Sequence[PromptType]]) -> List[Prompt]:
    """One prompt, or a sequence of prompts. A list of numbers is one prompt, of token ids."""
    if isinstance(value, (str, Mapping)) or _is_ids(value):
        return [read_prompt(value)]  # type: ignore[arg-type]
    if not isinstance(value, Sequence):
        raise TypeError(f"prompts are a list, not {type(value).__name__}")
    return [read_prompt(one) for one in value]  # type: ignore[arg-type]
