#pragma once
// NUMA: which CPUs, devices and memory of a host are close to each other, and how pages are placed. Thread
// safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

// The value of --numa: which node's CPUs and memory a worker uses.
struct NumaOption {
  enum class Kind { kAuto, kOff, kNode };
  Kind kind = Kind::kAuto;
  int node = 0;  // of kNode
};
// "auto" or nothing, "off", or a node's number. InvalidArgument for anything else continues a sentence that
// starts with the text.
absl::StatusOr<NumaOption> ParseNumaOption(absl::string_view text);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending; none of a node that has only memory
};

// The host's nodes that are online, by id; none where the kernel tells none. `root` stands before /sys, for
// tests.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// The node that a PCI device is attached to; `bus_id` as in "0000:3b:00.0", in either case. Nothing where the
// device is unknown, or the kernel does not know its node.
std::optional<int> NumaNodeOfPciDevice(absl::string_view bus_id, const std::string& root = "");

// A list in the kernel's notation, "0-3,8"; nothing for malformed text. CpuListText is the other way round,
// for people.
std::optional<std::vector<int>> ParseCpuList(absl::string_view list);
std::string CpuListText(absl::Span<const int> ascending);

// Asks the kernel to take pages of [address, address + bytes), which begins at a page, from `nodes` when they
// are touched for the first time: from a single node, or from several nodes in turns. Where these nodes have
// no memory left, the kernel takes other nodes. Without nodes PlacePages does nothing. An error says why the
// kernel refuses, as some containers do.
absl::Status PlacePages(void* address, int64_t bytes, absl::Span<const int> nodes);
// Ok where PlacePages works in this process, for these nodes.
absl::Status CheckPlacePages(absl::Span<const int> nodes);

}  // namespace somnus
