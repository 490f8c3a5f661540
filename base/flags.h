#pragma once
// Command lines: each program has one table of flags, which parsing, --help and --version read.
//
//   struct Options {
//     int32_t port = 8000;
//     absl::Duration grace = absl::Seconds(10);
//   };
//   FlagTable Table(Options* o) {
//     return {.program = "server",
//             .usage = "server [flags]",
//             .about = "Serves.",
//             .groups = {{"Flags",
//                         {Flag::Int("port", &o->port, 0, 65535, "listen port; 0: any"),
//                          Flag::Time("grace", &o->grace, absl::ZeroDuration(), absl::Hours(1), "time to
//                          end")}}}};
//   }
//
// A command line may say --name=value or --name value, and --name or --no-name for a switch. '-' and '_' are
// the same in names. "--" ends the flags. An argument that is no flag is positional. A flag that is given
// twice has its last value. A flag that takes more values takes the words that follow: --name A B.
//
// Ownership: a table borrows the variables that its flags set. A variable's value when its flag is made is
// the default, which --help prints. A std::optional variable tells "not given" from any value. Thread
// compatible.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace somnus {

// One row of a table. Names have hyphens between words and none in front. A setter returns InvalidArgument
// for a value that the flag does not take; the error message continues a sentence that starts with the value:
// "is not a whole number from 0 to 65535".
struct Flag {
  using Setter = std::function<absl::Status(const std::string& value)>;

  std::string name;
  std::string value_name;  // of the value, as --help shows it: "N", "PATH"; empty: a switch
  std::string help;
  std::string default_text;          // for --help; empty: no default is shown
  std::string bounds;                // for --help; empty: no bounds are shown
  std::vector<std::string> aliases;  // other spellings, which --help does not show
  // The words after "--name VALUE" are further values, and the setter gets all of them, joined by '\n'.
  bool takes_more = false;
  Setter set;

  // V is the type below or std::optional of it; bounds are inclusive.
  // int32_t, int64_t or uint64_t.
  template <typename V>
  static Flag Int(std::string name, V* value, int64_t low, int64_t high, std::string help);
  // double.
  template <typename V>
  static Flag Number(std::string name, V* value, double low, double high, std::string help);
  // std::string, never set to an empty string.
  template <typename V>
  static Flag Text(std::string name, V* value, std::string help);
  // bool.
  template <typename V>
  static Flag Switch(std::string name, V* value, std::string help);
  // absl::Duration, as ParseTime reads it.
  template <typename V>
  static Flag Time(std::string name, V* value, absl::Duration low, absl::Duration high, std::string help);
  // int64_t, as ParseBytes reads it.
  template <typename V>
  static Flag Bytes(std::string name, V* value, int64_t low, int64_t high, std::string help);
  // Whole numbers, separated by commas; 1024 at most.
  static Flag Ints(std::string name, std::vector<int32_t>* value, int64_t low, int64_t high,
                   std::string help);
  // A word out of `choices`, each of which stands for a value.
  template <typename V>
  static Flag OneOf(std::string name, V* value, std::vector<std::pair<std::string, V>> choices,
                    std::string help);
  // Anything else.
  static Flag Custom(std::string name, std::string value_name, std::string default_text, Setter set,
                     std::string help);

  // These change a row under construction: Flag::Text(...).Shows("PATH").Alias("file").
  Flag Shows(std::string text) &&;
  Flag Default(std::string text) &&;
  Flag Alias(std::string other_name) &&;
  Flag TakesMore() &&;
};

struct FlagGroup {
  std::string title;
  std::vector<Flag> flags;
};

// Every table has --help (-h), --help=all, --help=flags (for shells that complete words) and --version
// without rows for them.
struct FlagTable {
  std::string program;  // "coordinator"
  std::string usage;    // "coordinator [--model] PATH [flags]"
  std::string about;    // what the program does, before the flags
  std::vector<FlagGroup> groups;
  size_t max_positional = 0;
  // Names of the flags that most users need: --help prints these flags alone, and --help=all every flag.
  // Empty: both print every flag.
  std::vector<std::string> common;
};

struct ParsedArgs {
  // Parsing stops at help, help_all, help_flags or version.
  bool help = false;
  bool help_all = false;
  bool help_flags = false;
  bool version = false;
  std::vector<std::string> positional;
};

// Parses `args`, which do not include the program's name. InvalidArgument names the flag and says what is
// wrong: "--port: '70000' is not a whole number from 0 to 65535"; for an unknown flag the nearest name, too:
// "unknown flag --prot: did you mean --port?". Flags before the wrong one have been set.
absl::StatusOr<ParsedArgs> ParseArgs(const FlagTable& table, const std::vector<std::string>& args);

// Returns what --help=all prints: usage, about, then every row with its default and bounds.
std::string FullHelpText(const FlagTable& table);
// Returns what --help prints: the same with the rows of table.common alone, and the number of all flags.
std::string HelpText(const FlagTable& table);

// Returns what --help=flags prints: "--name\tVALUE\thelp" in a line for each flag; a switch has no VALUE.
std::string FlagListText(const FlagTable& table);

// Returns "somnus coordinator 0.1.0".
std::string VersionText(const FlagTable& table);

// For main: parses argv into the table's variables, and prints help, the version or an error. Returns an exit
// code when the program must end now: 0, 1 when stdout cannot be written, or 2 for wrong flags.
std::optional<int> ParseCommandLine(const FlagTable& table, int argc, const char* const* argv,
                                    std::vector<std::string>* positional = nullptr);

// Prints "program: message" to stderr and returns 2: for flags that are wrong only in combination.
int UsageError(const FlagTable& table, const absl::Status& status);

// Returns the entry of `names` that `name` was likely meant to be; empty where no entry is near.
std::string NearestName(const std::string& name, const std::vector<std::string>& names);

template <typename V>
Flag Flag::OneOf(std::string name, V* value, std::vector<std::pair<std::string, V>> choices,
                 std::string help) {
  std::vector<std::string> names;
  std::string default_text;
  for (const auto& [word, meaning] : choices) {
    names.push_back(word);
    if (meaning == *value && default_text.empty()) default_text = word;
  }
  const auto set = [value, choices = std::move(choices),
                    all = absl::StrJoin(names, ", ")](const std::string& text) -> absl::Status {
    for (const auto& [word, meaning] : choices) {
      if (word != text) continue;
      *value = meaning;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("is not one of " + all);
  };
  return Custom(std::move(name), absl::StrJoin(names, "|"), std::move(default_text), set, std::move(help));
}

}  // namespace somnus
