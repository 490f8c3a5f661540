// The strings of a case: lengths, patterns and formats of all atoms, combined into one language.

#include <algorithm>

#include "base/status_macros.h"
#include "coordinator/structured/schema_case.h"

namespace somnus {
namespace {

struct LengthBounds {
  int64_t min = 0;
  int64_t max = kNoLimit;

  void Raise(int64_t value) { min = std::max(min, value); }
  void Lower(int64_t value) { max = max == kNoLimit ? value : std::min(max, value); }
  bool Hold(const RegexArena::Lengths& lengths) const {
    return lengths.min >= min && (max == kNoLimit || (lengths.max != kNoLimit && lengths.max <= max));
  }
};

// Bounds the lengths of a term's strings without an automaton, where every branch of the term has at most one
// part of variable length, a repetition of single characters.
class LengthCut {
 public:
  LengthCut(const LengthBounds& bounds, RegexArena* arena) : bounds_(bounds), arena_(*arena) {}

  std::optional<RegexId> Cut(RegexId id) {
    std::vector<std::vector<RegexId>> chains = {{}};
    if (!Spread(id, &chains)) return std::nullopt;
    std::vector<RegexId> out;
    for (const std::vector<RegexId>& chain : chains) {
      const std::optional<RegexId> cut = CutChain(chain);
      if (!cut) return std::nullopt;
      out.push_back(*cut);
    }
    return arena_.Union(std::move(out));
  }

 private:
  static constexpr size_t kMaxChains = 64;

  // Appends the parts of `id` to every chain, one chain for each branch within `id`.
  bool Spread(RegexId id, std::vector<std::vector<RegexId>>* chains) {
    const RegexTerm term = arena_.term(id);
    if (term.kind == RegexTerm::Kind::kConcat)
      return Spread(term.parts[0], chains) && Spread(term.parts[1], chains);
    const bool optional = term.kind == RegexTerm::Kind::kRepeat && term.min == 0 && term.max == 1;
    if (term.kind == RegexTerm::Kind::kUnion || optional) {
      const RegexArena::Lengths lengths = arena_.LengthsOf(id);
      if (!optional && lengths.min == lengths.max) {
        for (auto& chain : *chains) chain.push_back(id);
        return true;
      }
      std::vector<RegexId> branches = term.parts;
      if (optional) branches.push_back(arena_.Empty());
      std::vector<std::vector<RegexId>> all;
      for (const RegexId branch : branches) {
        std::vector<std::vector<RegexId>> copy = *chains;
        if (!Spread(branch, &copy)) return false;
        all.insert(all.end(), copy.begin(), copy.end());
        if (all.size() > kMaxChains) return false;
      }
      *chains = std::move(all);
      return true;
    }
    if (id != arena_.Empty()) {
      for (auto& chain : *chains) chain.push_back(id);
    }
    return true;
  }

  std::optional<RegexId> CutChain(const std::vector<RegexId>& chain) {
    int64_t fixed = 0;
    int32_t variable = -1;
    for (size_t i = 0; i < chain.size(); ++i) {
      const RegexArena::Lengths lengths = arena_.LengthsOf(chain[i]);
      if (lengths.min == lengths.max) {
        fixed += lengths.min;
      } else if (variable >= 0) {
        return std::nullopt;
      } else {
        variable = static_cast<int32_t>(i);
      }
    }
    if (bounds_.max != kNoLimit && fixed > bounds_.max) return arena_.Nothing();
    std::vector<RegexId> parts = chain;
    if (variable < 0) {
      if (fixed < bounds_.min) return arena_.Nothing();
    } else {
      const RegexTerm term = arena_.term(chain[variable]);
      if (term.kind != RegexTerm::Kind::kRepeat || arena_.LengthsOf(term.parts[0]).min != 1 ||
          arena_.LengthsOf(term.parts[0]).max != 1) {
        return std::nullopt;
      }
      const int64_t min = std::max<int64_t>(term.min, bounds_.min - fixed);
      int64_t max = term.max;
      if (bounds_.max != kNoLimit)
        max = max == kNoLimit ? bounds_.max - fixed : std::min(max, bounds_.max - fixed);
      if (max != kNoLimit && min > max) return arena_.Nothing();
      parts[variable] = arena_.Repeat(term.parts[0], static_cast<int32_t>(min), static_cast<int32_t>(max));
    }
    RegexId out = arena_.Empty();
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) out = arena_.Concat(*part, out);
    return out;
  }

  const LengthBounds bounds_;
  RegexArena& arena_;
};

class StringLanguage {
 public:
  explicit StringLanguage(GateContext* context) : context_(*context), arena_(context->arena()) {}

  absl::Status Add(const Atom& atom) {
    if (atom.facet == Facet::kHolds) return Hold(atom.node);
    if (atom.facet == Facet::kFails) return Fail(atom);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<RegexId>> Finish() {
    if (bounds_.max != kNoLimit && bounds_.min > bounds_.max) return std::nullopt;
    if (!excluded_.empty()) parts_.push_back(arena_.AllBut(excluded_));
    ASSIGN_OR_RETURN(RegexId language, Plain(arena_.And(parts_)));
    if (language == arena_.Nothing()) return std::nullopt;
    if (bounds_.Hold(arena_.LengthsOf(language))) return language;
    const std::optional<RegexId> cut = LengthCut(bounds_, &arena_).Cut(language);
    if (cut) {
      language = *cut;
    } else {
      const RegexId lengths =
          arena_.Repeat(arena_.Chars(CodePointSet::All()), static_cast<int32_t>(bounds_.min),
                        static_cast<int32_t>(bounds_.max));
      ASSIGN_OR_RETURN(language, Plain(arena_.And({language, lengths})));
    }
    RETURN_IF_ERROR(context_.Spend());
    if (language == arena_.Nothing()) return std::nullopt;
    return language;
  }

 private:
  absl::StatusOr<RegexId> Plain(RegexId id) {
    RETURN_IF_ERROR(context_.Spend(10));
    absl::StatusOr<RegexId> plain = arena_.Plain(id, context_.options().max_regex_states);
    if (plain.ok()) return plain;
    return context_.Refuse(
        node_, keyword_,
        "the combination of patterns, formats and lengths is too complex; put the lengths into the "
        "pattern, or use one pattern");
  }

  absl::Status Hold(const SchemaJson* node) {
    if (const SchemaJson* length = FindMember(*node, "minLength")) bounds_.Raise(CountOf(*length));
    if (const SchemaJson* length = FindMember(*node, "maxLength")) bounds_.Lower(CountOf(*length));
    if (const SchemaJson* pattern = FindMember(*node, "pattern")) {
      ASSIGN_OR_RETURN(const RegexId language,
                       context_.Pattern(node, "pattern", pattern->get_ref<const std::string&>()));
      Note(node, "pattern", language);
    }
    if (FindMember(*node, "format") != nullptr) {
      ASSIGN_OR_RETURN(const RegexId language, context_.Format(node));
      Note(node, "format", language);
    }
    return absl::OkStatus();
  }

  absl::Status Fail(const Atom& atom) {
    const SchemaJson& value = *FindMember(*atom.node, atom.name);
    if (atom.name == "minLength") bounds_.Lower(CountOf(value) - 1);
    if (atom.name == "maxLength") bounds_.Raise(CountOf(value) + 1);
    if (atom.name == "minLength" && CountOf(value) == 0) parts_.push_back(arena_.Nothing());
    if (atom.name == "pattern") {
      ASSIGN_OR_RETURN(const RegexId language,
                       context_.Pattern(atom.node, "pattern", value.get_ref<const std::string&>()));
      Note(atom.node, "pattern", arena_.Not(language));
    }
    if (atom.name == "const" && value.is_string()) excluded_.push_back(value.get<std::string>());
    if (atom.name == "enum") {
      for (const SchemaJson& text : value) {
        if (text.is_string()) excluded_.push_back(text.get<std::string>());
      }
    }
    return absl::OkStatus();
  }

  void Note(const SchemaJson* node, const char* keyword, RegexId language) {
    node_ = node;
    keyword_ = keyword;
    parts_.push_back(language);
  }

  GateContext& context_;
  RegexArena& arena_;
  LengthBounds bounds_;
  std::vector<RegexId> parts_;
  std::vector<std::string> excluded_;
  const SchemaJson* node_ = nullptr;
  const char* keyword_ = "";
};

}  // namespace

absl::StatusOr<std::optional<RegexId>> BuildStrings(const AtomSet& set, GateContext* context) {
  StringLanguage language(context);
  for (const Atom& atom : set.atoms) RETURN_IF_ERROR(language.Add(atom));
  return language.Finish();
}

}  // namespace somnus
