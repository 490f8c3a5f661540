#include "coordinator/residency/state_report.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace somnus {
namespace {

constexpr size_t kMaxReasonBytes = 250;

// Without a line break and the full stop at the end, and within the bound.
std::string Shortened(absl::string_view reason) {
  absl::ConsumeSuffix(&reason, ".");
  const bool is_cut = reason.size() > kMaxReasonBytes;
  std::string whole(reason.substr(0, kMaxReasonBytes));
  for (char& c : whole) c = c == '\n' ? ' ' : c;
  if (!is_cut) return whole;
  std::string valid;
  DrainUtf8(&whole, &valid);  // leaves out a character that the cut has split
  return valid + "...";
}

}  // namespace

std::string StateReport::Line() const {
  if (serving()) return "";
  return absl::StrCat(what, " Why: ", Shortened(why),
                      ". Since: ", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", since, absl::UTCTimeZone()),
                      ". Way out: ", way_out, ".");
}

}  // namespace somnus
