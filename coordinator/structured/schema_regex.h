#pragma once
// Regular expressions over code points as hash-consed terms. A RegexArena owns the terms; a term is named by
// a RegexId. Intersection and complement are terms as well, and Brzozowski derivatives (Journal of the ACM
// 11(4), 1964) give matching, emptiness and automata for all of the terms alike. Not thread safe.

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

// A set of code points: sorted, disjoint ranges that do not touch, both ends inclusive. Surrogates are never
// members.
class CodePointSet {
 public:
  CodePointSet() = default;
  static CodePointSet All();
  static CodePointSet Of(std::vector<std::pair<uint32_t, uint32_t>> ranges);

  CodePointSet Complement() const;
  CodePointSet Union(const CodePointSet& other) const;
  CodePointSet Intersection(const CodePointSet& other) const;
  bool Contains(uint32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<std::pair<uint32_t, uint32_t>>& ranges() const { return ranges_; }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

using RegexId = int32_t;
inline constexpr int32_t kNoLimit = -1;

struct RegexTerm {
  enum class Kind { kNothing, kEmpty, kChars, kConcat, kUnion, kRepeat, kAnd, kNot };
  Kind kind = Kind::kNothing;
  bool nullable = false;
  int32_t chars = -1;          // kChars: index of the arena's set
  std::vector<RegexId> parts;  // kConcat: head and tail; kUnion, kAnd: sorted; kRepeat, kNot: one
  int32_t min = 0;             // kRepeat
  int32_t max = kNoLimit;      // kRepeat
  int64_t size = 0;            // of the term's text, about
};

class RegexArena {
 public:
  explicit RegexArena(int32_t max_terms);

  RegexId Nothing() const { return 0; }
  RegexId Empty() const { return 1; }
  RegexId Chars(const CodePointSet& set);
  RegexId AnyString();
  RegexId Literal(absl::string_view utf8);
  RegexId Concat(RegexId head, RegexId tail);
  RegexId Union(std::vector<RegexId> parts);
  RegexId And(std::vector<RegexId> parts);
  RegexId Not(RegexId part);
  RegexId Repeat(RegexId part, int32_t min, int32_t max);
  // All strings but `texts` (UTF-8), without an automaton: the complement of the texts' trie.
  RegexId AllBut(const std::vector<std::string>& texts);

  const RegexTerm& term(RegexId id) const { return terms_[id]; }
  int64_t size() const { return static_cast<int64_t>(terms_.size()); }  // terms
  const CodePointSet& set(int32_t index) const { return sets_[index]; }
  // Whether more than max_terms terms were asked for: all results since then are meaningless.
  bool exhausted() const { return exhausted_; }

  RegexId Derivative(RegexId id, uint32_t code_point);
  bool Matches(RegexId id, absl::string_view utf8);

  // Bounds of the lengths, in code points, of the term's strings; max kNoLimit: none. Exact for terms without
  // kAnd and kNot, which give [0, no limit].
  struct Lengths {
    int64_t min = 0;
    int64_t max = kNoLimit;
  };
  Lengths LengthsOf(RegexId id) const;

  // Returns an equal term without kAnd and kNot, by way of an automaton. ResourceExhausted: more than
  // max_states.
  absl::StatusOr<RegexId> Plain(RegexId id, int32_t max_states);

 private:
  struct Automaton;
  class Elimination;
  struct TextStep {
    uint32_t head;
    bool ends;  // a text ends before the head
  };
  using Key = std::tuple<int, int32_t, std::vector<RegexId>, int32_t, int32_t>;

  RegexId Intern(RegexTerm term);
  int32_t InternSet(const CodePointSet& set);
  bool IsPlain(RegexId id);
  std::vector<uint32_t> Boundaries(RegexId id) const;
  absl::StatusOr<Automaton> Build(RegexId id, int32_t max_states);
  RegexId TrieComplement(const std::vector<std::vector<uint32_t>>& texts, size_t from, size_t to,
                         size_t depth);
  RegexId Leaving(const std::vector<TextStep>& steps, size_t from, size_t to, RegexId rest);

  int32_t max_terms_;
  bool exhausted_ = false;
  std::vector<RegexTerm> terms_;
  std::vector<CodePointSet> sets_;
  absl::flat_hash_map<Key, RegexId> ids_;
  absl::flat_hash_map<std::vector<std::pair<uint32_t, uint32_t>>, int32_t> set_ids_;
  absl::flat_hash_map<std::pair<RegexId, uint32_t>, RegexId> derivatives_;
};

// Returns the code points of `utf8`; a run of bytes that are not UTF-8 becomes U+FFFD.
std::vector<uint32_t> CodePoints(absl::string_view utf8);

}  // namespace somnus
