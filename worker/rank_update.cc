#include "worker/rank_update.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kMaxIdBytes = 128;

}  // namespace

absl::Status RankUpdate::CheckId(const std::string& id) {
  if (!id.empty() && id.size() <= kMaxIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("update_id: has ", id.size(), " bytes, not 1 to ", kMaxIdBytes));
}

void RankUpdate::Begin(const std::string& id, std::unique_ptr<UpdatedTensors> tensors) {
  under_way_ = UnderWay{.id = id, .tensors = std::move(tensors)};
}

absl::Status RankUpdate::Require(const std::string& id, const char* call) const {
  if (under_way_.has_value() && under_way_->id == id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": update ", id.substr(0, kMaxIdBytes), " is not under way"));
}

absl::Status RankUpdate::RequireStream(uint64_t stream) const {
  if (under_way_.has_value() && under_way_->stream == stream) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "UpdateWeights: the stream's update is over, or another stream has begun");
}

absl::StatusOr<uint64_t> RankUpdate::OpenStream(const std::string& id) {
  RETURN_IF_ERROR(Require(id, "UpdateWeights"));
  under_way_->tensors->EndStream().IgnoreError();  // the stream before is lost
  return under_way_->stream = ++last_stream_;
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> RankUpdate::CloseStream(uint64_t stream) {
  RETURN_IF_ERROR(RequireStream(stream));
  under_way_->stream = 0;
  RETURN_IF_ERROR(under_way_->tensors->EndStream());
  return Sums();
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> RankUpdate::Received(const std::string& id) const {
  RETURN_IF_ERROR(Require(id, "UpdateWeights"));
  return Sums();
}

v1::WorkerUpdateWeightsResponse RankUpdate::Sums() const {
  v1::WorkerUpdateWeightsResponse response;
  response.set_num_tensors(under_way_->tensors->num_tensors());
  response.set_num_bytes(under_way_->tensors->num_bytes());
  response.set_checksum(under_way_->tensors->checksum());
  return response;
}

}  // namespace somnus
