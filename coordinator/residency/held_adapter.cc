#include "coordinator/residency/held_adapter.h"

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status AdapterUnreadable(const std::string& name, const absl::Status& cause) {
  const char* const why = absl::IsNotFound(cause)            ? "have gone"
                          : absl::IsDataLoss(cause)          ? "have changed since it was loaded"
                          : absl::IsResourceExhausted(cause) ? "find no memory on the workers"
                                                             : "have changed, or are unreadable";
  return absl::DataLossError(absl::StrCat("the adapter '", name, "' cannot be read again: its files ", why));
}

}  // namespace somnus
