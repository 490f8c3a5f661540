#include "worker/weights_record.h"

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status CheckWeightsVersion(int64_t version) {
  if (version >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("weights_version: must be at least 1, not ", version));
}

void WeightsRecord::SetRead(int64_t version, const std::string& fingerprint) {
  absl::MutexLock lock(&mu_);
  contents_ = Contents::kWhole;
  source_ = Source::kCheckpoint;
  version_ = version;
  fingerprint_ = fingerprint;
}

void WeightsRecord::SetUpdated(int64_t version, absl::string_view update_id) {
  absl::MutexLock lock(&mu_);
  contents_ = Contents::kWhole;
  source_ = Source::kUpdate;
  version_ = version;
  fingerprint_ = absl::StrCat("update ", update_id);
}

void WeightsRecord::SetUnread() {
  absl::MutexLock lock(&mu_);
  contents_ = Contents::kStale;
}

void WeightsRecord::SetOverwritten() {
  absl::MutexLock lock(&mu_);
  contents_ = Contents::kStale;
  source_ = Source::kNone;
  version_ = 0;
  fingerprint_.clear();
}

void WeightsRecord::SetDiscarded() {
  absl::MutexLock lock(&mu_);
  contents_ = Contents::kDiscarded;
}

int64_t WeightsRecord::version() const {
  absl::MutexLock lock(&mu_);
  return contents_ == Contents::kStale ? 0 : version_;
}

std::string WeightsRecord::fingerprint() const {
  absl::MutexLock lock(&mu_);
  return fingerprint_;
}

bool WeightsRecord::stale() const {
  absl::MutexLock lock(&mu_);
  return contents_ == Contents::kStale;
}

bool WeightsRecord::discarded() const {
  absl::MutexLock lock(&mu_);
  return contents_ == Contents::kDiscarded;
}

bool WeightsRecord::in_checkpoint() const {
  absl::MutexLock lock(&mu_);
  return source_ == Source::kCheckpoint;
}

int64_t WeightsRecord::source_version() const {
  absl::MutexLock lock(&mu_);
  return version_;
}

}  // namespace somnus
