#include "coordinator/residency/declined.h"

#include "absl/strings/cord.h"

namespace somnus {
namespace {

constexpr absl::string_view kMark = "somnus/declined";

}  // namespace

absl::Status DeclinedError(absl::string_view why) {
  absl::Status status = absl::FailedPreconditionError(why);
  status.SetPayload(kMark, absl::Cord());
  return status;
}

bool IsDeclined(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

}  // namespace somnus
