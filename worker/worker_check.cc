// The Worker's self-check, which is a step in all but its message.
#include "base/status_macros.h"
#include "worker/worker.h"

namespace somnus {

absl::StatusOr<v1::SelfCheckResponse> Worker::SelfCheck(const v1::SelfCheckRequest& request) {
  return InEpoch<absl::StatusOr<v1::SelfCheckResponse>>(request.group_epoch(), [&] { return DoSelfCheck(); });
}

absl::StatusOr<v1::SelfCheckResponse> Worker::DoSelfCheck() {
  RETURN_IF_ERROR(RequireComputable("SelfCheck"));
  ranks_may_differ_ = false;
  if (absl::Status status = communicator_.Resume(); !status.ok()) return Fail(epoch_, status);
  const absl::StatusOr<uint64_t> fingerprint = runner_->SelfCheck();
  if (!fingerprint.ok()) return Fail(epoch_, fingerprint.status());
  v1::SelfCheckResponse response;
  response.set_weights_version(weights_version());
  response.set_fingerprint(*fingerprint);
  return response;
}

}  // namespace somnus
