#pragma once
// Bounds of request parameters that servers check and command lines show to their users. Plain data.

namespace somnus {

inline constexpr double kMaxTemperature = 2.0;  // the minimum is 0, which is greedy

// Level 1 keeps the weights in host memory, level 2 discards them. Operators have level 0, too, at which all
// memory stays and nothing is computed: a pause.
inline constexpr int kPauseLevel = 0;
inline constexpr int kMinSleepLevel = 1;
inline constexpr int kMaxSleepLevel = 2;
inline constexpr char kSleepLevelNames[] = "1 or 2";  // for error messages

}  // namespace somnus
