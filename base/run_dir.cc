#include "base/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// A coordinator that was killed a moment ago may still hold the lock, and `somnus stop` holds it for a
// moment.
constexpr absl::Duration kLockPatience = absl::Milliseconds(500);
constexpr absl::Duration kLockPause = absl::Milliseconds(10);
constexpr size_t kMaxSmallFile = 4096;
constexpr size_t kMaxSecretBytes = 512;
constexpr absl::string_view kReplicaPrefix = "replica-";
constexpr absl::string_view kModelPrefix = "model-";
// The length of an encoded name, and of the beginning that a longer name keeps.
constexpr size_t kMaxNameBytes = 24;
constexpr size_t kCutNameBytes = kMaxNameBytes - 17;
static_assert(RunDir::kMaxModelDirBytes == 1 + kModelPrefix.size() + kMaxNameBytes);
constexpr absl::string_view kLongestSocket = "/worker-4194304.sock";  // with the largest process id there is

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--run-dir: ", path, " ", why));
}

absl::Status SystemError(int error, const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(error, absl::StrCat("--run-dir: ", path, ": ", what));
}

absl::Status CheckPrivate(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return SystemError(errno, path, "stat");
  if (!S_ISDIR(info.st_mode)) return Refuse(path, "is no directory");
  if (info.st_uid != geteuid()) {
    return Refuse(path, absl::StrCat("belongs to user ", info.st_uid, ", not to ", geteuid()));
  }
  if ((info.st_mode & 077) != 0) return Refuse(path, "is open to other users; close it with: chmod 700");
  return absl::OkStatus();
}

// Waits a moment for a lock of `operation`. False when somebody else has the lock.
absl::StatusOr<bool> Lock(int file, int operation, const std::string& path) {
  const MonotonicTime deadline = MonotonicNow() + kLockPatience;
  const StopSignal never;
  while (flock(file, operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return SystemError(errno, path, "flock");
    if (MonotonicNow() > deadline) return false;
    never.WaitFor(kLockPause);
  }
  return true;
}

std::string ReadSmall(int file) {
  std::string text(kMaxSmallFile, '\0');
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

// Nothing while the text is being written.
std::optional<ProcessId> ReadHolder(int file) {
  const std::string text = ReadSmall(file);
  const std::vector<absl::string_view> words = absl::StrSplit(absl::StripSuffix(text, "\n"), ' ');
  ProcessId process;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &process.pid) ||
      !absl::SimpleAtoi(words[1], &process.start_time)) {
    return std::nullopt;
  }
  return process;
}

absl::Status WriteAll(int file, absl::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = write(file, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::ErrnoToStatus(errno, "write");
    contents.remove_prefix(static_cast<size_t>(written));
  }
  if (fsync(file) != 0) return absl::ErrnoToStatus(errno, "fsync");
  return absl::OkStatus();
}

// Calls `visit` with the path and the process id of every worker's socket.
void ForEachSocket(const std::string& directory,
                   const std::function<void(const std::filesystem::path&, pid_t)>& visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    absl::string_view digits = name;
    pid_t pid = 0;
    if (!absl::ConsumePrefix(&digits, "worker-") || !absl::ConsumeSuffix(&digits, ".sock")) continue;
    if (absl::SimpleAtoi(digits, &pid)) visit(it->path(), pid);
  }
}

// FNV-1a: the same in every build, since a coordinator finds directories that another coordinator made.
uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// No two names have the same short encoding, and '~' is in none of these.
std::string EncodeName(absl::string_view name) {
  std::string encoded;
  for (const char c : name) {
    if (absl::ascii_isalnum(c) || c == '-') {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "_", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
    }
  }
  if (encoded.size() <= kMaxNameBytes) return encoded;
  return absl::StrCat(encoded.substr(0, kCutNameBytes), "~", absl::Hex(StableHash(name), absl::kZeroPad16));
}

// All but the lock's file.
void RemoveFiles(const std::string& directory) {
  ForEachSocket(directory, [](const std::filesystem::path& socket, pid_t) { unlink(socket.c_str()); });
  for (const char* file : {"coordinator.sock", "secret", "group"})
    unlink(absl::StrCat(directory, "/", file).c_str());
}

// Removes the directory where nothing else is in it.
void RemoveDirectory(const std::string& directory) {
  RemoveFiles(directory);
  unlink(absl::StrCat(directory, "/lock").c_str());
  rmdir(directory.c_str());
}

}  // namespace

absl::StatusOr<RunDir> RunDir::Open(const std::string& given) {
  std::error_code error;
  std::string path = std::filesystem::absolute(given, error).lexically_normal();
  if (error) return absl::InvalidArgumentError(absl::StrCat("--run-dir: ", given, ": ", error.message()));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.size() + kLongestSocket.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--run-dir: ", path, " has more than ",
                                                   kMaxSocketPathBytes - kLongestSocket.size(),
                                                   " bytes: the paths of its sockets would be too long"));
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return SystemError(errno, path, "mkdir");
  RETURN_IF_ERROR(CheckPrivate(path));
  const int file = open(absl::StrCat(path, "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return SystemError(errno, path, "lock");
  RunDir directory(std::move(path), file);
  ASSIGN_OR_RETURN(const bool locked, Lock(file, LOCK_EX, directory.path_));
  if (!locked) {
    const std::optional<ProcessId> holder = ReadHolder(file);
    return absl::FailedPreconditionError(absl::StrCat("--run-dir: another coordinator",
                                                      holder ? absl::StrCat(" (pid ", holder->pid, ")") : "",
                                                      " uses ", directory.path_));
  }
  const ProcessId self = ThisProcess();
  if (ftruncate(file, 0) != 0) return SystemError(errno, directory.path_, "lock");
  if (const absl::Status written = WriteAll(file, absl::StrCat(self.pid, " ", self.start_time, "\n"));
      !written.ok()) {
    return absl::Status(written.code(),
                        absl::StrCat("--run-dir: ", directory.path_, "/lock: ", written.message()));
  }
  return directory;
}

RunDir::RunDir(RunDir&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

RunDir::~RunDir() {
  if (lock_ >= 0) close(lock_);
}

absl::StatusOr<std::string> RunDir::KeepSecret(const std::string& fresh) const {
  const std::string path = path_ + "/secret";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file >= 0) {
    const auto close_file = absl::MakeCleanup([file] { close(file); });
    std::string kept = ReadSmall(file);
    if (!kept.empty() && kept.size() <= kMaxSecretBytes) return kept;
  } else if (errno != ENOENT) {
    return SystemError(errno, path, "open");
  }
  RETURN_IF_ERROR(WriteFileAtomically(path, fresh));
  return fresh;
}

void RunDir::RemoveDeadSockets() const {
  ForEachSocket(path_, [](const std::filesystem::path& socket, pid_t pid) {
    if (!FindProcess(pid).ok()) unlink(socket.c_str());
  });
}

void RunDir::Clear() const { RemoveFiles(path_); }

std::string RunDir::ReplicaPath(const std::string& path, int32_t replica) {
  return absl::StrCat(path, "/", kReplicaPrefix, replica);
}

std::vector<int32_t> RunDir::ReplicasIn(const std::string& path) {
  std::vector<int32_t> replicas;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    absl::string_view digits = name;
    int32_t replica = 0;
    if (!absl::ConsumePrefix(&digits, kReplicaPrefix) || !absl::SimpleAtoi(digits, &replica)) continue;
    if (replica >= 0 && ReplicaPath(path, replica) == it->path()) replicas.push_back(replica);
  }
  std::sort(replicas.begin(), replicas.end());
  return replicas;
}

std::string RunDir::ModelPath(const std::string& path, const std::string& model) {
  return absl::StrCat(path, "/", kModelPrefix, EncodeName(model));
}

std::vector<std::string> RunDir::Models() const {
  std::vector<std::string> models;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const bool is_directory = it->is_directory(ignored) && !it->is_symlink(ignored);
    if (is_directory && absl::StartsWith(it->path().filename().string(), kModelPrefix))
      models.push_back(it->path());
  }
  std::sort(models.begin(), models.end());
  return models;
}

std::vector<std::string> RunDir::GroupPaths(const std::string& path) {
  std::vector<std::string> groups = {GroupPath(path)};
  for (const int32_t replica : ReplicasIn(path)) groups.push_back(GroupPath(ReplicaPath(path, replica)));
  return groups;
}

void RunDir::RemoveReplica(int32_t replica) const { RemoveDirectory(ReplicaPath(path_, replica)); }

void RunDir::RemoveModel(const std::string& path) const {
  for (const int32_t replica : ReplicasIn(path)) RemoveDirectory(ReplicaPath(path, replica));
  RemoveDirectory(path);
}

void RunDir::RemoveGroups() const {
  Clear();
  for (const int32_t replica : Replicas()) RemoveReplica(replica);
  for (const std::string& model : Models()) RemoveModel(model);
}

absl::StatusOr<std::optional<ProcessId>> RunDirHolder(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("--run-dir: there is no directory ", path));
    return SystemError(errno, path, "stat");
  }
  const int file = open(absl::StrCat(path, "/lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    if (errno == ENOENT) return std::nullopt;
    return SystemError(errno, path, "lock");
  }
  const auto close_file = absl::MakeCleanup([file] { close(file); });
  ASSIGN_OR_RETURN(const bool is_free, Lock(file, LOCK_SH, path));
  if (is_free) return std::nullopt;
  const std::optional<ProcessId> holder = ReadHolder(file);
  if (!holder.has_value()) return Refuse(path, "is locked by a process that does not say who it is");
  return holder;
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& contents) {
  const std::string fresh = path + ".new";
  const auto annotate = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return annotate(absl::ErrnoToStatus(errno, "open"));
  const absl::Status written = WriteAll(file, contents);
  close(file);
  if (!written.ok()) return annotate(written);
  if (rename(fresh.c_str(), path.c_str()) != 0) return annotate(absl::ErrnoToStatus(errno, "rename"));
  // The new name, too, has to reach the disk.
  const int directory =
      open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return annotate(absl::ErrnoToStatus(errno, "directory"));
  const bool synced = fsync(directory) == 0;
  const int error = errno;
  close(directory);
  return synced ? absl::OkStatus() : annotate(absl::ErrnoToStatus(error, "fsync"));
}

}  // namespace somnus
