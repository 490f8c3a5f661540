#pragma once
// The run directory of a coordinator: files that outlive a killed coordinator, so that the next coordinator
// finds the workers that were left. The directory is private to its user (mode 0700) and holds
//   lock               locked while a coordinator runs: its process id and start time, as text
//   coordinator.sock   where workers register
//   worker-PID.sock    where the worker of that process listens
//   secret             by which coordinator and workers know each other (proto/cluster_trust.h), unless
//                      a flag gives it
//   group              the last epoch and the workers (proto/group_file.proto)
//   replica-I a run directory of its own for each replica, where there are several; then the outer directory
//   has the coordinator's lock and nothing else
//   model-NAME a run directory of its own for each model, where there are several; replicas may be within
//
// Thread safety: methods are for one thread at a time, functions for any. Errors name --run-dir.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process_id.h"

namespace somnus {

// The longest path of a Unix socket that fits into sockaddr_un with its terminator.
inline constexpr size_t kMaxSocketPathBytes = 107;

class RunDir {
 public:
  // Makes the directory where it is missing, and locks it until this object ends. FailedPrecondition: the
  // directory is another user's, other users may enter, the path is no directory, or "another coordinator
  // (pid N) uses" it; InvalidArgument: the sockets' paths would be too long; else why the directory cannot be
  // made.
  static absl::StatusOr<RunDir> Open(const std::string& path);
  ~RunDir();
  RunDir(RunDir&& other) noexcept;
  RunDir& operator=(RunDir&&) = delete;

  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/coordinator.sock"; }
  std::string group_path() const { return GroupPath(path_); }
  static std::string GroupPath(const std::string& path) { return path + "/group"; }
  // The directory of a replica in the coordinator's directory.
  static std::string ReplicaPath(const std::string& path, int32_t replica);
  // The replicas that have a directory here, in order.
  std::vector<int32_t> Replicas() const { return ReplicasIn(path_); }
  // The directory of one of several models in the coordinator's directory: at most kMaxModelDirBytes longer,
  // and never outside the coordinator's directory, for any name. Two names have the same directory only where
  // their 64-bit hashes collide.
  static std::string ModelPath(const std::string& path, const std::string& model);
  static constexpr size_t kMaxModelDirBytes = 31;
  // The paths of models' directories that are here, sorted.
  std::vector<std::string> Models() const;
  // The group files of the directory at `path` and of the replicas' directories inside.
  static std::vector<std::string> GroupPaths(const std::string& path);

  // The secret that is kept here, or `fresh` (at most 512 bytes), which is kept from now on until Clear.
  absl::StatusOr<std::string> KeepSecret(const std::string& fresh) const;
  // Removes the sockets of workers that have ended.
  void RemoveDeadSockets() const;
  // Removes everything that a cluster leaves except the lock's file and the replicas' directories: no worker
  // is left.
  void Clear() const;
  // Removes a replica's directory. No worker of the replica is left, and the replica's group has ended: a
  // process that would lock the replica's directory has to lock this directory first.
  void RemoveReplica(int32_t replica) const;
  // As RemoveReplica, for the directory of a model, out of Models(), with the directories of the model's
  // replicas.
  void RemoveModel(const std::string& path) const;
  // Removes everything except the lock's file: Clear, and the directories of replicas and models.
  void RemoveGroups() const;

 private:
  static std::vector<int32_t> ReplicasIn(const std::string& path);

  RunDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;  // descriptor of the locked file
};

// The coordinator that has `path` locked; nothing where there is none. NotFound: there is no such directory.
absl::StatusOr<std::optional<ProcessId>> RunDirHolder(const std::string& path);

// Replaces `path` by a file of mode 0600 with `contents`: after a crash the file is the old file or the new
// file, whole.
absl::Status WriteFileAtomically(const std::string& path, const std::string& contents);

}  // namespace somnus
