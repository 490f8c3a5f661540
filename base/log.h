#pragma once
// Logging of all Somnus processes: one line on stderr per event, "2026-01-31 12:00:00.000 I [coordinator]
// text". Thread safe. Calls use fmt's format strings: LogInfo("loaded {} tensors", n).

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace somnus {

// Call once at the start of main. `process` names the process in each line ("coordinator", "worker 1");
// `level` is debug, info, warning or error. InvalidArgument for any other level.
absl::Status InitLogging(const std::string& process, const std::string& level);

template <typename... Args>
void LogDebug(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace somnus
