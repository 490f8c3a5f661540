#include "coordinator/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <array>
#include <cstring>

namespace somnus {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

struct Alphabet {
  std::array<std::string, 256> to_char;
  std::array<int16_t, 512> to_byte;  // by code point; -1: not of the alphabet
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

// The range that the second byte must lie in (Unicode, table 3-7): excludes overlong forms and surrogates.
bool SecondByteOk(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

}  // namespace

Utf8Step DecodeUtf8(absl::string_view text, size_t pos) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data()) + pos;
  const size_t left = text.size() - pos;
  const unsigned char lead = s[0];
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code = lead & (0x7F >> need);
  for (size_t i = 1; i < need; ++i) {
    if (i >= left) return {0xFFFD, static_cast<uint8_t>(i), false, true};
    const bool ok = i == 1 ? SecondByteOk(lead, s[1]) : (s[i] & 0xC0) == 0x80;
    if (!ok) return {0xFFFD, static_cast<uint8_t>(i), false, false};
    code = (code << 6) | (s[i] & 0x3F);
  }
  return {code, static_cast<uint8_t>(need), true, false};
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsAscii(absl::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ull) return false;
  }
  for (; i < text.size(); ++i) {
    if (text[i] & 0x80) return false;
  }
  return true;
}

bool IsUtf8(absl::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    if (!step.valid) return false;
    pos += step.length;
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  std::string pending(bytes), out;
  out.reserve(bytes.size());
  DrainUtf8(&pending, &out);
  if (!pending.empty()) out += kReplacement;
  return out;
}

void DrainUtf8(std::string* pending, std::string* out) {
  size_t pos = 0;
  while (pos < pending->size()) {
    const Utf8Step step = DecodeUtf8(*pending, pos);
    if (step.truncated) break;
    if (step.valid) {
      out->append(*pending, pos, step.length);
    } else {
      *out += kReplacement;
    }
    pos += step.length;
  }
  pending->erase(0, pos);
}

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

}  // namespace somnus
