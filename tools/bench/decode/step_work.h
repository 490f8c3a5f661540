#pragma once
// The bytes that a model reads and the operations that it computes, for shares of the machine's ceilings.
// Plain arithmetic.

#include <cstdint>

#include "checkpoint/checkpoint.h"

namespace somnus {

struct ModelWork {
  double layer_weights = 0;    // elements of the layers' matrices: every token is multiplied by each
  double head_weights = 0;     // the same of the head, for tokens with logits alone
  double attention_width = 0;  // values of queries of one token, over all layers
  double weights_bytes = 0;    // bytes of weights that a step reads, in the computed types
  double kv_token_bytes = 0;   // of the KV cache, for a token
  // Most of the layers' weights are stored in a type whose products are of bytes: any quantized type but fp8.
  bool stored_as_bytes = false;
};

// The work of the checkpoint's matrices; weights_bytes and kv_token_bytes are the caller's to set.
ModelWork WorkOf(const Checkpoint& checkpoint);

// `batch` sequences, each of a prompt of `prompt_tokens`, with logits for the last token.
double PrefillFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens);
// The mean of the `new_tokens` steps behind such prompts.
double DecodeFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens);
double DecodeBytes(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens);

}  // namespace somnus
