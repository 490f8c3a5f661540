#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <bit>

namespace somnus {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The hardware's own part of a multiprocessor's shared memory for each block.
constexpr int64_t kReservedShared = 1024;

// More blocks on a multiprocessor than any shape gets.
constexpr int kMaxDecodeBlocksPerSm = 3;

// `blocks`: of a KV head.
PrefillScratch PrefillScratchOf(int64_t dims, int64_t num_kv_heads, int64_t blocks, int64_t sections) {
  PrefillScratch scratch{.dims = dims, .num_kv_heads = num_kv_heads, .blocks = blocks};
  if (sections <= 1) return scratch;
  scratch.max_parts = 4 * blocks;
  scratch.levels = 1 + std::bit_width(static_cast<uint64_t>(sections - 1));
  return scratch;
}

int64_t BlocksByShared(const AttentionChip& chip, int64_t bytes) {
  return bytes > chip.max_shared_bytes ? 0 : chip.shared_bytes_per_sm / (bytes + kReservedShared);
}

}  // namespace

int CompiledHeadDim(int64_t head_dim) {
  for (const int dims : {64, 96, 128, 256}) {
    if (head_dim <= dims) return dims;
  }
  return 0;
}

bool TakesTensorCores(const AttentionShape& shape) {
  const bool types = (shape.act == DataType::kBF16 || shape.act == DataType::kF16) &&
                     (shape.cache == shape.act || SizeOf(shape.cache) == 1);
  return types && shape.head_dim > 0 && shape.head_dim <= kMaxMmaHeadDim &&
         shape.head_dim * SizeOf(shape.cache) % 16 == 0 && shape.head_dim % 8 == 0 &&
         shape.block_size % kSubTileTokens == 0;
}

DecodePlan PlanDecode(const AttentionChip& chip, const AttentionShape& shape, int64_t num_decodes,
                      int64_t max_context_len, int64_t header_bytes) {
  DecodePlan plan;
  plan.dims = CompiledHeadDim(shape.head_dim);
  const int64_t element = SizeOf(shape.cache);
  const int64_t stage = kDecodeWarps * 2 * kSubTileTokens * TilePitch(plan.dims, element);
  // Takes as many blocks as leave each a ring of three stages: one in use, two under way. Several blocks hide
  // each other's starts and ends.
  for (int blocks = DecodeBlocksPerSm(plan.dims, element); blocks > 0 && plan.stages == 0; --blocks) {
    for (int stages = kMaxStages; stages >= (blocks == 1 ? 2 : 3); --stages) {
      if (BlocksByShared(chip, header_bytes + stages * stage) < blocks) continue;
      plan.stages = stages;
      plan.blocks_per_sm = blocks;
      plan.shared_bytes = header_bytes + stages * stage;
      break;
    }
  }
  if (plan.stages == 0) return plan;
  plan.in_flight_bytes =
      plan.blocks_per_sm * (plan.stages - 1) * kDecodeTileTokens * 2 * shape.head_dim * element;
  // Every tile of heads has a head of its own, and there are as many tiles as heads at most.
  const int64_t units = num_decodes * shape.num_heads * CeilDiv(max_context_len, kDecodeTileTokens);
  plan.num_blocks = std::clamp<int64_t>(units, 1, static_cast<int64_t>(chip.num_sms) * plan.blocks_per_sm);
  plan.scratch = {plan.dims, plan.num_blocks};
  return plan;
}

PrefillPlan PlanPrefill(const AttentionChip& chip, const AttentionShape& shape, int64_t num_seqs,
                        int64_t num_tokens, int64_t max_context_len, int64_t header_bytes) {
  PrefillPlan plan;
  plan.dims = CompiledHeadDim(shape.head_dim);
  plan.tile_tokens = PrefillTileTokens(plan.dims);
  const int64_t stage = 2 * plan.tile_tokens * TilePitch(plan.dims, SizeOf(shape.cache));
  // Rather two blocks than a third stage: one block multiplies while the second is at its softmax.
  for (int blocks = PrefillBlocksPerSm(plan.dims); blocks > 0 && plan.stages == 0; --blocks) {
    for (int stages = 3; stages >= 2 && plan.stages == 0; --stages) {
      if (BlocksByShared(chip, header_bytes + stages * stage) < blocks) continue;
      plan.stages = stages;
      plan.blocks_per_sm = blocks;
      plan.shared_bytes = header_bytes + stages * stage;
    }
  }
  if (plan.stages == 0) return plan;
  const int64_t kv_heads = std::max<int64_t>(1, shape.num_kv_heads);
  // The sum of all sequences' tiles, each rounded up.
  plan.tiles = num_tokens * CeilDiv(shape.num_heads, kv_heads) / kPrefillRows + num_seqs;
  plan.sections = CeilDiv(max_context_len, kSectionTokens);
  plan.blocks = plan.tiles;
  if (plan.sections > 1) {
    plan.blocks =
        std::clamp<int64_t>(chip.num_sms * plan.blocks_per_sm / kv_heads, 1, plan.tiles * plan.sections);
  }
  plan.scratch = PrefillScratchOf(plan.dims, kv_heads, plan.blocks, plan.sections);
  return plan;
}

int64_t AttentionScratchBytes(const AttentionChip& chip, int64_t num_heads, int64_t head_dim,
                              int64_t max_context_len) {
  const int dims = CompiledHeadDim(head_dim);
  if (dims == 0) return 0;
  const DecodeScratch decode{dims, static_cast<int64_t>(chip.num_sms) * kMaxDecodeBlocksPerSm};
  // Scratch grows with the blocks of all KV heads together: as many as the chip holds, or a block for each KV
  // head.
  const int64_t blocks = std::max<int64_t>(chip.num_sms * PrefillBlocksPerSm(dims), num_heads);
  const PrefillScratch prefill = PrefillScratchOf(dims, 1, blocks, CeilDiv(max_context_len, kSectionTokens));
  return std::max(decode.bytes(), prefill.bytes());
}

}  // namespace somnus
