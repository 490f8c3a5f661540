#pragma once
// Logging of all Somnus processes: one line on stderr per event, "2026-01-31 12:00:00.000 I [coordinator]
// text". Thread safe. Calls use fmt's format strings: LogInfo("loaded {} tensors", n).

#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace somnus {

// To be called once, at the start of main. `process` ("coordinator", "worker 1") is part of each line;
// `level` is debug, info, warning or error; lines beyond `queue_bytes` that wait to be written are dropped
// and counted (log_writer.h). InvalidArgument for any other level.
absl::Status InitLogging(const std::string& process, const std::string& level, int64_t queue_bytes);

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The functions below call this one. Only log.cc includes the logging library, because its header takes
// longer to compile than most files that log.
void Log(LogLevel level, fmt::string_view format, fmt::format_args args);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, fmt::make_format_args(args...));
}

}  // namespace somnus
