#include "worker/runner/logit_edits.h"

#include <algorithm>
#include <limits>

#include "absl/types/span.h"

namespace somnus {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool SuppressesStop(const Slot& slot, int32_t num_tokens) {
  const int32_t num_outputs = num_tokens - slot.num_prompt_tokens;
  return num_outputs < slot.sampling->min_tokens && !slot.sampling->suppress_token_ids.empty();
}

// True when the last outputs are all of a bad word but the last token, which must not follow.
bool EndsBadWord(const Slot& slot, int32_t num_tokens, const std::vector<int32_t>& word) {
  const auto prefix = static_cast<int32_t>(word.size()) - 1;
  return prefix <= num_tokens - slot.num_prompt_tokens &&
         std::equal(word.begin(), word.end() - 1, slot.tokens.begin() + num_tokens - prefix);
}

// Merges the edits of each id into a single edit, from `first` on. The order does not matter: an edit that
// forbids outweighs all further edits.
void MergeEdits(std::vector<LogitEdit>* edits, size_t first) {
  const auto begin = edits->begin() + first;
  std::stable_sort(begin, edits->end(), [](const LogitEdit& a, const LogitEdit& b) { return a.id < b.id; });
  auto last = begin;
  for (auto it = begin; it != edits->end(); ++it) {
    if (it == begin) continue;
    if (it->id == last->id) {
      last->addend += it->addend;
    } else {
      *++last = *it;
    }
  }
  if (begin != edits->end()) edits->erase(last + 1, edits->end());
}

}  // namespace

bool IsPlainGreedy(const Slot& slot, int32_t num_tokens) {
  const SlotSampling& s = *slot.sampling;
  return s.temperature == 0 && s.num_logprobs < 0 && !s.has_penalties() && s.logit_bias.empty() &&
         s.allowed_token_ids.empty() && s.bad_words.empty() && s.bad_texts.empty() &&
         !SuppressesStop(slot, num_tokens);
}

bool LooksAtTokens(const Slot& slot) {
  const SlotSampling& s = *slot.sampling;
  return std::any_of(s.bad_words.begin(), s.bad_words.end(),
                     [](const std::vector<int32_t>& word) { return word.size() > 1; }) ||
         std::any_of(s.bad_texts.begin(), s.bad_texts.end(),
                     [](const BadTextRule& rule) { return rule.looks_at_tokens(); });
}

void AppendEdits(const Slot& slot, int32_t num_tokens, int32_t row, std::vector<LogitEdit>* edits) {
  const size_t first = edits->size();
  const SlotSampling& s = *slot.sampling;
  for (const std::vector<int32_t>& word : s.bad_words) {
    if (EndsBadWord(slot, num_tokens, word)) edits->push_back({row, word.back(), kNever});
  }
  const absl::Span<const int32_t> outputs =
      absl::MakeConstSpan(slot.tokens)
          .subspan(slot.num_prompt_tokens, std::max(0, num_tokens - slot.num_prompt_tokens));
  for (const BadTextRule& rule : s.bad_texts) {
    rule.ForEachForbidden(outputs, [&](int32_t id) { edits->push_back({row, id, kNever}); });
  }
  if (SuppressesStop(slot, num_tokens)) {
    for (int32_t id : s.suppress_token_ids) edits->push_back({row, id, kNever});
  }
  for (const auto& [id, bias] : s.logit_bias) edits->push_back({row, id, bias});
  MergeEdits(edits, first);
}

void AppendAllowedMask(const Slot& slot, int32_t vocab_size, std::vector<uint32_t>* masks) {
  const size_t first = masks->size();
  masks->resize(first + (vocab_size + 31) / 32, 0u);
  for (int32_t id : slot.sampling->allowed_token_ids) (*masks)[first + id / 32] |= 1u << (id % 32);
}

PenaltyRow PenaltyOf(const Slot& slot, int32_t index) {
  const SlotSampling& s = *slot.sampling;
  return {s.has_penalties() ? index : -1, s.repetition_penalty, s.frequency_penalty, s.presence_penalty};
}

}  // namespace somnus
