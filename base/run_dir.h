#pragma once
// The run directory of a coordinator: what outlives it when it is killed, so that the next one finds the
// workers that were left. It is private to its user (mode 0700). It holds
//   lock               locked while a coordinator runs: its process id and start time, as text
//   coordinator.sock   where workers register
//   worker-PID.sock    where the worker of that process listens
//   secret             by which coordinator and workers know each other (proto/cluster_trust.h), unless
//                      a flag gives it
//   group              the last epoch and the workers (proto/group_file.proto)
//   replica-I          a run directory of its own for each replica, where there are several; the one around
//                      them has the coordinator's lock and nothing else
//   model-NAME         likewise for each model, where there are several; it may have replicas within
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

// Of a Unix socket's address: what fits into sockaddr_un with its end.
inline constexpr size_t kMaxSocketPathBytes = 107;

class RunDir {
 public:
  // Makes the directory where it is missing, and locks it until this object ends. FailedPrecondition: it is
  // another user's, others may enter it, it is no directory, or "another coordinator (pid N) uses" it;
  // InvalidArgument: its sockets' paths would be too long; else why it cannot be made.
  static absl::StatusOr<RunDir> Open(const std::string& path);
  ~RunDir();
  RunDir(RunDir&& other) noexcept;
  RunDir& operator=(RunDir&&) = delete;

  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/coordinator.sock"; }
  std::string group_path() const { return GroupPath(path_); }
  static std::string GroupPath(const std::string& path) { return path + "/group"; }
  // The directory of a replica in that of its coordinator.
  static std::string ReplicaPath(const std::string& path, int32_t replica);
  // The replicas that have one here, in their order.
  std::vector<int32_t> Replicas() const { return ReplicasIn(path_); }
  // The directory of one of several models in that of its coordinator: at most kMaxModelDirBytes longer, and
  // nowhere else, whatever the name. Two names have the same one only where 64-bit hashes of both collide.
  static std::string ModelPath(const std::string& path, const std::string& model);
  static constexpr size_t kMaxModelDirBytes = 31;
  // The paths of models' directories that are here, sorted.
  std::vector<std::string> Models() const;
  // Where the directory at `path` and those of replicas in it have their group files.
  static std::vector<std::string> GroupPaths(const std::string& path);

  // The secret that is kept here, or `fresh` (at most 512 bytes), which is kept from now on until Clear.
  absl::StatusOr<std::string> KeepSecret(const std::string& fresh) const;
  // Removes the sockets of workers that have ended.
  void RemoveDeadSockets() const;
  // Removes all that a cluster leaves but the lock's file and what replicas have: no worker is left.
  void Clear() const;
  // Removes a replica's directory. None of its workers is left, and its group has ended: whoever would lock
  // it has to lock this directory first.
  void RemoveReplica(int32_t replica) const;
  // Likewise of a model, one of Models(), with those of its replicas.
  void RemoveModel(const std::string& path) const;
  // All of it but the lock's file: Clear, and what replicas and models have.
  void RemoveGroups() const;

 private:
  static std::vector<int32_t> ReplicasIn(const std::string& path);

  RunDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;  // descriptor of the locked file
};

// The coordinator that has `path` locked; nothing where there is none. NotFound: there is no such directory.
absl::StatusOr<std::optional<ProcessId>> RunDirHolder(const std::string& path);

// Replaces `path` by a file of mode 0600 with `contents`: after a crash the file is the old one or the new
// one, whole.
absl::Status WriteFileAtomically(const std::string& path, const std::string& contents);

}  // namespace somnus
