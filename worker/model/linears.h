#pragma once
// Products that blocks of a decoder share: of fused weights, and of a rank's part of a sum.

#include "checkpoint/model_config.h"
#include "kernels/ops.h"
#include "worker/model/weights.h"

namespace somnus {

// y (sum [T, w.n()]) = x * w^T + bias.
void FusedLinear(Device& device, const TensorView& x, const FusedWeight& w, const float* bias,
                 const TensorView& y);

// y (sum [T, hidden]) = x * w^T + bias over this rank's columns: its addend.
void RowParallel(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
                 const TensorView& y);

// out (act [T, n]) = activation(gate_up[:, :n]) * gate_up[:, n:], of a gated family's activation.
void GateAndMul(Device& device, const ModelConfig& config, const TensorView& gate_up, const TensorView& out);

}  // namespace somnus
