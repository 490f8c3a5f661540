#pragma once
// A device for ranks whose model is a hash: nothing computes on the device.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus::simulation {

class SimulatedDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const OpTable& ops() const override { std::abort(); }  // nothing computes
  std::string Describe() const override { return "simulated"; }
  void SetWorkspace(void*, int64_t) override {}
  void BeginStep() override {}
  void EndStep() override {}
  bool asynchronous() const override { return false; }
  absl::StatusOr<void*> AllocatePinned(int64_t) override { return absl::UnimplementedError("simulated"); }
  void FreePinned(void*) override {}
  DeviceUploader* uploader() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override {
    return absl::UnimplementedError("simulated");
  }
  absl::Status BeginCapture() override { return absl::UnimplementedError("simulated"); }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override {
    return absl::UnimplementedError("simulated");
  }
  void CopyToDevice(void*, const void*, int64_t) override {}
  void CopyToHost(void*, const void*, int64_t) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace somnus::simulation
