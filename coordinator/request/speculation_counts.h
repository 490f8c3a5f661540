#pragma once
// Counts of speculative decoding: draft tokens that steps checked, and draft tokens that were right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace somnus {

struct SpeculationCounts {
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t> num_accepted_tokens_per_pos;  // by the token's place in the draft

  // Counts a draft of `num_draft` tokens, the first `num_accepted` of which were right.
  void AddDraft(size_t num_draft, size_t num_accepted) {
    ++num_drafts;
    num_draft_tokens += static_cast<int64_t>(num_draft);
    num_accepted_tokens += static_cast<int64_t>(num_accepted);
    Resize(num_accepted);
    for (size_t i = 0; i < num_accepted; ++i) ++num_accepted_tokens_per_pos[i];
  }
  void Add(const SpeculationCounts& other) {
    num_drafts += other.num_drafts;
    num_draft_tokens += other.num_draft_tokens;
    num_accepted_tokens += other.num_accepted_tokens;
    Resize(other.num_accepted_tokens_per_pos.size());
    for (size_t i = 0; i < other.num_accepted_tokens_per_pos.size(); ++i)
      num_accepted_tokens_per_pos[i] += other.num_accepted_tokens_per_pos[i];
  }

 private:
  void Resize(size_t size) {
    num_accepted_tokens_per_pos.resize(std::max(size, num_accepted_tokens_per_pos.size()));
  }
};

}  // namespace somnus
