#pragma once
// Reads and writes the group file of a run directory. Thread safe.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process_id.h"
#include "proto/group_file.pb.h"

namespace somnus {

// NotFound: there is no such file; DataLoss: the file is damaged, and why.
absl::StatusOr<v1::GroupFile> ReadGroupFile(const std::string& path);
// Fills in boot_id. Atomic: a crash leaves the file that was there, or the new one.
absl::Status WriteGroupFile(const std::string& path, v1::GroupFile group);

// The workers that still run, in the file's order.
std::vector<v1::LocalWorker> LiveWorkers(const v1::GroupFile& group);
ProcessId ProcessOf(const v1::LocalWorker& worker);

}  // namespace somnus
