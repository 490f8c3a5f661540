#pragma once
// Names and tokens that nobody can guess.

#include <cstddef>
#include <string>

namespace somnus {

// `bytes` random bytes from the system, as twice as many hexadecimal digits.
std::string RandomHex(size_t bytes);

}  // namespace somnus
