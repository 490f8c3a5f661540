#pragma once
// A coordinator's run directory (base/run_dir.h): what an earlier coordinator left there, and what this
// coordinator writes down for the next.
//
// Ownership: holds the directory's lock until destruction. Thread safety: for one thread at a time.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process_id.h"
#include "base/run_dir.h"
#include "proto/group_file.pb.h"

namespace somnus {

using ProcessesByRank = std::map<int, ProcessId>;

// EndWorkersOfOtherReplicas and EndWorkersOfOtherModels end workers in `directory` that an earlier
// coordinator with other replicas or models had, and remove the files about these workers. Each takes up to 5
// seconds; an error is about workers that cannot be ended.
// For a coordinator of one model: ends workers of another number of replicas, and of several models.
absl::Status EndWorkersOfOtherReplicas(const RunDir& directory, int32_t num_replicas);
// Ends all workers except those of `models`, a set of directories (RunDir::ModelPath).
absl::Status EndWorkersOfOtherModels(const RunDir& directory, const std::set<std::string>& models);

// Removes the directories in `directory` of models whose workers have all ended. Where a start was
// interrupted, workers of an earlier coordinator may still be there.
void RemoveEndedModels(const RunDir& directory);

// Whether a worker of the group in the run directory at `path`, or in a replica's directory within, still
// runs.
bool HasLeftWorkers(const std::string& path);

class RunState {
 public:
  // `group` has world_size, model_path and options_digest of this coordinator. Left workers that run with
  // other values are ended before Open returns, which takes up to 5 seconds. Errors are the errors of
  // RunDir::Open, and of workers that cannot be ended. `log_name` is at the front of log lines.
  static absl::StatusOr<std::unique_ptr<RunState>> Open(const std::string& path, const v1::GroupFile& group,
                                                        const std::string& log_name = "");

  std::string socket_address() const { return "unix:" + directory_.socket_path(); }
  // As RunDir::KeepSecret.
  absl::StatusOr<std::string> KeepSecret(const std::string& fresh) const {
    return directory_.KeepSecret(fresh);
  }
  // The latest possible epoch of the earlier coordinator; 0 where there was no earlier coordinator.
  int64_t left_epoch() const { return left_epoch_; }
  // Workers of the earlier coordinator that still run and have this coordinator's options. A value from
  // Open's time.
  const ProcessesByRank& left() const { return left_; }

  // Writes the group file unless the file says the same already. Epochs are recorded before they begin.
  absl::Status Record(int64_t group_epoch, const ProcessesByRank& workers);
  // No worker is left: the next coordinator finds nothing.
  void Clear() { directory_.Clear(); }

 private:
  RunState(RunDir directory, const v1::GroupFile& group, std::string log_name)
      : directory_(std::move(directory)), log_name_(std::move(log_name)), group_(group) {}
  absl::Status TakeOver();

  const RunDir directory_;
  const std::string log_name_;
  v1::GroupFile group_;  // as last written
  bool written_ = false;
  int64_t left_epoch_ = 0;
  ProcessesByRank left_;
};

}  // namespace somnus
