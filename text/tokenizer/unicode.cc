#include "text/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <array>
#include <string>

#include "base/utf8.h"

namespace somnus {
namespace {

struct Alphabet {
  std::array<std::string, 256> to_char;
  std::array<int16_t, 512> to_byte;  // by code point; -1: the character is not part of the alphabet
  Alphabet() {
    to_byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t code = printable ? b : next++;
      AppendUtf8(code, &to_char[b]);
      to_byte[code] = b;
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

const std::string& ByteToAlphabet(uint8_t byte) { return GetAlphabet().to_char[byte]; }

std::string AlphabetToBytes(absl::string_view token) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Step step = DecodeUtf8(token, pos);
    const int byte = step.valid && step.code < alphabet.to_byte.size() ? alphabet.to_byte[step.code] : -1;
    if (byte < 0) return std::string(token);
    bytes.push_back(static_cast<char>(byte));
    pos += step.length;
  }
  return bytes;
}

std::string BytesToAlphabet(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) out += ByteToAlphabet(static_cast<uint8_t>(byte));
  return out;
}

bool IsNumeric(char32_t code) { return (U_GET_GC_MASK(static_cast<UChar32>(code)) & U_GC_N_MASK) != 0; }

bool IsWhiteSpace(char32_t code) { return u_isUWhiteSpace(static_cast<UChar32>(code)); }

bool IsPunctuation(char32_t code) {
  if (code < 0x80) return code > ' ' && code < 0x7F && !u_isalnum(static_cast<UChar32>(code));
  return (U_GET_GC_MASK(static_cast<UChar32>(code)) & U_GC_P_MASK) != 0;
}

bool IsWord(char32_t code) {
  const auto c = static_cast<UChar32>(code);
  if (u_isUAlphabetic(c) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL)) return true;
  return (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

size_t PreviousCharacter(absl::string_view text, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (text[pos] & 0xC0) == 0x80);
  return pos;
}

absl::string_view StripWhiteSpace(absl::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Step step = DecodeUtf8(text, begin);
    if (!IsWhiteSpace(step.code)) break;
    begin += step.length;
  }
  while (right && begin < end) {
    const size_t previous = PreviousCharacter(text, end);
    if (!IsWhiteSpace(DecodeUtf8(text, previous).code)) break;
    end = previous;
  }
  return text.substr(begin, end - begin);
}

}  // namespace somnus
