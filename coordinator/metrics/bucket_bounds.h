#pragma once
// How the bounds of histograms' buckets are spelled in Prometheus' text. Pure.
//
// vLLM's server writes le="1.0" and le="1e+06" where prometheus-cpp writes le="1" and le="1000000". To
// Prometheus these are different labels, so that a dashboard which asks for one bucket by its bound, as
// vLLM's do for a service level, would find nothing. Somnus spells bounds as vLLM does.

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {

// `bound` as vLLM's client library writes the number: whole numbers get a fraction, from a million on an
// exponent. Any other spelling stays as it is.
inline std::string BoundAsVllm(absl::string_view bound) {
  constexpr size_t kMostDigits = 6;
  if (bound.empty() || !std::all_of(bound.begin(), bound.end(), absl::ascii_isdigit))
    return std::string(bound);
  if (bound.size() <= kMostDigits) return absl::StrCat(bound, ".0");
  std::string mantissa = absl::StrCat(bound.substr(0, 1), ".", bound.substr(1));
  mantissa.erase(mantissa.find_last_not_of("0.") + 1);
  return absl::StrCat(mantissa, "e+0", bound.size() - 1);
}

// `text`, as prometheus::TextSerializer writes it, with these bounds. There `le` is a bucket's last label,
// and quotes within other labels are escaped.
inline std::string WithBoundsAsVllm(absl::string_view text) {
  constexpr absl::string_view kBegin = "le=\"", kEnd = "\"} ";
  std::string result;
  result.reserve(text.size() + text.size() / 16);
  while (true) {
    const size_t begin = text.find(kBegin);
    if (begin == absl::string_view::npos) break;
    const size_t bound = begin + kBegin.size(), end = text.find('"', bound);
    if (end == absl::string_view::npos) break;
    const bool is_bucket =
        begin > 0 && (text[begin - 1] == ',' || text[begin - 1] == '{') && text.substr(end, 3) == kEnd;
    absl::StrAppend(&result, text.substr(0, bound));
    const absl::string_view number = text.substr(bound, end - bound);
    absl::StrAppend(&result, is_bucket ? BoundAsVllm(number) : std::string(number));
    text.remove_prefix(end);
  }
  absl::StrAppend(&result, text);
  return result;
}

}  // namespace somnus
