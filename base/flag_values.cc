#include "base/flag_values.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr char kBinaryUnits[] = "KMGT";

// The factor of a unit in lower case; 0 for an unknown unit.
double UnitBytes(absl::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  double binary = 1, decimal = 1;
  for (const char* letter = kBinaryUnits; *letter != '\0'; ++letter) {
    binary *= 1024;
    decimal *= 1000;
    if (unit[0] != absl::ascii_tolower(*letter)) continue;
    const absl::string_view rest = unit.substr(1);
    return rest.empty() || rest == "ib" ? binary : rest == "b" ? decimal : 0;
  }
  return 0;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  absl::Duration time;
  double seconds;
  if (absl::SimpleAtod(text, &seconds)) {
    time = absl::Seconds(seconds);  // infinite for NaN
  } else if (!absl::ParseDuration(text, &time)) {
    return absl::InvalidArgumentError("is not a time like 10s, 500ms or 2m");
  }
  if (time < absl::ZeroDuration() || time == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError("is not a time like 10s, 500ms or 2m");
  }
  return time;
}

std::string FormatTime(absl::Duration time) { return absl::FormatDuration(time); }

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const size_t unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(unit_at)));
  const double factor = UnitBytes(unit);
  double number;
  if (factor == 0 || !absl::SimpleAtod(text.substr(0, unit_at), &number) || !(number * factor < 9.2e18)) {
    return absl::InvalidArgumentError("is not a number of bytes like 4096, 512MiB or 2G");
  }
  return static_cast<int64_t>(number * factor);
}

std::string FormatBytes(int64_t bytes) {
  int power = 0;
  while (bytes != 0 && bytes % 1024 == 0 && kBinaryUnits[power] != '\0') {
    bytes /= 1024;
    ++power;
  }
  if (power == 0) return absl::StrCat(bytes);
  return absl::StrCat(bytes, std::string(1, kBinaryUnits[power - 1]), "iB");
}

}  // namespace somnus
