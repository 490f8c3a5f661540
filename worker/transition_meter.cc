#include "worker/transition_meter.h"

#include <algorithm>

namespace somnus {

const char* TransitionPhaseName(TransitionPhase phase) {
  switch (phase) {
    case TransitionPhase::kCopy:
      return "copy";
    case TransitionPhase::kRelease:
      return "release";
    case TransitionPhase::kMap:
      return "map";
    case TransitionPhase::kRead:
      return "read";
    case TransitionPhase::kPrepared:
      return "prepared";
    case TransitionPhase::kCommitted:
      return "committed";
    case TransitionPhase::kAborted:
      return "aborted";
  }
  return "";
}

void TransitionMeter::Begin(uint64_t id, bool wakes_up, int64_t moved_bytes, int64_t read_bytes) {
  absl::MutexLock lock(&mu_);
  bytes_.Reset();
  read_part_ = 0;
  Record record;
  record.id = id;
  record.wakes_up = wakes_up;
  record.phase = wakes_up ? TransitionPhase::kMap : TransitionPhase::kCopy;
  record.total_bytes = moved_bytes + read_bytes;
  record.read_bytes = read_bytes;
  record.begin = MonotonicNow();
  record_ = record;
}

void TransitionMeter::SetPhase(TransitionPhase phase) {
  absl::MutexLock lock(&mu_);
  if (!record_.has_value() || record_->end.has_value()) return;
  record_->phase = phase;
  if (phase == TransitionPhase::kCommitted || phase == TransitionPhase::kAborted)
    record_->end = MonotonicNow();
}

void TransitionMeter::NoteRead(int64_t loaded, int64_t total) {
  if (total > 0) read_part_ = std::clamp(static_cast<double>(loaded) / static_cast<double>(total), 0.0, 1.0);
}

void TransitionMeter::Forget() {
  absl::MutexLock lock(&mu_);
  record_.reset();
}

std::optional<v1::TransitionProgress> TransitionMeter::Progress() const {
  absl::MutexLock lock(&mu_);
  if (!record_.has_value()) return std::nullopt;
  const Record& record = *record_;
  // The counted bytes may differ from the announced bytes, where the driver fails to release memory.
  const int64_t read = static_cast<int64_t>(read_part_ * static_cast<double>(record.read_bytes));
  const int64_t counted = std::min(bytes_.bytes() + read, record.total_bytes);
  v1::TransitionProgress progress;
  progress.set_prepare_operation_id(record.id);
  progress.set_wakes_up(record.wakes_up);
  progress.set_phase(TransitionPhaseName(record.phase));
  progress.set_bytes_done(record.phase == TransitionPhase::kCommitted ? record.total_bytes : counted);
  progress.set_bytes_total(record.total_bytes);
  progress.set_seconds(absl::ToDoubleSeconds(record.end.value_or(MonotonicNow()) - record.begin));
  return progress;
}

}  // namespace somnus
