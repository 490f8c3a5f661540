#include "worker/comm/device_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/comm/collective_plan.h"
#include "worker/comm/group_watch.h"

namespace somnus {
namespace {

class DeviceCommunicator : public Communicator {
 public:
  explicit DeviceCommunicator(DeviceGroupParts parts)
      : parts_(std::move(parts)),
        ways_{parts_.world_size, parts_.peers != nullptr, parts_.nccl != nullptr, parts_.link},
        watch_({.look = [this] { return Look(); },
                .end = [this](const std::string& reason) { End(reason); },
                .left = absl::StrCat("rank ", parts_.rank, " left the group")}) {}

  ~DeviceCommunicator() override {
    watch_.Leave();
    parts_.device->Synchronize().IgnoreError();
    if (parts_.peers != nullptr) {
      // No rank may free memory that a second rank's kernels use or a second rank has mapped.
      bool together = status().ok() && parts_.host->Barrier().ok();
      parts_.peers->Disconnect();
      if (together) parts_.host->Barrier().IgnoreError();
    }
    watch_.Stop();
    parts_.peers.reset();
    parts_.nccl.reset();
    if (barrier_word_ != nullptr) parts_.device->FreePinned(barrier_word_);
  }

  int rank() const override { return parts_.rank; }
  int world_size() const override { return parts_.world_size; }
  bool stream_ordered() const override { return true; }

  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override {
    RETURN_IF_ERROR(status());
    if (count < 0) return absl::InvalidArgumentError(absl::StrCat("all-reduce of ", count, " elements"));
    if (count == 0) return absl::OkStatus();
    if (!ReducesByPeers(ways_, count * SizeOf(type))) {
      return Noted(parts_.nccl->AllReduceSum(data, count, type));
    }
    parts_.peers->AllReduceSum(data, count, type);
    return absl::OkStatus();
  }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    RETURN_IF_ERROR(status());
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("all-gather of ", bytes, " bytes"));
    if (bytes == 0) return absl::OkStatus();
    if (!GathersByPeers(ways_, bytes)) return Noted(parts_.nccl->AllGather(in, bytes, out));
    parts_.peers->AllGather(in, bytes, out);
    return absl::OkStatus();
  }

  absl::Status AllReduceAddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta,
                                   const float* weight, double eps, const TensorView& out) override {
    SOMNUS_CHECK(&device == parts_.device);
    RETURN_IF_ERROR(status());
    const int64_t bytes = delta.rows * delta.cols * SizeOf(delta.dtype);
    if (ReducesByPeers(ways_, bytes) &&
        parts_.peers->AllReduceAddRmsNorm(residual, delta, weight, eps, out)) {
      return absl::OkStatus();
    }
    return Communicator::AllReduceAddRmsNorm(device, residual, delta, weight, eps, out);
  }

  absl::Status Barrier() override {
    RETURN_IF_ERROR(status());
    if (parts_.host == nullptr) {
      if (barrier_word_ == nullptr) {
        ASSIGN_OR_RETURN(barrier_word_, parts_.device->AllocatePinned(64));
        *static_cast<float*>(barrier_word_) = 0;
      }
      RETURN_IF_ERROR(Noted(parts_.nccl->AllReduceSum(barrier_word_, 1, DataType::kF32)));
    }
    RETURN_IF_ERROR(parts_.device->Synchronize());
    RETURN_IF_ERROR(status());
    return parts_.host == nullptr ? absl::OkStatus() : Noted(parts_.host->Barrier());
  }

  void Abort(const std::string& reason) override { watch_.Fail(absl::AbortedError(reason)); }

  absl::Status status() const override {
    RETURN_IF_ERROR(watch_.error());
    // The device may have found an error before the watchdog has.
    if (parts_.peers != nullptr) RETURN_IF_ERROR(parts_.peers->status());
    return parts_.nccl == nullptr ? absl::OkStatus() : parts_.nccl->status();
  }

  absl::Status Suspend() override {
    return parts_.nccl == nullptr ? status() : Noted(parts_.nccl->Suspend());
  }
  absl::Status Resume() override { return parts_.nccl == nullptr ? status() : Noted(parts_.nccl->Resume()); }

 private:
  // An error of a part fails the whole group.
  absl::Status Noted(absl::Status status) { return watch_.Noted(std::move(status)); }

  void End(const std::string& reason) {
    if (parts_.peers != nullptr) parts_.peers->Stop();
    // The other ranks get the cause from here, before the timeouts of the other ranks say less.
    if (parts_.host != nullptr) parts_.host->Abort(reason);
    if (parts_.nccl != nullptr) parts_.nccl->Abort(reason);
  }

  absl::Status Look() {
    // A dead rank comes first: the death explains the errors of the other parts.
    if (parts_.host != nullptr) RETURN_IF_ERROR(parts_.host->status());
    if (parts_.peers != nullptr) RETURN_IF_ERROR(parts_.peers->status());
    return parts_.nccl == nullptr ? absl::OkStatus() : parts_.nccl->Poll();
  }

  DeviceGroupParts parts_;
  const CollectiveWays ways_;
  // Pinned memory, which a device reaches too; allocated by the first Barrier that needs the memory.
  void* barrier_word_ = nullptr;
  GroupWatch watch_;  // last
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeDeviceCommunicator(DeviceGroupParts parts) {
  if (parts.peers == nullptr && parts.nccl == nullptr) {
    return absl::InvalidArgumentError("a device group needs peer memory or NCCL");
  }
  if (parts.peers != nullptr && parts.host == nullptr) {
    return absl::InvalidArgumentError("peer memory is among ranks of one host");
  }
  return std::make_unique<DeviceCommunicator>(std::move(parts));
}

}  // namespace somnus
