#include "tools/cli/args.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace somnus::cli {
namespace {

// Edits (insert, delete, replace) between two short names.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

const Flag* Find(const Command& command, absl::string_view name) {
  for (const Flag& flag : command.flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status UnknownFlag(const Command& command, absl::string_view name) {
  std::vector<std::string> names;
  for (const Flag& flag : command.flags) names.push_back(flag.name);
  const std::string nearest = Nearest(name, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag --", name, nearest.empty() ? "" : absl::StrCat(" (did you mean --", nearest, "?)")));
}

}  // namespace

std::string WithHyphens(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

std::string Nearest(absl::string_view name, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = 4;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string HelpText(const Command& command) {
  std::string text = absl::StrCat("usage: ", command.synopsis, "\n\n", command.about, "\n");
  if (!command.flags.empty()) absl::StrAppend(&text, "\nflags:\n");
  for (const Flag& flag : command.flags) {
    const std::string left =
        absl::StrCat("--", flag.name, flag.value.empty() || flag.value[0] == '[' ? "" : " ", flag.value);
    absl::StrAppendFormat(&text, "  %-42s %s\n", left, flag.help);
  }
  return text;
}

absl::StatusOr<Args> Args::Parse(const Command& command, const std::vector<std::string>& args) {
  Args parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--") {
      parsed.positional_.insert(parsed.positional_.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (!absl::ConsumePrefix(&arg, "--")) {
      parsed.positional_.push_back(args[i]);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = WithHyphens(arg.substr(0, equals));
    const Flag* flag = Find(command, name);
    if (flag == nullptr) return UnknownFlag(command, name);
    if (flag->value.empty()) {
      if (equals != arg.npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      parsed.values_[name] = "";
    } else if (equals != arg.npos) {
      parsed.values_[name] = std::string(arg.substr(equals + 1));
    } else if (absl::StartsWith(flag->value, "[")) {
      parsed.values_[name] = "true";
    } else if (i + 1 < args.size()) {
      parsed.values_[name] = args[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: ", flag->value));
    }
  }
  return parsed;
}

bool Args::Has(absl::string_view name) const { return values_.contains(name); }

std::string Args::Get(absl::string_view name, absl::string_view otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string(otherwise) : found->second;
}

absl::StatusOr<int64_t> Args::GetInt(absl::string_view name, int64_t otherwise, int64_t low,
                                     int64_t high) const {
  if (!Has(name)) return otherwise;
  int64_t value = 0;
  if (!absl::SimpleAtoi(Get(name), &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--%s must be an integer in [%d, %d], not '%s'", name, low, high, Get(name)));
  }
  return value;
}

absl::StatusOr<bool> Args::GetBool(absl::string_view name, bool otherwise) const {
  if (!Has(name)) return otherwise;
  const std::string value = Get(name);
  if (value == "true" || value == "1") return true;
  if (value == "false" || value == "0") return false;
  return absl::InvalidArgumentError(absl::StrFormat("--%s must be true or false, not '%s'", name, value));
}

absl::StatusOr<double> Args::GetDouble(absl::string_view name, double otherwise, double low,
                                       double high) const {
  if (!Has(name)) return otherwise;
  double value = 0;
  if (!absl::SimpleAtod(Get(name), &value) || !(value >= low && value <= high)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--%s must be a number in [%g, %g], not '%s'", name, low, high, Get(name)));
  }
  return value;
}

}  // namespace somnus::cli
