#pragma once
// Command-line flags of one subcommand: --name value, --name=value, --switch; hyphens and underscores are the
// same.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus::cli {

struct Flag {
  std::string name;  // with hyphens, without the leading ones
  // What stands for the value in the help. Empty: a switch; "[=true|false]": a switch that may have a value.
  std::string value;
  std::string help;
};

struct Command {
  std::string name;
  std::string synopsis;  // "somnus chat [MESSAGE] [flags]"
  std::string summary;   // one line for the list of commands
  std::string about;     // paragraphs for the command's own help
  std::vector<Flag> flags;
};

std::string HelpText(const Command& command);

class Args {
 public:
  // InvalidArgument for a flag that the command has not (with the nearest name), or a value that is missing.
  // "--" ends the flags.
  static absl::StatusOr<Args> Parse(const Command& command, const std::vector<std::string>& args);

  bool Has(absl::string_view name) const;
  std::string Get(absl::string_view name, absl::string_view otherwise = "") const;
  // InvalidArgument, naming the flag, for what is no number in [low, high].
  absl::StatusOr<int64_t> GetInt(absl::string_view name, int64_t otherwise, int64_t low, int64_t high) const;
  // Of a switch that may have a value: true, false, 1 or 0.
  absl::StatusOr<bool> GetBool(absl::string_view name, bool otherwise) const;
  absl::StatusOr<double> GetDouble(absl::string_view name, double otherwise, double low, double high) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  std::map<std::string, std::string, std::less<>> values_;
  std::vector<std::string> positional_;
};

// "max_model_len" -> "max-model-len".
std::string WithHyphens(absl::string_view name);

// The name in `names` that `name` was likely meant to be, or "".
std::string Nearest(absl::string_view name, const std::vector<std::string>& names);

}  // namespace somnus::cli
