#include "coordinator/executor/transition_speeds.h"

#include <algorithm>
#include <memory>

namespace somnus {
namespace {

constexpr double kLeastSeconds = 0.01;

absl::Duration Takes(int64_t bytes, double bytes_per_s) {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_s);
}

}  // namespace

void TransitionSpeeds::Note(MovementKind kind, const std::vector<Moved>& ranks) {
  std::optional<double> slowest;
  int64_t most = 0;
  for (const Moved& rank : ranks) {
    if (rank.bytes <= 0 || rank.seconds < kLeastSeconds) continue;
    const double speed = static_cast<double>(rank.bytes) / rank.seconds;
    slowest = std::min(slowest.value_or(speed), speed);
    most = std::max(most, rank.bytes);
  }
  if (!slowest.has_value()) return;
  absl::MutexLock lock(&mu_);
  bytes_per_s_[kind] = *slowest;
  if (kind == MovementKind::kRead) read_bytes_ = most;
}

std::optional<double> TransitionSpeeds::SpeedOf(MovementKind kind) const {
  const auto it = bytes_per_s_.find(kind);
  if (it != bytes_per_s_.end()) return it->second;
  return kind == MovementKind::kMap ? SpeedOf(MovementKind::kRead) : std::nullopt;
}

absl::Duration TransitionSpeeds::Timeout(const std::vector<Movement>& movements,
                                         const ExecutorOptions& options) const {
  absl::MutexLock lock(&mu_);
  absl::Duration without = options.transition_timeout, sum;
  bool moves = false, all_known = true;
  for (const Movement& movement : movements) {
    const bool reads = movement.kind == MovementKind::kRead;
    const int64_t bytes = reads ? std::max(movement.bytes, read_bytes_) : movement.bytes;
    if (bytes <= 0 && !reads) continue;
    moves = true;
    const absl::Duration slow = Takes(bytes, options.transition_bytes_per_s);
    const absl::Duration unknown = reads ? options.load_timeout : slow;
    const std::optional<double> speed = SpeedOf(movement.kind);
    all_known &= speed.has_value();
    absl::Duration time = speed.has_value() ? options.measured_slack * Takes(bytes, *speed) : unknown;
    if (reads && speed.has_value()) time = std::max(time, slow);
    without += unknown;
    sum += time;
  }
  return std::min(without,
                  sum + (moves && all_known ? options.measured_timeout : options.transition_timeout));
}

absl::Duration TransitionSpeeds::ReadTimeout(const ExecutorOptions& options) const {
  return std::min(options.load_timeout, Timeout({{MovementKind::kRead, 0}}, options));
}

ExecutorOptions WithSpeeds(ExecutorOptions options) {
  if (options.speeds == nullptr) options.speeds = std::make_shared<TransitionSpeeds>();
  return options;
}

}  // namespace somnus
