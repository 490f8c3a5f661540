// The numbers of a case: bounds and divisors of all atoms, combined.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/structured/schema_case.h"

namespace somnus {
namespace {

// xgrammar enforces divisors up to this bound, and within ranges only where the range has at most so many
// integers.
constexpr int64_t kMaxDivisor = 1024;
constexpr int64_t kMaxDividedRange = 10'000;

// Beyond this bound xgrammar's patterns of ranges leave numbers out.
constexpr long double kMaxBound = 1e15L;

struct Bound {
  SchemaJson value;
  bool open = false;

  bool operator==(const Bound& other) const { return value == other.value && open == other.open; }
};

class NumberBounds {
 public:
  explicit NumberBounds(GateContext* context) : context_(*context) {}

  absl::Status Add(const Atom& atom) {
    if (atom.facet == Facet::kHolds) return Hold(*atom.node, atom.node);
    if (atom.facet == Facet::kFails) return Fail(atom);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<NumberPart>> Finish(TypeSet types) {
    NumberPart part;
    part.whole = (types & kFractionType) == 0 || divisor_ > 1 || whole_by_divisor_;
    if (part.whole && (types & kWholeType) == 0) return std::nullopt;  // a divisor divides no fraction
    if (!part.whole && (types & kWholeType) == 0) {
      return context_.Refuse(node_, "not",
                             "numbers that are not whole cannot be enforced; allow all numbers");
    }
    if (low_ && high_) {
      const long double low = NumberOf(low_->value);
      const long double high = NumberOf(high_->value);
      if (low > high || (low == high && (low_->open || high_->open))) return std::nullopt;
    }
    if (part.whole) return FinishWhole(part);
    if (fraction_ != nullptr) {
      return context_.Refuse(
          fraction_, "multipleOf",
          "fractions are not enforced; use a whole number, or \"type\": \"integer\" for a count of "
          "the smallest unit");
    }
    for (const std::optional<Bound>& bound : {low_, high_}) {
      if (!bound || std::abs(NumberOf(bound->value)) <= kMaxBound) continue;
      return context_.Refuse(node_, bound == low_ ? "minimum" : "maximum",
                             "bounds of numbers beyond 1e15 are not enforced exactly; leave the bound out");
    }
    if (low_) part.low = low_->value;
    if (high_) part.high = high_->value;
    part.low_open = low_ && low_->open;
    part.high_open = high_ && high_->open;
    return part;
  }

 private:
  void Raise(const SchemaJson& value, bool open) {
    if (!low_ || NumberOf(value) > NumberOf(low_->value)) {
      low_ = Bound{value, open};
    } else if (NumberOf(value) == NumberOf(low_->value)) {
      low_->open = low_->open || open;
    }
  }
  void Lower(const SchemaJson& value, bool open) {
    if (!high_ || NumberOf(value) < NumberOf(high_->value)) {
      high_ = Bound{value, open};
    } else if (NumberOf(value) == NumberOf(high_->value)) {
      high_->open = high_->open || open;
    }
  }
  static bool Flag(const SchemaJson& node, const char* keyword) {
    const SchemaJson* flag = FindMember(node, keyword);
    return flag != nullptr && flag->is_boolean() && flag->get<bool>();
  }

  absl::Status Hold(const SchemaJson& schema, const SchemaJson* node) {
    if (node_ == nullptr) node_ = node;
    const auto number = [&](const char* keyword) {
      const SchemaJson* value = FindMember(schema, keyword);
      return value != nullptr && value->is_number() ? value : nullptr;
    };
    if (const SchemaJson* value = number("minimum")) Raise(*value, Flag(schema, "exclusiveMinimum"));
    if (const SchemaJson* value = number("maximum")) Lower(*value, Flag(schema, "exclusiveMaximum"));
    if (const SchemaJson* value = number("exclusiveMinimum")) Raise(*value, true);
    if (const SchemaJson* value = number("exclusiveMaximum")) Lower(*value, true);
    const SchemaJson* divisor = number("multipleOf");
    return divisor == nullptr ? absl::OkStatus() : Divide(*divisor, node);
  }

  absl::Status Divide(const SchemaJson& divisor, const SchemaJson* node) {
    const long double value = NumberOf(divisor);
    if (std::floor(value) != value) {
      // A divisor such as 0.01 divides every integer.
      for (long double power = 10; power < 1e10L; power *= 10) {
        const long double numerator = std::round(value * power);
        if (static_cast<double>(numerator / power) != static_cast<double>(value) || numerator < 1) continue;
        if (std::fmod(power, numerator) == 0) {
          fraction_ = node;
          return absl::OkStatus();
        }
      }
      return context_.Refuse(node, "multipleOf",
                             "only whole numbers and fractions that divide 1 are supported");
    }
    if (value > 1e9L || divisor_ > 1'000'000'000) {
      return context_.Refuse(node, "multipleOf", "the divisor is too large");
    }
    whole_by_divisor_ = true;
    divisor_ = std::lcm(divisor_, static_cast<int64_t>(value));
    divided_ = node;
    return absl::OkStatus();
  }

  absl::Status Fail(const Atom& atom) {
    const SchemaJson& value = *FindMember(*atom.node, atom.name);
    if (node_ == nullptr) node_ = atom.node;
    if (atom.name == "minimum") Lower(value, !Flag(*atom.node, "exclusiveMinimum"));
    if (atom.name == "maximum") Raise(value, !Flag(*atom.node, "exclusiveMaximum"));
    if (atom.name == "exclusiveMinimum") Lower(value, false);
    if (atom.name == "exclusiveMaximum") Raise(value, false);
    if (atom.name != "enum" && atom.name != "const") return absl::OkStatus();
    const bool is_list = atom.name == "enum";
    const bool excludes_numbers =
        is_list ? std::any_of(value.begin(), value.end(), [](const SchemaJson& v) { return v.is_number(); })
                : value.is_number();
    if (!excludes_numbers) return absl::OkStatus();
    return context_.Refuse(atom.origin, atom.origin_keyword,
                           "single numbers cannot be excluded; list the allowed values with \"enum\"");
  }

  absl::StatusOr<std::optional<NumberPart>> FinishWhole(NumberPart part) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const auto edge = static_cast<long double>(kMost);
    if (low_) {
      const long double low = NumberOf(low_->value);
      const long double least = low_->open ? std::floor(low) + 1 : std::ceil(low);
      if (least > edge) return context_.Refuse(node_, "minimum", "bounds of integers must be within 64 bits");
      part.least = least < -edge ? -kMost : static_cast<int64_t>(least);
    }
    if (high_) {
      const long double high = NumberOf(high_->value);
      const long double most = high_->open ? std::ceil(high) - 1 : std::floor(high);
      if (most < -edge) return context_.Refuse(node_, "maximum", "bounds of integers must be within 64 bits");
      part.most = most > edge ? kMost : static_cast<int64_t>(most);
    }
    part.multiple_of = divisor_;
    if (part.least && part.most && *part.least > *part.most) return std::nullopt;
    if (divisor_ > 1) return FinishMultiples(part);
    return part;
  }

  absl::StatusOr<std::optional<NumberPart>> FinishMultiples(NumberPart part) {
    if (part.least && part.most) {
      const __int128 width = static_cast<__int128>(*part.most) - *part.least + 1;
      const int64_t over = *part.most % divisor_;
      const int64_t last = *part.most - (over < 0 ? over + divisor_ : over);
      if (last < *part.least) return std::nullopt;
      if (width <= kMaxDividedRange) return part;
    } else if (!part.least && !part.most && divisor_ <= kMaxDivisor) {
      return part;
    }
    return context_.Refuse(
        divided_, "multipleOf",
        absl::StrCat("multipleOf is enforced up to ", kMaxDivisor, " without bounds, or between a ",
                     "minimum and a maximum that are at most ", kMaxDividedRange, " apart"));
  }

  GateContext& context_;
  std::optional<Bound> low_;
  std::optional<Bound> high_;
  int64_t divisor_ = 1;
  bool whole_by_divisor_ = false;
  const SchemaJson* node_ = nullptr;
  const SchemaJson* divided_ = nullptr;
  const SchemaJson* fraction_ = nullptr;
};

}  // namespace

absl::StatusOr<std::optional<NumberPart>> BuildNumber(const AtomSet& set, GateContext* context) {
  NumberBounds bounds(context);
  for (const Atom& atom : set.atoms) RETURN_IF_ERROR(bounds.Add(atom));
  return bounds.Finish(set.types & kNumberType);
}

}  // namespace somnus
