#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

using PreTokenizerKind = PreTokenizerStep::Kind;

constexpr char kGpt2Pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::array<absl::string_view, 5> kBehaviors = {"Isolated", "Removed", "MergedWithPrevious",
                                                         "MergedWithNext", "Contiguous"};

struct Span {
  size_t begin, end;
  bool match;
};

// Appends matches and the gaps between them, in order.
std::vector<Span> RegexSpans(const Regex& regex, absl::string_view text) {
  std::vector<std::pair<size_t, size_t>> matches;
  regex.FindAll(text, &matches);
  std::vector<Span> spans;
  spans.reserve(matches.size() * 2 + 1);
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (done < begin) spans.push_back({done, begin, false});
    spans.push_back({begin, end, true});
    done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
  return spans;
}

// Appends a match for every character of the class.
template <typename Predicate>
std::vector<Span> CharacterSpans(absl::string_view text, Predicate is_match) {
  std::vector<Span> spans;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    if (is_match(step.code)) {
      if (done < pos) spans.push_back({done, pos, false});
      spans.push_back({pos, pos + step.length, true});
      done = pos + step.length;
    }
    pos += step.length;
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
  return spans;
}

// Joins each match to the span before it, unless that is a match, too.
std::vector<Span> MergeWithPrevious(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool previous_match = false;
  for (const Span& span : spans) {
    if (span.match && !previous_match && !out.empty()) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    previous_match = span.match;
  }
  return out;
}

std::vector<Span> MergeWithNext(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool previous_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->match && !previous_match && !out.empty()) {
      out.back().begin = span->begin;
    } else {
      out.push_back(*span);
    }
    previous_match = span->match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Span> MergeContiguous(const std::vector<Span>& spans) {
  std::vector<Span> out;
  for (const Span& span : spans) {
    if (!out.empty() && out.back().match == span.match) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
  return out;
}

void Emit(std::vector<Span> spans, absl::string_view text, const std::string& behavior, PieceList* list) {
  if (behavior == "MergedWithPrevious") spans = MergeWithPrevious(spans);
  if (behavior == "MergedWithNext") spans = MergeWithNext(spans);
  if (behavior == "Contiguous") spans = MergeContiguous(spans);
  const bool remove = behavior == "Removed";
  for (const Span& span : spans) {
    if (span.begin < span.end && !(remove && span.match)) {
      list->pieces.push_back(text.substr(span.begin, span.end - span.begin));
    }
  }
}

void ApplyMetaspace(const PreTokenizerStep& spec, bool at_start, absl::string_view piece, PieceList* list) {
  using Prepend = PreTokenizerStep::Prepend;
  std::string text = absl::StrReplaceAll(piece, {{" ", spec.pattern}});
  const bool prepend = spec.prepend == Prepend::kAlways || (spec.prepend == Prepend::kFirst && at_start);
  if (prepend && !absl::StartsWith(text, spec.pattern)) text.insert(0, spec.pattern);
  const absl::string_view marked = list->arena.emplace_back(std::move(text));
  for (size_t begin = 0; begin < marked.size();) {
    const size_t next = spec.split ? marked.find(spec.pattern, begin + 1) : absl::string_view::npos;
    const size_t end = std::min(next, marked.size());
    list->pieces.push_back(marked.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(
    const std::vector<PreTokenizerStep>& steps) {
  auto out = std::make_unique<PreTokenizer>();
  for (const PreTokenizerStep& spec : steps) {
    Step step{spec, nullptr};
    if (spec.kind == PreTokenizerKind::kSplit) {
      ASSIGN_OR_RETURN(step.regex, Regex::Compile(spec.pattern, !spec.pattern_is_regex));
    } else if (spec.kind == PreTokenizerKind::kByteLevel && spec.use_regex) {
      ASSIGN_OR_RETURN(step.regex, Regex::Compile(kGpt2Pattern, false));
    }
    if ((spec.kind == PreTokenizerKind::kSplit || spec.kind == PreTokenizerKind::kPunctuation) &&
        std::find(kBehaviors.begin(), kBehaviors.end(), spec.behavior) == kBehaviors.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown split behavior \"", spec.behavior, "\""));
    }
    if (spec.kind == PreTokenizerKind::kMetaspace && spec.pattern.empty()) {
      return absl::InvalidArgumentError("Metaspace replaces spaces by nothing");
    }
    out->steps_.push_back(std::move(step));
  }
  out->byte_pieces_ = !steps.empty() && steps.back().kind == PreTokenizerKind::kByteLevel;
  return out;
}

void PreTokenizer::Split(absl::string_view text, bool at_start, PieceList* list) const {
  list->pieces.clear();
  list->pieces.push_back(text);
  std::vector<absl::string_view> input;
  for (size_t i = 0; i < steps_.size(); ++i) {
    input.swap(list->pieces);
    list->pieces.clear();
    for (const absl::string_view piece : input) {
      const bool first = at_start && piece.data() == text.data();
      Apply(steps_[i], i + 1 == steps_.size(), first, piece, list);
    }
  }
}

void PreTokenizer::Apply(const Step& step, bool last, bool at_start, absl::string_view piece,
                         PieceList* list) const {
  const PreTokenizerStep& spec = step.spec;
  std::vector<Span> spans;
  switch (spec.kind) {
    case PreTokenizerKind::kSplit:
      // An empty literal matches the whole piece once.
      spans = spec.pattern.empty() && !spec.pattern_is_regex ? std::vector<Span>{{0, piece.size(), false}}
                                                             : RegexSpans(*step.regex, piece);
      if (spec.invert) {
        for (Span& span : spans) span.match = !span.match;
      }
      return Emit(std::move(spans), piece, spec.behavior, list);
    case PreTokenizerKind::kDigits:
      return Emit(CharacterSpans(piece, IsNumeric), piece, spec.individual_digits ? "Isolated" : "Contiguous",
                  list);
    case PreTokenizerKind::kWhitespaceSplit:
      return Emit(CharacterSpans(piece, IsWhiteSpace), piece, "Removed", list);
    case PreTokenizerKind::kPunctuation:
      return Emit(CharacterSpans(piece, IsPunctuation), piece, spec.behavior, list);
    case PreTokenizerKind::kMetaspace:
      return ApplyMetaspace(spec, at_start, piece, list);
    case PreTokenizerKind::kByteLevel:
      break;
  }
  if (spec.add_prefix_space && !piece.empty() && piece[0] != ' ') {
    piece = list->arena.emplace_back(absl::StrCat(" ", piece));
  }
  const size_t first = list->pieces.size();
  if (step.regex != nullptr) {
    Emit(RegexSpans(*step.regex, piece), piece, "Isolated", list);
  } else if (!piece.empty()) {
    list->pieces.push_back(piece);
  }
  if (last) return;  // see byte_pieces()
  for (size_t i = first; i < list->pieces.size(); ++i) {
    list->pieces[i] = list->arena.emplace_back(BytesToAlphabet(list->pieces[i]));
  }
}

}  // namespace somnus
