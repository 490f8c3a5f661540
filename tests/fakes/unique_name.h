#pragma once
// Names of things that tests share with the whole host.

#include <string>

#include "absl/strings/str_cat.h"
#include "base/random_hex.h"

namespace somnus {

// A name that nobody else on this host has, of letters, digits and '-': for a group of ranks, a socket of the
// abstract name space, shared memory or a file in /tmp. The name is random: sandboxed tests run in PID
// namespaces of their own, where process ids are alike, but share all these kinds of names.
inline std::string UniqueName() { return absl::StrCat("somnus-test-", RandomHex(8)); }

}  // namespace somnus
