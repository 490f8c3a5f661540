#include "coordinator/metrics/process_numbers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

// Fields of /proc/[pid]/stat by their number in proc(5), from the third one on: the second is the program's
// name, which may hold anything.
constexpr size_t kFirstField = 3, kUserTicks = 14, kSystemTicks = 15, kStartTicks = 22, kVirtualBytes = 23,
                 kResidentPages = 24;

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// When the system started, in Unix seconds; 0: not known.
double BootTime() {
  const std::string text = ReadAll("/proc/stat");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    double seconds = 0;
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtod(words[1], &seconds)) return seconds;
  }
  return 0;
}

int64_t CountFds() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error))
    ++count;
  return std::max<int64_t>(0, count - 1);  // without the iterator's own
}

int64_t MaxFds() {
  rlimit limit = {};
  const bool has_bound = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return has_bound ? static_cast<int64_t>(limit.rlim_cur) : 0;
}

}  // namespace

absl::StatusOr<ProcessNumbers> ParseProcessStat(absl::string_view stat, double boot_time,
                                                int64_t ticks_per_second, int64_t page_bytes) {
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return absl::InvalidArgumentError("no program's name");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  const auto number = [&](size_t field, int64_t* value) {
    return field - kFirstField < fields.size() && absl::SimpleAtoi(fields[field - kFirstField], value);
  };
  int64_t user = 0, system = 0, start = 0, virtual_bytes = 0, pages = 0;
  if (!number(kUserTicks, &user) || !number(kSystemTicks, &system) || !number(kStartTicks, &start) ||
      !number(kVirtualBytes, &virtual_bytes) || !number(kResidentPages, &pages))
    return absl::InvalidArgumentError("a field is missing, or is no number");
  const auto ticks = static_cast<double>(ticks_per_second);
  return ProcessNumbers{.cpu_seconds = static_cast<double>(user + system) / ticks,
                        .start_time = boot_time + static_cast<double>(start) / ticks,
                        .resident_bytes = pages * page_bytes,
                        .virtual_bytes = virtual_bytes};
}

absl::StatusOr<ProcessNumbers> ReadProcessNumbers() {
  absl::StatusOr<ProcessNumbers> numbers =
      ParseProcessStat(ReadAll("/proc/self/stat"), BootTime(), sysconf(_SC_CLK_TCK), sysconf(_SC_PAGESIZE));
  if (!numbers.ok()) return absl::UnavailableError(numbers.status().message());
  numbers->open_fds = CountFds();
  numbers->max_fds = MaxFds();
  return numbers;
}

}  // namespace somnus
