#pragma once
// UTF-8: decoding, validation, repair. Pure functions; thread safe.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// One decoded character, or the maximal invalid run that Python (and Unicode, table 3-8) replaces by one
// U+FFFD.
struct Utf8Step {
  char32_t code = 0xFFFD;
  uint8_t length = 1;  // bytes consumed, at least 1
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends here
};
// Decodes the character at `pos`, which must be less than text.size().
Utf8Step DecodeUtf8(absl::string_view text, size_t pos);

void AppendUtf8(char32_t code, std::string* out);

// The number of bytes of a character of valid UTF-8 that starts with `lead`.
inline size_t Utf8Length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

bool IsAscii(absl::string_view text);
bool IsUtf8(absl::string_view text);
// The same as Python's bytes.decode("utf-8", errors="replace").
std::string ReplaceInvalidUtf8(absl::string_view bytes);
// Appends the characters of `*pending` to `out`, invalid bytes as U+FFFD, and leaves in `*pending` only a
// character that is not complete yet. `each_byte`: every invalid byte becomes a U+FFFD of its own, as in
// SentencePiece; otherwise a run of bytes that begins a character becomes a single U+FFFD, as in Python.
void DrainUtf8(std::string* pending, std::string* out, bool each_byte = false);

}  // namespace somnus
