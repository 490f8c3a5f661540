#include "proto/group_file.h"

#include <errno.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/run_dir.h"

namespace somnus {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// Keeps the first error; the parser would print it otherwise.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status CheckGroup(const v1::GroupFile& group) {
  if (group.group_epoch() < 0) return absl::DataLossError("group_epoch: is negative");
  if (group.world_size() < 1) return absl::DataLossError("world_size: is less than 1");
  std::set<int32_t> ranks;
  for (const v1::LocalWorker& worker : group.workers()) {
    if (worker.rank() < 0 || worker.rank() >= group.world_size())
      return absl::DataLossError(absl::StrCat("rank: ", worker.rank(), " is not below world_size"));
    if (worker.pid() < 2) return absl::DataLossError(absl::StrCat("pid: ", worker.pid(), " is no worker's"));
    if (!ranks.insert(worker.rank()).second)
      return absl::DataLossError(absl::StrCat("rank: ", worker.rank(), " has two workers"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GroupFile> ReadGroupFile(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  std::ifstream file(path);
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  v1::GroupFile group;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, &group)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", error.text()));
  }
  if (const absl::Status status = CheckGroup(group); !status.ok()) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", status.message()));
  }
  return group;
}

absl::Status WriteGroupFile(const std::string& path, v1::GroupFile group) {
  group.set_boot_id(BootId());
  std::string text;
  google::protobuf::TextFormat::PrintToString(group, &text);
  return WriteFileAtomically(path, text);
}

std::vector<v1::LocalWorker> LiveWorkers(const v1::GroupFile& group) {
  std::vector<v1::LocalWorker> live;
  if (group.boot_id() != BootId()) return live;
  for (const v1::LocalWorker& worker : group.workers()) {
    if (IsRunning(ProcessOf(worker))) live.push_back(worker);
  }
  return live;
}

ProcessId ProcessOf(const v1::LocalWorker& worker) {
  return {.pid = worker.pid(), .start_time = worker.start_time()};
}

}  // namespace somnus
