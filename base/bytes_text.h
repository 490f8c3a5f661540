#pragma once
// A number of bytes for people: "22.5 KiB", "63.3 MiB", "1.20 GiB".

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace somnus {

// Exactly 0 is "0.0 MiB".
inline std::string BytesText(int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", number / (int64_t{1} << 30));
  if (bytes > 0 && bytes < 1 << 20) return absl::StrFormat("%.1f KiB", number / (1 << 10));
  return absl::StrFormat("%.1f MiB", number / (1 << 20));
}

}  // namespace somnus
