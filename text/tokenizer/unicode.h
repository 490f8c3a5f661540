#pragma once
// The byte alphabet of GPT-2 and classes of characters. Pure functions; thread safe.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Returns the printable character that stands for `byte` in a byte-level vocabulary, as UTF-8.
const std::string& ByteToAlphabet(uint8_t byte);
// Returns the bytes that `token` stands for; the token's own bytes if a character is not part of the
// alphabet.
std::string AlphabetToBytes(absl::string_view token);
std::string BytesToAlphabet(absl::string_view bytes);

bool IsNumeric(char32_t code);      // Nd, Nl, No
bool IsWhiteSpace(char32_t code);   // the White_Space property
bool IsPunctuation(char32_t code);  // ASCII punctuation and categories P*
bool IsWord(char32_t code);         // \w of Unicode regular expressions (UTS 18)

// The start of the character that ends at `pos` > 0 of valid UTF-8.
size_t PreviousCharacter(absl::string_view text, size_t pos);
// `text` (valid UTF-8) without the white space at its ends.
absl::string_view StripWhiteSpace(absl::string_view text, bool left, bool right);

}  // namespace somnus
