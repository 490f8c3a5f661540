// Parses command lines by a table of flags, and writes --help and --version.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"
#include "base/version.h"

namespace somnus {
namespace {

constexpr int kExitUsage = 2;
constexpr size_t kHelpColumn = 36;
constexpr size_t kHelpWidth = 112;

template <typename Visit>
void ForEach(const FlagTable& table, const Visit& visit) {
  for (const FlagGroup& group : table.groups) {
    for (const Flag& flag : group.flags) visit(flag);
  }
}

bool Is(const Flag& flag, absl::string_view name) {
  return flag.name == name || std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end();
}

const Flag* Find(const FlagTable& table, absl::string_view name) {
  const Flag* found = nullptr;
  ForEach(table, [&](const Flag& flag) {
    if (found == nullptr && Is(flag, name)) found = &flag;
  });
  return found;
}

absl::Status UnknownFlag(const FlagTable& table, const std::string& given) {
  std::vector<std::string> names = {"help", "version"};
  ForEach(table, [&](const Flag& flag) {
    names.push_back(flag.name);
    names.insert(names.end(), flag.aliases.begin(), flag.aliases.end());
  });
  const size_t dashes = std::min(given.find_first_not_of('-'), given.size());
  std::string nearest = NearestName(absl::StrReplaceAll(given.substr(dashes), {{"_", "-"}}), names);
  if (const Flag* flag = Find(table, nearest); flag != nullptr) nearest = flag->name;
  return absl::InvalidArgumentError(
      nearest.empty() ? absl::StrCat("unknown flag ", given, "; see --help")
                      : absl::StrCat("unknown flag ", given, ": did you mean --", nearest, "?"));
}

// A dash and a letter start a flag; "-", "-1" and "- text" do not.
bool LooksLikeFlag(const std::string& arg) {
  if (absl::StartsWith(arg, "--")) return true;
  return arg.size() > 1 && arg[0] == '-' && absl::ascii_isalpha(arg[1]) && !absl::StrContains(arg, ' ');
}

absl::Status Set(const Flag& flag, const std::string& value) {
  const absl::Status status = flag.set(value);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", flag.name, ": '", value, "' ", status.message()));
}

// Parses the flag at args[*at]; moves *at to the flag's value where the value is the next argument.
absl::Status ParseFlag(const FlagTable& table, const std::vector<std::string>& args, size_t* at) {
  const std::string& arg = args[*at];
  const size_t equals = std::min(arg.find('='), arg.size());
  const std::string given = arg.substr(0, equals);
  if (!absl::StartsWith(given, "--")) return UnknownFlag(table, given);
  const std::string name = absl::StrReplaceAll(given.substr(2), {{"_", "-"}});
  const Flag* flag = Find(table, name);
  if (flag != nullptr && equals < arg.size()) return Set(*flag, arg.substr(equals + 1));
  if (flag != nullptr && flag->value_name.empty()) return Set(*flag, "true");
  if (flag != nullptr) {
    if (*at + 1 == args.size() || absl::StartsWith(args[*at + 1], "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, ": has no value; ", flag->value_name, " is wanted"));
    }
    std::string value = args[++*at];
    while (flag->takes_more && *at + 1 < args.size() && !LooksLikeFlag(args[*at + 1]))
      absl::StrAppend(&value, "\n", args[++*at]);
    return Set(*flag, value);
  }
  if (absl::StartsWith(name, "no-") && equals == arg.size()) {
    flag = Find(table, name.substr(3));
    if (flag != nullptr && flag->value_name.empty()) return Set(*flag, "false");
  }
  return UnknownFlag(table, given);
}

// Returns `text` in lines of kHelpWidth columns; all but the first are indented to kHelpColumn.
std::string Wrapped(const std::string& text) {
  std::string out;
  size_t column = kHelpColumn;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(&out, "\n", std::string(kHelpColumn, ' '));
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      absl::StrAppend(&out, " ");
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

std::string HelpRow(const Flag& flag) {
  std::string left = absl::StrCat("  --", flag.name);
  if (!flag.value_name.empty()) absl::StrAppend(&left, "=", flag.value_name);
  std::vector<std::string> facts;
  if (!flag.default_text.empty()) facts.push_back(absl::StrCat("default: ", flag.default_text));
  if (!flag.bounds.empty()) facts.push_back(flag.bounds);
  std::string help = flag.help;
  if (!facts.empty()) absl::StrAppend(&help, " (", absl::StrJoin(facts, "; "), ")");
  if (left.size() >= kHelpColumn) absl::StrAppend(&left, "\n", std::string(kHelpColumn, ' '));
  return absl::StrCat(absl::StrFormat("%-*s", static_cast<int>(kHelpColumn), left), Wrapped(help), "\n");
}

// The help of the flags that `shown` chooses.
template <typename Shown>
std::string HelpOf(const FlagTable& table, const Shown& shown) {
  std::string text = absl::StrCat("usage: ", table.usage, "\n\n", table.about, "\n");
  bool times = false, bytes = false;
  size_t num_flags = 0, num_shown = 0;
  for (const FlagGroup& group : table.groups) {
    bool has_title = false;
    for (const Flag& flag : group.flags) {
      ++num_flags;
      if (!shown(flag)) continue;
      ++num_shown;
      if (!std::exchange(has_title, true)) absl::StrAppend(&text, "\n", group.title, ":\n");
      absl::StrAppend(&text, HelpRow(flag));
      times |= flag.value_name == "TIME";
      bytes |= flag.value_name == "BYTES";
    }
  }
  absl::StrAppend(&text, "\n  --help, --version\n");
  if (num_shown < num_flags)
    absl::StrAppend(&text, "  --help=all                        every flag: ", num_flags, "\n");
  if (times) absl::StrAppend(&text, "\nTIME is like 10s, 500ms or 2m; a plain number is seconds.\n");
  if (bytes)
    absl::StrAppend(&text, times ? "" : "\n", "BYTES is like 512MiB or 2G; a plain number is bytes.\n");
  return text;
}

// The number of edits (insert, delete, replace) that make `a` into `b`.
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

}  // namespace

absl::StatusOr<ParsedArgs> ParseArgs(const FlagTable& table, const std::vector<std::string>& args) {
  ParsedArgs parsed;
  bool flags_end = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!flags_end && arg == "--") {
      flags_end = true;
    } else if (flags_end || !LooksLikeFlag(arg)) {
      if (parsed.positional.size() == table.max_positional) {
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arg, "'"));
      }
      parsed.positional.push_back(arg);
    } else if (arg == "--help" || arg == "-h" || arg == "--help=all" || arg == "--help=flags" ||
               arg == "--version") {
      (arg == "--version"      ? parsed.version
       : arg == "--help=all"   ? parsed.help_all
       : arg == "--help=flags" ? parsed.help_flags
                               : parsed.help) = true;
      return parsed;
    } else if (const absl::Status status = ParseFlag(table, args, &i); !status.ok()) {
      return status;
    }
  }
  return parsed;
}

std::string FullHelpText(const FlagTable& table) {
  return HelpOf(table, [](const Flag&) { return true; });
}

std::string HelpText(const FlagTable& table) {
  if (table.common.empty()) return FullHelpText(table);
  return HelpOf(table, [&](const Flag& flag) {
    return std::find(table.common.begin(), table.common.end(), flag.name) != table.common.end();
  });
}

std::string FlagListText(const FlagTable& table) {
  std::string text;
  ForEach(table, [&](const Flag& flag) {
    absl::StrAppend(&text, "--", flag.name, "\t", flag.value_name, "\t", flag.help, "\n");
  });
  return text;
}

std::string VersionText(const FlagTable& table) {
  return absl::StrCat(absl::StartsWith(table.program, "somnus") ? "" : "somnus ", table.program, " ",
                      kVersion);
}

std::optional<int> ParseCommandLine(const FlagTable& table, int argc, const char* const* argv,
                                    std::vector<std::string>* positional) {
  absl::StatusOr<ParsedArgs> parsed = ParseArgs(table, std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.ok()) return UsageError(table, parsed.status());
  if (parsed->help || parsed->help_all) {
    const std::string text = parsed->help_all ? FullHelpText(table) : HelpText(table);
    return std::fputs(text.c_str(), stdout) < 0 ? 1 : 0;
  }
  if (parsed->help_flags) return std::fputs(FlagListText(table).c_str(), stdout) < 0 ? 1 : 0;
  if (parsed->version) return std::printf("%s\n", VersionText(table).c_str()) < 0 ? 1 : 0;
  if (positional != nullptr) *positional = std::move(parsed->positional);
  return std::nullopt;
}

int UsageError(const FlagTable& table, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", table.program.c_str(), std::string(status.message()).c_str());
  return kExitUsage;
}

std::string NearestName(const std::string& name, const std::vector<std::string>& names) {
  const size_t limit = std::max<size_t>(2, name.size() / 3);
  std::string best;
  size_t best_distance = limit + 1;
  for (const std::string& candidate : names) {
    // A name that was not typed to its end counts as one wrong letter.
    const bool starts = name.size() >= 3 && absl::StartsWith(candidate, name);
    const size_t distance = starts ? 1 : EditDistance(name, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace somnus
