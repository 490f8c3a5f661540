#include "kernels/cuda/debug_switches.h"

#include <stdlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

struct Switch {
  const char* name;
  bool DebugSwitches::*member;
};
constexpr Switch kSwitches[] = {
    {"programmatic_launch", &DebugSwitches::programmatic_launch},
    {"fused_all_reduce", &DebugSwitches::fused_all_reduce},
    {"cublaslt", &DebugSwitches::cublaslt},
    {"peer_memory", &DebugSwitches::peer_memory},
};

absl::Status TurnOff(absl::string_view name, DebugSwitches* switches) {
  std::string known;
  for (const Switch& each : kSwitches) {
    if (name == each.name) {
      switches->*each.member = false;
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", each.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("SOMNUS_CUDA_DISABLE: '", name, "' is not one of ", known));
}

}  // namespace

absl::StatusOr<DebugSwitches> ParseDebugSwitches(absl::string_view disabled) {
  DebugSwitches switches;
  for (absl::string_view word : absl::StrSplit(disabled, ',', absl::SkipWhitespace())) {
    if (absl::Status status = TurnOff(absl::StripAsciiWhitespace(word), &switches); !status.ok())
      return status;
  }
  return switches;
}

absl::StatusOr<DebugSwitches> ReadDebugSwitches() {
  const char* const disabled = getenv("SOMNUS_CUDA_DISABLE");
  return ParseDebugSwitches(disabled == nullptr ? "" : disabled);
}

}  // namespace somnus
