#include "coordinator/residency/transition_report.h"

#include <algorithm>

namespace somnus {
namespace {

TagBytes Sum(const std::vector<RankReport>& ranks, int64_t TagReport::*bytes) {
  TagBytes sum;
  for (const RankReport& rank : ranks) {
    for (const auto& [tag, report] : rank.tags) {
      if (report.*bytes > 0) sum[tag] += report.*bytes;
    }
  }
  return sum;
}

}  // namespace

bool TransitionReport::changed() const {
  return std::any_of(tags.begin(), tags.end(), [](const auto& tag) { return tag.second.changed; });
}

TagBytes TransitionReport::freed_bytes() const { return Sum(ranks, &TagReport::freed_bytes); }

TagBytes TransitionReport::mapped_bytes() const { return Sum(ranks, &TagReport::mapped_bytes); }

void TransitionReport::Add(const TransitionReport& other, int replica) {
  for (const auto& [tag, outcome] : other.tags) {
    const auto [known, added] = tags.try_emplace(tag, outcome);
    if (added) continue;
    known->second.state = std::min(known->second.state, outcome.state);
    known->second.changed |= outcome.changed;
  }
  for (const RankReport& rank : other.ranks) {
    ranks.push_back(rank);
    ranks.back().replica = replica;
  }
  adapters.insert(other.adapters.begin(), other.adapters.end());
}

}  // namespace somnus
