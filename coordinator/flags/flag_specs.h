#pragma once
// The groups of the table of the coordinator's flags, by their topic: a new flag is a row in a group and a
// member of Flags or ApiLimits. flag_specs.cc puts the table together and has the first groups;
// model_flags.cc has the flags about several models.

#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "base/flags.h"
#include "coordinator/flags/flags.h"

namespace somnus {

inline constexpr int64_t kMaxIntFlag = std::numeric_limits<int32_t>::max();
inline constexpr absl::Duration kShortestTimeFlag = absl::Milliseconds(1);
inline constexpr absl::Duration kLongestTimeFlag = absl::Hours(24 * 100);
inline constexpr int64_t kMinBytesFlag = 1 << 10;
inline constexpr int64_t kMaxBytesFlag = int64_t{1} << 30;  // gRPC counts a message's bytes in 32 bits

FlagGroup AdapterFlags(LoraFlags* flags);
FlagGroup AnswerFlags(ChatFlags* chat);
FlagGroup SchemaFlags(GateOptions* gate);
FlagGroup BrowserFlags(Flags* flags);
FlagGroup ObservationFlags(Flags* flags);
FlagGroup CacheFlags(Flags* flags);
FlagGroup EmbeddingFlags(PoolingFlags* flags);
FlagGroup SpeculationFlags(Flags* flags);
FlagGroup SleepFlags(Flags* flags);
FlagGroup TimeFlags(Flags* flags);
FlagGroup RequestLimitFlags(ApiLimits* limits);
FlagGroup ConnectionLimitFlags(ApiLimits* limits);

}  // namespace somnus
