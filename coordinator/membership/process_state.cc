#include "coordinator/membership/process_state.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace somnus {

std::string WhyNotRunning(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  // "77 (name) S ...": the name may have parentheses itself.
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return "";
  switch (stat[name_end + 2]) {
    case 'T':
      return "it is stopped by a signal";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it waits for a disk or a device";
    case 'Z':
    case 'X':
      return "it has ended";
    default:
      return "";
  }
}

}  // namespace somnus
