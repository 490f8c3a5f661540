#pragma once
// Flags with hyphens or underscores, as operators of either habit write them.

#include <string>
#include <vector>

namespace somnus {

// argv with '-' as '_' in flag names (not in values), null-terminated. The strings live in `storage`.
std::vector<char*> NormalizeFlagNames(int argc, char** argv, std::vector<std::string>* storage);

}  // namespace somnus
