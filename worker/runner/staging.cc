#include "worker/runner/staging.h"

#include <cstring>

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

MirroredBlock::~MirroredBlock() {
  if (device_handle_ == nullptr || !device_handle_->asynchronous()) return;
  for (uint8_t* buffer : host_buffers_) {
    if (buffer != nullptr) device_handle_->FreePinned(buffer);
  }
}

absl::Status MirroredBlock::Bind(Device* device) {
  device_handle_ = device;
  for (int i = 0; i < kStepsInFlight; ++i) {
    if (!device->asynchronous()) {
      host_buffers_[i] = device_;
    } else if (host_buffers_[i] == nullptr) {
      ASSIGN_OR_RETURN(void* buffer, device->AllocatePinned(bytes_));
      host_buffers_[i] = static_cast<uint8_t*>(buffer);
    }
  }
  host_ = host_buffers_[turn_];
  return absl::OkStatus();
}

void MirroredBlock::Turn() {
  turn_ = (turn_ + 1) % kStepsInFlight;
  host_ = host_buffers_[turn_];
}

void MirroredBlock::Upload(int64_t bytes) {
  if (host_ != device_) device_handle_->CopyToDevice(device_, host_, bytes);
}

void MirroredBlock::DownloadPart(int64_t begin, int64_t bytes) {
  if (!device_handle_->asynchronous()) {
    // The next step writes to the same memory, maybe before the reply's writer has read the results.
    if (kept_[turn_] == nullptr) kept_[turn_] = std::make_unique<uint8_t[]>(bytes_);
    std::memcpy(kept_[turn_].get() + begin, device_ + begin, static_cast<size_t>(bytes));
    host_ = kept_[turn_].get();
    return;
  }
  device_handle_->CopyToHost(host_ + begin, device_ + begin, bytes);
}

SideStage::~SideStage() {
  if (host_ != nullptr) device_handle_->FreePinned(host_);
}

absl::Status SideStage::Bind(Device* device) {
  device_handle_ = device;
  used_ = 0;
  if (!device->asynchronous() || host_ != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* host, device->AllocatePinned(kStepsInFlight * kBytes));
  host_ = static_cast<uint8_t*>(host);
  return absl::OkStatus();
}

void SideStage::Turn() {
  turn_ = (turn_ + 1) % kStepsInFlight;
  used_ = 0;
}

absl::StatusOr<const void*> SideStage::StageBytes(const void* values, int64_t bytes) {
  if (!device_handle_->asynchronous()) return values;
  SOMNUS_CHECK(bytes <= kMaxPiece);
  if (used_ + bytes > kBytes) {
    RETURN_IF_ERROR(device_handle_->Synchronize());
    used_ = 0;
  }
  const int64_t at = turn_ * kBytes + used_;
  uint8_t* const to = device_ + at;
  std::memcpy(host_ + at, values, static_cast<size_t>(bytes));
  device_handle_->CopyToDevice(to, host_ + at, bytes);
  used_ += (bytes + 63) / 64 * 64;
  return to;
}

}  // namespace somnus
