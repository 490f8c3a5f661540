#pragma once
// A coordinator's run directory (base/run_dir.h): what an earlier coordinator left there, and what this one
// writes down for the next.
//
// Ownership: holds the directory's lock until it ends. Thread safety: for one thread at a time.

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

// These end the workers in `directory` that an earlier coordinator had otherwise, and remove what tells of
// them. They take up to 5 seconds; errors are those of workers that cannot be ended.
// Those of another number of replicas, and of several models: this is one model's.
absl::Status EndWorkersOfOtherReplicas(const RunDir& directory, int32_t num_replicas);
// All but those of these models, whose directories (RunDir::ModelPath) are named.
absl::Status EndWorkersOfOtherModels(const RunDir& directory, const std::set<std::string>& models);

// Removes what models have in `directory` whose workers have all ended. Where a start was interrupted,
// workers of an earlier coordinator may still be there.
void RemoveEndedModels(const RunDir& directory);

// Whether a worker of the group in the run directory at `path`, or of a replica's in it, still runs.
bool HasLeftWorkers(const std::string& path);

class RunState {
 public:
  // `group` has world_size, model_path and options_digest of this coordinator. Workers that are left and run
  // with others are ended before it returns, which takes up to 5 seconds. Errors are those of RunDir::Open,
  // and of workers that cannot be ended. `log_name` is at the front of log lines.
  static absl::StatusOr<std::unique_ptr<RunState>> Open(const std::string& path, const v1::GroupFile& group,
                                                        const std::string& log_name = "");

  std::string socket_address() const { return "unix:" + directory_.socket_path(); }
  // As RunDir::KeepSecret.
  absl::StatusOr<std::string> KeepSecret(const std::string& fresh) const {
    return directory_.KeepSecret(fresh);
  }
  // Of the earlier coordinator, at most; 0 where there was none.
  int64_t left_epoch() const { return left_epoch_; }
  // Workers of the earlier coordinator that still run and have this one's options. A value from Open's time.
  const ProcessesByRank& left() const { return left_; }

  // Writes the group file unless it says the same already. Later epochs are recorded before they begin.
  absl::Status Record(int64_t group_epoch, const ProcessesByRank& workers);
  // No worker is left: the next coordinator finds nothing.
  void Clear() { directory_.Clear(); }

 private:
  RunState(RunDir directory, const v1::GroupFile& group, std::string log_name)
      : directory_(std::move(directory)), log_name_(std::move(log_name)), group_(group) {}
  absl::Status TakeOver();

  const RunDir directory_;
  const std::string log_name_;
  v1::GroupFile group_;  // as it was written last
  bool written_ = false;
  int64_t left_epoch_ = 0;
  ProcessesByRank left_;
};

}  // namespace somnus
