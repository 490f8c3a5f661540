#include "coordinator/structured/schema_regex_text.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using Kind = RegexTerm::Kind;

// Matches the empty text. Patterns with characters beyond ASCII become grammar rules; xgrammar 0.2.9 makes an
// automaton of all others, which accepts texts that the pattern does not match.
constexpr absl::string_view kByRules = "(?:\u00e9){0}";

// The most repetitions of a part whose branches are rows of characters, and the most branches: they become
// automata (xgrammar_repetitions.h).
constexpr int32_t kMaxCount = 1 << 16;
constexpr size_t kMaxBranches = 32;

// The same of other parts. xgrammar 0.2.9 divides a part that repeats more often in two parts, and a text may
// cross from one part to the other at each of this many places: masks take a hundred milliseconds and more.
constexpr int32_t kMaxCountOfOthers = 128;

// Where a count is larger: the repetitions of a block. Where a block ends, a mask takes as many milliseconds.
constexpr int32_t kBlock = 48;
// By how much the part behind the blocks is longer than a block, at least: within it a text may end anywhere
// while the block ends.
constexpr int32_t kBehindBlocks = 32;

const CodePointSet& Escaped() {
  static const auto* set = new CodePointSet(CodePointSet::Of({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  return *set;
}

// Not \\xHH, after which xgrammar reads further digits.
std::string CodePointText(uint32_t code_point) {
  if (code_point < 128 && absl::ascii_isalnum(code_point))
    return std::string(1, static_cast<char>(code_point));
  if (code_point < 0x10000) return absl::StrFormat("\\u%04x", code_point);
  return absl::StrFormat("\\u{%x}", code_point);
}

// In a class, '^' must not come first, '-' must not come before others, and special characters must not end a
// range.
bool IsSpecial(uint32_t code_point) {
  return code_point == '^' || code_point == '-' || code_point == '[' || code_point == ']' ||
         code_point == '\\';
}

std::string SetText(const CodePointSet& set) {
  const auto& ranges = set.ranges();
  if (ranges.size() == 1 && ranges[0].first == ranges[0].second) {
    const uint32_t only = ranges[0].first;
    const bool bare = only == '-' || !IsSpecial(only);
    return bare ? CodePointText(only) : absl::StrCat("\\", std::string(1, static_cast<char>(only)));
  }
  std::string text = "[";
  std::string last;
  const auto by_itself = [&](uint32_t c) {
    absl::StrAppend(c == '^' || c == '-' ? &last : &text, "\\", std::string(1, static_cast<char>(c)));
  };
  for (auto [first, end] : ranges) {
    for (; first <= end && IsSpecial(first); ++first) by_itself(first);
    for (; first <= end && IsSpecial(end); --end) by_itself(end);
    if (first > end) continue;
    absl::StrAppend(&text, CodePointText(first));
    if (end > first) absl::StrAppend(&text, end > first + 1 ? "-" : "", CodePointText(end));
  }
  return absl::StrCat(text, last, "]");
}

class PatternWriter {
 public:
  PatternWriter(const RegexArena& arena, size_t max_bytes) : arena_(arena), max_bytes_(max_bytes) {}

  absl::StatusOr<std::string> Write(RegexId id) {
    Append(id, /*grouped=*/true);
    if (out_.size() > max_bytes_) return absl::ResourceExhaustedError("the pattern is too large");
    return std::move(out_);
  }

 private:
  // `grouped`: the context keeps an alternation together.
  void Append(RegexId id, bool grouped) {
    if (out_.size() > max_bytes_) return;
    const RegexTerm& term = arena_.term(id);
    switch (term.kind) {
      case Kind::kChars:
        out_ += SetText(arena_.set(term.chars));
        return;
      case Kind::kConcat: {
        RegexId rest = id;
        for (; arena_.term(rest).kind == Kind::kConcat; rest = arena_.term(rest).parts[1]) {
          Append(arena_.term(rest).parts[0], false);
        }
        Append(rest, false);
        return;
      }
      case Kind::kUnion:
        AppendUnion(term, grouped);
        return;
      case Kind::kRepeat: {
        const size_t begin = out_.size();
        AppendAtom(term.parts[0]);
        const std::string atom = out_.substr(begin);
        const int32_t most = IsFlat(term.parts[0]) ? kMaxCount : kMaxCountOfOthers;
        out_.replace(begin, std::string::npos, RepeatText(atom, most, term.min, term.max));
        return;
      }
      case Kind::kEmpty:
      case Kind::kNothing:
      case Kind::kAnd:
      case Kind::kNot:
        return;  // not in a plain term that is not trivial
    }
  }

  void AppendAtom(RegexId id) {
    if (arena_.term(id).kind == Kind::kChars) {
      Append(id, false);
      return;
    }
    out_ += "(?:";
    Append(id, true);
    out_ += ")";
  }

  void AppendUnion(const RegexTerm& term, bool grouped) {
    const bool optional = term.parts[0] == arena_.Empty();
    if (!grouped || optional) out_ += "(?:";
    bool first = true;
    for (const RegexId part : term.parts) {
      if (part == arena_.Empty()) continue;
      if (!first) out_ += "|";
      first = false;
      Append(part, false);
    }
    if (!grouped || optional) out_ += ")";
    if (optional) out_ += "?";
  }

  // `atom` repeated, without any count above `most`. A text goes on in at most a few ways at once.
  static std::string RepeatText(const std::string& atom, int32_t most, int32_t min, int32_t max) {
    if ((max == kNoLimit ? min : max) <= most) return absl::StrCat(atom, CountText(min, max));
    if (max == kNoLimit) return absl::StrCat(Exactly(atom, most, min), atom, "*");
    return absl::StrCat(Exactly(atom, most, min), UpTo(atom, most, max - min));
  }

  static std::string Exactly(const std::string& atom, int32_t most, int32_t count) {
    if (count == 0) return "";
    if (count <= most) return absl::StrCat(atom, CountText(count, count));
    return absl::StrCat(Exactly(BlockOf(atom), kMaxCountOfOthers, count / kBlock),
                        Exactly(atom, most, count % kBlock));
  }

  // Any number of whole blocks, and behind them at least as many single atoms as a block has.
  static std::string UpTo(const std::string& atom, int32_t most, int32_t count) {
    if (count == 0) return "";
    if (count <= most) return absl::StrCat(atom, CountText(0, count));
    const int32_t blocks = (count - kBlock - kBehindBlocks) / kBlock;
    return absl::StrCat(UpTo(BlockOf(atom), kMaxCountOfOthers, blocks), atom,
                        CountText(0, count - blocks * kBlock));
  }

  static std::string BlockOf(const std::string& atom) {
    return absl::StrCat("(?:", atom, CountText(kBlock, kBlock), ")");
  }

  // Whether the text of a part has no groups within.
  bool IsFlat(RegexId id) const {
    const RegexTerm& term = arena_.term(id);
    if (term.kind == Kind::kChars) return true;
    if (term.kind == Kind::kConcat) {
      for (; arena_.term(id).kind == Kind::kConcat; id = arena_.term(id).parts[1]) {
        if (arena_.term(arena_.term(id).parts[0]).kind != Kind::kChars) return false;
      }
      return arena_.term(id).kind == Kind::kChars;
    }
    return term.kind == Kind::kUnion && term.parts.size() <= kMaxBranches &&
           std::all_of(term.parts.begin(), term.parts.end(), [this](RegexId part) {
             return arena_.term(part).kind != Kind::kUnion && IsFlat(part);
           });
  }

  static std::string CountText(int32_t min, int32_t max) {
    if (max == kNoLimit) return min == 0 ? "*" : min == 1 ? "+" : absl::StrCat("{", min, ",}");
    if (min == 0 && max == 1) return "?";
    return min == max ? absl::StrCat("{", min, "}") : absl::StrCat("{", min, ",", max, "}");
  }

  const RegexArena& arena_;
  const size_t max_bytes_;
  std::string out_;
};

// Rewrites a term with other terms in place of its characters.
class CharacterMap {
 public:
  explicit CharacterMap(RegexArena* arena) : arena_(*arena) {}
  virtual ~CharacterMap() = default;

  RegexId Of(RegexId id) {
    if (const auto found = memo_.find(id); found != memo_.end()) return found->second;
    const RegexTerm term = arena_.term(id);
    RegexId out = id;
    switch (term.kind) {
      case Kind::kChars:
        out = Characters(CodePointSet(arena_.set(term.chars)));
        break;
      case Kind::kConcat:
        out = Chain(id);
        break;
      case Kind::kUnion: {
        std::vector<RegexId> parts;
        for (const RegexId part : term.parts) parts.push_back(Of(part));
        out = arena_.Union(std::move(parts));
        break;
      }
      case Kind::kRepeat:
        out = arena_.Repeat(Of(term.parts[0]), term.min, term.max);
        break;
      default:
        break;
    }
    memo_.emplace(id, out);
    return out;
  }

 protected:
  virtual RegexId Characters(const CodePointSet& set) = 0;

  RegexArena& arena_;

 private:
  RegexId Chain(RegexId id) {
    std::vector<RegexId> parts;
    for (; arena_.term(id).kind == Kind::kConcat; id = arena_.term(id).parts[1]) {
      parts.push_back(arena_.term(id).parts[0]);
    }
    RegexId out = Of(id);
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) out = arena_.Concat(Of(*part), out);
    return out;
  }

  absl::flat_hash_map<RegexId, RegexId> memo_;
};

// Rewrites a term over characters as a term over the text of a JSON string.
class JsonText : public CharacterMap {
 public:
  using CharacterMap::CharacterMap;

 private:
  RegexId Characters(const CodePointSet& set) override {
    const CodePointSet escaped = set.Intersection(Escaped());
    if (escaped.empty()) return arena_.Chars(set);
    std::vector<RegexId> choices = {arena_.Chars(set.Intersection(Escaped().Complement()))};
    std::vector<std::pair<uint32_t, uint32_t>> named;
    std::vector<std::pair<uint32_t, uint32_t>> digits[2];
    for (const auto& [first, last] : escaped.ranges()) {
      for (uint32_t c = first; c <= last; ++c) {
        const absl::string_view controls = "\b\f\n\r\t";
        const size_t control = controls.find(static_cast<char>(c));
        const uint32_t name =
            control == absl::string_view::npos ? c : static_cast<uint32_t>("bfnrt"[control]);
        if (c >= 0x20 || control != absl::string_view::npos) {
          named.push_back({name, name});
        } else {
          const uint32_t low = c % 16;
          digits[c / 16].push_back(
              {low < 10 ? '0' + low : 'a' + low - 10, low < 10 ? '0' + low : 'a' + low - 10});
        }
      }
    }
    const RegexId backslash = arena_.Chars(CodePointSet::Of({{'\\', '\\'}}));
    choices.push_back(arena_.Concat(backslash, arena_.Chars(CodePointSet::Of(named))));
    for (int high = 0; high < 2; ++high) {
      const RegexId prefix = arena_.Literal(high == 0 ? "\\u000" : "\\u001");
      choices.push_back(arena_.Concat(prefix, arena_.Chars(CodePointSet::Of(digits[high]))));
    }
    return arena_.Union(std::move(choices));
  }
};

class NoEscapes : public CharacterMap {
 public:
  using CharacterMap::CharacterMap;

 private:
  RegexId Characters(const CodePointSet& set) override {
    return arena_.Chars(set.Intersection(Escaped().Complement()));
  }
};

}  // namespace

absl::StatusOr<std::string> XgrammarPattern(RegexId id, size_t max_bytes, RegexArena* arena) {
  JsonText text(arena);
  const RegexId in_json = text.Of(id);
  if (arena->exhausted()) return absl::ResourceExhaustedError("the pattern is too complex");
  ASSIGN_OR_RETURN(std::string body, PatternWriter(*arena, max_bytes).Write(in_json));
  // Without a group, '^' and '$' would be read as parts of the first and last branch.
  if (arena->term(in_json).kind == Kind::kUnion) body = absl::StrCat("(?:", body, ")");
  return absl::StrCat("^", body, kByRules, "$");
}

RegexId WithoutEscapes(RegexId id, RegexArena* arena) { return NoEscapes(arena).Of(id); }

absl::StatusOr<std::string> PlainPattern(RegexId id, size_t max_bytes, const RegexArena& arena) {
  ASSIGN_OR_RETURN(std::string body, PatternWriter(arena, max_bytes).Write(id));
  return absl::StrCat("^(?:", body, ")", kByRules, "$");
}

}  // namespace somnus
