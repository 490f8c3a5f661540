// The MLP's elementwise ops: activation(gate) * up, and one-input activations (also the plain conversion);
// factors and soft caps. Bound by
// memory; exponentials go through ex2.approx and rcp.approx (2 ulp), since by estimate expf would take longer
// than the bytes.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

__device__ inline float Sigmoid(float x) { return RcpApprox(1.0f + Exp2Approx(x * -1.44269504f)); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u).
__device__ inline float GeluTanh(float x) {
  return x * Sigmoid(2.0f * 0.79788456f * fmaf(x * x * x, 0.044715f, x));
}

// Gated units, of gate and up.
struct SiluGate {
  __device__ float operator()(float gate, float up) const { return gate * Sigmoid(gate) * up; }
};
struct GeluTanhGate {
  __device__ float operator()(float gate, float up) const { return GeluTanh(gate) * up; }
};
struct ClampedGate {
  ClampedSwiglu unit;
  // NaN stays NaN.
  __device__ float operator()(float gate, float up) const {
    gate = gate > unit.limit ? unit.limit : gate;
    up = up > unit.limit ? unit.limit : up;
    up = up < -unit.limit ? -unit.limit : up;
    return (up + 1.0f) * (gate * Sigmoid(unit.alpha * gate));
  }
};

// Reads 2 * sizeof(S) bytes per output, writes sizeof(T).
template <typename Gate, typename S, typename T, int kVector>
struct GateOp {
  static constexpr int kWidth = kVector;
  struct Row {
    const S* gate_up;
    T* out;
  };
  struct Loaded {
    Vec<S, kWidth> gate, up;
  };

  const S* gate_up;
  int64_t stride, n;
  T* out;
  int64_t out_stride;
  Gate f;

  __device__ Row At(int64_t row) const { return {gate_up + row * stride, out + row * out_stride}; }
  __device__ Loaded Load(const Row& row, int col) const {
    return {LoadWide<kWidth>(row.gate_up + col), LoadWide<kWidth>(row.gate_up + n + col)};
  }
  __device__ void Store(const Row& row, int col, const Loaded& x) const {
    float y[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = f(ToFloat(x.gate[j]), ToFloat(x.up[j]));
    StoreFloats(row.out + col, y);
  }
};

template <UnaryActivation kActivation>
__device__ inline float Activated(float x) {
  switch (kActivation) {
    case UnaryActivation::kIdentity:
      return x;
    case UnaryActivation::kRelu:
      return x < 0.0f ? 0.0f : x;  // NaN stays NaN
    case UnaryActivation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case UnaryActivation::kGeluTanh:
      return GeluTanh(x);
  }
  return x;
}

// Reads sizeof(S) bytes per output, writes sizeof(T).
template <typename S, typename T, UnaryActivation kActivation, int kVector>
struct ActivateOp {
  static constexpr int kWidth = kVector;
  struct Row {
    const S* x;
    T* out;
  };
  using Loaded = Vec<S, kWidth>;

  const S* x;
  int64_t x_stride;
  T* out;
  int64_t out_stride;

  __device__ Row At(int64_t row) const { return {x + row * x_stride, out + row * out_stride}; }
  __device__ Loaded Load(const Row& row, int col) const { return LoadWide<kWidth>(row.x + col); }
  __device__ void Store(const Row& row, int col, const Loaded& loaded) const {
    float y[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = Activated<kActivation>(ToFloat(loaded[j]));
    StoreFloats(row.out + col, y);
  }
};

// x = factor * x, then the soft cap, in place: reads and writes sizeof(T) bytes an element.
template <typename T, int kVector>
struct ScaleAndCapOp {
  static constexpr int kWidth = kVector;
  using Row = T*;
  using Loaded = Vec<T, kWidth>;

  T* x;
  int64_t stride;
  float factor, softcap;

  __device__ Row At(int64_t row) const { return x + row * stride; }
  __device__ Loaded Load(const Row& row, int col) const { return LoadWide<kWidth>(row + col); }
  __device__ void Store(const Row& row, int col, const Loaded& loaded) const {
    float y[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      y[j] = factor * ToFloat(loaded[j]);
      if (softcap > 0.0f) y[j] = softcap * tanhf(y[j] / softcap);
    }
    StoreFloats(row + col, y);
  }
};

// Calls fn(TypeTag<S>, TypeTag<T>): the input's type (the sum's, which is the output's, or f32) and the
// output's.
template <typename Fn>
void DispatchTypes(const TensorView& x, const TensorView& out, const Fn& fn) {
  DispatchAct(out.dtype,
              [&](auto tag) { x.dtype == DataType::kF32 ? fn(TypeTag<float>{}, tag) : fn(tag, tag); });
}

template <UnaryActivation kActivation>
void ActivateAs(CudaDevice& device, const TensorView& x, const TensorView& out) {
  DispatchTypes(x, out, [&](auto from, auto to) {
    using S = typename decltype(from)::type;
    using T = typename decltype(to)::type;
    constexpr int kWide = 16 / sizeof(S);
    const auto run = [&](auto op) {
      op = {x.row<const S>(0), x.stride, out.row<T>(0), out.stride};
      LaunchElements<2>(device, op, out.rows, out.cols);
    };
    TakesVectors(kWide, out.cols, {x, out}) ? run(ActivateOp<S, T, kActivation, kWide>{})
                                            : run(ActivateOp<S, T, kActivation, 1>{});
  });
}

template <typename Gate>
void GateAndMul(Device& device, const TensorView& gate_up, const Gate& gate, const TensorView& out) {
  if (out.rows == 0 || out.cols == 0) return;
  DispatchTypes(gate_up, out, [&](auto from, auto to) {
    using S = typename decltype(from)::type;
    using T = typename decltype(to)::type;
    constexpr int kWide = 16 / sizeof(S);
    const auto run = [&](auto op) {
      op = {gate_up.row<const S>(0), gate_up.stride, out.cols, out.row<T>(0), out.stride, gate};
      LaunchElements<2>(AsCuda(device), op, out.rows, out.cols);
    };
    TakesVectors(kWide, out.cols, {gate_up, out}) ? run(GateOp<Gate, S, T, kWide>{})
                                                  : run(GateOp<Gate, S, T, 1>{});
  });
}

}  // namespace

void SiluAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  GateAndMul(device, gate_up, SiluGate(), out);
}

void GeluTanhAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  GateAndMul(device, gate_up, GeluTanhGate(), out);
}

void ClampedSwigluAndMul(Device& device, const TensorView& gate_up, const ClampedSwiglu& unit,
                         const TensorView& out) {
  GateAndMul(device, gate_up, ClampedGate{unit}, out);
}

void ScaleAndCap(Device& device, const TensorView& x, float factor, float softcap) {
  if (x.rows == 0 || x.cols == 0) return;
  DispatchAct(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kWide = 16 / sizeof(T);
    const auto run = [&](auto op) {
      op = {x.row<T>(0), x.stride, factor, softcap};
      LaunchElements<2>(AsCuda(device), op, x.rows, x.cols);
    };
    TakesVectors(kWide, x.cols, {x}) ? run(ScaleAndCapOp<T, kWide>{}) : run(ScaleAndCapOp<T, 1>{});
  });
}

void Activate(Device& device, const TensorView& x, UnaryActivation f, const TensorView& out) {
  if (out.rows == 0 || out.cols == 0) return;
  switch (f) {
    case UnaryActivation::kIdentity:
      return ActivateAs<UnaryActivation::kIdentity>(AsCuda(device), x, out);
    case UnaryActivation::kRelu:
      return ActivateAs<UnaryActivation::kRelu>(AsCuda(device), x, out);
    case UnaryActivation::kGelu:
      return ActivateAs<UnaryActivation::kGelu>(AsCuda(device), x, out);
    case UnaryActivation::kGeluTanh:
      return ActivateAs<UnaryActivation::kGeluTanh>(AsCuda(device), x, out);
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
