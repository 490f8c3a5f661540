#pragma once
// Parsing and printing of flag values: one spelling for times, one for sizes. Pure functions.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace somnus {

// Reads "10s", "500ms", "2m", "1h30m"; a plain number is seconds ("0.5"). InvalidArgument for anything else,
// and for times that are negative or infinite.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);
// Returns what ParseTime reads: "10s", "1m15s".
std::string FormatTime(absl::Duration time);

// Reads "512MiB", "1.5 GiB", "2G" (2 * 1024^3), "2GB" (2 * 1000^3); a plain number is bytes. Letter case is
// ignored. InvalidArgument for anything else, and for 2^63 bytes or more.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);
// Returns "32MiB": `bytes` in the largest binary unit that divides it.
std::string FormatBytes(int64_t bytes);

}  // namespace somnus
