#include "base/utf8.h"

#include <cstring>

namespace somnus {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Whether `second` is in the range that `lead` allows (Unicode, table 3-7), which excludes overlong forms and
// surrogates.
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
    if (text.size() - pos >= 8 && IsAscii(text.substr(pos, 8))) {
      pos += 8;
      continue;
    }
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

void DrainUtf8(std::string* pending, std::string* out, bool each_byte) {
  size_t pos = 0;
  while (pos < pending->size()) {
    const Utf8Step step = DecodeUtf8(*pending, pos);
    if (step.truncated) break;
    if (step.valid) {
      out->append(*pending, pos, step.length);
    } else {
      for (int i = each_byte ? step.length : 1; i > 0; --i) *out += kReplacement;
    }
    pos += step.length;
  }
  pending->erase(0, pos);
}

}  // namespace somnus
