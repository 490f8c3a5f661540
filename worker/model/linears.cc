#include "worker/model/linears.h"

namespace somnus {

void FusedLinear(Device& device, const TensorView& x, const FusedWeight& w, const float* bias,
                 const TensorView& y) {
  int64_t begin = 0;
  for (const LinearWeight& part : w.parts) {
    if (part.n == 0) continue;
    const TensorView columns = {static_cast<char*>(y.data) + begin * SizeOf(y.dtype), y.dtype, y.rows, part.n,
                                y.stride};
    Linear(device, x, part, bias == nullptr ? nullptr : bias + begin, columns);
    begin += part.n;
  }
}

void RowParallel(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
                 const TensorView& y) {
  if (w.k > 0) {
    Linear(device, x, w, bias, y);
  } else {
    FillZero(device, y);  // this rank has no columns
  }
}

void GateAndMul(Device& device, const ModelConfig& config, const TensorView& gate_up, const TensorView& out) {
  switch (config.activation) {
    case Activation::kGeluTanh:
      return GeluTanhAndMul(device, gate_up, out);
    case Activation::kClampedSwiglu:
      return ClampedSwigluAndMul(device, gate_up,
                                 {.alpha = static_cast<float>(config.swiglu_alpha),
                                  .limit = static_cast<float>(config.swiglu_limit)},
                                 out);
    default:
      return SiluAndMul(device, gate_up, out);
  }
}

}  // namespace somnus
