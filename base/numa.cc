#include "base/numa.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"

namespace somnus {
namespace {

// Constants of linux/mempolicy.h; libnuma would be a dependency for three calls.
constexpr int kPreferred = 1;
constexpr int kInterleave = 3;

constexpr int kMaxNodes = 1024;  // the kernel's own bound
constexpr int kMaxCpus = 1 << 16;
constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;
// The kernel reads one bit less than the given size.
constexpr unsigned long kMaskBits = kMaxNodes + 1;

int ModeFor(absl::Span<const int> nodes) { return nodes.size() == 1 ? kPreferred : kInterleave; }

std::vector<unsigned long> MaskOf(absl::Span<const int> nodes) {
  std::vector<unsigned long> mask(kMaxNodes / kWordBits + 1);
  for (const int node : nodes) {
    if (node >= 0 && node < kMaxNodes) mask[node / kWordBits] |= 1ul << (node % kWordBits);
  }
  return mask;
}

bool IsEmpty(const std::vector<unsigned long>& mask) {
  return std::all_of(mask.begin(), mask.end(), [](unsigned long word) { return word == 0; });
}

}  // namespace

absl::StatusOr<NumaOption> ParseNumaOption(absl::string_view text) {
  if (text.empty() || text == "auto") return NumaOption();
  if (text == "off") return NumaOption{NumaOption::Kind::kOff, 0};
  int node = 0;
  if (absl::SimpleAtoi(text, &node) && node >= 0 && node < kMaxNodes)
    return NumaOption{NumaOption::Kind::kNode, node};
  return absl::InvalidArgumentError(
      absl::StrCat("is neither auto, off nor a NUMA node from 0 to ", kMaxNodes - 1));
}

std::optional<std::vector<int>> ParseCpuList(absl::string_view list) {
  std::vector<int> cpus;
  list = absl::StripAsciiWhitespace(list);
  if (list.empty()) return cpus;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) return std::nullopt;
    if (first < 0 || last < first || last >= kMaxCpus) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string CpuListText(absl::Span<const int> ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", ascending[i]);
    if (end > i + 1) absl::StrAppend(&text, "-", ascending[end - 1]);
    i = end;
  }
  return text;
}

std::vector<NumaNode> ReadNumaNodes(const std::string& root) {
  const std::string directory = root + "/sys/devices/system/node";
  std::vector<NumaNode> nodes;
  const auto ids = ParseCpuList(FirstLine(directory + "/online"));
  for (const int id : ids.value_or(std::vector<int>())) {
    const auto cpus = ParseCpuList(FirstLine(absl::StrCat(directory, "/node", id, "/cpulist")));
    nodes.push_back({id, cpus.value_or(std::vector<int>())});
  }
  return nodes;
}

std::optional<int> NumaNodeOfPciDevice(absl::string_view bus_id, const std::string& root) {
  if (bus_id.empty() || bus_id.find('/') != absl::string_view::npos) return std::nullopt;
  const std::string line =
      FirstLine(absl::StrCat(root, "/sys/bus/pci/devices/", absl::AsciiStrToLower(bus_id), "/numa_node"));
  int node = -1;
  if (!absl::SimpleAtoi(line, &node) || node < 0) return std::nullopt;
  return node;
}

absl::Status PlacePages(void* address, int64_t bytes, absl::Span<const int> nodes) {
  if (nodes.empty() || bytes <= 0) return absl::OkStatus();
  const std::vector<unsigned long> mask = MaskOf(nodes);
  if (IsEmpty(mask)) return absl::UnavailableError("mbind: no node has such a number");
  if (syscall(SYS_mbind, address, bytes, ModeFor(nodes), mask.data(), kMaskBits, 0) == 0)
    return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("mbind: ", strerror(errno)));
}

absl::Status CheckPlacePages(absl::Span<const int> nodes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  void* const data = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return absl::UnavailableError(absl::StrCat("mmap: ", strerror(errno)));
  absl::Status status = PlacePages(data, page, nodes);
  munmap(data, page);
  return status;
}

}  // namespace somnus
