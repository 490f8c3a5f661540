// The engine of head_of_line.h: rules for the prefill budget, without memory.

#include <algorithm>
#include <utility>

#include "tools/simulator/head_of_line.h"

namespace somnus {
namespace {

class SharingEngine : public SimulatedEngine {
 public:
  SharingEngine(PrefillSharing sharing, int32_t budget, double aging)
      : sharing_(sharing), budget_(budget), aging_(aging) {}

  absl::Status Add(const LoadRequest& request) override {
    Running running;
    running.request = request;
    running_.push_back(running);
    return absl::OkStatus();
  }

  std::optional<StepLoad> BeginStep() override {
    StepLoad load;
    std::vector<Running*> prompts;
    for (Running& running : running_) {
      running.chunk = 0;
      if (running.computed < running.request.input) {
        prompts.push_back(&running);
        continue;
      }
      running.chunk = 1;
      ++load.decode_sequences;
    }
    int64_t budget = std::max<int64_t>(0, budget_ - load.decode_sequences);
    sharing_ == PrefillSharing::kEqualParts ? ShareEqually(prompts, budget) : ShareInOrder(prompts, budget);
    for (Running& running : running_) {
      if (running.computed < running.request.input) load.prefill_tokens += running.chunk;
      running.waited_steps += running.chunk == 0 ? 1 : 0;
      running.computed += running.chunk;
      if (running.chunk > 0) load.kv_tokens += running.computed;
    }
    if (load.empty()) return std::nullopt;
    return load;
  }

  void EndStep(StepResult* result) override {
    std::erase_if(running_, [&](Running& running) {
      if (running.chunk == 0 || running.computed < running.request.input) return false;
      if (running.outputs++ == 0) result->first_tokens.push_back(running.request.id);
      if (running.outputs < running.request.output) return false;
      result->ended.push_back(running.request.id);
      return true;
    });
  }

  KvUse kv_use() const override { return {}; }
  int64_t num_running() const override { return static_cast<int64_t>(running_.size()); }

 private:
  struct Running {
    LoadRequest request;
    int64_t computed = 0;
    int64_t chunk = 0;  // of the step under way
    int64_t waited_steps = 0;
    int32_t outputs = 0;

    int64_t remaining() const { return request.input - computed; }
  };

  // A prompt that needs less than its part leaves the rest to all other prompts.
  static void ShareEqually(std::vector<Running*> prompts, int64_t budget) {
    std::stable_sort(prompts.begin(), prompts.end(),
                     [](const Running* a, const Running* b) { return a->remaining() < b->remaining(); });
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto left = static_cast<int64_t>(prompts.size() - i);
      prompts[i]->chunk = std::min(prompts[i]->remaining(), (budget + left - 1) / left);
      budget -= prompts[i]->chunk;
    }
  }

  void ShareInOrder(std::vector<Running*> prompts, int64_t budget) const {
    if (sharing_ != PrefillSharing::kFirstComeFirstServed) {
      const double aging = sharing_ == PrefillSharing::kShortestRemainingAging ? aging_ : 0;
      const auto rank = [aging](const Running* running) {
        return static_cast<double>(running->remaining()) - aging * static_cast<double>(running->waited_steps);
      };
      std::stable_sort(prompts.begin(), prompts.end(),
                       [&](const Running* a, const Running* b) { return rank(a) < rank(b); });
    }
    for (Running* running : prompts) {
      running->chunk = std::min(running->remaining(), budget);
      budget -= running->chunk;
    }
  }

  const PrefillSharing sharing_;
  const int64_t budget_;
  const double aging_;
  std::vector<Running> running_;  // in the order of arrival
};

}  // namespace

std::unique_ptr<SimulatedEngine> MakeSharingEngine(PrefillSharing sharing, int32_t max_num_batched_tokens,
                                                   double aging) {
  return std::make_unique<SharingEngine>(sharing, max_num_batched_tokens, aging);
}

}  // namespace somnus
