#include "coordinator/residency/residency.h"

#include <algorithm>

#include "base/memory_tags.h"
#include "base/request_bounds.h"

namespace somnus {
namespace {

// As a set: all tags where none is named.
std::set<std::string> Named(const std::vector<std::string>& tags) {
  if (tags.empty()) return {kMemoryTags.begin(), kMemoryTags.end()};
  return {tags.begin(), tags.end()};
}

TagState Target(const std::string& tag, int level) {
  return tag == kWeightsTag && level < kMaxSleepLevel ? TagState::kBackedUp : TagState::kDiscarded;
}

}  // namespace

const char* TagStateName(TagState state) {
  switch (state) {
    case TagState::kResident:
      return "resident";
    case TagState::kStale:
      return "stale";
    case TagState::kBackedUp:
      return "backed_up";
    case TagState::kDiscarded:
      return "discarded";
  }
  return "";
}

bool Residency::fully_asleep() const { return asleep_.size() == kMemoryTags.size(); }

int Residency::level() const {
  if (asleep_.empty()) return kAwakeLevel;
  return weights_discarded_ ? kMaxSleepLevel : kMinSleepLevel;
}

TagState Residency::state(const std::string& tag) const {
  if (asleep_.count(tag) == 0)
    return tag == kWeightsTag && weights_stale_ ? TagState::kStale : TagState::kResident;
  return tag == kWeightsTag && !weights_discarded_ ? TagState::kBackedUp : TagState::kDiscarded;
}

std::vector<std::string> Residency::ToSleep(const SleepSpec& spec) const {
  std::set<std::string> named = Named(spec.tags);
  const auto will_sleep = [&](const char* tag) { return asleep_.count(tag) > 0 || named.count(tag) > 0; };
  if (will_sleep(kWeightsTag) && will_sleep(kKvCacheTag)) named.insert(kWorkspaceTag);
  std::vector<std::string> tags;
  for (const std::string& tag : named) {
    if (state(tag) < Target(tag, spec.level)) tags.push_back(tag);
  }
  return tags;
}

std::vector<std::string> Residency::ToWake(const std::vector<std::string>& tags) const {
  std::set<std::string> named = Named(tags);
  const auto will_be_mapped = [&](const char* tag) {
    return asleep_.count(tag) == 0 || named.count(tag) > 0;
  };
  if (will_be_mapped(kWeightsTag) && will_be_mapped(kKvCacheTag)) named.insert(kWorkspaceTag);
  std::vector<std::string> woken;
  for (const std::string& tag : named) {
    if (state(tag) != TagState::kResident) woken.push_back(tag);
  }
  return woken;
}

void Residency::Slept(const SleepSpec& spec) {
  for (const std::string& tag : Named(spec.tags)) {
    if (state(tag) >= Target(tag, spec.level)) continue;
    asleep_.insert(tag);
    if (tag != kWeightsTag) continue;
    weights_discarded_ = weights_stale_ || Target(tag, spec.level) == TagState::kDiscarded;
    weights_stale_ = false;
  }
}

void Residency::Woke(const std::vector<std::string>& tags, bool weights_stale) {
  for (const std::string& tag : tags) {
    if (tag == kWeightsTag) {
      weights_stale_ = weights_stale && state(tag) != TagState::kBackedUp;
      weights_discarded_ = false;
    }
    asleep_.erase(tag);
  }
}

void Residency::SetWeightsStale(bool stale) {
  if (asleep_.count(kWeightsTag) == 0) weights_stale_ = stale;
}

}  // namespace somnus
