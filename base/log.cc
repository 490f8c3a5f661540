#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status InitLogging(const std::string& process, const std::string& level) {
  spdlog::level::level_enum parsed;
  if (level == "debug") {
    parsed = spdlog::level::debug;
  } else if (level == "info") {
    parsed = spdlog::level::info;
  } else if (level == "warning") {
    parsed = spdlog::level::warn;
  } else if (level == "error") {
    parsed = spdlog::level::err;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log_level: '", level, "' is not one of debug, info, warning, error"));
  }
  auto logger = spdlog::stderr_color_mt(process);
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L [%n] %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace somnus
