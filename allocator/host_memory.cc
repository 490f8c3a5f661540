#include "allocator/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cgroup.h"

namespace somnus {
namespace {

constexpr int64_t kUnlimited = int64_t{1} << 62;

// The number after `key` in a file of "key value" lines.
std::optional<int64_t> ReadKey(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

// A file that holds one number; "max" is unlimited.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  if (word == "max") return kUnlimited;
  int64_t value;
  if (!absl::SimpleAtoi(word, &value)) return std::nullopt;
  return std::min(value, kUnlimited);
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* cache_key;  // in memory.stat: file pages that are not in use
};
constexpr CgroupFiles kV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

int64_t LeftIn(const std::string& directory, const CgroupFiles& files) {
  const auto limit = ReadNumber(absl::StrCat(directory, "/", files.limit));
  const auto usage = ReadNumber(absl::StrCat(directory, "/", files.usage));
  if (!limit || !usage || *limit >= kUnlimited) return kUnlimited;
  const int64_t cache = ReadKey(absl::StrCat(directory, "/memory.stat"), files.cache_key).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + cache);
}

int64_t LeftInCgroups(const std::string& root) {
  int64_t left = kUnlimited;
  for (const CgroupDirectory& directory : CgroupsOf("memory", root))
    left = std::min(left, LeftIn(directory.path, directory.is_v2 ? kV2 : kV1));
  return left;
}

}  // namespace

int64_t AvailableHostMemory(const std::string& root) {
  const auto kib = ReadKey(root + "/proc/meminfo", "MemAvailable:");
  const int64_t host = kib ? *kib * 1024 : int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(host, LeftInCgroups(root));
}

}  // namespace somnus
