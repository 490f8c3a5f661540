#pragma once
// A decoder-only transformer over kernels/ops.h, one rank's part of it. The forward pass is written once for
// all families and branches on the family's properties (checkpoint/family.h):
//   pre-norm:  x += Attention(Norm(x)); x += Mlp(Norm(x)); at the end Norm(x)
//   post-norm: x = Norm(x + Attention(x)); x = Norm(x + Mlp(x))
// In pre-norm models a block's output may have a norm of its own before the sum, with a norm before the block
// (Gemma 2, GLM-4) or without (OLMo 2).
//
// Ownership: everything is borrowed. Used by the runner thread alone. Nothing here allocates device memory.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/model/adapter_weights.h"
#include "worker/model/carver.h"
#include "worker/model/experts_mlp.h"
#include "worker/model/latent_attention.h"
#include "worker/model/shards.h"
#include "worker/model/weights.h"

namespace somnus {

// Scratch between the ops of a layer. Types: `act` goes into linears, `sum` (SumType, kernels/ops.h) comes
// out of linears. Tmax: the most tokens of a step; H, KV, D, M as in LayerWeights.
struct Activations {
  TensorView residual;       // f32 [Tmax, hidden]: the residual stream
  TensorView residual2;      // f32 [Tmax, hidden]: of post-norm models, which normalize the stream itself
  TensorView delta;          // sum [Tmax, hidden]: the addend of a block to the stream
  TensorView normed;         // act [Tmax, hidden]
  TensorView qkv;            // sum [Tmax, (H + 2 KV) D]
  TensorView squares;        // f32 [Tmax, 2]: of q and of k, with norms over all heads
  TensorView heads;          // act [Tmax, H D]
  TensorView up;             // sum [Tmax, 2 M]; not gated: [Tmax, M]
  TensorView mlp;            // act [Tmax, M]
  LatentActivations latent;  // of models with latent attention
  ExpertActivations experts;
  TensorView embedded;      // f32 [Tmax, embedding_dim], when embedding_dim is not hidden
  TensorView embedded_act;  // act [Tmax, embedding_dim], in the same case

  static Activations Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards, DataType act,
                           DataType sum, int64_t max_tokens);
};

// The context that a model needs besides a step's input.
struct ModelContext {
  Device* device = nullptr;
  Communicator* communicator = nullptr;
  const ModelConfig* config = nullptr;
  const ModelShards* shards = nullptr;
  const ModelWeights* weights = nullptr;
  Activations act;
  RopeTable rope;                            // of LayerRope::kMain
  RopeTable local_rope;                      // of LayerRope::kLocal
  const int32_t* kv_head_of_head = nullptr;  // [H], on the device
  absl::Span<const KvCacheView> kv_cache;    // one per layer of the stage
  const AdapterWeights* adapters = nullptr;  // null: the model has no adapters
  // On the device: [layers of the stage, experts of the rank], the tokens of the last step; rows of layers
  // without experts are not written. Null: nothing is counted.
  uint32_t* expert_load = nullptr;
};

// A step's tokens, flat; all arrays on the device.
struct StepInput {
  const int32_t* token_ids = nullptr;  // [T]
  AttentionBatch batch;                // batch.num_tokens is T
  // [T]: the index of each row's adapter, or -1; null: no row has an adapter.
  const int32_t* adapter_slots = nullptr;
};

class DecoderModel {
 public:
  explicit DecoderModel(const ModelContext* context) : c_(*context) {}

  // Runs the layers of the rank's stage; writes the cache. Behind the first stage the layers go on from the
  // stream that the caller has put into residual(). Returns the head's input in the last stage: act [T,
  // embedding_dim], and residual() in the stages before; valid until the next call. Only collectives can
  // fail.
  absl::StatusOr<TensorView> Forward(const StepInput& input);
  // f32 [num_tokens, hidden], contiguous: the residual stream between two stages.
  TensorView residual(int64_t num_tokens) const { return FirstRows(c_.act.residual, num_tokens); }

 private:
  // residual (f32 [T, hidden]) = the tokens' embeddings, projected to the model's width, + learned positions.
  absl::Status EmbedTokensAndPositions(const StepInput& input);
  // out (f32 [T, embedding_dim]) = the tokens' embeddings, whole on every rank.
  absl::Status Embed(const StepInput& input, const TensorView& out);
  // act [T, hidden], the last norm's output, or, where the stage has no last norm, of the stream as
  // residual() holds the stream.
  absl::StatusOr<TensorView> RunPreNorm(const StepInput& input);
  absl::StatusOr<TensorView> RunPostNorm(const StepInput& input);
  // act [T, hidden] -> act [T, embedding_dim]
  TensorView Project(const TensorView& hidden);

  // delta (sum [T, hidden]) = attention over `normed` (act [T, hidden]): this rank's addend.
  // Layers are counted within the stage.
  absl::Status Attention(int64_t layer, const StepInput& input, const TensorView& normed,
                         const TensorView& delta);
  // The part of Attention from qkv (sum [T, (H + 2 KV) D]) to heads (act [T, H D]).
  void Attend(int64_t layer, const StepInput& input, const TensorView& qkv, const TensorView& heads);
  // RMSNorm of q and k of qkv (sum [T, (H + 2 KV) D]) over all ranks' heads together, in place.
  absl::Status NormAllHeads(const LayerWeights& w, const TensorView& qkv);
  // The same for the MLP.
  void Mlp(int64_t layer, const StepInput& input, const TensorView& normed, const TensorView& delta);

  // y (sum [T, ...]), from the column on, += what each row's adapter adds to that linear of x (act [T, k]).
  void AddAdapters(const StepInput& input, int64_t layer, LoraTarget target, const TensorView& x,
                   const TensorView& y, int64_t column = 0);

  // x (f32) += the ranks' addends (unless there are none); out (act) = Norm(x), or x where weight is null.
  absl::Status AddAndNorm(const TensorView& x, const TensorView& addend, const float* weight,
                          const float* bias, const TensorView& out);
  // The same for the output of a block: before the sum, the addend has a norm of its own (unless post_norm is
  // null), and the model's factor.
  absl::Status AddBlockAndNorm(const TensorView& x, const TensorView& addend, const float* post_norm,
                               const float* weight, const float* bias, const TensorView& out);
  // x = the ranks' addends summed up, on every rank.
  absl::Status AllReduce(const TensorView& x);

  const ModelContext& c_;
};

}  // namespace somnus
