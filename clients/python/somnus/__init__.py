"""Somnus from Python: an engine in this program (LLM, AsyncLLM), and a client of a server that runs elsewhere (Client).

README.md has examples. Nothing but the standard library is imported for the engine; Client needs grpcio.
"""
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from somnus.async_llm import AsyncLLM
    from somnus.client import Client, Completion
    from somnus.errors import EngineDeadError, EngineStartError
    from somnus.llm import LLM
    from somnus.lora import LoRARequest
    from somnus.outputs import (BeamSearchOutput, BeamSearchSequence, CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput,
                                Logprob, PoolingOutput, PoolingRequestOutput, RequestOutput, ScoringOutput, ScoringRequestOutput)
    from somnus.sampling_params import (BeamSearchParams, PoolingParams, RequestOutputKind, SamplingParams,
                                        StructuredOutputsParams)

# Where each name is defined. A module is imported when somebody asks for a name of that module.
_MODULES = {
    "AsyncLLM": "async_llm",
    "BeamSearchOutput": "outputs",
    "BeamSearchParams": "sampling_params",
    "BeamSearchSequence": "outputs",
    "Client": "client",
    "Completion": "client",
    "CompletionOutput": "outputs",
    "EmbeddingOutput": "outputs",
    "EmbeddingRequestOutput": "outputs",
    "EngineDeadError": "errors",
    "EngineStartError": "errors",
    "LLM": "llm",
    "LoRARequest": "lora",
    "Logprob": "outputs",
    "PoolingOutput": "outputs",
    "PoolingParams": "sampling_params",
    "PoolingRequestOutput": "outputs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "sampling_params",
    "SamplingParams": "sampling_params",
    "ScoringOutput": "outputs",
    "ScoringRequestOutput": "outputs",
    "StructuredOutputsParams": "sampling_params",
}

__all__ = [  # pylint: disable=undefined-all-variable
    "AsyncLLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "Client", "Completion", "CompletionOutput",
    "EmbeddingOutput", "EmbeddingRequestOutput", "EngineDeadError", "EngineStartError", "LLM", "LoRARequest", "Logprob",
    "PoolingOutput", "PoolingParams", "PoolingRequestOutput", "RequestOutput", "RequestOutputKind", "SamplingParams",
    "ScoringOutput", "ScoringRequestOutput", "StructuredOutputsParams"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'somnus' has no attribute {name!r}")
    return getattr(importlib.import_module(f"somnus.{_MODULES[name]}"), name)
