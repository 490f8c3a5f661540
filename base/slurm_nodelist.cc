#include "base/slurm_nodelist.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kMaxListBytes = 64 << 10;
constexpr size_t kMaxNameBytes = 255;  // of a name in the DNS
constexpr size_t kMaxDigits = 9;       // more than any cluster has nodes

// Reads a list from start to end.
class NodeListReader {
 public:
  explicit NodeListReader(absl::string_view list) : list_(list) {}

  // The first name, once the whole list was found to be right.
  absl::StatusOr<std::string> First() {
    ASSIGN_OR_RETURN(std::string first, Name());
    while (Take(',')) RETURN_IF_ERROR(Name().status());
    if (at_ < list_.size()) return Wrong("has an unexpected character");
    return first;
  }

 private:
  bool Take(char wanted) {
    if (at_ == list_.size() || list_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  static bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }

  // Letters and bracketed ranges, in any order. Returns the first name of the range.
  absl::StatusOr<std::string> Name() {
    std::string name;
    while (at_ < list_.size()) {
      if (Take('[')) {
        ASSIGN_OR_RETURN(const std::string number, Ranges());
        name += number;
      } else if (IsNameByte(list_[at_])) {
        name += list_[at_++];
      } else {
        break;
      }
      if (name.size() > kMaxNameBytes) return Wrong("has a name that is too long");
    }
    // A name that starts with a hyphen would look like a flag to the program that gets the name.
    if (name.empty() || name[0] == '-') return Wrong("has no name");
    return name;
  }

  // "0-3,7]": returns the first number as spelled, zeros in front included.
  absl::StatusOr<std::string> Ranges() {
    std::string first;
    do {
      ASSIGN_OR_RETURN(const std::string low, Number());
      if (first.empty()) first = low;
      if (!Take('-')) continue;
      ASSIGN_OR_RETURN(const std::string high, Number());
      int32_t from, to;
      if (!absl::SimpleAtoi(low, &from) || !absl::SimpleAtoi(high, &to) || from > to) {
        return Wrong("has a range that ends before it starts");
      }
    } while (Take(','));
    if (!Take(']')) return Wrong("has a '[' without its ']'");
    return first;
  }

  absl::StatusOr<std::string> Number() {
    std::string digits;
    while (at_ < list_.size() && absl::ascii_isdigit(list_[at_])) digits += list_[at_++];
    if (digits.empty() || digits.size() > kMaxDigits) return Wrong("has no number of up to 9 digits");
    return digits;
  }

  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(what, " at byte ", at_));
  }

  const absl::string_view list_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::string> FirstSlurmNode(absl::string_view list) {
  if (list.size() > kMaxListBytes) return absl::InvalidArgumentError("is longer than 64 KiB");
  return NodeListReader(list).First();
}

}  // namespace somnus
