#pragma once
// Parses the values of flags that no simple type covers. InvalidArgument names the fault of a value, without
// the flag's name.

#include <string>

#include "absl/status/status.h"
#include "coordinator/flags/flags.h"

namespace somnus {

// "local:N", "remote:N", "auto", or N, which means local:N.
absl::Status SetWorkers(const std::string& value, Flags* flags);
// Names, one in a line: the model's name, then its aliases.
absl::Status SetServedNames(const std::string& value, Flags* flags);
// "/llm" or "/llm/".
absl::Status SetRootPath(const std::string& value, Flags* flags);
absl::Status SetKvCacheDType(const std::string& value, Flags* flags);
// "auto", "off" or a node's number.
absl::Status SetNuma(const std::string& value, Flags* flags);
// A size as ParseBytes reads sizes; but a bare number, as vLLM has, counts GiB, up to a size that no host
// has.
absl::Status SetSwapSpace(const std::string& value, Flags* flags);

}  // namespace somnus
