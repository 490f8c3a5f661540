#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

using DecoderKind = DecoderStep::Kind;

// Returns the byte that a token of a byte_fallback vocabulary stands for ("<0x0A>": 10), or -1.
int FallbackByte(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// The steps of a tokenizer that has no decoder of its own.
std::vector<DecoderStep> DefaultSteps(const TokenizerData& data) {
  std::vector<DecoderStep> steps;
  if (data.byte_fallback) steps.push_back({DecoderKind::kByteFallback});
  const bool byte_level = std::any_of(
      data.pre_tokenizer.begin(), data.pre_tokenizer.end(),
      [](const PreTokenizerStep& step) { return step.kind == PreTokenizerStep::Kind::kByteLevel; });
  if (byte_level) steps.push_back({DecoderKind::kByteLevel});
  return steps;
}

std::string StripStart(std::string text, const DecoderStep& step) {
  size_t begin = 0;
  for (int32_t i = 0; i < step.count && absl::StartsWith(absl::string_view(text).substr(begin), step.content);
       ++i) {
    begin += step.content.size();
  }
  return text.substr(begin);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const TokenizerData& data) {
  auto out = std::make_unique<Decoder>();
  bool fused = false;
  bool byte_level = false;
  for (const DecoderStep& step : data.decoder.empty() ? DefaultSteps(data) : data.decoder) {
    const bool needs_text = (step.kind == DecoderKind::kReplace || step.kind == DecoderKind::kMetaspace) &&
                            (fused || out->byte_fallback_);
    if (needs_text || (fused && step.kind != DecoderKind::kStrip && step.kind != DecoderKind::kFuse)) {
      return absl::UnimplementedError("the decoder changes a text after its bytes or tokens were joined");
    }
    if ((step.kind == DecoderKind::kReplace || step.kind == DecoderKind::kMetaspace) &&
        step.pattern.empty()) {
      return absl::InvalidArgumentError("the decoder replaces an empty pattern");
    }
    if (step.kind == DecoderKind::kStrip && step.content.empty()) continue;
    if (step.kind == DecoderKind::kStrip && fused) {
      if (out->text_start_.count > 0) return absl::UnimplementedError("the decoder strips a text twice");
      out->text_start_ = {step.content, step.count};
      continue;
    }
    fused = fused || step.kind == DecoderKind::kFuse;
    byte_level = byte_level || step.kind == DecoderKind::kByteLevel;
    out->byte_fallback_ = out->byte_fallback_ || step.kind == DecoderKind::kByteFallback;
    out->first_differs_ = out->first_differs_ || (step.kind == DecoderKind::kMetaspace && step.count > 0);
    if (step.kind != DecoderKind::kFuse) out->steps_.push_back(step);
  }
  out->byte_fallback_ = out->byte_fallback_ && !byte_level;
  return out;
}

std::string Decoder::BytesOf(absl::string_view token, bool first) const {
  std::string text(token);
  for (const DecoderStep& step : steps_) {
    switch (step.kind) {
      case DecoderKind::kByteLevel:
        text = AlphabetToBytes(text);
        break;
      case DecoderKind::kReplace:
        text = absl::StrReplaceAll(text, {{step.pattern, step.content}});
        break;
      case DecoderKind::kMetaspace:
        text = absl::StrReplaceAll(text, {{step.pattern, first && step.count > 0 ? "" : " "}});
        break;
      case DecoderKind::kByteFallback:
        if (const int byte = FallbackByte(text); byte >= 0) return std::string(1, static_cast<char>(byte));
        break;
      case DecoderKind::kStrip:
        text = StripStart(std::move(text), step);
        break;
      case DecoderKind::kFuse:
        break;
    }
  }
  return text;
}

}  // namespace somnus
