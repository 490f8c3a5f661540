#include "coordinator/structured/schema_regex.h"

#include <algorithm>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "base/utf8.h"

namespace somnus {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

// Lengths beyond this bound count as unbounded, so that products stay within int64.
constexpr int64_t kLongest = int64_t{1} << 31;
// Sizes of terms end here, so that products of three stay within int64.
constexpr int64_t kLargestSize = int64_t{1} << 20;
// So many characters of a text are groups within each other in what AllBut writes.
constexpr size_t kNestedSteps = 32;
constexpr uint32_t kFirstSurrogate = 0xD800;
constexpr uint32_t kLastSurrogate = 0xDFFF;

Ranges Normalized(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges out;
  for (const auto& [first, last] : ranges) {
    if (first > last) continue;
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.push_back({first, last});
    }
  }
  return out;
}

Ranges Intersected(const Ranges& a, const Ranges& b) {
  Ranges out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t first = std::max(a[i].first, b[j].first);
    const uint32_t last = std::min(a[i].second, b[j].second);
    if (first <= last) out.push_back({first, last});
    a[i].second < b[j].second ? ++i : ++j;
  }
  return out;
}

}  // namespace

CodePointSet CodePointSet::All() {
  CodePointSet set;
  set.ranges_ = {{0, kFirstSurrogate - 1}, {kLastSurrogate + 1, kMaxCodePoint}};
  return set;
}

CodePointSet CodePointSet::Of(Ranges ranges) {
  CodePointSet set;
  set.ranges_ = Intersected(Normalized(std::move(ranges)), All().ranges_);
  return set;
}

CodePointSet CodePointSet::Complement() const {
  Ranges gaps;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) gaps.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kMaxCodePoint) gaps.push_back({next, kMaxCodePoint});
  return Of(std::move(gaps));
}

CodePointSet CodePointSet::Union(const CodePointSet& other) const {
  Ranges all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return Of(std::move(all));
}

CodePointSet CodePointSet::Intersection(const CodePointSet& other) const {
  CodePointSet set;
  set.ranges_ = Intersected(ranges_, other.ranges_);
  return set;
}

bool CodePointSet::Contains(uint32_t code_point) const {
  auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), std::make_pair(code_point, kMaxCodePoint + 1));
  return after != ranges_.begin() && std::prev(after)->second >= code_point;
}

std::vector<uint32_t> CodePoints(absl::string_view utf8) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at < utf8.size();) {
    const Utf8Step step = DecodeUtf8(utf8, at);
    out.push_back(step.code);
    at += step.length;
  }
  return out;
}

struct RegexArena::Automaton {
  // State 0 is the start. next[state]: the sets that lead to each following state.
  std::vector<std::vector<std::pair<int32_t, CodePointSet>>> next;
  std::vector<bool> accepting;
};

RegexArena::RegexArena(int32_t max_terms) : max_terms_(max_terms) {
  RegexTerm nothing;
  Intern(nothing);
  RegexTerm empty;
  empty.kind = RegexTerm::Kind::kEmpty;
  empty.nullable = true;
  Intern(empty);
}

RegexId RegexArena::Intern(RegexTerm term) {
  Key key(static_cast<int>(term.kind), term.chars, term.parts, term.min, term.max);
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  if (static_cast<int32_t>(terms_.size()) >= max_terms_) {
    exhausted_ = true;
    return Nothing();
  }
  const auto id = static_cast<RegexId>(terms_.size());
  term.size = term.chars < 0 ? 1 : 1 + static_cast<int64_t>(sets_[term.chars].ranges().size());
  for (const RegexId part : term.parts) term.size += terms_[part].size;
  term.size = std::min(term.size, kLargestSize);
  terms_.push_back(std::move(term));
  ids_.emplace(std::move(key), id);
  return id;
}

int32_t RegexArena::InternSet(const CodePointSet& set) {
  const auto [found, inserted] = set_ids_.emplace(set.ranges(), static_cast<int32_t>(sets_.size()));
  if (inserted) sets_.push_back(set);
  return found->second;
}

RegexId RegexArena::Chars(const CodePointSet& set) {
  if (set.empty()) return Nothing();
  RegexTerm term;
  term.kind = RegexTerm::Kind::kChars;
  term.chars = InternSet(set);
  return Intern(std::move(term));
}

RegexId RegexArena::AnyString() { return Repeat(Chars(CodePointSet::All()), 0, kNoLimit); }

RegexId RegexArena::Literal(absl::string_view utf8) {
  const std::vector<uint32_t> text = CodePoints(utf8);
  RegexId id = Empty();
  for (auto it = text.rbegin(); it != text.rend(); ++it)
    id = Concat(Chars(CodePointSet::Of({{*it, *it}})), id);
  return id;
}

RegexId RegexArena::Concat(RegexId head, RegexId tail) {
  if (head == Nothing() || tail == Nothing()) return Nothing();
  if (head == Empty()) return tail;
  if (tail == Empty()) return head;
  // Chains lean to the right, so that equal chains are one term.
  std::vector<RegexId> heads;
  while (terms_[head].kind == RegexTerm::Kind::kConcat) {
    heads.push_back(terms_[head].parts[0]);
    head = terms_[head].parts[1];
  }
  heads.push_back(head);
  for (auto it = heads.rbegin(); it != heads.rend(); ++it) {
    RegexTerm term;
    term.kind = RegexTerm::Kind::kConcat;
    term.parts = {*it, tail};
    term.nullable = terms_[*it].nullable && terms_[tail].nullable;
    tail = Intern(std::move(term));
    if (exhausted_) return Nothing();
  }
  return tail;
}

RegexId RegexArena::Union(std::vector<RegexId> parts) {
  std::vector<RegexId> flat;
  CodePointSet chars;
  for (size_t i = 0; i < parts.size(); ++i) {
    const RegexTerm& part = terms_[parts[i]];
    if (part.kind == RegexTerm::Kind::kUnion) {
      const std::vector<RegexId> inner = part.parts;
      parts.insert(parts.end(), inner.begin(), inner.end());
    } else if (part.kind == RegexTerm::Kind::kChars) {
      chars = chars.Union(sets_[part.chars]);
    } else if (part.kind != RegexTerm::Kind::kNothing) {
      flat.push_back(parts[i]);
    }
  }
  if (!chars.empty()) flat.push_back(Chars(chars));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.size() > 1 && flat[0] == Empty()) {
    // A part that has the empty string makes the empty term superfluous.
    for (size_t i = 1; i < flat.size(); ++i) {
      if (!terms_[flat[i]].nullable) continue;
      flat.erase(flat.begin());
      break;
    }
  }
  const RegexId any = terms_.size() > 2 ? AnyString() : Nothing();
  if (any != Nothing() && std::find(flat.begin(), flat.end(), any) != flat.end()) return any;
  if (flat.empty()) return Nothing();
  if (flat.size() == 1) return flat[0];
  RegexTerm term;
  term.kind = RegexTerm::Kind::kUnion;
  for (const RegexId part : flat) term.nullable = term.nullable || terms_[part].nullable;
  term.parts = std::move(flat);
  return Intern(std::move(term));
}

RegexId RegexArena::And(std::vector<RegexId> parts) {
  const RegexId any = AnyString();
  std::vector<RegexId> flat;
  for (size_t i = 0; i < parts.size(); ++i) {
    const RegexTerm& part = terms_[parts[i]];
    if (part.kind == RegexTerm::Kind::kNothing) return Nothing();
    if (part.kind == RegexTerm::Kind::kAnd) {
      const std::vector<RegexId> inner = part.parts;
      parts.insert(parts.end(), inner.begin(), inner.end());
    } else if (parts[i] != any) {
      flat.push_back(parts[i]);
    }
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return any;
  if (flat.size() == 1) return flat[0];
  RegexTerm term;
  term.kind = RegexTerm::Kind::kAnd;
  term.nullable = true;
  for (const RegexId part : flat) term.nullable = term.nullable && terms_[part].nullable;
  if (flat[0] == Empty()) return term.nullable ? Empty() : Nothing();
  term.parts = std::move(flat);
  return Intern(std::move(term));
}

RegexId RegexArena::Not(RegexId part) {
  if (part == Nothing()) return AnyString();
  if (part == AnyString()) return Nothing();
  if (terms_[part].kind == RegexTerm::Kind::kNot) return terms_[part].parts[0];
  RegexTerm term;
  term.kind = RegexTerm::Kind::kNot;
  term.nullable = !terms_[part].nullable;
  term.parts = {part};
  return Intern(std::move(term));
}

RegexId RegexArena::Repeat(RegexId part, int32_t min, int32_t max) {
  if (max == 0 || part == Empty()) return Empty();
  if (part == Nothing()) return min == 0 ? Empty() : Nothing();
  if (min == 1 && max == 1) return part;
  const RegexTerm& inner = terms_[part];
  if (inner.kind == RegexTerm::Kind::kRepeat && inner.min == 0 && inner.max == kNoLimit) return part;
  RegexTerm term;
  term.kind = RegexTerm::Kind::kRepeat;
  term.parts = {part};
  // A part that has the empty string may stand for fewer repetitions.
  term.min = inner.nullable ? 0 : min;
  term.max = max;
  term.nullable = term.min == 0;
  return Intern(std::move(term));
}

RegexId RegexArena::AllBut(const std::vector<std::string>& texts) {
  std::vector<std::vector<uint32_t>> sorted;
  for (const std::string& text : texts) sorted.push_back(CodePoints(text));
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted.empty() ? AnyString() : TrieComplement(sorted, 0, sorted.size(), 0);
}

RegexId RegexArena::TrieComplement(const std::vector<std::vector<uint32_t>>& texts, size_t from, size_t to,
                                   size_t depth) {
  // The characters that all texts have from here on.
  std::vector<TextStep> steps;
  bool ends = false;
  for (;; ++depth) {
    ends = from < to && texts[from].size() == depth;
    if (ends) ++from;
    if (from == to || texts[from][depth] != texts[to - 1][depth]) break;
    steps.push_back({texts[from][depth], ends});
  }
  std::vector<RegexId> choices;
  if (!ends) choices.push_back(Empty());
  Ranges heads;
  for (size_t begin = from; begin < to;) {
    const uint32_t head = texts[begin][depth];
    size_t end = begin;
    while (end < to && texts[end][depth] == head) ++end;
    heads.push_back({head, head});
    choices.push_back(
        Concat(Chars(CodePointSet::Of({{head, head}})), TrieComplement(texts, begin, end, depth + 1)));
    begin = end;
  }
  choices.push_back(Concat(Chars(CodePointSet::Of(heads).Complement()), AnyString()));
  return Leaving(steps, 0, steps.size(), Union(std::move(choices)));
}

// The strings that leave the steps' characters before step `to`, and those that go on from there with `rest`.
// Many steps are divided: w[0..n) is left before n/2, or behind the first half.
RegexId RegexArena::Leaving(const std::vector<TextStep>& steps, size_t from, size_t to, RegexId rest) {
  if (exhausted_) return Nothing();
  if (to - from > kNestedSteps) {
    const size_t middle = from + (to - from) / 2;
    RegexId behind = Leaving(steps, middle, to, rest);
    for (size_t i = middle; i-- > from && !exhausted_;)
      behind = Concat(Chars(CodePointSet::Of({{steps[i].head, steps[i].head}})), behind);
    return Union({Leaving(steps, from, middle, Nothing()), behind});
  }
  for (size_t i = to; i-- > from && !exhausted_;) {
    const CodePointSet head = CodePointSet::Of({{steps[i].head, steps[i].head}});
    rest = Union({steps[i].ends ? Nothing() : Empty(), Concat(Chars(head), rest),
                  Concat(Chars(head.Complement()), AnyString())});
  }
  return rest;
}

RegexId RegexArena::Derivative(RegexId id, uint32_t code_point) {
  const auto key = std::make_pair(id, code_point);
  const auto found = derivatives_.find(key);
  if (found != derivatives_.end()) return found->second;
  const RegexTerm term = terms_[id];
  RegexId out = Nothing();
  switch (term.kind) {
    case RegexTerm::Kind::kNothing:
    case RegexTerm::Kind::kEmpty:
      break;
    case RegexTerm::Kind::kChars:
      out = sets_[term.chars].Contains(code_point) ? Empty() : Nothing();
      break;
    case RegexTerm::Kind::kConcat: {
      const RegexId head = Concat(Derivative(term.parts[0], code_point), term.parts[1]);
      out = terms_[term.parts[0]].nullable ? Union({head, Derivative(term.parts[1], code_point)}) : head;
      break;
    }
    case RegexTerm::Kind::kRepeat:
      out = Concat(
          Derivative(term.parts[0], code_point),
          Repeat(term.parts[0], std::max(term.min - 1, 0), term.max == kNoLimit ? kNoLimit : term.max - 1));
      break;
    case RegexTerm::Kind::kNot:
      out = Not(Derivative(term.parts[0], code_point));
      break;
    case RegexTerm::Kind::kUnion:
    case RegexTerm::Kind::kAnd: {
      std::vector<RegexId> parts;
      for (const RegexId part : term.parts) parts.push_back(Derivative(part, code_point));
      out = term.kind == RegexTerm::Kind::kUnion ? Union(std::move(parts)) : And(std::move(parts));
      break;
    }
  }
  derivatives_.emplace(key, out);
  return out;
}

bool RegexArena::Matches(RegexId id, absl::string_view utf8) {
  for (const uint32_t code_point : CodePoints(utf8)) id = Derivative(id, code_point);
  return terms_[id].nullable;
}

RegexArena::Lengths RegexArena::LengthsOf(RegexId id) const {
  const RegexTerm& term = terms_[id];
  Lengths out;
  switch (term.kind) {
    case RegexTerm::Kind::kNothing:
    case RegexTerm::Kind::kEmpty:
      return {0, 0};
    case RegexTerm::Kind::kChars:
      return {1, 1};
    case RegexTerm::Kind::kConcat: {
      out = {0, 0};
      RegexId rest = id;
      for (bool more = true; more;) {
        more = terms_[rest].kind == RegexTerm::Kind::kConcat;
        const Lengths part = LengthsOf(more ? terms_[rest].parts[0] : rest);
        out.min += part.min;
        out.max = out.max == kNoLimit || part.max == kNoLimit ? kNoLimit : out.max + part.max;
        if (more) rest = terms_[rest].parts[1];
      }
      return out;
    }
    case RegexTerm::Kind::kUnion: {
      out = LengthsOf(term.parts[0]);
      for (const RegexId id_of_part : term.parts) {
        const Lengths part = LengthsOf(id_of_part);
        out.min = std::min(out.min, part.min);
        out.max = out.max == kNoLimit || part.max == kNoLimit ? kNoLimit : std::max(out.max, part.max);
      }
      return out;
    }
    case RegexTerm::Kind::kRepeat: {
      const Lengths part = LengthsOf(term.parts[0]);
      if (part.max == kNoLimit || term.max == kNoLimit || part.max > kLongest / term.max) {
        return {std::min(part.min * term.min, kLongest), kNoLimit};
      }
      return {part.min * term.min, part.max * term.max};
    }
    case RegexTerm::Kind::kAnd:
    case RegexTerm::Kind::kNot:
      return out;
  }
  return out;
}

bool RegexArena::IsPlain(RegexId id) {
  std::vector<RegexId> pending = {id};
  std::vector<bool> seen(terms_.size());
  while (!pending.empty()) {
    const RegexId next = pending.back();
    pending.pop_back();
    if (seen[next]) continue;
    seen[next] = true;
    const RegexTerm& term = terms_[next];
    if (term.kind == RegexTerm::Kind::kAnd || term.kind == RegexTerm::Kind::kNot) return false;
    pending.insert(pending.end(), term.parts.begin(), term.parts.end());
  }
  return true;
}

std::vector<uint32_t> RegexArena::Boundaries(RegexId id) const {
  std::vector<uint32_t> starts = {0, kFirstSurrogate, kLastSurrogate + 1};
  std::vector<RegexId> pending = {id};
  std::vector<bool> seen(terms_.size());
  while (!pending.empty()) {
    const RegexId next = pending.back();
    pending.pop_back();
    if (seen[next]) continue;
    seen[next] = true;
    const RegexTerm& term = terms_[next];
    pending.insert(pending.end(), term.parts.begin(), term.parts.end());
    if (term.kind != RegexTerm::Kind::kChars) continue;
    for (const auto& [first, last] : sets_[term.chars].ranges()) {
      starts.push_back(first);
      if (last < kMaxCodePoint) starts.push_back(last + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  return starts;
}

absl::StatusOr<RegexArena::Automaton> RegexArena::Build(RegexId id, int32_t max_states) {
  const std::vector<uint32_t> starts = Boundaries(id);
  Automaton automaton;
  absl::flat_hash_map<RegexId, int32_t> states = {{id, 0}};
  std::vector<RegexId> order = {id};
  for (size_t state = 0; state < order.size(); ++state) {
    automaton.accepting.push_back(terms_[order[state]].nullable);
    absl::flat_hash_map<int32_t, Ranges> edges;
    std::vector<int32_t> targets;
    for (size_t i = 0; i < starts.size(); ++i) {
      if (starts[i] == kFirstSurrogate) continue;
      const RegexId after = Derivative(order[state], starts[i]);
      if (exhausted_) return absl::ResourceExhaustedError("the pattern is too complex");
      if (after == Nothing()) continue;
      const auto [found, inserted] = states.emplace(after, static_cast<int32_t>(order.size()));
      if (inserted) order.push_back(after);
      if (static_cast<int32_t>(order.size()) > max_states) {
        return absl::ResourceExhaustedError("the pattern is too complex");
      }
      Ranges& edge = edges[found->second];
      if (edge.empty()) targets.push_back(found->second);
      edge.push_back({starts[i], i + 1 < starts.size() ? starts[i + 1] - 1 : kMaxCodePoint});
    }
    automaton.next.emplace_back();
    for (const int32_t target : targets)
      automaton.next.back().push_back({target, CodePointSet::Of(edges[target])});
  }
  return automaton;
}

// Takes the states out of an automaton one by one: the edges past a state take in what led through it. The
// state comes first for which the least text is written again (Delgado and Morais, CIAA 2004): the labels
// grow evenly, so that the term is short, and its groups nest little.
class RegexArena::Elimination {
 public:
  Elimination(const Automaton& automaton, RegexArena* arena)
      : arena_(*arena),
        count_(static_cast<int32_t>(automaton.next.size())),
        out_(automaton.next.size() + 2),
        in_(automaton.next.size() + 2),
        weights_(automaton.next.size()) {
    // Two more states: `count_` before the start, `count_` + 1 after all accepting states.
    for (int32_t state = 0; state < count_; ++state) {
      for (const auto& [target, chars] : automaton.next[state]) Add(state, target, arena_.Chars(chars));
      if (automaton.accepting[state]) Add(state, count_ + 1, arena_.Empty());
    }
    Add(count_, 0, arena_.Empty());
    for (int32_t state = 0; state < count_; ++state) {
      weights_[state] = WeightOf(state);
      order_.insert({weights_[state], state});
    }
  }

  RegexId Run() {
    while (!order_.empty() && !arena_.exhausted()) {
      const int32_t state = order_.begin()->second;
      order_.erase(order_.begin());
      TakeOut(state);
    }
    const auto result = out_[count_].find(count_ + 1);
    return result == out_[count_].end() ? arena_.Nothing() : result->second;
  }

 private:
  void Add(int32_t from, int32_t to, RegexId label) {
    const auto [edge, inserted] = out_[from].emplace(to, label);
    if (!inserted) edge->second = arena_.Union({edge->second, label});
    in_[to].insert(from);
  }

  // How much text is written again when the state is taken out.
  int64_t WeightOf(int32_t state) const {
    const bool loops = out_[state].contains(state);
    const int64_t targets = static_cast<int64_t>(out_[state].size()) - loops;
    const int64_t sources = static_cast<int64_t>(in_[state].size()) - loops;
    int64_t weight = 0;
    for (const auto& [target, label] : out_[state])
      weight += arena_.term(label).size * (target == state ? sources * targets - 1 : sources - 1);
    for (const int32_t source : in_[state]) {
      if (source != state) weight += arena_.term(out_[source].at(state)).size * (targets - 1);
    }
    return weight;
  }

  void TakeOut(int32_t state) {
    const auto loop = out_[state].find(state);
    const RegexId around =
        loop == out_[state].end() ? arena_.Empty() : arena_.Repeat(loop->second, 0, kNoLimit);
    std::vector<int32_t> sources;
    for (const int32_t source : in_[state]) {
      if (source != state) sources.push_back(source);
    }
    std::sort(sources.begin(), sources.end());
    std::vector<std::pair<int32_t, RegexId>> targets;
    for (const auto& [target, label] : out_[state]) {
      if (target != state) targets.push_back({target, arena_.Concat(around, label)});
    }
    std::sort(targets.begin(), targets.end());
    for (const int32_t source : sources) {
      const RegexId entry = out_[source].at(state);
      out_[source].erase(state);
      for (const auto& [target, label] : targets) Add(source, target, arena_.Concat(entry, label));
    }
    for (const auto& [target, unused] : targets) in_[target].erase(state);
    for (const int32_t source : sources) Weigh(source);
    for (const auto& [target, unused] : targets) Weigh(target);
  }

  void Weigh(int32_t state) {
    if (state >= count_) return;
    order_.erase({weights_[state], state});
    weights_[state] = WeightOf(state);
    order_.insert({weights_[state], state});
  }

  RegexArena& arena_;
  const int32_t count_;
  std::vector<absl::flat_hash_map<int32_t, RegexId>> out_;  // by state: the labels of the edges from it
  std::vector<absl::flat_hash_set<int32_t>> in_;            // by state: where edges come from
  std::vector<int64_t> weights_;
  std::set<std::pair<int64_t, int32_t>> order_;  // the states that are left, with their weights
};

absl::StatusOr<RegexId> RegexArena::Plain(RegexId id, int32_t max_states) {
  if (IsPlain(id)) return id;
  absl::StatusOr<Automaton> automaton = Build(id, max_states);
  if (!automaton.ok()) return automaton.status();
  const RegexId plain = Elimination(*automaton, this).Run();
  if (exhausted_) return absl::ResourceExhaustedError("the pattern is too complex");
  return plain;
}

}  // namespace somnus
