"""The engine's tokenizer, asked over the engine's routes."""
from typing import Any, Callable, Dict, List, Mapping, Sequence

# Sends a body to /tokenize, and returns token ids; sends token ids to /detokenize, and returns a text.
Tokenize = Callable[[Mapping[str, Any]], List[int]]
Detokenize = Callable[[Sequence[int]], str]


class Tokenizer:
    """Thread safe. Works while the engine sleeps. Errors are the engine's (EngineClient)."""

    def __init__(self, tokenize: Tokenize, detokenize: Detokenize):
        self._tokenize, self._detokenize = tokenize, detokenize

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        return self._tokenize({"prompt": text, "add_special_tokens": add_special_tokens})

    def decode(self, token_ids: Sequence[int]) -> str:
        """Special tokens are part of the text."""
        return self._detokenize(token_ids)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> List[int]:
        """The token ids of a conversation. fields: of /tokenize, as add_generation_prompt, tools and chat_template_kwargs."""
        return self._tokenize(chat_body(messages, **fields))


def chat_body(messages: Sequence[Mapping[str, Any]], **fields: Any) -> Dict[str, Any]:
    return {"messages": list(messages), **{name: value for name, value in fields.items() if value is not None}}
