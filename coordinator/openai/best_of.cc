#include "coordinator/openai/best_of.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace somnus {
namespace {

int64_t BytesOf(const std::vector<Logprobs>& positions) {
  int64_t bytes = 0;
  for (const Logprobs& position : positions) {
    bytes += static_cast<int64_t>(sizeof(Logprobs) + position.token_ids.size() * sizeof(int32_t) +
                                  position.logprobs.size() * sizeof(float));
  }
  return bytes;
}

int64_t BytesOf(const OutputDelta& delta) {
  return static_cast<int64_t>(sizeof(OutputDelta) + delta.text.size() +
                              delta.token_ids.size() * sizeof(int32_t)) +
         BytesOf(delta.logprobs) + BytesOf(delta.prompt_logprobs);
}

}  // namespace

BestOf::BestOf(int32_t num_prompts, int32_t n, int32_t best_of)
    : n_(n),
      best_of_(best_of),
      candidates_(static_cast<size_t>(num_prompts) * best_of),
      open_(num_prompts, best_of) {
  SOMNUS_CHECK(n >= 1 && best_of >= n);
}

void BestOf::Add(ChoiceUpdate update, std::vector<ChoiceUpdate>* updates) {
  const int32_t prompt = update.index / best_of_;
  const FinishReason reason = update.delta.finish_reason;
  if (reason == FinishReason::kError) {
    update.index = prompt * n_;
    updates->push_back(std::move(update));
    return;
  }
  Candidate& candidate = candidates_[update.index];
  for (const Logprobs& logprobs : update.delta.logprobs) {
    if (!logprobs.logprobs.empty()) candidate.sum += logprobs.logprobs[0];
  }
  const int64_t bytes = BytesOf(update.delta);
  candidate.bytes += bytes;
  held_bytes_ += bytes;
  candidate.deltas.push_back(std::move(update.delta));
  if (reason != FinishReason::kNone && --open_[prompt] == 0) Choose(prompt, updates);
}

void BestOf::Choose(int32_t prompt, std::vector<ChoiceUpdate>* updates) {
  std::vector<int32_t> order(best_of_);
  std::iota(order.begin(), order.end(), prompt * best_of_);
  std::stable_sort(order.begin(), order.end(),
                   [this](int32_t a, int32_t b) { return candidates_[a].sum > candidates_[b].sum; });
  for (int32_t choice = 0; choice < n_; ++choice) {
    for (OutputDelta& delta : candidates_[order[choice]].deltas)
      updates->push_back({prompt * n_ + choice, std::move(delta)});
  }
  for (const int32_t index : order) {
    held_bytes_ -= candidates_[index].bytes;
    candidates_[index] = Candidate();
  }
}

}  // namespace somnus
