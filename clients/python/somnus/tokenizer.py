"""The engine's tokenizer, asked over the engine's routes."""
import functools
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Union

# Sends a body to /tokenize, and returns token ids; sends token ids to /detokenize, and returns a text; asks /tokenizer_info.
Tokenize = Callable[[Mapping[str, Any]], List[int]]
Detokenize = Callable[[Sequence[int]], str]
Describe = Callable[[], Mapping[str, Any]]


class Tokenizer:
    """The names of transformers' tokenizers for what programs most often ask of vLLM's get_tokenizer(). Thread safe. Works while
    the engine sleeps. Errors are the engine's (EngineClient)."""

    def __init__(self, tokenize: Tokenize, detokenize: Detokenize, describe: Describe):
        self._tokenize, self._detokenize, self._describe = tokenize, detokenize, describe

    def __call__(self, text: Union[str, Sequence[str]], add_special_tokens: bool = True) -> Dict[str, Any]:
        """{"input_ids": token ids}, for a list of texts a list of them."""
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens)}
        return {"input_ids": [self.encode(one, add_special_tokens) for one in text]}

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        return self._tokenize({"prompt": text, "add_special_tokens": add_special_tokens})

    def decode(self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens:
            special = self._special_ids
            ids = [one for one in ids if one not in special]
        return self._detokenize(ids)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], tokenize: bool = True, **fields: Any
                            ) -> Union[List[int], str]:
        """The token ids of a conversation, or with tokenize=False its text. fields: of /tokenize, as add_generation_prompt, tools
        and chat_template_kwargs."""
        ids = self._tokenize(chat_body(messages, **{"add_generation_prompt": False, **fields}))
        return ids if tokenize else self._detokenize(ids)

    @property
    def vocab_size(self) -> int:
        size: int = self._info["vocab_size"]
        return size

    @property
    def bos_token(self) -> Optional[str]:
        token: Optional[str] = self._info["bos_token"]
        return token

    @property
    def eos_token(self) -> Optional[str]:
        token: Optional[str] = self._info["eos_token"]
        return token

    @property
    def bos_token_id(self) -> Optional[int]:
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> Optional[int]:
        return self._id_of(self.eos_token)

    @functools.cached_property
    def _info(self) -> Mapping[str, Any]:
        return self._describe()

    @functools.cached_property
    def _special_ids(self) -> FrozenSet[int]:
        return special_ids(self._info)

    def _id_of(self, token: Optional[str]) -> Optional[int]:
        if token is None:
            return None
        ids = self.encode(token, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None


def special_ids(info: Mapping[str, Any]) -> FrozenSet[int]:
    """Of the answer of /tokenizer_info."""
    return frozenset(int(token) for token, what in info["added_tokens_decoder"].items() if what.get("special"))


def chat_body(messages: Sequence[Mapping[str, Any]], **fields: Any) -> Dict[str, Any]:
    return {"messages": list(messages), **{name: value for name, value in fields.items() if value is not None}}
