#pragma once
// The memory that an error lacked: a payload of absl::Status, for code that counts bytes instead of reading
// text. Pure functions.

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
  int64_t needed_bytes = 0;   // by everything asked for under the tag
  int64_t missing_bytes = 0;  // the missing part of needed_bytes
  MemoryKind memory = MemoryKind::kDevice;

  bool operator==(const MemoryShortage&) const = default;
};

// How many of `needed_bytes` are missing where `available_bytes` can be had; less than 0 is as none.
int64_t MissingBytes(int64_t needed_bytes, int64_t available_bytes);
// As MissingBytes, after the bytes were refused: if enough seem to be available, a quota or a limit has
// refused, and all are missing.
int64_t MissingOfRefused(int64_t needed_bytes, int64_t available_bytes);
// As MissingBytes, after a part of the bytes was refused with `refusal`. The first shortage in `refusal` says
// how many bytes were available; without a shortage all are missing.
int64_t MissingAfterRefusal(int64_t needed_bytes, const absl::Status& refusal);

// Returns `status`, an error, with `shortages` in the place of earlier shortages.
absl::Status WithShortages(absl::Status status, const std::vector<MemoryShortage>& shortages);
// The shortages in the status; empty where there are no shortages, or where they cannot be read.
std::vector<MemoryShortage> ShortagesOf(const absl::Status& status);
// Sets this tag on every shortage in `status` that has no tag. Errors without shortages stay unchanged.
absl::Status OfTag(const absl::Status& status, absl::string_view tag);

// The payload's text: a line "device 4096 1024 kv_cache" for each, with the bytes needed and missing.
// DecodeShortages reads untrusted text: empty unless every line is right.
std::string EncodeShortages(const std::vector<MemoryShortage>& shortages);
std::vector<MemoryShortage> DecodeShortages(absl::string_view text);

}  // namespace somnus
