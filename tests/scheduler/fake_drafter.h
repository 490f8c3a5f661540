#pragma once
// A drafter that knows the fake worker's next samples, and is wrong as often as a test wants.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/scheduler/speculation.h"
#include "coordinator/scheduler/worker_drafts.h"
#include "tests/fakes/fake_worker.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {

class FakeDrafter : public Drafter {
 public:
  // Whether the guess for the token at `position` is wrong.
  using IsWrong = std::function<bool(int64_t position)>;

  explicit FakeDrafter(IsWrong is_wrong) : is_wrong_(std::move(is_wrong)) {}

  void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override {
    *draft = FakeWorker::ReferenceTokens({tokens.begin(), tokens.end()}, most);
    for (size_t i = 0; i < draft->size(); ++i) {
      if (is_wrong_(static_cast<int64_t>(tokens.size() + i))) (*draft)[i] = ((*draft)[i] + 1) % 1000;
    }
  }

 private:
  const IsWrong is_wrong_;
};

// Drafts of up to `most` tokens; `is_wrong` as above, right throughout where omitted.
inline SpeculationOptions FakeDrafts(
    int32_t most, FakeDrafter::IsWrong is_wrong = [](int64_t) { return false; }) {
  SpeculationOptions options;
  options.num_speculative_tokens = most;
  options.make_drafter = [is_wrong] { return std::make_unique<FakeDrafter>(is_wrong); };
  return options;
}

// Drafts of up to `most` tokens by the worker's draft model, which is wrong as the fake worker's options say.
inline SpeculationOptions WorkersDrafts(int32_t most) {
  SpeculationOptions options;
  options.num_speculative_tokens = most;
  options.asks_workers = true;
  options.make_drafter = [] { return std::make_unique<WorkerDrafts>(); };
  return options;
}

inline SchedulerOptions WithDrafts(SpeculationOptions speculation, int32_t num_blocks = 64) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.speculation = std::move(speculation);
  return options;
}

inline int32_t DraftTokens(const v1::StepRequest& step) {
  int32_t count = 0;
  for (const v1::ScheduledSequence& sequence : step.sequences()) count += sequence.num_draft_tokens();
  return count;
}

}  // namespace somnus
