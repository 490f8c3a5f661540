#include "base/cgroup.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"

namespace somnus {
namespace {

// Appends `mount`, and below `mount` every directory on the way to `path`.
void AppendHierarchy(const std::string& mount, std::string path, bool is_v2,
                     std::vector<CgroupDirectory>* directories) {
  directories->push_back({is_v2, mount});
  while (path.size() > 1) {
    directories->push_back({is_v2, mount + path});
    path.resize(path.rfind('/'));
  }
}

// The words of a file's first line.
std::vector<std::string> ReadWords(const std::string& path) {
  const std::string line = FirstLine(path);
  return absl::StrSplit(line, ' ', absl::SkipEmpty());
}

// 0 where there is no quota: "max", -1, and a missing file.
double QuotaIn(const CgroupDirectory& directory) {
  std::vector<std::string> words;
  if (directory.is_v2) {
    words = ReadWords(absl::StrCat(directory.path, "/cpu.max"));
  } else {
    for (const char* name : {"/cpu.cfs_quota_us", "/cpu.cfs_period_us"}) {
      for (std::string& word : ReadWords(absl::StrCat(directory.path, name)))
        words.push_back(std::move(word));
    }
  }
  double quota = 0, period = 0;
  const bool is_read =
      words.size() == 2 && absl::SimpleAtod(words[0], &quota) && absl::SimpleAtod(words[1], &period);
  return is_read && quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<CgroupDirectory> CgroupsOf(absl::string_view controller, const std::string& root) {
  std::vector<CgroupDirectory> directories;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // hierarchy:controllers:path
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      AppendHierarchy(root + "/sys/fs/cgroup", parts[2], /*is_v2=*/true, &directories);
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      AppendHierarchy(absl::StrCat(root, "/sys/fs/cgroup/", controller), parts[2], /*is_v2=*/false,
                      &directories);
    }
  }
  return directories;
}

double CpuQuota(const std::string& root) {
  double least = 0;
  for (const CgroupDirectory& directory : CgroupsOf("cpu", root)) {
    const double quota = QuotaIn(directory);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return least;
}

}  // namespace somnus
