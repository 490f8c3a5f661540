#pragma once
// Drafts of a draft model that the workers run beside the model: each reply brings the tokens that the draft
// model expects behind the sampled tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/scheduler/drafter.h"

namespace somnus {

class WorkerDrafts : public Drafter {
 public:
  // The rest of the last proposals, as long as tokens follow as proposed.
  void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override {
    draft->clear();
    if (tokens.size() < num_tokens_ || tokens.size() - num_tokens_ >= proposals_.size()) return;
    const auto next = proposals_.begin() + static_cast<std::ptrdiff_t>(tokens.size() - num_tokens_);
    if (!std::equal(proposals_.begin(), next, tokens.begin() + num_tokens_)) return;
    draft->assign(next, next + std::min<std::ptrdiff_t>(most, proposals_.end() - next));
  }

  void TakeProposals(size_t num_tokens, absl::Span<const int32_t> proposals) override {
    num_tokens_ = num_tokens;
    proposals_.assign(proposals.begin(), proposals.end());
  }

 private:
  size_t num_tokens_ = 0;  // that were known when the proposals were made
  std::vector<int32_t> proposals_;
};

}  // namespace somnus
