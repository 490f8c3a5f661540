#pragma once
// Which build of this program runs. Ranks of one group compare it: two builds may add up in different orders
// or read a message differently, so they never serve together.

#include <string>

namespace somnus {

// The GNU build id of the running program, in hexadecimal: equal for equal builds, different for others.
// The linker writes it into the program. For a program that has none it is "version-" and the version, which
// at least tells versions apart. Thread safe.
const std::string& BuildId();

}  // namespace somnus
