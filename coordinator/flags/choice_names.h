#pragma once
// The words of flags that choose one of some values, in the order of --help. Flags are parsed by the tables,
// and GetEngineConfig answers by the same tables.

#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/auto_sleep_options.h"
#include "coordinator/scheduler/scheduler_options.h"

namespace somnus {

template <typename V>
using ChoiceNames = std::vector<std::pair<std::string, V>>;

inline ChoiceNames<SchedulingPolicy> SchedulingPolicyNames() {
  return {{"fcfs", SchedulingPolicy::kFcfs}, {"priority", SchedulingPolicy::kPriority}};
}

inline ChoiceNames<PreemptionMode> PreemptionModeNames() {
  return {{"auto", PreemptionMode::kAuto},
          {"swap", PreemptionMode::kSwap},
          {"recompute", PreemptionMode::kRecompute}};
}

inline ChoiceNames<HostPrefixCaching> HostPrefixCachingNames() {
  return {
      {"off", HostPrefixCaching::kOff}, {"auto", HostPrefixCaching::kAuto}, {"on", HostPrefixCaching::kOn}};
}

inline ChoiceNames<SleepArrivals> SleepArrivalsNames() {
  return {
      {"queue", SleepArrivals::kQueue}, {"reject", SleepArrivals::kReject}, {"wake", SleepArrivals::kWake}};
}

// The first word that stands for `value`; empty: none does.
template <typename V>
std::string NameOf(const ChoiceNames<V>& names, V value) {
  for (const auto& [name, meaning] : names)
    if (meaning == value) return name;
  return "";
}

}  // namespace somnus
