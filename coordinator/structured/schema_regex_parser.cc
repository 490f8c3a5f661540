#include "coordinator/structured/schema_regex_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

const CodePointSet& Digits() {
  static const auto* set = new CodePointSet(CodePointSet::Of({{'0', '9'}}));
  return *set;
}

const CodePointSet& WordCharacters() {
  static const auto* set =
      new CodePointSet(CodePointSet::Of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}));
  return *set;
}

// WhiteSpace and LineTerminator of ECMA 262.
const CodePointSet& Spaces() {
  static const auto* set = new CodePointSet(CodePointSet::Of({{0x09, 0x0D},
                                                              {0x20, 0x20},
                                                              {0xA0, 0xA0},
                                                              {0x1680, 0x1680},
                                                              {0x2000, 0x200A},
                                                              {0x2028, 0x2029},
                                                              {0x202F, 0x202F},
                                                              {0x205F, 0x205F},
                                                              {0x3000, 0x3000},
                                                              {0xFEFF, 0xFEFF}}));
  return *set;
}

CodePointSet NotLineEnds() {
  return CodePointSet::Of({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement();
}

// A branch of a pattern: what it matches, and whether it is bound to the start or the end of the text.
struct Branch {
  RegexId body;
  bool at_start = false;
  bool at_end = false;
  bool only_anchors = true;
};

class PatternParser {
 public:
  PatternParser(absl::string_view pattern, const RegexLimits& limits, RegexArena* arena)
      : text_(CodePoints(pattern)), limits_(limits), arena_(*arena) {}

  absl::StatusOr<std::vector<Branch>> Parse() {
    ASSIGN_OR_RETURN(std::vector<Branch> branches, Alternatives(0));
    if (at_ < text_.size()) return Error("a ')' has no '('");
    if (arena_.exhausted()) return Error("the pattern is too complex");
    return branches;
  }

 private:
  // An atom, or a group whose branches may have anchors.
  struct Atom {
    std::vector<Branch> branches;
  };

  absl::Status Error(absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat(problem, " (at character ", at_ + 1, " of the pattern)"));
  }
  bool More() const { return at_ < text_.size(); }
  bool Next(uint32_t code_point) const { return More() && text_[at_] == code_point; }
  bool Take(uint32_t code_point) {
    if (!Next(code_point)) return false;
    ++at_;
    return true;
  }

  absl::StatusOr<std::vector<Branch>> Alternatives(int32_t depth) {
    if (depth > limits_.max_depth) return Error("groups are nested too deeply");
    std::vector<Branch> out;
    do {
      ASSIGN_OR_RETURN(std::vector<Branch> branches, Sequence(depth));
      out.insert(out.end(), branches.begin(), branches.end());
      MergeFree(&out);
      if (static_cast<int32_t>(out.size()) > limits_.max_alternatives)
        return Error("too many branches have anchors");
    } while (Take('|'));
    return out;
  }

  // Branches with the same anchors become one, so that only anchors multiply branches.
  void MergeFree(std::vector<Branch>* branches) {
    std::vector<Branch> out;
    for (const Branch& branch : *branches) {
      auto same = std::find_if(out.begin(), out.end(), [&](const Branch& other) {
        return other.at_start == branch.at_start && other.at_end == branch.at_end;
      });
      if (same == out.end()) {
        out.push_back(branch);
      } else {
        same->body = arena_.Union({same->body, branch.body});
        same->only_anchors = same->only_anchors && branch.only_anchors;
      }
    }
    *branches = std::move(out);
  }

  absl::StatusOr<std::vector<Branch>> Sequence(int32_t depth) {
    std::vector<std::vector<Branch>> items;
    while (More() && !Next('|') && !Next(')')) {
      Branch anchor;
      anchor.body = arena_.Empty();
      if (Take('^')) {
        anchor.at_start = true;
        items.push_back({anchor});
      } else if (Take('$')) {
        anchor.at_end = true;
        items.push_back({anchor});
      } else {
        ASSIGN_OR_RETURN(std::vector<Branch> atom, AtomOf(depth));
        RETURN_IF_ERROR(Quantify(&atom));
        items.push_back(std::move(atom));
      }
    }
    return Join(std::move(items));
  }

  // Concatenates from the right, which keeps chains short to build.
  absl::StatusOr<std::vector<Branch>> Join(std::vector<std::vector<Branch>> items) {
    Branch nothing_more;
    nothing_more.body = arena_.Empty();
    std::vector<Branch> out = {nothing_more};
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      std::vector<Branch> joined;
      for (const Branch& head : *item) {
        for (const Branch& tail : out) {
          if ((head.at_end && !tail.only_anchors) || (tail.at_start && !head.only_anchors)) {
            return Error("'^' and '$' are supported only at the ends of a branch");
          }
          Branch both;
          both.body = arena_.Concat(head.body, tail.body);
          both.at_start = head.at_start || tail.at_start;
          both.at_end = head.at_end || tail.at_end;
          both.only_anchors = head.only_anchors && tail.only_anchors;
          joined.push_back(both);
        }
      }
      if (static_cast<int32_t>(joined.size()) > limits_.max_alternatives)
        return Error("too many branches have anchors");
      out = std::move(joined);
      if (arena_.exhausted()) return Error("the pattern is too complex");
    }
    return out;
  }

  std::vector<Branch> Of(const CodePointSet& set) {
    Branch branch;
    branch.body = arena_.Chars(set);
    branch.only_anchors = false;
    return {branch};
  }

  absl::StatusOr<std::vector<Branch>> AtomOf(int32_t depth) {
    const uint32_t head = text_[at_];
    if (head == '*' || head == '+' || head == '?') return Error("there is nothing to repeat");
    if (head == '(') return Group(depth);
    ++at_;
    if (head == '.') return Of(NotLineEnds());
    if (head == '[') {
      ASSIGN_OR_RETURN(const CodePointSet set, Class());
      return Of(set);
    }
    if (head == '\\') {
      ASSIGN_OR_RETURN(const CodePointSet set, Escape(/*in_class=*/false));
      return Of(set);
    }
    return Of(CodePointSet::Of({{head, head}}));
  }

  absl::StatusOr<std::vector<Branch>> Group(int32_t depth) {
    ++at_;
    if (Take('?')) {
      if (Next('=') || Next('!')) return Error("look-ahead is not supported");
      if (Take('<')) {
        if (Next('=') || Next('!')) return Error("look-behind is not supported");
        while (More() && !Next('>')) ++at_;
        if (!Take('>')) return Error("a group's name has no end");
      } else if (!Take(':')) {
        return Error("flags and other modifiers of groups are not supported");
      }
    }
    ASSIGN_OR_RETURN(std::vector<Branch> branches, Alternatives(depth + 1));
    if (!Take(')')) return Error("a '(' has no ')'");
    // A group that has nothing but the empty text still separates anchors from text.
    return branches;
  }

  absl::Status Quantify(std::vector<Branch>* atom) {
    int32_t min = 1;
    int32_t max = 1;
    if (Take('*')) {
      min = 0;
      max = kNoLimit;
    } else if (Take('+')) {
      max = kNoLimit;
    } else if (Take('?')) {
      min = 0;
    } else if (Next('{')) {
      ASSIGN_OR_RETURN(const bool counted, Count(&min, &max));
      if (!counted) return absl::OkStatus();  // a brace that is plain text
    } else {
      return absl::OkStatus();
    }
    Take('?');  // lazy: the same language
    if (Next('*') || Next('+') || Next('?')) return Error("a repetition is repeated");
    std::vector<Branch> merged = *atom;
    MergeFree(&merged);
    if (merged.size() != 1 || merged[0].at_start || merged[0].at_end) {
      return Error("a group with '^' or '$' is repeated");
    }
    merged[0].body = arena_.Repeat(merged[0].body, min, max);
    merged[0].only_anchors = false;
    *atom = std::move(merged);
    return absl::OkStatus();
  }

  absl::StatusOr<int32_t> Number() {
    int64_t value = 0;
    while (More() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > limits_.max_repeat) {
        return Error(absl::StrCat("a repetition has a count above ", limits_.max_repeat));
      }
    }
    return static_cast<int32_t>(value);
  }

  bool AtDigit() const { return More() && text_[at_] >= '0' && text_[at_] <= '9'; }

  // Whether a count stands here; without one, the brace is text (ECMA 262, annex B).
  absl::StatusOr<bool> Count(int32_t* min, int32_t* max) {
    const size_t from = at_++;
    if (AtDigit()) {
      ASSIGN_OR_RETURN(*min, Number());
      *max = *min;
      if (Take(',')) {
        *max = kNoLimit;
        if (AtDigit()) {
          ASSIGN_OR_RETURN(*max, Number());
        }
      }
      if (Take('}')) {
        if (*max != kNoLimit && *max < *min) return Error("a repetition's bounds are in the wrong order");
        return true;
      }
    }
    at_ = from;
    return false;
  }

  absl::StatusOr<CodePointSet> Class() {
    const bool negated = Take('^');
    CodePointSet set;
    while (!Next(']')) {
      if (!More()) return Error("a '[' has no ']'");
      ASSIGN_OR_RETURN(const CodePointSet first, ClassItem());
      if (Next('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        ASSIGN_OR_RETURN(const CodePointSet last, ClassItem());
        ASSIGN_OR_RETURN(const CodePointSet range, Range(first, last));
        set = set.Union(range);
      } else {
        set = set.Union(first);
      }
    }
    ++at_;
    return negated ? set.Complement() : set;
  }

  absl::StatusOr<CodePointSet> Range(const CodePointSet& first, const CodePointSet& last) const {
    const auto single = [](const CodePointSet& set) {
      return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
    };
    if (!single(first) || !single(last)) return Error("an end of a range is not one character");
    if (first.ranges()[0].first > last.ranges()[0].first)
      return Error("a range has its ends in the wrong order");
    return CodePointSet::Of({{first.ranges()[0].first, last.ranges()[0].first}});
  }

  absl::StatusOr<CodePointSet> ClassItem() {
    if (!More()) return Error("a '[' has no ']'");
    const uint32_t head = text_[at_++];
    if (head == '\\') return Escape(/*in_class=*/true);
    if (head == '[' && (Next(':') || Next('.') || Next('='))) return Error("POSIX classes are not supported");
    return CodePointSet::Of({{head, head}});
  }

  absl::StatusOr<uint32_t> Hex(int32_t min_digits, int32_t max_digits) {
    uint32_t value = 0;
    int32_t digits = 0;
    for (; digits < max_digits && More() && text_[at_] < 128 && absl::ascii_isxdigit(text_[at_]);
         ++digits, ++at_) {
      const uint32_t c = text_[at_];
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (digits < min_digits) return Error("an escape lacks hexadecimal digits");
    return value;
  }

  absl::StatusOr<uint32_t> UnicodeEscape() {
    uint32_t value;
    if (Take('{')) {
      ASSIGN_OR_RETURN(value, Hex(1, 6));
      if (!Take('}')) return Error("an escape \\u{ has no }");
    } else {
      ASSIGN_OR_RETURN(value, Hex(4, 4));
      if (value >= 0xD800 && value < 0xDC00 && Next('\\') && at_ + 1 < text_.size() &&
          text_[at_ + 1] == 'u') {
        at_ += 2;
        ASSIGN_OR_RETURN(const uint32_t low, Hex(4, 4));
        if (low < 0xDC00 || low > 0xDFFF) return Error("an escape is half of a surrogate pair");
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
      }
    }
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("an escape names no character");
    }
    return value;
  }

  static std::optional<CodePointSet> ClassEscape(uint32_t name) {
    switch (name) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordCharacters();
      case 'W':
        return WordCharacters().Complement();
      case 's':
        return Spaces();
      case 'S':
        return Spaces().Complement();
      default:
        return std::nullopt;
    }
  }

  absl::StatusOr<CodePointSet> Escape(bool in_class) {
    if (!More()) return Error("the pattern ends with a backslash");
    const uint32_t name = text_[at_++];
    if (const std::optional<CodePointSet> set = ClassEscape(name)) return *set;
    ASSIGN_OR_RETURN(const uint32_t value, EscapedCharacter(name, in_class));
    return CodePointSet::Of({{value, value}});
  }

  absl::StatusOr<uint32_t> EscapedCharacter(uint32_t name, bool in_class) {
    switch (name) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'v':
        return '\v';
      case 'f':
        return '\f';
      case 'r':
        return '\r';
      case 'x':
        return Hex(2, 2);
      case 'u':
        return UnicodeEscape();
      case '0':
        if (AtDigit()) return Error("octal escapes are not supported");
        return 0;
      case 'c':
        if (!More() || text_[at_] >= 128 || !absl::ascii_isalpha(text_[at_]))
          return Error("\\c lacks a letter");
        return text_[at_++] % 32;
      case 'b':
        if (in_class) return '\b';
        return Error("word boundaries are not supported");
      case 'B':
        return Error("word boundaries are not supported");
      case 'p':
      case 'P':
        return Error("Unicode properties (\\p) are not supported");
      case 'k':
        return Error("back references are not supported");
      default:
        break;
    }
    if (name >= '1' && name <= '9') return Error("back references are not supported");
    if (name < 128 && absl::ascii_isalpha(name)) {
      return Error(
          absl::StrCat("the escape \\", std::string(1, static_cast<char>(name)), " is not of ECMA 262"));
    }
    return name;
  }

  const std::vector<uint32_t> text_;
  const RegexLimits& limits_;
  RegexArena& arena_;
  size_t at_ = 0;
};

absl::StatusOr<RegexId> ParseBranches(absl::string_view pattern, const RegexLimits& limits, bool search,
                                      RegexArena* arena) {
  if (pattern.size() > static_cast<size_t>(limits.max_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern has more than ", limits.max_bytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::vector<Branch> branches, PatternParser(pattern, limits, arena).Parse());
  std::vector<RegexId> out;
  for (const Branch& branch : branches) {
    RegexId body = branch.body;
    if (search && !branch.at_start) body = arena->Concat(arena->AnyString(), body);
    if (search && !branch.at_end) body = arena->Concat(body, arena->AnyString());
    out.push_back(body);
  }
  const RegexId all = arena->Union(std::move(out));
  if (arena->exhausted()) return absl::InvalidArgumentError("the pattern is too complex");
  return all;
}

}  // namespace

absl::StatusOr<RegexId> ParsePattern(absl::string_view pattern, const RegexLimits& limits,
                                     RegexArena* arena) {
  return ParseBranches(pattern, limits, /*search=*/true, arena);
}

absl::StatusOr<RegexId> ParseWholePattern(absl::string_view pattern, const RegexLimits& limits,
                                          RegexArena* arena) {
  return ParseBranches(pattern, limits, /*search=*/false, arena);
}

}  // namespace somnus
