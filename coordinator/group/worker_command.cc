#include "coordinator/group/worker_command.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/group/device_name.h"

namespace somnus {

int32_t DeviceIndex(const Flags& flags, int rank) {
  const int32_t index = LocalIndex(flags, rank);
  const bool chosen = index < static_cast<int>(flags.device_indices.size());
  return chosen ? flags.device_indices[index] : index;
}

std::vector<std::string> WorkerCommand(const Flags& flags, const std::string& binary,
                                       const std::string& coordinator, int rank) {
  std::vector<std::string> command = {
      binary,
      absl::StrCat("--coordinator=", coordinator),
      absl::StrCat("--spawned-by=", getpid()),
      absl::StrCat("--rank=", rank),
      absl::StrCat("--log-level=", flags.log_level),
      absl::StrCat("--log-queue-bytes=", flags.log_queue_bytes),
      absl::StrCat("--step-timeout=", absl::FormatDuration(flags.engine.step_timeout)),
      absl::StrCat("--liveness-timeout=", absl::FormatDuration(flags.liveness_timeout))};
  if (const std::string name = ReplicaPrefix(flags); !name.empty())
    command.push_back(absl::StrCat("--log-name=", name.substr(0, name.size() - 2)));  // without ": "
  if (flags.device != v1::DEVICE_TYPE_UNSPECIFIED) {
    command.push_back(absl::StrCat("--device=", DeviceName(flags.device)));
  }
  command.push_back(absl::StrCat("--device-index=", DeviceIndex(flags, rank)));
  if (!flags.run_dir.empty()) {
    command.push_back(absl::StrCat("--worker-grace=", absl::FormatDuration(flags.worker_grace)));
  }
  return command;
}

}  // namespace somnus
