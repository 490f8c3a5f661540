#include "text/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

using NormalizerKind = NormalizerStep::Kind;
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

std::string ToForm(Instance get_instance, std::string text) {
  if (IsAscii(text)) return text;
  if (HasLongCombiningRun(text)) text = DecomposeAndSort(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = get_instance(error);
  SOMNUS_CHECK(U_SUCCESS(error));
  const auto length = static_cast<int32_t>(text.size());
  if (normalizer->isNormalizedUTF8(icu::StringPiece(text.data(), length), error) && U_SUCCESS(error)) {
    return text;
  }
  error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, length);
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), length), sink, nullptr, error);
  return U_SUCCESS(error) ? out : text;
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

std::string ReplaceMatches(const Regex& regex, const std::string& content, absl::string_view text) {
  std::vector<std::pair<size_t, size_t>> matches;
  regex.FindAll(text, &matches);
  std::string out;
  out.reserve(text.size() + matches.size() * content.size());
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    out.append(text.data() + done, begin - done).append(content);
    done = end;
  }
  out.append(text.data() + done, text.size() - done);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  auto out = std::make_unique<Normalizer>();
  for (const NormalizerStep& spec : steps) {
    Step step{spec, nullptr};
    if (spec.kind == NormalizerKind::kReplace) {
      if (spec.pattern.empty()) return absl::InvalidArgumentError("the normalizer replaces an empty pattern");
      if (spec.pattern_is_regex) {
        ASSIGN_OR_RETURN(step.regex, Regex::Compile(spec.pattern, /*literal=*/false));
      }
    }
    out->steps_.push_back(std::move(step));
  }
  return out;
}

std::string Normalizer::Apply(const Step& step, std::string text) {
  switch (step.spec.kind) {
    case NormalizerKind::kNfc:
      return ToForm(&icu::Normalizer2::getNFCInstance, std::move(text));
    case NormalizerKind::kNfd:
      return ToForm(&icu::Normalizer2::getNFDInstance, std::move(text));
    case NormalizerKind::kNfkc:
      return ToForm(&icu::Normalizer2::getNFKCInstance, std::move(text));
    case NormalizerKind::kNfkd:
      return ToForm(&icu::Normalizer2::getNFKDInstance, std::move(text));
    case NormalizerKind::kLowercase:
      return Lowercase(text);
    case NormalizerKind::kPrepend:
      return text.empty() ? text : step.spec.content + text;
    case NormalizerKind::kReplace:
      return step.regex == nullptr ? absl::StrReplaceAll(text, {{step.spec.pattern, step.spec.content}})
                                   : ReplaceMatches(*step.regex, step.spec.content, text);
    case NormalizerKind::kStrip:
      return std::string(StripWhiteSpace(text, step.spec.left, step.spec.right));
  }
  return text;
}

std::string Normalizer::Normalize(absl::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) out = Apply(step, std::move(out));
  return out;
}

}  // namespace somnus
