#pragma once
// Bounds of request parameters that servers check and command lines show to their users. Plain data.

namespace somnus {

inline constexpr double kMaxTemperature = 2.0;  // the minimum is 0, which is greedy

// Sleep levels. Level 1 keeps the weights in host memory, level 2 discards the weights. At level 0 no memory
// sleeps; each surface has one use of level 0:
//
//   calls of operators (HTTP, gRPC, `somnus sleep`)  kPauseLevel: memory stays, and nothing is computed
//   states and reports                               kAwakeLevel: every tag is resident
//   transitions of workers (proto/worker.proto)      kAwakeLevel: a wake-up, after which the tags are
//   resident
//
// A sleep of an engine, and the flags, have levels 1 and 2 alone.
inline constexpr int kPauseLevel = 0;
inline constexpr int kAwakeLevel = 0;
inline constexpr int kMinSleepLevel = 1;
inline constexpr int kMaxSleepLevel = 2;
inline constexpr char kSleepLevelNames[] = "1 or 2";  // for error messages

}  // namespace somnus
