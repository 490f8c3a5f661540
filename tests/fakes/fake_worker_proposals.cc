// The FakeWorker's draft model.

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/fake_worker.h"

namespace somnus {

absl::Status FakeWorker::Propose(const v1::ScheduledSequence& scheduled, int first_token,
                                 v1::StepReply* reply) {
  if (scheduled.num_proposals() < 0 || scheduled.num_proposals() > options_.max_proposals)
    return absl::InternalError(absl::StrCat("fake worker: ", scheduled.num_proposals(), " proposals"));
  const int num_sampled = reply->tokens_size() - first_token;
  if (num_sampled == 0) return absl::OkStatus();  // the slot has an error
  const Slot& slot = slots_.at(scheduled.slot());
  // The position of the last token.
  const int64_t position = slot.num_computed - scheduled.num_draft_tokens() + num_sampled - 1;
  std::vector<int32_t> tokens(slot.tokens.begin(), slot.tokens.begin() + position - num_sampled + 1);
  for (int i = first_token; i < reply->tokens_size(); ++i) tokens.push_back(reply->tokens(i).token_id());
  const int64_t room = static_cast<int64_t>(slot.blocks.size()) * options_.block_size - position;
  const auto count = static_cast<int32_t>(std::min<int64_t>(scheduled.num_proposals(), room));
  v1::DraftTokens* draft = reply->add_drafts();
  draft->set_slot(scheduled.slot());
  const std::vector<int32_t> right = ReferenceTokens(tokens, count, options_.vocab_size, weights_);
  for (int32_t i = 0; i < count; ++i) {
    const bool is_wrong = options_.wrong_period > 0 && (position + 1 + i) % options_.wrong_period == 0;
    draft->add_token_ids(is_wrong ? (right[i] + 1) % options_.vocab_size : right[i]);
    cache_[CacheIndex(slot, position + i)] = ~static_cast<uint64_t>(position + i);
  }
  num_proposals_ += count;
  return absl::OkStatus();
}

}  // namespace somnus
