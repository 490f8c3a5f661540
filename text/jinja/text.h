#pragma once
// Python's str functions on UTF-8 strings. Positions count characters, as in Python. Pure functions; thread
// safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus::jinja {

bool IsPySpace(char32_t code);  // str.isspace
int64_t CharCount(absl::string_view s);
// Returns the byte offset of character `index`, clamped to the end.
size_t CharOffset(absl::string_view s, int64_t index);
std::vector<absl::string_view> Characters(absl::string_view s);

// Removes `chars`, or white space where there are none, from the chosen ends.
absl::string_view Strip(absl::string_view s, std::optional<absl::string_view> chars, bool left, bool right);
// Splits at `separator`, which is not empty, or at runs of white space where there is none. At most
// `max_split` splits are made, counted from the right with `from_right`; a negative number is no limit.
std::vector<absl::string_view> Split(absl::string_view s, std::optional<absl::string_view> separator,
                                     int64_t max_split, bool from_right);
std::vector<absl::string_view> SplitLines(absl::string_view s, bool keep_ends);

std::string Upper(absl::string_view s);
std::string Lower(absl::string_view s);
std::string CaseFold(absl::string_view s);
std::string Capitalize(absl::string_view s);
std::string TitleMethod(absl::string_view s);  // str.title
std::string TitleFilter(
    absl::string_view s);  // Jinja's filter: splits at spaces, hyphens and opening brackets
std::string HtmlEscape(absl::string_view s);

// Returns the number of non-overlapping occurrences; an empty needle matches before, between and after all
// characters.
int64_t CountOccurrences(absl::string_view s, absl::string_view needle);
// Replaces the first `max_count` occurrences; a negative number means all.
std::string Replace(absl::string_view s, absl::string_view old_text, absl::string_view new_text,
                    int64_t max_count);

std::string FloatRepr(double value);  // repr(float)
// Python's int(text, base) and float(text); nullopt when the text is no number (or too large for 64 bits).
std::optional<int64_t> ParseInt(absl::string_view text, int base);
std::optional<double> ParseFloat(absl::string_view text);

}  // namespace somnus::jinja
