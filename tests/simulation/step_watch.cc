#include "tests/simulation/step_watch.h"

#include "absl/strings/str_cat.h"

namespace somnus::simulation {

void StepWatch::SetShape(int num_ranks, int num_stages, int most) {
  num_ranks_ = num_ranks;
  num_stages_ = num_stages;
  most_ = most;
}

std::vector<StepWatch::Rank>& StepWatch::RanksOf(int group, int64_t epoch) {
  std::vector<Rank>& ranks = ranks_[{group, epoch}];
  ranks.resize(num_ranks_);
  return ranks;
}

void StepWatch::Begin(int group, int64_t epoch, int rank) {
  if (most_ == 0) return;
  std::vector<Rank>& ranks = RanksOf(group, epoch);
  if (const int pid = world_.current_process(); ranks[rank].pid != pid) ranks[rank] = {.pid = pid};
  const int64_t step = ++ranks[rank].begun;
  const int stage_ranks = num_ranks_ / num_stages_;
  bool beside = false;
  for (int other = 0; other < num_ranks_; ++other) {
    const Rank& state = ranks[other];
    if (state.ended + most_ < step) {
      world_.Violate(absl::StrCat("rank ", rank, " begins step ", step, " of epoch ", epoch, ", rank ", other,
                                  " has ended ", state.ended, ", and ", most_, " may be in flight"));
    }
    const bool computes = state.begun > state.ended;
    beside |= computes && state.begun != step && other / stage_ranks != rank / stage_ranks;
  }
  num_beside_ += beside ? 1 : 0;
}

void StepWatch::End(int group, int64_t epoch, int rank) {
  if (most_ > 0) ++RanksOf(group, epoch)[rank].ended;
}

void StepWatch::CheckNone(int group, int64_t epoch, const std::string& who) {
  const auto ranks = ranks_.find({group, epoch});
  if (ranks == ranks_.end()) return;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const Rank& state = ranks->second[rank];
    if (state.begun == state.ended || !world_.alive(state.pid)) continue;
    world_.Violate(absl::StrCat(who, " changes its memory while rank ", rank, " computes a step"));
  }
}

}  // namespace somnus::simulation
