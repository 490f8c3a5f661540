#pragma once
// The version of coordinator, workers and tools. Workers of another version are refused.

namespace somnus {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace somnus
