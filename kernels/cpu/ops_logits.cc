// The ops that change logits before sampling. A vocabulary is walked by words of a mask, 32 tokens at a time:
// most words of a grammar's mask allow nothing or everything, and most tokens have never been in a text.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

constexpr int64_t kTokensOfWord = 32;

int64_t MaskWords(int64_t vocab) { return (vocab + kTokensOfWord - 1) / kTokensOfWord; }

bool HasBit(uint32_t word, int64_t token) { return (word >> token & 1) != 0; }

// Calls fn(word, first token, number of tokens) for each word of a mask.
template <typename Fn>
void ForEachWord(int64_t vocab, const Fn& fn) {
  for (int64_t word = 0; word < MaskWords(vocab); ++word) {
    fn(word, word * kTokensOfWord, std::min(kTokensOfWord, vocab - word * kTokensOfWord));
  }
}

bool AnyCounted(const int32_t* counts, int64_t n) {
  if (n < kTokensOfWord) return std::any_of(counts, counts + n, [](int32_t count) { return count != 0; });
  std::array<uint64_t, kTokensOfWord / 2> pairs;
  std::memcpy(pairs.data(), counts, sizeof(pairs));
  uint64_t any = 0;
  for (const uint64_t pair : pairs) any |= pair;
  return any != 0;
}

void KeepAllowedOfWord(uint32_t allowed, int64_t n, float* logits) {
  if (allowed == ~0u) return;
  if (allowed == 0) {
    std::fill_n(logits, n, kForbidden);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (!HasBit(allowed, i)) logits[i] = kForbidden;
  }
}

void PenalizeWord(const PenaltyRow& penalty, uint32_t in_prompt, const int32_t* outputs, int64_t n,
                  float* logits) {
  for (int64_t i = 0; i < n; ++i) {
    if (outputs[i] == 0 && !HasBit(in_prompt, i)) continue;
    logits[i] = logits[i] > 0 ? logits[i] / penalty.repetition : logits[i] * penalty.repetition;
    logits[i] -= penalty.frequency * static_cast<float>(outputs[i]);
    if (outputs[i] > 0) logits[i] -= penalty.presence;
  }
}

}  // namespace

void KeepAllowed(Device& device, const TensorView& logits, const int32_t* rows, const uint32_t* masks,
                 int64_t n) {
  AsCpu(device).ParallelFor(n, n * logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = logits.row<float>(rows[i]);
      const uint32_t* mask = masks + i * MaskWords(logits.cols);
      ForEachWord(logits.cols, [&](int64_t word, int64_t first, int64_t count) {
        KeepAllowedOfWord(mask[word], count, row + first);
      });
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
      ForEachWord(logits.cols, [&](int64_t word, int64_t first, int64_t count) {
        if (mask[word] == 0 && !AnyCounted(outputs + first, count)) return;
        PenalizeWord(p, mask[word], outputs + first, count, row + first);
      });
    }
  });
}

}  // namespace somnus::cpu
