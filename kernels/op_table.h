#pragma once
// The ops of one device as plain functions, to which ops.h forwards. Each backend declares all ops in its own
// namespace, with the signatures of ops.h, and Device::ops() returns the table of these functions.

#include "kernels/ops.h"

#define SOMNUS_OPS(X)     \
  X(SumType)              \
  X(RouterWeightType)     \
  X(PackedWeightBytes)    \
  X(PackWeightRows)       \
  X(ComputesQuantized)    \
  X(PackQuantizedRows)    \
  X(PackVector)           \
  X(Linear)               \
  X(LoraAdd)              \
  X(TuneLinear)           \
  X(FillZero)             \
  X(FillRandom)           \
  X(Embedding)            \
  X(AddPositionEmbedding) \
  X(AddRmsNorm)           \
  X(AddLayerNorm)         \
  X(RmsNorm)              \
  X(SumSquares)           \
  X(RmsNormBySquares)     \
  X(ScaleAndCap)          \
  X(Add)                  \
  X(SiluAndMul)           \
  X(GeluTanhAndMul)       \
  X(ClampedSwigluAndMul)  \
  X(Activate)             \
  X(GatherRows)           \
  X(PoolRows)             \
  X(RouteExperts)         \
  X(ExpertsLinear)        \
  X(CombineExperts)       \
  X(KvBlockBytes)         \
  X(QkNormRopeAndCache)   \
  X(LatentRopeAndCache)   \
  X(PagedAttention)       \
  X(CopyBlocks)           \
  X(SwapBlocks)           \
  X(EditBlockTables)      \
  X(GatherBlockTables)    \
  X(ResolveTokens)        \
  X(ScatterTokens)        \
  X(CopyMatrix)           \
  X(CombineArgMax)        \
  X(ArgMax)               \
  X(LogProbs)             \
  X(KeepAllowed)          \
  X(EditLogits)           \
  X(ClearTokenCounts)     \
  X(MarkPromptTokens)     \
  X(CountTokens)          \
  X(ApplyPenalties)       \
  X(Sample)               \
  X(OpsWorkspaceBytes)

namespace somnus {

struct OpTable {
#define SOMNUS_OP_MEMBER(name) decltype(&::somnus::name) name;
  SOMNUS_OPS(SOMNUS_OP_MEMBER)
#undef SOMNUS_OP_MEMBER
};

}  // namespace somnus

// Used in a backend's namespace: SOMNUS_OPS(SOMNUS_DECLARE_OP) declares every op, SOMNUS_OP_TABLE is the
// table of all ops.
#define SOMNUS_DECLARE_OP(name) decltype(::somnus::name) name;
#define SOMNUS_TABLE_ENTRY(name) .name = &name,
#define SOMNUS_OP_TABLE \
  { SOMNUS_OPS(SOMNUS_TABLE_ENTRY) }
