#pragma once
// The bytes that a model reads and the operations that it computes, for shares of the machine's ceilings.
// Plain arithmetic.

#include <cstdint>

#include "checkpoint/checkpoint.h"

namespace somnus {

struct ModelWork {
  double layer_weights = 0;    // elements of the layers' matrices that a token is multiplied by
  double head_weights = 0;     // elements of the head, for tokens with logits alone
  double attention_width = 0;  // values of queries of one token, over all layers
  double weights_bytes = 0;    // bytes of all weights, in the computed types
  double kv_token_bytes = 0;   // bytes of the KV cache, for a token
  double lookup_share =
      0;  // part of weights_bytes that is an embedding, and no head: a step reads a few rows
  double experts_share = 0;  // part of weights_bytes that is routed experts
  double chosen_share = 1;   // part of the routed experts that a token is multiplied by
  // Most of the layers' weights are stored in a type whose products are of bytes: any quantized type but fp8.
  bool stored_as_bytes = false;
};

// The work of the checkpoint's matrices; weights_bytes and kv_token_bytes are the caller's to set. The shares
// are of the files' bytes: shares of the computed types' bytes where all matrices become one type, or all
// stay as they are stored.
ModelWork WorkOf(const Checkpoint& checkpoint);

// `batch` sequences, each of a prompt of `prompt_tokens`, with logits for the last token.
double PrefillFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens);
// The mean of the `new_tokens` steps behind such prompts.
double DecodeFlops(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens);
// Weights count once, the KV cache for each sequence. Of the routed experts the mean number counts that a
// batch reads if each token's experts are drawn by chance.
double DecodeBytes(const ModelWork& work, int64_t batch, int64_t prompt_tokens, int64_t new_tokens);

}  // namespace somnus
