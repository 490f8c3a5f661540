#include "coordinator/residency/residency.h"

#include <algorithm>

#include "base/memory_tags.h"

namespace somnus {

bool Residency::fully_asleep() const { return asleep_.size() == kMemoryTags.size(); }

bool Residency::WakeReadsWeights(const std::vector<std::string>& tags) const {
  if (level_ != 2 || asleep_.count(kWeightsTag) == 0) return false;
  return tags.empty() || std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
}

std::vector<std::string> Residency::ToWake(const std::vector<std::string>& tags) const {
  std::vector<std::string> woken;
  for (const std::string& tag : asleep_) {
    if (tags.empty() || std::find(tags.begin(), tags.end(), tag) != tags.end()) woken.push_back(tag);
  }
  return woken;
}

bool Residency::SleepChanges(int level) const { return !fully_asleep() || level > level_; }

void Residency::Slept(int level) {
  const bool discarded = level_ == 2 && asleep_.count(kWeightsTag) > 0;
  level_ = discarded ? 2 : level;
  levels_differ_ = levels_differ_ && level_ < 2;
  asleep_ = std::set<std::string>(kMemoryTags.begin(), kMemoryTags.end());
}

void Residency::SleptInPart(int level) {
  Slept(1);
  levels_differ_ = levels_differ_ || level_ < level;
}

void Residency::Woke(const std::vector<std::string>& tags) {
  for (const std::string& tag : tags) asleep_.erase(tag);
  if (asleep_.empty()) level_ = 0;
}

}  // namespace somnus
