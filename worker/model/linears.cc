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

void GateAndMul(Device& device, Activation activation, const TensorView& gate_up, const TensorView& out) {
  if (activation == Activation::kGeluTanh) return GeluTanhAndMul(device, gate_up, out);
  SiluAndMul(device, gate_up, out);
}

}  // namespace somnus
