#pragma once
// Which memory an error lacked: a payload of absl::Status, for whoever counts bytes instead of reading text.
// Pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

// kDevice: of regions, also where that is the host's. kHost and kDisk: of backups.
enum class MemoryKind { kDevice, kHost, kDisk };
const char* MemoryKindName(MemoryKind kind);  // "device", "host", "disk"

struct MemoryShortage {
  std::string tag = {};       // empty: of no region
  int64_t needed_bytes = 0;   // by all that was asked for under the tag
  int64_t missing_bytes = 0;  // of them
  MemoryKind memory = MemoryKind::kDevice;

  bool operator==(const MemoryShortage&) const = default;
};

// How many of `needed_bytes` are missing where `available_bytes` can be had; less than 0 is as none.
int64_t MissingBytes(int64_t needed_bytes, int64_t available_bytes);
// Likewise where they were refused: if enough seem to be available, a quota or a limit has refused them, and
// all are missing.
int64_t MissingOfRefused(int64_t needed_bytes, int64_t available_bytes);
// Likewise after `refusal`, of a part of them, whose first shortage says what could have been had; all are
// missing where it has none.
int64_t MissingAfterRefusal(int64_t needed_bytes, const absl::Status& refusal);

// Returns `status`, an error, with these in the place of what it had.
absl::Status WithShortages(absl::Status status, const std::vector<MemoryShortage>& shortages);
// What the status says; empty where it says nothing, or what cannot be read.
std::vector<MemoryShortage> ShortagesOf(const absl::Status& status);
// Of shortages that have no tag it is this one. Other errors stay as they are.
absl::Status OfTag(const absl::Status& status, absl::string_view tag);

// The payload's text: a line "device 4096 1024 kv_cache" for each, with the bytes needed and missing. A
// parser of what anybody may have written: empty unless every line is right.
std::string EncodeShortages(const std::vector<MemoryShortage>& shortages);
std::vector<MemoryShortage> DecodeShortages(absl::string_view text);

}  // namespace somnus
