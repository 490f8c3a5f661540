#pragma once
// How the values of flags are spelled: one way for times, one for sizes. Pure functions.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace somnus {

// "10s", "500ms", "2m", "1h30m"; a plain number is seconds ("0.5"). InvalidArgument for anything else and for
// what is negative or infinite.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);
// "10s", "1m15s": what ParseTime reads.
std::string FormatTime(absl::Duration time);

// "512MiB", "1.5 GiB", "2G" (1024^3), "2GB" (1000^3); a plain number is bytes. Letter case is ignored.
// InvalidArgument for anything else, and for 2^63 bytes and more.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);
// "32MiB": the largest binary unit that divides `bytes`.
std::string FormatBytes(int64_t bytes);

}  // namespace somnus
