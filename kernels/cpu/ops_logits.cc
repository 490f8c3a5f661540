// The ops that change logits before sampling. Memory-bound and rare: plain loops over rows.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

int64_t MaskWords(int64_t vocab) { return (vocab + 31) / 32; }

bool HasBit(const uint32_t* mask, int64_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; }

}  // namespace

void KeepAllowed(Device& device, const TensorView& logits, const int32_t* rows, const uint32_t* masks,
                 int64_t n) {
  AsCpu(device).ParallelFor(n, n * logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = logits.row<float>(rows[i]);
      const uint32_t* mask = masks + i * MaskWords(logits.cols);
      for (int64_t id = 0; id < logits.cols; ++id) {
        if (!HasBit(mask, id)) row[id] = kForbidden;
      }
    }
  });
}

void EditLogits(Device& device, const TensorView& logits, const LogitEdit* edits, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float& logit = logits.row<float>(edits[i].row)[edits[i].id];
    // Not by a sum: a forbidden NaN or infinity is forbidden, too.
    logit = edits[i].addend == kForbidden ? kForbidden : logit + edits[i].addend;
  }
}

void ClearTokenCounts(Device& device, const TokenCounts& counts, const int32_t* slots, int64_t n) {
  const int64_t words = MaskWords(counts.vocab);
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] < 0) continue;
    std::fill_n(counts.outputs + slots[i] * counts.vocab, counts.vocab, 0);
    std::fill_n(counts.in_prompt + slots[i] * words, words, 0u);
  }
}

void MarkPromptTokens(Device& device, const TokenCounts& counts, int32_t slot, const int32_t* ids,
                      int64_t n) {
  uint32_t* mask = counts.in_prompt + slot * MaskWords(counts.vocab);
  for (int64_t i = 0; i < n; ++i) mask[ids[i] / 32] |= 1u << (ids[i] % 32);
}

void CountTokens(Device& device, const TokenCounts& counts, const int32_t* slots, const int32_t* ids,
                 int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] >= 0 && ids[i] >= 0) ++counts.outputs[slots[i] * counts.vocab + ids[i]];
  }
}

void ApplyPenalties(Device& device, const TensorView& logits, const PenaltyRow* rows,
                    const TokenCounts& counts) {
  AsCpu(device).ParallelFor(logits.rows, logits.rows * logits.cols * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const PenaltyRow& p = rows[r];
      if (p.slot < 0) continue;
      float* row = logits.row<float>(r);
      const int32_t* outputs = counts.outputs + p.slot * counts.vocab;
      const uint32_t* mask = counts.in_prompt + p.slot * MaskWords(counts.vocab);
      for (int64_t id = 0; id < logits.cols; ++id) {
        if (outputs[id] == 0 && !HasBit(mask, id)) continue;
        row[id] = row[id] > 0 ? row[id] / p.repetition : row[id] * p.repetition;
        row[id] -= p.frequency * static_cast<float>(outputs[id]);
        if (outputs[id] > 0) row[id] -= p.presence;
      }
    }
  });
}

}  // namespace somnus::cpu
