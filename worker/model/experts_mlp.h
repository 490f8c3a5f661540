#pragma once
// The MLP of a layer with experts: routes each token to its experts, runs this rank's part of these, and adds
// the experts' outputs up, with that of the shared experts. Ranks divide either the width of every expert or
// the experts among themselves (ModelShards); either way the ranks' outputs are addends of one sum.
//
// Tokens go through in pieces, so that the buffers, with rows for each pair of a token and an expert, stay
// small; no row's result depends on the piece.

#include <cstdint>

#include "checkpoint/model_config.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "worker/model/carver.h"
#include "worker/model/shards.h"
#include "worker/model/weights.h"

namespace somnus {

// Scratch between the ops. N: the most tokens of a piece; P: N * per_token; X and S as in ExpertsWeights.
struct ExpertActivations {
  // The most tokens of a piece.
  static constexpr int64_t kMaxTokens = 1024;

  TensorView logits;      // f32 [N, all experts]
  ExpertRouting routing;  // of N tokens
  TensorView up;          // sum [P, 2 X]
  TensorView hidden;      // act [P, X]
  TensorView down;        // sum [P, hidden]
  TensorView shared_up;   // sum [N, 2 S]
  TensorView shared;      // act [N, S]
  TensorView mix;         // f32 [N, 1]

  // Takes nothing for a model without experts.
  static ExpertActivations Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards,
                                 DataType act, DataType sum, int64_t max_tokens);
};

// Where a layer counts the tokens of its experts; arrays on the device.
struct ExpertTally {
  uint32_t* load = nullptr;        // [the rank's experts]; null: the layer counts nothing
  const int32_t* slots = nullptr;  // [T]: of AttentionBatch::slot_mapping
};

// Borrows everything; used by the runner thread alone.
class ExpertsMlp {
 public:
  ExpertsMlp(Device* device, const ModelConfig* config, const ExpertActivations* act)
      : device_(*device), config_(*config), act_(*act) {}

  // delta (sum [T, hidden]) = the rank's addend of the layer's output for `normed` (act [T, hidden]). The
  // tally's counts of earlier steps are replaced.
  void Run(const ExpertsWeights& w, const TensorView& normed, const ExpertTally& tally,
           const TensorView& delta);

 private:
  // Runs at most ExpertActivations::kMaxTokens tokens. `routing` has the number of tokens and the tally's
  // arrays.
  void RunPiece(const ExpertsWeights& w, const TensorView& normed, const ExpertRouting& routing,
                const TensorView& delta);
  // up (sum [P, 2 X]) = the tokens' products with their experts' first matrices.
  void MultiplyUp(const ExpertsWeights& w, const TensorView& normed, const ExpertRouting& routing,
                  const TensorView& up);
  // delta = the shared experts' output. Returns a view of delta, or nothing where there are no shared
  // experts.
  TensorView RunShared(const ExpertsWeights& w, const TensorView& normed, const TensorView& delta);

  Device& device_;
  const ModelConfig& config_;
  const ExpertActivations& act_;
};

}  // namespace somnus
