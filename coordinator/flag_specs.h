#pragma once
// The table of flags that ParseFlags and FlagsHelp go by.

#include <functional>
#include <string>
#include <vector>

#include "coordinator/flags.h"

namespace somnus {

// Parses a value into Flags; answers what is wrong with it, empty when nothing is.
using FlagSetter = std::function<std::string(const std::string&, Flags*)>;

struct FlagSpec {
  const char* name;   // with hyphens
  const char* value;  // for --help; empty: a boolean
  const char* help;
  FlagSetter set;
};

// In the order of --help.
const std::vector<FlagSpec>& FlagSpecs();

}  // namespace somnus
