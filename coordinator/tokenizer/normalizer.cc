#include "coordinator/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"

namespace somnus {
namespace {

using Instance = const icu::Normalizer2* (*)(UErrorCode&);

constexpr int kLongRun = 64;

bool HasLongCombiningRun(absl::string_view text) {
  int run = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    pos += step.length;
    const bool starter =
        step.code < 0x300 ||
        u_getIntPropertyValue(static_cast<UChar32>(step.code), UCHAR_LEAD_CANONICAL_COMBINING_CLASS) == 0;
    run = starter ? 0 : run + 1;
    if (run >= kLongRun) return true;
  }
  return false;
}

// Canonical decomposition, and ordering by an O(n log n) sort: ICU sorts by insertion, whose time is
// quadratic for a long run of marks in the worst order.
std::string DecomposeAndSort(absl::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(error);
  SOMNUS_CHECK(U_SUCCESS(error));
  std::vector<UChar32> codes;
  codes.reserve(text.size() / 2);
  icu::UnicodeString parts;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    pos += step.length;
    if (step.code >= 0xC0 && nfd->getDecomposition(static_cast<UChar32>(step.code), parts)) {
      for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) codes.push_back(parts.char32At(i));
    } else {
      codes.push_back(static_cast<UChar32>(step.code));
    }
  }
  const auto is_starter = [](UChar32 c) { return u_getCombiningClass(c) == 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if_not(begin, codes.end(), is_starter);
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end,
                     [](UChar32 a, UChar32 b) { return u_getCombiningClass(a) < u_getCombiningClass(b); });
    begin = end;
  }
  std::string out;
  out.reserve(text.size());
  for (const UChar32 code : codes) AppendUtf8(static_cast<char32_t>(code), &out);
  return out;
}

std::string Apply(Instance get_instance, absl::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = get_instance(error);
  SOMNUS_CHECK(U_SUCCESS(error));
  const auto length = static_cast<int32_t>(text.size());
  if (normalizer->isNormalizedUTF8(icu::StringPiece(text.data(), length), error) && U_SUCCESS(error)) {
    return std::string(text);
  }
  error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, length);
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), length), sink, nullptr, error);
  return U_SUCCESS(error) ? out : std::string(text);
}

// Maps character by character, without the rules for context (final sigma) of full case mapping.
std::string Lowercase(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    pos += step.length;
    if (step.code == 0x130) {
      out += "i\xCC\x87";
    } else {
      AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(step.code))), &out);
    }
  }
  return out;
}

}  // namespace

std::string Normalizer::Normalize(absl::string_view text) const {
  std::string out(text);
  if ((nfc_ || nfd_ || nfkc_ || nfkd_) && !IsAscii(text)) {
    if (HasLongCombiningRun(out)) out = DecomposeAndSort(out);
    if (nfc_) out = Apply(&icu::Normalizer2::getNFCInstance, out);
    if (nfd_) out = Apply(&icu::Normalizer2::getNFDInstance, out);
    if (nfkc_) out = Apply(&icu::Normalizer2::getNFKCInstance, out);
    if (nfkd_) out = Apply(&icu::Normalizer2::getNFKDInstance, out);
  }
  if (lowercase_) out = Lowercase(out);
  return out;
}

}  // namespace somnus
