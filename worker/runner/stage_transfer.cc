#include "worker/runner/stage_transfer.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/runner/trace_range.h"

namespace somnus {
namespace {

constexpr int64_t kBufferBytes = 4 << 20;

int64_t BytesOf(const TensorView& stream) {
  SOMNUS_CHECK(stream.stride == stream.cols);
  return stream.rows * stream.cols * SizeOf(stream.dtype);
}

}  // namespace

StageTransfer::~StageTransfer() {
  if (buffer_ != nullptr) device_.FreePinned(buffer_);
}

absl::Status StageTransfer::Bind() {
  const bool has_neighbours = has_previous_ || has_next_;
  if (!has_neighbours || !device_.asynchronous() || buffer_ != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* const buffer, device_.AllocatePinned(kBufferBytes));
  buffer_ = static_cast<char*>(buffer);
  return absl::OkStatus();
}

absl::Status StageTransfer::Receive(const TensorView& stream) {
  if (!has_previous_) return absl::OkStatus();
  const TraceRange range("receive");
  if (communicator_.receives_on_stream())
    return communicator_.ReceiveFromPreviousStage(stream.data, BytesOf(stream));
  // The wait may be as long as a step of the previous stage: the device's threads do not spin meanwhile.
  device_.EndStep();
  const absl::Cleanup begin_step = [this] { device_.BeginStep(); };
  const int64_t bytes = BytesOf(stream);
  if (buffer_ == nullptr) return communicator_.ReceiveFromPreviousStage(stream.data, bytes);
  for (int64_t begin = 0; begin < bytes; begin += kBufferBytes) {
    const int64_t size = std::min(kBufferBytes, bytes - begin);
    RETURN_IF_ERROR(communicator_.ReceiveFromPreviousStage(buffer_, size));
    device_.CopyToDevice(static_cast<char*>(stream.data) + begin, buffer_, size);
    RETURN_IF_ERROR(device_.Synchronize());  // the buffer is free for the next piece
  }
  return absl::OkStatus();
}

absl::Status StageTransfer::Send(const TensorView& stream) {
  if (!has_next_) return absl::OkStatus();
  const TraceRange range("send");
  if (communicator_.sends_on_stream()) return communicator_.SendToNextStage(stream.data, BytesOf(stream));
  device_.EndStep();
  const absl::Cleanup begin_step = [this] { device_.BeginStep(); };
  const int64_t bytes = BytesOf(stream);
  if (buffer_ == nullptr) return communicator_.SendToNextStage(stream.data, bytes);
  for (int64_t begin = 0; begin < bytes; begin += kBufferBytes) {
    const int64_t size = std::min(kBufferBytes, bytes - begin);
    device_.CopyToHost(buffer_, static_cast<const char*>(stream.data) + begin, size);
    RETURN_IF_ERROR(device_.Synchronize());
    RETURN_IF_ERROR(communicator_.SendToNextStage(buffer_, size));
  }
  return absl::OkStatus();
}

}  // namespace somnus
